// The values of the block index (docs/formats/index.md): what was encoded decodes to the same at
// its own key alone, and whatever breaks a rule of the layout is refused, with its checksum set
// right.
#include "store/index_value.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <cstring>

namespace cairn {
namespace {

const std::string kBlockKey = "B" + std::string(32, 'a');
const std::string kPackKey = "P" + std::string(16, 'p');

Id128 Id(uint8_t fill) {
  Id128 id;
  id.bytes.fill(fill);
  return id;
}

BlockLocation Location() {
  BlockLocation location{.pack = Id(1), .entry = {}, .epoch = 7, .condemn_cycle = 9};
  location.entry.address = Address::FromView(kBlockKey.substr(1));
  location.entry.offset = 160;
  location.entry.stored_length = 100;
  location.entry.raw_length = 84;
  location.entry.kind = BlockKind::kMemory;
  location.entry.codec = Codec::kZstd;
  return location;
}

PackSummary Summary() {
  return {.pack = Id128::FromView(kPackKey.substr(1)),
          .realm = Id(2),
          .sealed = true,
          .file_bytes = 1000,
          .entry_count = 3,
          .stored_bytes = 300,
          .raw_bytes = 400};
}

// `bytes` written over those at `at`, and the checksum set right.
std::string Changed(const std::string& key, std::string value, size_t at, std::string_view bytes) {
  value.replace(at, bytes.size(), bytes);
  const uint64_t sum =
      XXH3_64bits_withSeed(value.data(), value.size() - 8, XXH3_64bits(key.data(), key.size()));
  std::memcpy(value.data() + value.size() - 8, &sum, sizeof sum);
  return value;
}

template <typename T>
void ExpectDataLoss(const Result<T>& result, const char* what) {
  ASSERT_FALSE(result.has_value()) << what;
  EXPECT_EQ(result.error().code(), ErrorCode::kDataLoss) << what;
}

struct Change {
  const char* what;
  size_t at;
  std::string bytes;
};

TEST(IndexValue, LocationDecodesToWhatWasEncoded) {
  const auto decoded = DecodeBlockLocation(kBlockKey, EncodeBlockLocation(kBlockKey, Location()));
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(*decoded, Location());
}

TEST(IndexValue, MarkerDecodesToWhatWasEncoded) {
  for (const bool sealed : {false, true}) {
    PackSummary summary = Summary();
    summary.sealed = sealed;
    const auto decoded = DecodePackMarker(kPackKey, EncodePackMarker(kPackKey, summary));
    ASSERT_TRUE(decoded.has_value());
    EXPECT_EQ(*decoded, summary);
  }
}

TEST(IndexValue, LocationOutOfRulesIsRefused) {
  const std::string value = EncodeBlockLocation(kBlockKey, Location());
  ASSERT_EQ(Changed(kBlockKey, value, 0, value.substr(0, 1)), value);
  const std::string too_long = "\xff\xff\xff\x7f";
  const Change changes[] = {
      {"version", 0, "\x02"},
      {"kind", 1, "\x7f"},
      {"codec", 2, "\x02"},
      {"first reserved byte", 3, "\x01"},
      {"stored length of nothing", 4, std::string(4, '\0')},
      {"stored length over the limit", 4, too_long},
      {"raw length of nothing", 8, std::string(4, '\0')},
      {"raw length over the limit", 8, too_long},
      {"second reserved field", 12, "\x01"},
      {"last reserved byte", 15, "\x01"},
      {"offset inside the pack's header", 32, std::string(8, '\0')},
      {"offset that is not aligned", 32, std::string("\xa1\0\0\0\0\0\0\0", 8)},
      {"offset over the limit", 32, std::string("\xa0\0\0\0\0\0\0\x10", 8)},
  };
  for (const Change& change : changes) {
    ExpectDataLoss(
        DecodeBlockLocation(kBlockKey, Changed(kBlockKey, value, change.at, change.bytes)),
        change.what);
  }
}

TEST(IndexValue, MarkerOutOfRulesIsRefused) {
  const std::string value = EncodePackMarker(kPackKey, Summary());
  ASSERT_EQ(Changed(kPackKey, value, 0, value.substr(0, 1)), value);
  const Change changes[] = {{"version", 0, "\x02"},
                            {"sealed", 1, "\x02"},
                            {"first reserved byte", 2, "\x01"},
                            {"last reserved byte", 7, "\x01"},
                            {"second reserved field", 36, "\x01"}};
  for (const Change& change : changes) {
    ExpectDataLoss(DecodePackMarker(kPackKey, Changed(kPackKey, value, change.at, change.bytes)),
                   change.what);
  }
}

TEST(IndexValue, ValueAtAnotherKeyIsRefused) {
  std::string other = kBlockKey;
  other.back() = 'b';
  ExpectDataLoss(DecodeBlockLocation(other, EncodeBlockLocation(kBlockKey, Location())), "address");
  other = kPackKey;
  other.back() = 'q';
  ExpectDataLoss(DecodePackMarker(other, EncodePackMarker(kPackKey, Summary())), "pack");
}

TEST(IndexValue, EveryFlippedBitIsRefused) {
  const std::string location = EncodeBlockLocation(kBlockKey, Location());
  const std::string marker = EncodePackMarker(kPackKey, Summary());
  for (size_t bit = 0; bit < location.size() * 8; ++bit) {
    std::string damaged = location;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    ExpectDataLoss(DecodeBlockLocation(kBlockKey, damaged), "location");
    damaged = marker;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    ExpectDataLoss(DecodePackMarker(kPackKey, damaged), "marker");
  }
}

TEST(IndexValue, WrongSizesAreRefused) {
  const std::string location = EncodeBlockLocation(kBlockKey, Location());
  const std::string marker = EncodePackMarker(kPackKey, Summary());
  for (const size_t size : {size_t{0}, size_t{7}, size_t{63}}) {
    ExpectDataLoss(DecodeBlockLocation(kBlockKey, location.substr(0, size)), "location");
    ExpectDataLoss(DecodePackMarker(kPackKey, marker.substr(0, size)), "marker");
  }
  ExpectDataLoss(DecodeBlockLocation(kBlockKey, location + '\0'), "longer location");
  ExpectDataLoss(DecodePackMarker(kPackKey, marker + '\0'), "longer marker");
  const std::string short_key = kBlockKey.substr(1);
  ExpectDataLoss(DecodeBlockLocation(short_key, EncodeBlockLocation(short_key, Location())),
                 "key of a location");
  ExpectDataLoss(DecodePackMarker(short_key, EncodePackMarker(short_key, Summary())),
                 "key of a marker");
}

}  // namespace
}  // namespace cairn
