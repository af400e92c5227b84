#include "api/http_error.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace cairn {
namespace {

TEST(HttpError, EachCodeHasItsStatus) {
  const std::pair<ErrorCode, int> table[] = {
      {ErrorCode::kNotFound, 404},         {ErrorCode::kAlreadyExists, 409},
      {ErrorCode::kExhausted, 507},        {ErrorCode::kUnavailable, 503},
      {ErrorCode::kAborted, 503},          {ErrorCode::kFailedPrecondition, 409},
      {ErrorCode::kPermissionDenied, 403}, {ErrorCode::kInvalidArgument, 400},
      {ErrorCode::kDataLoss, 500},         {ErrorCode::kInternal, 500},
  };
  for (const auto& [code, status] : table)
    EXPECT_EQ(ToHttpError(Error(code)).status, status) << ErrorCodeName(code);
}

TEST(HttpError, MessagesBelowNeverReachTheClient) {
  for (const ErrorCode code :
       {ErrorCode::kNotFound, ErrorCode::kAlreadyExists, ErrorCode::kExhausted,
        ErrorCode::kUnavailable, ErrorCode::kAborted, ErrorCode::kFailedPrecondition,
        ErrorCode::kPermissionDenied, ErrorCode::kInvalidArgument, ErrorCode::kDataLoss,
        ErrorCode::kInternal}) {
    const HttpResponse response =
        ErrorResponse(ToHttpError(Error(code, "/var/lib/cairn/packs/ab12 secret")));
    EXPECT_EQ(response.body.find("/var"), std::string::npos);
    EXPECT_EQ(response.body.find("secret"), std::string::npos);
  }
}

TEST(HttpError, MissingAndForeignAreTheSameBytes) {
  const auto missing = ErrorResponse(ToHttpError(Error(ErrorCode::kNotFound, "no such session")));
  const auto foreign =
      ErrorResponse(ToHttpError(Error(ErrorCode::kNotFound, "session of org_1", 2)));
  EXPECT_EQ(missing.body, foreign.body);
  EXPECT_EQ(missing.headers, foreign.headers);
  EXPECT_EQ(missing.status, foreign.status);
}

TEST(HttpError, BodyHasTheFourFieldsAndTheBlockers) {
  HttpError error = InvalidRequest("limit must be a number", "limit");
  error.blocking = {"sess_1"};
  const auto body = nlohmann::json::parse(ErrorResponse(error).body);
  EXPECT_EQ(body["error"]["type"], "invalid_request_error");
  EXPECT_EQ(body["error"]["code"], "invalid_request");
  EXPECT_EQ(body["error"]["message"], "limit must be a number");
  EXPECT_EQ(body["error"]["param"], "limit");
  EXPECT_EQ(body["error"]["blocking_ids"], nlohmann::json::array({"sess_1"}));
  EXPECT_TRUE(
      nlohmann::json::parse(ErrorResponse(NotFoundError()).body)["error"]["param"].is_null());
}

}  // namespace
}  // namespace cairn
