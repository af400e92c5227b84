// The table from the first part of a key to the message that stands there
// (docs/formats/catalog.md), used by Check. A record that says who it is (id, org) must say what
// its key says.
#include "catalog/records.h"

#include <fmt/format.h>

namespace cairn {
namespace {

using catalog::IndexEntry;

Status Mismatch(std::string_view key, std::string_view field) {
  return Err(ErrorCode::kDataLoss,
             fmt::format("catalog record {}: its {} is another's", key, field));
}

template <typename Message>
Status Verify(std::string_view key, std::string_view value) {
  const Message message = CAIRN_TRY(ParseRecord<Message>(key, value));
  if constexpr (requires { message.org(); }) {
    const std::string_view owner = keys::OwnerOf(key);
    if (!owner.empty() && message.org() != owner) return Mismatch(key, "organization");
  }
  if constexpr (requires { std::string_view(message.id()); }) {
    const std::string_view last = keys::LastPart(key);
    const std::string_view first = key.substr(0, key.find('/'));
    const bool named_otherwise = first == "volume" || first == "secret" || first == "base_name";
    if (message.id() != last && !named_otherwise) {
      return Mismatch(key, "id");
    }
  }
  return {};
}

struct Kind {
  std::string_view first_part;
  Status (*verify)(std::string_view key, std::string_view value);
};
constexpr Kind kKinds[] = {
    {"org", Verify<catalog::Organization>},
    {"key", Verify<catalog::ApiKey>},
    {"secret", Verify<IndexEntry>},
    {"env", Verify<catalog::Environment>},
    {"env_at", Verify<IndexEntry>},
    {"binding", Verify<catalog::Binding>},
    {"fork", Verify<IndexEntry>},
    {"session", Verify<catalog::Session>},
    {"session_at", Verify<IndexEntry>},
    {"turn", Verify<catalog::Turn>},
    {"turn_at", Verify<IndexEntry>},
    {"artifact", Verify<catalog::Artifact>},
    {"artifact_at", Verify<IndexEntry>},
    {"snapshot", Verify<catalog::Snapshot>},
    {"snapshot_at", Verify<IndexEntry>},
    {"volume", Verify<catalog::Volume>},
    {"point", Verify<catalog::PointRecord>},
    {"operation", Verify<catalog::Operation>},
    {"running", Verify<IndexEntry>},
    {"base", Verify<catalog::BaseImage>},
    {"base_name", Verify<IndexEntry>},
    {"idem", Verify<catalog::IdempotencyKey>},
};

}  // namespace

Status VerifyRecord(std::string_view key, std::string_view value) {
  if (key == keys::kStoreMeta) return Verify<catalog::StoreMeta>(key, value);
  if (key == keys::kSecrets) return Verify<catalog::ServerSecrets>(key, value);
  if (key == keys::kScrub) return Verify<catalog::ScrubState>(key, value);
  const std::string_view first = key.substr(0, key.find('/'));
  for (const Kind& kind : kKinds) {
    if (kind.first_part == first) return kind.verify(key, value);
  }
  return Err(ErrorCode::kDataLoss, fmt::format("no kind of record has the key {}", key));
}

}  // namespace cairn
