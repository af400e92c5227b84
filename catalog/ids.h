// Public ids: a prefix that says the kind, and 32 hex digits (128 bits of getrandom(2)). An id is a
// name, not a permission.
#pragma once

#include <string>
#include <string_view>

namespace cairn {

inline constexpr std::string_view kOrganizationPrefix = "org_";
inline constexpr std::string_view kApiKeyPrefix = "key_";
inline constexpr std::string_view kEnvironmentPrefix = "env_";
inline constexpr std::string_view kSessionPrefix = "sess_";
inline constexpr std::string_view kTurnPrefix = "turn_";
inline constexpr std::string_view kArtifactPrefix = "art_";
inline constexpr std::string_view kSnapshotPrefix = "snap_";
inline constexpr std::string_view kOperationPrefix = "op_";
inline constexpr std::string_view kBaseImagePrefix = "base_";

std::string NewId(std::string_view prefix);
// `prefix` and exactly 32 lower-case hex digits. What fails this is in no key: look-ups by it are
// NotFound.
bool IsId(std::string_view text, std::string_view prefix);

// "cairn_sk_" and 43 base64url characters (256 random bits): an API key's secret.
std::string NewApiSecret();
bool LooksLikeApiSecret(std::string_view text);

}  // namespace cairn
