// Text in fixed order with a checksum (BACKUP), and lines in ascending order of path (MANIFEST),
// covered by the digest in BACKUP. Paths are checked here, once, because readers join them to a
// directory.
#include "store/manifest/backup_manifest.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "store/base/hex.h"

namespace cairn {
namespace {

constexpr std::string_view kFirstLine = "cairn backup";
constexpr uint32_t kVersion = 1;
constexpr size_t kDigestBytes = 32;

std::unexpected<Error> Damaged(std::string_view what) {
  return Err(ErrorCode::kDataLoss, fmt::format("BACKUP is damaged ({})", what));
}

template <typename T>
bool ParseNumber(std::string_view text, T& out) {
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), out);
  return !text.empty() && parsed.ec == std::errc() && parsed.ptr == text.data() + text.size();
}

bool IsSafePath(std::string_view path) {
  if (path.empty()) return false;
  while (true) {
    const size_t slash = path.find('/');
    const std::string_view part = path.substr(0, slash);
    const bool letters = std::ranges::all_of(part, [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
             c == '.' || c == '-' || c == '_';
    });
    if (!letters || part.find_first_not_of('.') == std::string_view::npos) return false;
    if (slash == std::string_view::npos) return true;
    path.remove_prefix(slash + 1);
  }
}

// Takes "name: value\n" off the front of `rest`.
std::optional<std::string_view> TakeLine(std::string_view& rest, std::string_view name) {
  const size_t end = rest.find('\n');
  if (end == std::string_view::npos) return std::nullopt;
  std::string_view line = rest.substr(0, end);
  if (!line.starts_with(name) || !line.substr(name.size()).starts_with(": ")) return std::nullopt;
  rest.remove_prefix(end + 1);
  return line.substr(name.size() + 2);
}

}  // namespace

std::string EncodeBackupMarker(const BackupMarker& marker) {
  std::string text = fmt::format(
      "{}\nversion: {}\nstate: {}\nstore: {}\nsource: {}\ncreated_ms: {}\nfiles: {}\nbytes: {}\n"
      "manifest: {}\n",
      kFirstLine, kVersion, marker.complete ? "complete" : "incomplete", marker.store.ToHex(),
      marker.source.ToHex(), marker.created_ms, marker.files, marker.bytes,
      HexEncode(marker.manifest_sha256));
  text += fmt::format("checksum: {:016x}\n", XXH3_64bits(text.data(), text.size()));
  return text;
}

Result<BackupMarker> DecodeBackupMarker(std::string_view text) {
  std::string_view rest = text;
  const std::string first = std::string(kFirstLine) + "\n";
  if (!rest.starts_with(first)) return Damaged("wrong first line");
  rest.remove_prefix(first.size());
  const auto version = TakeLine(rest, "version");
  uint32_t number = 0;
  if (!version || !ParseNumber(*version, number)) return Damaged("version");
  if (number != kVersion) {
    return Err(ErrorCode::kFailedPrecondition,
               fmt::format("the backup has version {}; this program knows {}: upgrade it", number,
                           kVersion));
  }
  BackupMarker marker;
  const auto state = TakeLine(rest, "state");
  const auto store = TakeLine(rest, "store");
  const auto source = TakeLine(rest, "source");
  const auto created = TakeLine(rest, "created_ms");
  const auto files = TakeLine(rest, "files");
  const auto bytes = TakeLine(rest, "bytes");
  const auto manifest = TakeLine(rest, "manifest");
  if (!manifest) return Damaged("a line is missing");
  const size_t covered = text.size() - rest.size();
  const auto checksum = TakeLine(rest, "checksum");
  if (!checksum || !rest.empty() ||
      *checksum != fmt::format("{:016x}", XXH3_64bits(text.data(), covered))) {
    return Damaged("checksum");
  }
  const auto store_id = Id128::FromHex(store.value_or(""));
  const auto source_id = Id128::FromHex(source.value_or(""));
  auto digest = HexDecode(*manifest);
  if (!state || (*state != "complete" && *state != "incomplete") || !store_id || !source_id ||
      !ParseNumber(created.value_or(""), marker.created_ms) ||
      !ParseNumber(files.value_or(""), marker.files) ||
      !ParseNumber(bytes.value_or(""), marker.bytes) || !digest || digest->size() != kDigestBytes) {
    return Damaged("a field does not parse");
  }
  marker.complete = *state == "complete";
  marker.store = *store_id;
  marker.source = *source_id;
  marker.manifest_sha256 = *std::move(digest);
  return marker;
}

std::string EncodeManifest(const std::vector<ManifestEntry>& entries) {
  std::string text;
  for (const ManifestEntry& entry : entries) {
    text += fmt::format("{} {} {}\n", HexEncode(entry.sha256), entry.size_bytes, entry.path);
  }
  return text;
}

Result<std::vector<ManifestEntry>> DecodeManifest(std::string_view text) {
  std::vector<ManifestEntry> entries;
  while (!text.empty()) {
    const auto bad = [&](std::string_view what) {
      return Err(ErrorCode::kDataLoss,
                 fmt::format("MANIFEST is damaged (line {}: {})", entries.size() + 1, what));
    };
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return bad("no end of line");
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    const size_t first = line.find(' ');
    const size_t second = first == std::string_view::npos ? first : line.find(' ', first + 1);
    if (second == std::string_view::npos) return bad("a part is missing");
    ManifestEntry entry;
    auto digest = HexDecode(line.substr(0, first));
    if (!digest || digest->size() != kDigestBytes) return bad("digest");
    entry.sha256 = *std::move(digest);
    if (!ParseNumber(line.substr(first + 1, second - first - 1), entry.size_bytes)) {
      return bad("length");
    }
    entry.path = line.substr(second + 1);
    if (!IsSafePath(entry.path)) return bad("path");
    if (!entries.empty() && entry.path <= entries.back().path) return bad("order");
    entries.push_back(std::move(entry));
  }
  return entries;
}

}  // namespace cairn
