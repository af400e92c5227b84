// One valid value of each kind that the target `records` takes.
#include "catalog/keys.h"
#include "catalog/records.h"
#include "store/base/bytes.h"
#include "store/data_directory.h"
#include "store/index_value.h"
#include "tests/fuzz/known_keys.h"
#include "tests/fuzz/patch.h"
#include "tests/fuzz/seeds.h"
#include "volume/extent_value.h"
#include "volume/inode.h"
#include "volume/xattr_value.h"

namespace cairn {
namespace {

constexpr std::string_view kOrg = "org_0123456789abcdef0123456789abcdef";
constexpr std::string_view kEnv = "env_0123456789abcdef0123456789abcdef";
constexpr std::string_view kSnapshot = "snap_0123456789abcdef0123456789abcdef";

enum Which : char { kCatalog, kLog, kTree, kFormat, kQuarantine, kRing, kIndex, kMark };

// A log of `lengths` as RocksDB lays writes out; checksums are the target's to repair.
std::string LogOf(std::initializer_list<std::pair<int, size_t>> records) {
  std::string log;
  for (const auto& [type, length] : records) {
    ByteWriter w(log);
    w.U32(0);
    w.U16(static_cast<uint16_t>(length));
    w.U8(static_cast<uint8_t>(type));
    log.append(length, 'l');
  }
  return log;
}

std::string QuarantineRecord(uint8_t operation, uint64_t offset) {
  std::string record;
  ByteWriter w(record);
  w.U8(1);
  w.U8(operation);
  w.Zeros(6);
  w.I64(1'700'000'000'000);
  w.Bytes(Known().realm.view());
  w.Bytes(Known().pack.view());
  w.U64(offset);
  w.Zeros(40);
  return record;
}

// `payload`, the references, and their number.
std::string TreeEntry(const Entry& entry) {
  std::string bytes = entry.payload;
  for (const BlockRef& ref : entry.refs) ref.AppendTo(bytes);
  bytes.push_back(static_cast<char>(entry.refs.size()));
  return bytes;
}

}  // namespace

std::vector<Seed> RecordSeeds() {
  std::vector<Seed> seeds;
  const auto add = [&](std::string name, Which which, uint8_t repair, const std::string& bytes) {
    seeds.push_back({"records", std::move(name),
                     std::string{static_cast<char>(which), static_cast<char>(repair)} + bytes});
  };
  const auto add_pair = [&](std::string name, Which which, const std::string& key,
                            const std::string& value) {
    add(std::move(name), which, 1, static_cast<char>(key.size()) + key + value);
  };

  catalog::Environment environment;
  environment.set_id(std::string(kEnv));
  environment.set_org(std::string(kOrg));
  environment.set_state(catalog::ENV_READY);
  environment.set_volume(std::string(16, 'v'));
  environment.mutable_lease()->set_host("host");
  environment.add_held_snapshots(std::string(kSnapshot));
  add_pair("environment", kCatalog, keys::Environment(kOrg, kEnv), environment.SerializeAsString());
  catalog::Snapshot snapshot;
  snapshot.set_id(std::string(kSnapshot));
  snapshot.set_org(std::string(kOrg));
  (*snapshot.mutable_labels())["name"] = "value";
  snapshot.mutable_point()->set_generation(3);
  add_pair("snapshot", kCatalog, keys::Snapshot(kOrg, kSnapshot), snapshot.SerializeAsString());
  catalog::Volume volume;
  volume.set_id(std::string(16, 'v'));
  volume.set_root(BlockRef{.raw_length_bytes = 5, .address = {}}.Encode());
  add_pair("volume", kCatalog, keys::Volume(std::string(16, 'v')), volume.SerializeAsString());
  catalog::IndexEntry entry;
  entry.set_id(std::string(kEnv));
  entry.set_org(std::string(kOrg));
  add_pair("environment-at", kCatalog, keys::EnvironmentAt(kOrg, 5, kEnv),
           entry.SerializeAsString());
  add_pair("store-meta", kCatalog, std::string(keys::kStoreMeta), "\x08\x05");
  add_pair("secrets", kCatalog, std::string(keys::kSecrets),
           "\x0a\x04"
           "abcd");

  // A record that is empty but for who it is, of each other kind.
  const std::string id =
      "\x0a\x05"
      "id_01";
  const std::string owned = id + "\x12" + static_cast<char>(kOrg.size()) + std::string(kOrg);
  for (const std::string_view kind :
       {"org", "binding", "fork", "session", "session_at", "turn", "turn_at", "artifact",
        "artifact_at", "snapshot_at", "point", "operation", "running", "idem"}) {
    const std::string key =
        std::string(kind) + "/" + (kind == "org" ? "" : std::string(kOrg) + "/") + "id_01";
    add_pair(std::string(kind), kCatalog, key, kind == "org" ? id : owned);
  }
  add_pair("scrub", kCatalog, std::string(keys::kScrub), "\x08\x05");

  add("log", kLog, 1, LogOf({{1, 20}, {1, 30}, {1, 5}}));
  add("log-fragments", kLog, 3, LogOf({{2, 86 - 7 - 7}, {3, 40}, {4, 40}, {1, 5}}));
  add("log-torn", kLog, 1, LogOf({{1, 20}, {1, 30}}).substr(0, 50));
  add("log-past-end", kLog, 9, LogOf({{1, 20}, {1, 30}}).substr(0, 50));
  add("log-not-last", kLog, 5, LogOf({{1, 20}, {2, 30}}));
  add("log-zeros", kLog, 1, LogOf({{1, 20}}) + std::string(600, '\0'));

  Inode inode;
  inode.mode = 0100644;
  inode.nlink = 1;
  add_pair("inode", kTree, AttributesKey(12), TreeEntry({inode.Encode(), {}}));
  add_pair("dirent", kTree, DirentKey(1, 0x300),
           TreeEntry({Dirent{.child = 12, .type = 8, .name = "name"}.Encode(), {}}));
  add_pair("xattr", kTree, XattrKey(12, "user.x"), TreeEntry(EncodeXattrInline("value")));
  const BlockRef block{.kind = BlockKind::kData, .raw_length_bytes = 60000, .address = {}};
  add_pair("xattr-block", kTree, XattrKey(12, "user.x"), TreeEntry(EncodeXattrBlock(block)));
  Entry twice = EncodeXattrBlock(block);
  twice.refs.push_back(block);
  add_pair("xattr-two-blocks", kTree, XattrKey(12, "user.x"), TreeEntry(twice));
  Segment piece;
  piece.source = Segment::Source::kBlock;
  piece.offset = 65536;
  piece.length_bytes = 4096;
  piece.source_offset = 8192;
  piece.block = block;
  add_pair("extent", kTree, ExtentKey(12, 65536), TreeEntry(EncodeExtent(piece)));
  // One byte behind its block, and one behind its grid.
  Entry past = EncodeExtent(piece);
  Patch<uint32_t>(past.payload, 4, block.raw_length_bytes - 4096 + 1);
  add_pair("extent-past-block", kTree, ExtentKey(12, 65536), TreeEntry(past));
  add_pair("extent-past-grid", kTree, ExtentKey(12, 2 * 65536 - 4095),
           TreeEntry(EncodeExtent(piece)));
  add_pair("inline", kTree, InlineKey(12), TreeEntry({"data", {}}));
  add_pair("orphan", kTree, OrphanKey(12), TreeEntry({}));

  const DataDirectoryFormat format{
      .store = Known().pack, .open_epoch = 17, .master_key_check = "0123456789abcdef"};
  add("format", kFormat, 1, EncodeFormat(format));
  add("format-real", kFormat, 0, EncodeFormat(format));
  DataDirectoryFormat at_home = format;
  at_home.instance = Known().volume;
  at_home.home = "machine 17";
  add("format-instance", kFormat, 1, EncodeFormat(at_home));
  DataDirectoryFormat newer = format;
  newer.min_reader = 2;
  add("format-newer", kFormat, 1, EncodeFormat(newer));
  newer = format;
  newer.master_key_check.pop_back();
  add("format-short-check", kFormat, 1, EncodeFormat(newer));
  newer = format;
  newer.incompatible = 1;
  add("format-features", kFormat, 1, EncodeFormat(newer));

  add("quarantine", kQuarantine, 1,
      QuarantineRecord(1, 160) + QuarantineRecord(1, 320) + QuarantineRecord(2, 160) +
          QuarantineRecord(1, ~uint64_t{0}));
  add("quarantine-released", kQuarantine, 1,
      QuarantineRecord(1, 160) + QuarantineRecord(2, ~uint64_t{0}) + "tail");
  add("ring", kRing, 1, std::string(32, 'k'));
  add("ring-other-realm", kRing, 3, "secret");
  BlockLocation location{.pack = Known().pack, .entry = {}, .epoch = 7, .condemn_cycle = 9};
  location.entry.offset = 160;
  location.entry.stored_length = 100;
  location.entry.raw_length = 84;
  const std::string block_key = "B" + std::string(32, 'a');
  add("location", kIndex, 1, block_key + EncodeBlockLocation(block_key, location));
  add("location-real", kIndex, 0, block_key + EncodeBlockLocation(block_key, location));
  std::string value = EncodeBlockLocation(block_key, location);
  Patch<uint32_t>(value, 12, 1);
  add("location-reserved", kIndex, 1, block_key + value);
  value = EncodeBlockLocation(block_key, location);
  Patch<uint32_t>(value, 8, kMaxBlockBytes + 1);
  add("location-raw-length", kIndex, 1, block_key + value);
  value = EncodeBlockLocation(block_key, location);
  Patch<uint64_t>(value, 32, kPackHeaderBytes - 8);
  add("location-offset", kIndex, 1, block_key + value);
  const std::string pack_key = "P" + std::string(Known().pack.view());
  const PackSummary summary{.pack = Known().pack,
                            .realm = Known().realm,
                            .sealed = true,
                            .file_bytes = 1000,
                            .entry_count = 1,
                            .stored_bytes = 100,
                            .raw_bytes = 84};
  add("marker", kIndex, 3, pack_key + EncodePackMarker(pack_key, summary));
  value = EncodePackMarker(pack_key, summary);
  Patch<uint8_t>(value, 1, 2);
  add("marker-sealed", kIndex, 3, pack_key + value);
  std::string mark = "CAIRNHWM";
  ByteWriter w(mark);
  w.U32(1);
  w.U32(0);
  w.U64(3);
  w.U64(258);
  w.U64(0);
  add("mark", kMark, 1, mark);
  add("mark-zero", kMark, 0, std::string(40, '\0'));
  return seeds;
}

std::vector<Seed> AllSeeds() {
  std::vector<Seed> all;
  for (const auto& part : {StoreSeeds(), BlockSeeds(), VolumeSeeds(), RecordSeeds()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

}  // namespace cairn
