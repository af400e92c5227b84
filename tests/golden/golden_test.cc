// Bytes that an earlier build wrote (make_golden.cc) still say the same, and encode to themselves:
// a change of a format that nobody meant to make fails here. One that is meant needs a new version
// and a new file, unless the format was never released.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "catalog/records.h"
#include "catalog/value_cipher.h"
#include "snapshot/memory_image.h"
#include "store/base/high_water_mark.h"
#include "store/block_codec.h"
#include "store/data_directory.h"
#include "store/index_value.h"
#include "store/pack_digest.h"
#include "store/pack_reader.h"
#include "store/quarantine.h"
#include "store/tree_node.h"
#include "tests/fuzz/journal_repair.h"
#include "tests/fuzz/known_keys.h"
#include "tests/volume/sim_disk.h"
#include "volume/extent_value.h"
#include "volume/fs_root.h"
#include "volume/inode.h"
#include "volume/journal_reader.h"
#include "volume/log_file.h"
#include "volume/xattr_value.h"

namespace cairn {
namespace {

std::string Golden(const std::string& name) {
  std::ifstream file(std::string(CAIRN_GOLDEN_DIR) + "/" + name, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), {}};
  EXPECT_FALSE(bytes.empty()) << name;
  return bytes;
}

Id128 Filled(uint8_t byte) {
  Id128 id;
  id.bytes.fill(byte);
  return id;
}

TEST(Golden, PackReadsAndEncodesToItself) {
  const std::string bytes = Golden("pack.v1");
  SimDisk disk;
  disk.Install("pack", bytes);
  const auto opened = PackReader::Open(disk, "pack", Known().pack);
  ASSERT_TRUE(opened) << opened.error().ToString();
  PackReader& reader = **opened;
  EXPECT_EQ(reader.header().epoch, 7u);
  EXPECT_EQ(reader.header().created_ms, 1'700'000'000'000);
  ASSERT_TRUE(reader.Unlock(Known().ring));
  const auto footer = reader.ReadFooter();
  ASSERT_TRUE(footer && footer->has_value());

  std::vector<PackEntry> in_file_order = (*footer)->entries;
  std::ranges::sort(in_file_order, {}, &PackEntry::offset);
  ASSERT_EQ(in_file_order.size(), 4u);
  std::string again = EncodePackHeader(reader.header());
  PackHasher hasher(reader.header());
  std::vector<std::string> plains;
  for (const PackEntry& entry : in_file_order) {
    const auto coded = reader.ReadFrame(entry);
    ASSERT_TRUE(coded) << coded.error().ToString();
    ASSERT_EQ(again.size(), entry.offset);
    std::string sealed;
    AppendSealed(Known().data_key, FrameNonce(entry.offset), *coded, FrameAad(entry), sealed);
    const std::string head =
        EncodeFrameHeader(Known().pack, entry, XXH3_64bits(sealed.data(), sealed.size()));
    hasher.AddFrame(head, std::string_view(sealed).substr(sealed.size() - kAeadTagBytes));
    again += head + sealed;
    again.resize((again.size() + 7) / 8 * 8);
    auto plain = DecodeBlock(entry.codec, *coded, entry.raw_length);
    ASSERT_TRUE(plain);
    EXPECT_EQ(*Known().ring.AddressOf(Known().realm, entry.kind, *plain), entry.address);
    plains.push_back(*std::move(plain));
  }
  EXPECT_EQ(plains[0], "hello, pack");
  EXPECT_EQ(plains[1], std::string(200, 'n'));
  EXPECT_EQ(in_file_order[0].codec, Codec::kRaw);
  EXPECT_EQ(in_file_order[1].codec, Codec::kZstd);
  EXPECT_EQ(in_file_order[1].kind, BlockKind::kTreeNode);
  std::string last = EncodeFooterBeforeDigest(reader.header(), (*footer)->entries);
  last += hasher.Finish(last);
  again += last + EncodeTrailer(again.size(), last);
  EXPECT_EQ(again, bytes);
}

TEST(Golden, TreeLeafReadsAndEncodesToItself) {
  const std::string bytes = Golden("tree_leaf.v1");
  const auto node = TreeNode::Decode(bytes);
  ASSERT_TRUE(node) << node.error().ToString();
  EXPECT_EQ((*node)->level(), 0u);
  EXPECT_EQ((*node)->epoch(), 7u);
  EXPECT_EQ((*node)->items().size(), 9u);
  EXPECT_EQ(EncodeTreeNode(0, 7, (*node)->items()), bytes);

  std::set<KeyKind> kinds;
  for (const NodeItem& item : (*node)->items()) {
    const auto key = ParseKey(item.key);
    ASSERT_TRUE(key);
    kinds.insert(key->kind);
    const Entry entry{std::string(item.payload), {item.refs.begin(), item.refs.end()}};
    switch (key->kind) {
      case KeyKind::kAttributes: {
        const auto inode = Inode::Decode(entry.payload);
        ASSERT_TRUE(inode);
        EXPECT_EQ(inode->size_bytes, 70000u);
        EXPECT_EQ(inode->mtime.seconds, 1'700'000'000);
        EXPECT_EQ(inode->Encode(), entry.payload);
        EXPECT_EQ(AttributesKey(key->ino), item.key);
        break;
      }
      case KeyKind::kDirent: {
        const auto dirent = Dirent::Decode(entry.payload);
        ASSERT_TRUE(dirent);
        EXPECT_EQ(dirent->name, dirent->child == 2 ? "file" : "directory");
        EXPECT_EQ(dirent->Encode(), entry.payload);
        EXPECT_EQ(DirentKey(1, dirent->child == 2 ? 0x300 : 0x301), item.key);
        break;
      }
      case KeyKind::kXattr: {
        const auto value = DecodeXattrValue(entry);
        ASSERT_TRUE(value);
        EXPECT_EQ(value->block != nullptr ? EncodeXattrBlock(*value->block)
                                          : EncodeXattrInline(value->inline_value),
                  entry);
        EXPECT_EQ(key->subkey, value->block != nullptr ? "user.big" : "user.small");
        break;
      }
      case KeyKind::kExtent: {
        const auto piece = DecodeExtent(0, entry);
        ASSERT_TRUE(piece);
        EXPECT_EQ(piece->length_bytes, 4096u);
        EXPECT_EQ(EncodeExtent(*piece), entry);
        EXPECT_EQ(ExtentKey(2, 0), item.key);
        break;
      }
      case KeyKind::kInline:
        EXPECT_EQ(entry.payload, "inline data");
        break;
      case KeyKind::kOrphan:
        EXPECT_EQ(OrphanKey(9), item.key);
        break;
    }
  }
  EXPECT_EQ(kinds.size(), 6u);
}

TEST(Golden, TreeInteriorReadsAndEncodesToItself) {
  const std::string bytes = Golden("tree_interior.v1");
  const auto node = TreeNode::Decode(bytes);
  ASSERT_TRUE(node) << node.error().ToString();
  EXPECT_EQ((*node)->level(), 1u);
  ASSERT_EQ((*node)->items().size(), 3u);
  EXPECT_EQ((*node)->items()[1].counters, (TreeCounters{.inodes = 10, .logical_bytes = 1000}));
  EXPECT_EQ((*node)->items()[1].newest_epoch, 7u);
  EXPECT_EQ(EncodeTreeNode(1, (*node)->epoch(), (*node)->items()), bytes);
}

TEST(Golden, FsRootReadsAndEncodesToItself) {
  const std::string bytes = Golden("fs_root.v1");
  const auto root = FsRoot::Decode(bytes);
  ASSERT_TRUE(root) << root.error().ToString();
  EXPECT_EQ(root->volume, Known().volume);
  EXPECT_EQ(root->generation, 4u);
  EXPECT_EQ(root->next_ino, 10u);
  EXPECT_TRUE(root->has_orphans && root->parent.has_value() && root->tree.node.has_value());
  EXPECT_EQ(root->Encode(), bytes);
}

TEST(Golden, MemoryImageReadsAndEncodesToItself) {
  const std::string bytes = Golden("memory_image.v1");
  const auto image = MemoryImage::Decode(bytes);
  ASSERT_TRUE(image) << image.error().ToString();
  EXPECT_EQ(image->vmstate_bytes, 70000u);
  ASSERT_EQ(image->regions.size(), 2u);
  EXPECT_EQ(image->regions[1].name, "high");
  EXPECT_EQ(image->maps.size(), 4u);
  EXPECT_FALSE(image->maps[1].has_value());
  EXPECT_EQ(image->Encode(), bytes);
}

TEST(Golden, MemoryMapReadsAndEncodesToItself) {
  const std::string bytes = Golden("memory_map.v1");
  const auto map = MemoryMap::Decode(bytes);
  ASSERT_TRUE(map) << map.error().ToString();
  EXPECT_EQ(map->pages, (std::vector<uint16_t>{0, 0xffff, 1, 0, 0x8001}));
  EXPECT_EQ(map->Encode(), bytes);
}

std::shared_ptr<LogFile> OpenLog(SimDisk& disk, LogKind kind, const std::string& bytes) {
  const std::string path = LogFileName(kKnownGeneration, kind);
  disk.Install(path, bytes);
  auto log = LogFile::Open(disk, Known().ring, path,
                           {.kind = kind,
                            .realm = Known().realm,
                            .volume = Known().volume,
                            .generation = kKnownGeneration});
  EXPECT_TRUE(log) << log.error().ToString();
  return log ? *std::move(log) : nullptr;
}

TEST(Golden, JournalReplaysAndEncodesToItself) {
  const std::string bytes = Golden("journal.v1");
  const std::string side_bytes = Golden("side.v1");
  SimDisk disk;
  const auto log = OpenLog(disk, LogKind::kJournal, bytes);
  const auto side = OpenLog(disk, LogKind::kSide, side_bytes);
  ASSERT_TRUE(log != nullptr && side != nullptr);
  EXPECT_EQ(log->header().segment_epoch, 99u);
  EXPECT_EQ(log->header().Encode(), bytes.substr(0, kLogHeaderBytes));
  EXPECT_EQ(side->header().Encode(), side_bytes.substr(0, kLogHeaderBytes));

  std::vector<size_t> changes;
  const auto replay = ReplayJournal(log, side, std::nullopt, [&](ReplayedRecord&& record) {
    changes.push_back(record.changes.size());
    EXPECT_EQ(record.fields.next_ino, 20u);
    EXPECT_EQ(record.fields.reply.status, -2);
  });
  ASSERT_TRUE(replay) << replay.error().ToString();
  EXPECT_EQ(changes, (std::vector<size_t>{5, 1, 1, 0, 2}));
  EXPECT_EQ(replay->end_offset, bytes.size());

  // Payloads are as they are; headers and bodies are made anew.
  std::string again = bytes;
  for (size_t at = kLogContentOffset; at < bytes.size();) {
    RecordHeader header;
    ASSERT_TRUE(DecodeRecordHeader(std::string_view(bytes).substr(at), header));
    std::string aad;
    header.AppendAad(aad);
    const std::string sealed = bytes.substr(at + kRecordHeaderBytes, header.body_length_bytes);
    std::string plain(sealed.size(), '\0');
    ASSERT_TRUE(log->cipher().Decrypt(at + kRecordHeaderBytes, aad, sealed, plain.data(),
                                      header.tag.data()));
    const auto body = DecodeRecordBody(plain);
    ASSERT_TRUE(body);
    plain = EncodeBody(*body);
    RecordHeader fresh = header;
    fresh.tag.fill(0);
    log->cipher().Encrypt(at + kRecordHeaderBytes, aad, plain, plain.data(), fresh.tag.data());
    fresh.EncodeTo(again.data() + at, plain);
    again.replace(at + kRecordHeaderBytes, plain.size(), plain);
    at += header.total_bytes();
  }
  EXPECT_EQ(again, bytes);
}

TEST(Golden, CatalogRecordOpensAndEncodesToItself) {
  const std::string bytes = Golden("catalog_record.v1");
  const std::string key =
      "env/org_0123456789abcdef0123456789abcdef/env_0123456789abcdef0123456789abcdef";
  const auto value = ValueCipher(Known().data_key, 1).Open(key, bytes);
  ASSERT_TRUE(value) << value.error().ToString();
  EXPECT_TRUE(VerifyRecord(key, *value));
  const auto environment = ParseRecord<catalog::Environment>(key, *value);
  ASSERT_TRUE(environment);
  EXPECT_EQ(environment->state(), catalog::ENV_READY);
  EXPECT_EQ(environment->lease().host(), "host");
  EXPECT_EQ(environment->held_snapshots(0), "snap_0123456789abcdef0123456789abcdef");
  EXPECT_EQ(environment->SerializeAsString(), *value);
}

TEST(Golden, IndexValuesReadAndEncodeToThemselves) {
  const std::string bytes = Golden("index_location.v1");
  const std::string key = "B" + std::string(32, 'a');
  const auto location = DecodeBlockLocation(key, bytes);
  ASSERT_TRUE(location) << location.error().ToString();
  EXPECT_EQ(location->pack, Known().pack);
  EXPECT_EQ(location->entry.offset, 160u);
  EXPECT_EQ(location->epoch, 7u);
  EXPECT_EQ(location->condemn_cycle, 9u);
  EXPECT_EQ(EncodeBlockLocation(key, *location), bytes);

  const std::string marker_bytes = Golden("index_marker.v1");
  const std::string marker_key = "P" + std::string(Known().pack.view());
  const auto marker = DecodePackMarker(marker_key, marker_bytes);
  ASSERT_TRUE(marker) << marker.error().ToString();
  EXPECT_TRUE(marker->sealed);
  EXPECT_EQ(marker->file_bytes, 1000u);
  EXPECT_EQ(EncodePackMarker(marker_key, *marker), marker_bytes);
}

TEST(Golden, DataDirectoryFormatReadsAndEncodesToItself) {
  const std::string bytes = Golden("cairn_format.v1");
  const auto format = DecodeFormat(bytes);
  ASSERT_TRUE(format) << format.error().ToString();
  EXPECT_EQ(format->store, Filled(0x11));
  EXPECT_EQ(format->instance, Filled(0x22));
  EXPECT_EQ(format->open_epoch, 17u);
  EXPECT_EQ(format->home, "machine 17");
  EXPECT_EQ(EncodeFormat(*format), bytes);
}

TEST(Golden, QuarantineReadsAndIsWrittenTheSame) {
  const std::string bytes = Golden("quarantine.v1");
  ASSERT_EQ(bytes.size(), 4 * 96u);
  SimDisk disk;
  disk.Install("quarantine", bytes);
  const auto quarantine = Quarantine::Open(disk, "quarantine");
  QuarantinedFrame frame{.realm = Known().realm,
                         .pack = Known().pack,
                         .offset = 160,
                         .address = {},
                         .found_ms = 1'700'000'000'000};
  frame.address.bytes.fill(0x55);
  const QuarantinedFrame whole{.realm = Known().realm, .pack = Known().volume, .found_ms = 5};
  EXPECT_THAT(quarantine->List(), ::testing::UnorderedElementsAre(frame, whole));

  SimDisk fresh;
  const auto other = Quarantine::Open(fresh, "data/quarantine");
  other->Add(frame);
  other->Add(whole);
  other->ReleaseFrame(frame.pack, frame.offset);
  other->Add(frame);
  EXPECT_EQ(fresh.Bytes("data/quarantine"), bytes);
}

TEST(Golden, HighWaterMarkReadsAndIsWrittenTheSame) {
  const std::string bytes = Golden("high_water_mark.v1");
  SimDisk disk;
  disk.Install("synced", bytes);
  const auto position = HighWaterMark::Read(disk, "synced");
  const LogPosition expected{.generation = 3, .sequence = 258};
  ASSERT_TRUE(position);
  ASSERT_EQ(*position, expected);
  const auto mark = HighWaterMark::Open(disk, "fresh");
  ASSERT_TRUE(mark);
  (*mark)->Raise(expected);
  EXPECT_EQ(disk.Bytes("fresh"), bytes);
}

}  // namespace
}  // namespace cairn
