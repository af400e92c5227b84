// Layouts of journal, inodes and keys: what is written is read back, and nothing else is accepted.
#include <gtest/gtest.h>

#include <map>

#include "store/base/bytes.h"
#include "store/base/random.h"
#include "volume/journal_format.h"

namespace cairn {
namespace {

LogHeader SomeHeader() {
  LogHeader h;
  h.kind = LogKind::kSide;
  h.realm.bytes.fill(1);
  h.volume.bytes.fill(2);
  h.generation = 3;
  h.segment_epoch = 4;
  h.first_lsn = 5;
  h.key = {.key_id = 6, .bytes = std::string(60, 'k')};
  return h;
}

std::string SomeBody() {
  RecordFields f;
  f.generation = 1;
  f.transaction_id = 2;
  f.reply.connection.bytes.fill(3);
  f.reply.unique = 4;
  f.reply.opcode = 5;
  f.reply.status = -6;
  f.reply.ino = 7;
  f.reply.value = 8;
  f.reply.reply_floor = 9;
  f.open_ino = 10;
  f.open_change = -11;
  f.op_count = 4;
  f.next_ino = 12;
  f.total_inodes = 13;
  f.total_bytes = 14;
  std::string body;
  AppendFields(body, f);
  BlockRef ref;
  ref.raw_length_bytes = 100;
  AppendPut(body, AttributesKey(20), Entry{"payload", {ref, ref}});
  AppendDelete(body, XattrKey(21, "user.x"));
  AppendHole(body, 22, 5, ~uint64_t{0});
  const DataOpPosition position = AppendData(body, PayloadPlace::kSide, 23, 65536 + 10, 5000);
  PatchData(body, position, 8192, std::string(32, 't'));
  return body;
}

TEST(JournalFormat, HeaderRoundTripsAndEveryFlippedByteIsRefused) {
  const std::string bytes = SomeHeader().Encode();
  ASSERT_EQ(bytes.size(), kLogHeaderBytes);
  const auto header = LogHeader::Decode(bytes);
  ASSERT_TRUE(header);
  EXPECT_EQ(header->kind, LogKind::kSide);
  EXPECT_EQ(header->generation, 3u);
  EXPECT_EQ(header->segment_epoch, 4u);
  EXPECT_EQ(header->first_lsn, 5u);
  EXPECT_EQ(header->key.key_id, 6u);
  EXPECT_EQ(header->Encode(), bytes);
  for (size_t at = 0; at < bytes.size(); at++) {
    std::string flipped = bytes;
    flipped[at] ^= 0x40;
    EXPECT_FALSE(LogHeader::Decode(flipped)) << at;
    EXPECT_FALSE(LogHeader::Decode(std::string_view(bytes).substr(0, at))) << at;
  }
}

TEST(JournalFormat, BodyRoundTrips) {
  const auto body = DecodeRecordBody(SomeBody());
  ASSERT_TRUE(body) << body.error().ToString();
  EXPECT_EQ(body->fields.reply.status, -6);
  EXPECT_EQ(body->fields.reply.reply_floor, 9u);
  EXPECT_EQ(body->fields.open_ino, 10u);
  EXPECT_EQ(body->fields.open_change, -11);
  EXPECT_EQ(body->fields.total_bytes, 14u);
  ASSERT_EQ(body->ops.size(), 4u);
  EXPECT_EQ(body->ops[0].key, AttributesKey(20));
  EXPECT_EQ(body->ops[0].entry.payload, "payload");
  EXPECT_EQ(body->ops[0].entry.refs.size(), 2u);
  EXPECT_EQ(body->ops[1].key, XattrKey(21, "user.x"));
  EXPECT_EQ(body->ops[2].length_bytes, ~uint64_t{0});
  EXPECT_EQ(body->ops[3].place, PayloadPlace::kSide);
  EXPECT_EQ(body->ops[3].offset, 65546u);
  EXPECT_EQ(body->ops[3].log_offset, 8192u);
  EXPECT_EQ(body->ops[3].tags, std::string(32, 't'));
}

TEST(JournalFormat, BodyCutAnywhereOrWithMoreBehindItIsRefused) {
  const std::string bytes = SomeBody();
  for (size_t at = 0; at < bytes.size(); at++) {
    EXPECT_FALSE(DecodeRecordBody(std::string_view(bytes).substr(0, at))) << at;
  }
  EXPECT_FALSE(DecodeRecordBody(bytes + '\0'));
}

TEST(JournalFormat, RandomBytesNeverCrashTheDecoder) {
  SeededRandom random(11);
  const std::string good = SomeBody();
  int accepted = 0;
  for (int i = 0; i < 20000; i++) {
    std::string bytes = good;
    for (uint64_t n = 1 + random.Below(4); n > 0; n--) {
      bytes[random.Below(bytes.size())] = static_cast<char>(random.Next());
    }
    accepted += DecodeRecordBody(bytes) ? 1 : 0;
  }
  EXPECT_GT(accepted, 0);  // numbers in the fixed part are free
  EXPECT_LT(accepted, 20000);
}

TEST(JournalFormat, OperationsOutOfRangeAreRefused) {
  const auto with = [](const std::function<void(std::string&)>& append) {
    RecordFields f;
    f.op_count = 1;
    std::string body;
    AppendFields(body, f);
    append(body);
    return DecodeRecordBody(body).has_value();
  };
  const auto data = [&](uint64_t offset, uint32_t length, uint64_t log_offset) {
    return with([&](std::string& b) {
      const DataOpPosition position = AppendData(b, PayloadPlace::kJournal, 5, offset, length);
      PatchData(b, position, log_offset, {});
    });
  };
  EXPECT_TRUE(data(0, 65536, 4096));
  EXPECT_FALSE(data(1, 65536, 4096));  // crosses the grid
  EXPECT_FALSE(data(0, 65537, 4096));  // too long
  EXPECT_FALSE(data(0, 0, 4096));      // empty
  EXPECT_FALSE(data(0, 10, 100));      // in the header
  EXPECT_FALSE(data(uint64_t{1} << 63, 10, 4096));
  EXPECT_TRUE(with([](std::string& b) { AppendHole(b, 5, 0, 1); }));
  EXPECT_FALSE(with([](std::string& b) { AppendHole(b, 5, 0, 0); }));
  EXPECT_FALSE(with([](std::string& b) { AppendHole(b, 0, 0, 1); }));
  EXPECT_TRUE(with([](std::string& b) { AppendHole(b, 5, kNoEnd - 1, 9); }));
  EXPECT_FALSE(with([](std::string& b) { AppendHole(b, 5, kNoEnd, 9); })) << "is empty";
  EXPECT_TRUE(with([](std::string& b) { AppendDelete(b, InlineKey(5)); }));
  EXPECT_FALSE(with([](std::string& b) { AppendDelete(b, ExtentKey(5, 0)); }));
  EXPECT_FALSE(with([](std::string& b) { AppendPut(b, ExtentKey(5, 0), Entry{}); }));
  EXPECT_FALSE(with([](std::string& b) { AppendPut(b, "x", Entry{}); }));
  EXPECT_FALSE(with([](std::string& b) {
    AppendPut(b, InlineKey(5), Entry{std::string(kMaxPutPayloadBytes + 1, 'x'), {}});
  }));
  EXPECT_FALSE(with([](std::string& b) {
    b.push_back(9);
    b.append(100, '\0');
  }));
}

TEST(InodeFormat, InodeRoundTripsIn144Bytes) {
  Inode inode;
  inode.mode = 0100644;
  inode.uid = 1;
  inode.gid = 2;
  inode.nlink = 3;
  inode.size_bytes = 4;
  inode.allocated_bytes = 5;
  inode.rdev = 6;
  inode.atime = {-7, 8};
  inode.mtime = {int64_t{1} << 40, 999999999};
  inode.ctime = {9, 10};
  inode.btime = {11, 12};
  inode.birth_volume.bytes.fill(13);
  inode.birth_sequence = 14;
  inode.change_counter = 15;
  inode.parent = 16;
  const std::string bytes = inode.Encode();
  ASSERT_EQ(bytes.size(), 144u);
  const auto decoded = Inode::Decode(bytes);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(*decoded, inode);
  EXPECT_FALSE(Inode::Decode(bytes.substr(1)));
  EXPECT_FALSE(Inode::Decode(bytes + 'x'));
  std::string reserved = bytes;
  reserved.back() = 1;
  EXPECT_FALSE(Inode::Decode(reserved));
  inode.mtime.nanoseconds = 1000000000;
  EXPECT_FALSE(Inode::Decode(inode.Encode()));
  inode.mtime.nanoseconds = 0;
  inode.flags = 1;
  EXPECT_FALSE(Inode::Decode(inode.Encode()));
}

TEST(InodeFormat, DirentRoundTrips) {
  const Dirent dirent{.child = 7, .type = 8, .name = "a name"};
  const auto decoded = Dirent::Decode(dirent.Encode());
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->child, 7u);
  EXPECT_EQ(decoded->type, 8);
  EXPECT_EQ(decoded->name, "a name");
  EXPECT_FALSE(Dirent::Decode(dirent.Encode().substr(0, 9)));
  EXPECT_FALSE(
      Dirent::Decode(Dirent{.child = 7, .type = 8, .name = std::string(256, 'n')}.Encode()));
  EXPECT_FALSE(Dirent::Decode(Dirent{.child = 0, .type = 8, .name = "n"}.Encode()));
}

TEST(InodeFormat, KeysSortByInodeThenKindThenSubkey) {
  const std::vector<std::string> sorted = {OrphanKey(1),
                                           OrphanKey(300),
                                           AttributesKey(1),
                                           DirentKey(1, 3 << 8),
                                           DirentKey(1, 1ull << 62),
                                           XattrKey(1, "user.a"),
                                           XattrKey(1, "user.b"),
                                           ExtentKey(1, 0),
                                           ExtentKey(1, 256),
                                           ExtentKey(1, 65536),
                                           InlineKey(1),
                                           AttributesKey(2),
                                           AttributesKey(256)};
  EXPECT_TRUE(std::is_sorted(sorted.begin(), sorted.end()));
  for (const std::string& key : sorted) EXPECT_TRUE(ParseKey(key));
  EXPECT_GT(KeyPrefix(2), InlineKey(1));
  EXPECT_EQ(PrefixEnd(KeyPrefix(1)), KeyPrefix(2));
  EXPECT_EQ(PrefixEnd(KeyPrefix(255)), std::string("\0\0\0\0\0\0\1", 7));
  EXPECT_EQ(PrefixEnd(std::string(8, '\xff')), "");
  EXPECT_EQ(PrefixEnd(KeyPrefix(1, KeyKind::kExtent)), KeyPrefix(1, KeyKind::kInline));
}

TEST(InodeFormat, MalformedKeysAreRefused) {
  EXPECT_FALSE(ParseKey(""));
  EXPECT_FALSE(ParseKey("12345678"));
  EXPECT_FALSE(ParseKey(KeyPrefix(1, static_cast<KeyKind>(0))));
  EXPECT_FALSE(ParseKey(KeyPrefix(1, static_cast<KeyKind>(7))));
  EXPECT_FALSE(ParseKey(AttributesKey(1) + "x"));
  EXPECT_FALSE(ParseKey(AttributesKey(kNoInode)));
  EXPECT_FALSE(ParseKey(DirentKey(1, 1).substr(0, 16)));
  EXPECT_FALSE(ParseKey(XattrKey(1, "")));
  EXPECT_FALSE(ParseKey(XattrKey(1, std::string(256, 'x'))));
  EXPECT_FALSE(ParseKey(KeyPrefix(5, KeyKind::kOrphan) + std::string(8, 'x')));
}

TEST(InodeFormat, NameHashesAre55BitsAboveTheReservedValues) {
  std::map<uint64_t, int> seen;
  for (int i = 0; i < 20000; i++) {
    const uint64_t hash = NameHash(42, std::to_string(i));
    EXPECT_GE(hash, 3u);
    EXPECT_LT(hash, uint64_t{1} << 55);
    seen[hash]++;
  }
  EXPECT_EQ(seen.size(), 20000u);
  EXPECT_NE(NameHash(1, "name"), NameHash(2, "name"));
  EXPECT_EQ(NameHash(1, "name"), NameHash(1, "name"));
}

}  // namespace
}  // namespace cairn
