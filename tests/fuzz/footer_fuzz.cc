// Fuzz target: the layouts of store/pack_format.h by themselves. Input: repairs, which layout, then
// its bytes.
//
// Asserted: refusals are of the contract's codes; what decodes encodes to what decodes again to the
// same; a footer's entries are sorted, within the frames and within the limits.
#include <cstddef>
#include <cstdint>
#include <string>

#include "store/pack_format.h"
#include "tests/fuzz/expect.h"
#include "tests/fuzz/known_keys.h"
#include "tests/fuzz/pack_repair.h"
#include "tests/fuzz/patch.h"

namespace cairn {
namespace {

enum Repair : uint8_t { kHead = 1, kSums = 2, kOffset = 4, kHeaderCopy = 8 };

void CheckEntry(const PackEntry& entry) {
  CAIRN_CHECK(entry.raw_length >= 1 && entry.raw_length <= kMaxBlockBytes);
  CAIRN_CHECK(entry.stored_length > kAeadTagBytes && entry.stored_length <= kMaxStoredBytes);
  CAIRN_CHECK(entry.offset % 8 == 0 && entry.offset <= kMaxPackBytes);
  CAIRN_CHECK(IsKnownKind(static_cast<uint8_t>(entry.kind)));
}

std::string KnownHeader() {
  return EncodePackHeader({.pack = Known().pack,
                           .realm = Known().realm,
                           .key_id = 1,
                           .epoch = 1,
                           .created_ms = 1,
                           .wrapped_key = std::string(kWrappedKeyBytes, 'k')});
}

void Footer(uint8_t repair, std::string bytes) {
  if (bytes.size() < kPackTrailerBytes) {
    return ExpectRefusal(DecodeTrailer(bytes).error());
  }
  if ((repair & kHead) != 0 && bytes.size() > kPackTrailerBytes + 16 + kPackHeaderBytes) {
    const std::string header =
        (repair & kHeaderCopy) != 0 ? KnownHeader() : bytes.substr(16, kPackHeaderBytes);
    RepairFooterHead(bytes, 0, header);
  }
  const size_t length = bytes.size() - kPackTrailerBytes;
  if ((repair & kSums) != 0) {
    const uint64_t offset =
        (repair & kOffset) != 0 ? uint64_t{1} << 20 : Peek<uint64_t>(bytes, length);
    RepairTrailerSums(bytes, 0, offset);
  }
  const std::string_view view(bytes);
  const auto trailer = DecodeTrailer(view.substr(length));
  if (!trailer) return ExpectRefusal(trailer.error());
  const auto footer = DecodeFooter(*trailer, view.substr(0, length));
  if (!footer) return ExpectRefusal(footer.error());
  CAIRN_CHECK(footer->entries.size() <= length / kFooterEntryBytes);
  for (size_t i = 0; i < footer->entries.size(); ++i) {
    const PackEntry& entry = footer->entries[i];
    CheckEntry(entry);
    CAIRN_CHECK(entry.EndOffset() <= trailer->footer_offset);
    if (i > 0) CAIRN_CHECK(footer->entries[i - 1].address < entry.address);
  }
  std::string again = EncodeFooterBeforeDigest(footer->header, footer->entries) + footer->sha256;
  again.replace(16, kPackHeaderBytes, view.substr(16, kPackHeaderBytes));  // its version may differ
  CAIRN_CHECK(again == view.substr(0, length));
  CAIRN_CHECK(EncodeTrailer(footer->frames_end, again) == view.substr(length));
}

void Header(uint8_t repair, std::string bytes) {
  if ((repair & kSums) != 0 && bytes.size() >= kPackHeaderBytes) {
    bytes.resize(kPackHeaderBytes);
    bytes.replace(0, 8, KnownHeader(), 0, 8);
    Patch(bytes, kPackHeaderBytes - 8, Xxh3(std::string_view(bytes).substr(0, 152)));
  }
  const auto header = DecodePackHeader(bytes);
  if (!header) return ExpectRefusal(header.error());
  std::string again = EncodePackHeader(*header);
  again.replace(8, 4, bytes, 8, 4);  // a newer writer may let us read
  CAIRN_CHECK(again.substr(0, 152) == bytes.substr(0, 152));
}

void Frame(uint8_t repair, std::string bytes) {
  uint64_t offset = 0;
  if (bytes.size() >= 8) offset = Peek<uint64_t>(bytes, 0);
  bytes.erase(0, 8);
  if ((repair & kHead) != 0) offset = offset % (kMaxPackBytes + 64) / 8 * 8;
  if ((repair & kSums) != 0 && bytes.size() >= kFrameHeaderBytes) {
    bytes.resize(kFrameHeaderBytes);
    bytes.replace(0, 4, FrameAad({}), 0, 4);
    const auto seed = Peek<uint64_t>(Known().pack.view(), 0);
    Patch(bytes, kFrameHeaderBytes - 8,
          Xxh3(std::string_view(bytes).substr(0, kFrameHeaderBytes - 8), seed ^ offset));
  }
  const auto frame = DecodeFrameHeader(Known().pack, offset, bytes);
  if (!frame) return ExpectRefusal(frame.error());
  CAIRN_CHECK(LooksLikeFrame(bytes));
  CheckEntry(frame->entry);
  CAIRN_CHECK(frame->entry.offset == offset);
  CAIRN_CHECK(EncodeFrameHeader(Known().pack, frame->entry, frame->stored_xxh3) == bytes);
  CAIRN_CHECK(FrameAad(frame->entry) == bytes.substr(0, kFrameAadBytes));
}

}  // namespace
}  // namespace cairn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  std::string bytes(reinterpret_cast<const char*>(data) + 2, size - 2);
  switch (data[1] % 4) {
    case 0:
      cairn::Header(data[0], std::move(bytes));
      break;
    case 1:
      cairn::Frame(data[0], std::move(bytes));
      break;
    default:
      cairn::Footer(data[0], std::move(bytes));
  }
  return 0;
}
