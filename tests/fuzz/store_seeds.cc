// Packs as the writer lays them out, frame by frame, with plaintext in place of ciphertext: sealed
// and open, of several kinds, raw and compressed, with a hole and with a torn tail.
#include <algorithm>

#include "store/base/random.h"
#include "store/block_codec.h"
#include "store/pack_format.h"
#include "tests/fuzz/known_keys.h"
#include "tests/fuzz/pack_repair.h"
#include "tests/fuzz/patch.h"
#include "tests/fuzz/seeds.h"

namespace cairn {
namespace {

constexpr uint8_t kAllRepairs = kRepairPackHeader | kRepairFrames | kRepairAddresses |
                                kRepairFooter | kRepairEntries | kRepairTrailer;

PackHeader Header() {
  PackHeader header{.pack = Known().pack,
                    .realm = Known().realm,
                    .key_id = Known().key_id,
                    .epoch = 7,
                    .created_ms = 1'700'000'000'000,
                    .wrapped_key = {}};
  header.wrapped_key = Known().WrapDataKey(PackKeyAad(header));
  return header;
}

struct PackSeed {
  std::string file = EncodePackHeader(Header());
  std::vector<PackEntry> entries;

  void Add(BlockKind kind, const std::string& plain) {
    std::string room(plain.size(), '\0');
    const EncodedBlock coded = EncodeBlock(plain, Compression::kFast, room);
    const PackEntry entry{
        .address = *Known().ring.AddressOf(Known().realm, kind, plain),
        .offset = file.size(),
        .stored_length = static_cast<uint32_t>(coded.bytes.size() + kAeadTagBytes),
        .raw_length = static_cast<uint32_t>(plain.size()),
        .kind = kind,
        .codec = coded.codec};
    file += EncodeFrameHeader(Known().pack, entry, 0);
    file += coded.bytes;
    file.append(kAeadTagBytes, '\0');
    file.resize((file.size() + 7) / 8 * 8);
    entries.push_back(entry);
  }
  std::string Sealed() const {
    std::vector<PackEntry> sorted = entries;
    std::ranges::sort(sorted, {}, &PackEntry::address);
    const std::string footer = EncodeFooterBeforeDigest(Header(), sorted) + std::string(32, '\0');
    return file + footer + EncodeTrailer(file.size(), footer);
  }
};

std::string Input(uint8_t repair, uint8_t options, const std::string& bytes) {
  return std::string{static_cast<char>(repair), static_cast<char>(options)} + bytes;
}

}  // namespace

std::vector<Seed> StoreSeeds() {
  SeededRandom random(1);
  PackSeed pack;
  pack.Add(BlockKind::kData, "hello, pack");
  pack.Add(BlockKind::kTreeNode, std::string(200, 'n'));
  pack.Add(BlockKind::kMemory, random.Bytes(100));
  pack.Add(BlockKind::kFsRoot, std::string(64, 'r') + random.Bytes(8));
  PackSeed one;
  one.Add(BlockKind::kData, "x");
  const PackSeed empty;

  std::vector<Seed> seeds;
  const auto add = [&](std::string name, uint8_t repair, uint8_t options,
                       const std::string& bytes) {
    seeds.push_back({"pack", std::move(name), Input(repair, options, bytes)});
  };
  add("sealed", kAllRepairs, 0, pack.Sealed());
  add("sealed-no-keys", kAllRepairs, 2, pack.Sealed());
  add("sealed-bounded", kAllRepairs, 8, pack.Sealed());
  add("sealed-other-pack", kAllRepairs, 4, pack.Sealed());
  add("sealed-one", kAllRepairs, 0, one.Sealed());
  add("sealed-empty", kAllRepairs, 0, empty.Sealed());
  add("open", kAllRepairs, 1, pack.file);
  add("open-empty", kAllRepairs, 1, empty.file);
  PackSeed gap;
  gap.Add(BlockKind::kData, "before");
  gap.file.append(16, '\0');
  gap.Add(BlockKind::kData, "behind");
  add("sealed-gap", kAllRepairs, 0, gap.Sealed());
  std::string damaged = pack.Sealed();
  damaged[0] = 'x';
  add("header-damaged", kRepairFrames | kRepairTrailer, 0, damaged);
  std::string holed = pack.file;
  holed.replace(pack.entries[1].offset, 8, "garbage!");
  add("open-hole", kAllRepairs, 1, holed);
  add("open-torn", kAllRepairs, 1, pack.file.substr(0, pack.file.size() - 60));
  add("open-tail", kAllRepairs, 1, pack.file + std::string(120, '\0'));
  std::string real = pack.Sealed();
  RepairPack(kAllRepairs, real);
  add("real", 0, 0, real);
  add("real-open", 0, 1, real.substr(0, pack.file.size()));

  const auto add_header = [&](std::string name, size_t offset, char byte) {
    std::string file = pack.file;
    file[offset] = byte;
    add(std::move(name), kRepairPackHeaderSum | kRepairFrames, 1, file);
  };
  add_header("header-newer", 10, 2);
  add_header("header-reserved", 140, 1);
  add_header("header-other-key", 48, 9);
  add_header("header-other-realm", 32, 9);
  add_header("header-wrapped-key", 80, 9);

  const auto add_footer = [&](std::string name, uint8_t repair, uint8_t which,
                              const std::string& bytes) {
    seeds.push_back({"footer", std::move(name), Input(repair, which, bytes)});
  };
  add_footer("header", 0, 0, real.substr(0, kPackHeaderBytes));
  add_footer("header-repaired", 2, 0, pack.file.substr(0, kPackHeaderBytes));
  std::string at(8, '\0');
  at[0] = static_cast<char>(kPackHeaderBytes);
  add_footer("frame", 0, 1, at + real.substr(kPackHeaderBytes, kFrameHeaderBytes));
  add_footer("frame-repaired", 3, 1, at + pack.file.substr(kPackHeaderBytes, kFrameHeaderBytes));
  add_footer("footer", 0, 2, real.substr(pack.file.size()));
  add_footer("footer-repaired", 15, 2, real.substr(pack.file.size()));
  add_footer("footer-own-header", 3, 2, real.substr(pack.file.size()));
  add_footer("footer-sums", 2, 2, real.substr(pack.file.size()));
  // Count times the size of an entry is right modulo 2^64; and a last frame that ends behind the
  // footer's offset.
  std::string many = real.substr(pack.file.size());
  many[15] = 0x20;
  add_footer("footer-count-overflow", 2, 2, many);
  std::string early = real.substr(pack.file.size());
  Patch(early, early.size() - kPackTrailerBytes, uint64_t{pack.file.size() - 8});
  add_footer("footer-frame-past-end", 2, 2, early);
  add_footer("footer-empty", 15, 2, empty.Sealed().substr(empty.file.size()));
  return seeds;
}

}  // namespace cairn
