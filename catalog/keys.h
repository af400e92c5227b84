// Keys of the catalog: their layout (docs/formats/catalog.md) and nothing else. Parts are ids,
// volumes, numbers and digests, all of a fixed width, so that no part holds a '/' and byte order is
// the order of the parts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "store/base/hex.h"

namespace cairn::keys {

// Builds "a/b/c".
template <typename... Parts>
std::string Join(std::string_view first, const Parts&... parts) {
  std::string key(first);
  ((key += '/', key += std::string_view(parts)), ...);
  return key;
}
// 16 hex digits: order of the text is order of the number. Times are never negative.
std::string Number(uint64_t number);

inline constexpr std::string_view kStoreMeta = "meta/store";
inline constexpr std::string_view kSecrets = "meta/secrets";
inline constexpr std::string_view kScrub = "meta/scrub";

inline std::string Organization(std::string_view org) { return Join("org", org); }
inline std::string ApiKey(std::string_view org, std::string_view key) {
  return Join("key", org, key);
}
inline std::string Secret(std::string_view hmac) { return Join("secret", HexEncode(hmac)); }
inline std::string Environment(std::string_view org, std::string_view env) {
  return Join("env", org, env);
}
inline std::string EnvironmentAt(std::string_view org, int64_t created_ms, std::string_view env) {
  return Join("env_at", org, Number(static_cast<uint64_t>(created_ms)), env);
}
inline std::string Binding(std::string_view org, std::string_view env, std::string_view session) {
  return Join("binding", org, env, session);
}
inline std::string Fork(std::string_view org, std::string_view snapshot, std::string_view env) {
  return Join("fork", org, snapshot, env);
}
inline std::string Session(std::string_view org, std::string_view session) {
  return Join("session", org, session);
}
inline std::string SessionAt(std::string_view org, int64_t created_ms, std::string_view session) {
  return Join("session_at", org, Number(static_cast<uint64_t>(created_ms)), session);
}
inline std::string Turn(std::string_view org, std::string_view turn) {
  return Join("turn", org, turn);
}
inline std::string TurnAt(std::string_view org, std::string_view session, int64_t created_ms,
                          std::string_view turn) {
  return Join("turn_at", org, session, Number(static_cast<uint64_t>(created_ms)), turn);
}
inline std::string Artifact(std::string_view org, std::string_view session, std::string_view art) {
  return Join("artifact", org, session, art);
}
inline std::string ArtifactAt(std::string_view org, std::string_view session, int64_t created_ms,
                              std::string_view art) {
  return Join("artifact_at", org, session, Number(static_cast<uint64_t>(created_ms)), art);
}
inline std::string Snapshot(std::string_view org, std::string_view snapshot) {
  return Join("snapshot", org, snapshot);
}
inline std::string SnapshotAt(std::string_view org, std::string_view env, int64_t created_ms,
                              std::string_view snapshot) {
  return Join("snapshot_at", org, env, Number(static_cast<uint64_t>(created_ms)), snapshot);
}
// `volume`: 16 bytes.
inline std::string Volume(std::string_view volume) { return Join("volume", HexEncode(volume)); }
inline std::string Point(std::string_view volume, uint64_t generation) {
  return Join("point", HexEncode(volume), Number(generation));
}
inline std::string Operation(std::string_view org, std::string_view op) {
  return Join("operation", org, op);
}
inline std::string Running(std::string_view org, std::string_view target, std::string_view op) {
  return Join("running", org, target, op);
}
inline std::string BaseImage(std::string_view base) { return Join("base", base); }
inline std::string BaseName(std::string_view hmac) { return Join("base_name", HexEncode(hmac)); }
inline std::string Idempotency(std::string_view org, std::string_view hmac) {
  return Join("idem", org, HexEncode(hmac));
}

// All keys below "a/b": [begin, end).
struct Range {
  std::string begin;
  std::string end;
};
template <typename... Parts>
Range Below(std::string_view first, const Parts&... parts) {
  const std::string prefix = Join(first, parts...);
  return {.begin = prefix + '/', .end = prefix + static_cast<char>('/' + 1)};
}

// The organization that a key belongs to ("org_..."), or empty (meta/, secret/, volume/, point/,
// base/, base_name/).
std::string_view OwnerOf(std::string_view key);
// The part after the last '/'.
std::string_view LastPart(std::string_view key);

}  // namespace cairn::keys
