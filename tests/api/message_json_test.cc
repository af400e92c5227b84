#include "api/message_json.h"

#include <gtest/gtest.h>

#include "api/host.pb.h"

namespace cairn {
namespace {

TEST(MessageJson, KeysAreAlwaysThereAndNumbersAreNumbers) {
  host::EnvironmentInfo message;
  message.set_id("env_1");
  message.set_quota_bytes(1ull << 60);
  message.add_sessions("sess_1");
  message.set_mounted_at("/mnt/\xff");
  const auto json = MessageToJson(message);
  EXPECT_EQ(json["id"], "env_1");
  EXPECT_EQ(json["quota_bytes"], 1ull << 60);
  EXPECT_EQ(json["sessions"], nlohmann::json::array({"sess_1"}));
  EXPECT_EQ(json["name"], "");
  EXPECT_TRUE(json["volume"].is_null());
  EXPECT_EQ(json["mounted_at"], "/mnt/\xef\xbf\xbd");
  EXPECT_EQ(static_cast<int>(json.size()), host::EnvironmentInfo::descriptor()->field_count());
}

TEST(MessageJson, MapsEnumsAndNestedMessages) {
  host::HostRequest request;
  request.mutable_turn_end()->set_outcome(host::CANCELLED);
  EXPECT_EQ(MessageToJson(request)["turn_end"]["outcome"], "cancelled");
  host::SessionInfo session;
  (*session.mutable_metadata())["a"] = "b";
  EXPECT_EQ(MessageToJson(session)["metadata"]["a"], "b");
}

}  // namespace
}  // namespace cairn
