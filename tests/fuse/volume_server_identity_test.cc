// What changes carry to the journal: the request's identity and the reply floor.
#include "tests/fuse/volume_server_fixture.h"

namespace cairn {
namespace {

TEST_F(VolumeServerTest, ResentRequestsGetTheirNumberBackAndAreKnownByTheMaskedOne) {
  Start();
  const uint64_t resend = uint64_t{1} << 63;
  kernel_.next_unique = 20 | resend;
  const FakeReply created = Create("file");
  EXPECT_EQ(created.header.unique, 20 | resend);
  EXPECT_EQ(volume_->last_request().unique, 20u);
  kernel_.next_unique = 22 | resend;
  fuse_create_in in{};
  in.flags = O_RDWR;
  EXPECT_EQ(kernel_.Call(kFuseTmpFile, FUSE_ROOT_ID, Bytes(in) + Name("/")).header.unique,
            22 | resend);
}

TEST_F(VolumeServerTest, ChangesCarryTheRequestsIdentity) {
  Start();
  kernel_.next_unique = 1000;
  Create("file");
  const ReplyRecord record = volume_->last_request();
  EXPECT_EQ(record.connection, connection_);
  EXPECT_EQ(record.unique, 1000u);
  EXPECT_EQ(record.opcode, static_cast<uint32_t>(FUSE_CREATE));
  EXPECT_LE(record.reply_floor, 1000u);
}

TEST_F(VolumeServerTest, ReplyFloorIsTheRequestItselfWhenNothingElseIsInProgress) {
  StartWith(MemoryVolumeOptions{}, true, /*threads=*/1);
  Init();
  for (int i = 0; i < 10; ++i) {
    const uint64_t unique = kernel_.next_unique;
    Create("file" + std::to_string(i));
    EXPECT_EQ(volume_->last_request().reply_floor, unique);
  }
}

TEST_F(VolumeServerTest, ReplyFloorStaysBelowWhatIsNotAnswered) {
  std::latch gate(1);
  MemoryVolumeOptions options;
  options.before_write = [&gate] { gate.wait(); };
  StartWith(options, true, /*threads=*/4);
  Init();
  Create("slow");
  fuse_write_in in{};
  in.size = 1;
  const uint64_t slow = kernel_.Send(FUSE_WRITE, 2, Bytes(in) + "x");
  uint64_t floor = 0;
  for (int i = 0; i < 20; ++i) {
    Create("file" + std::to_string(i));  // answered by the other threads meanwhile
    EXPECT_LE(volume_->last_request().reply_floor, slow);
    EXPECT_GE(volume_->last_request().reply_floor, floor);
    floor = volume_->last_request().reply_floor;
  }
  gate.count_down();
  EXPECT_TRUE(kernel_.Receive().has_value());
}

TEST_F(VolumeServerTest, ReplyFloorIsUnknownOnceNumbersComeOutOfOrder) {
  StartWith(MemoryVolumeOptions{}, true, /*threads=*/1);
  Init();
  kernel_.next_unique = 1000;
  Create("a");
  kernel_.next_unique = 10;
  Create("b");
  Create("c");
  EXPECT_EQ(volume_->last_request().reply_floor, 0u);
  kernel_.next_unique = 2000;
  Create("d");
  EXPECT_EQ(volume_->last_request().reply_floor, 0u);
}

// ---- a server that takes over ----

TEST_F(VolumeServerTest, ATakenOverConnectionIsServedWithoutAnotherInit) {
  volume_ = std::make_unique<MemoryVolume>(MemoryVolumeOptions{});
  TakeOverWith({});
  EXPECT_TRUE(server_->WaitForInit(0));
  EXPECT_TRUE(saved_init_.empty());
  EXPECT_EQ(kernel_.Call(FUSE_GETATTR, FUSE_ROOT_ID, Bytes(fuse_getattr_in{})).header.error, 0);
}

TEST_F(VolumeServerTest, AnInitThatTheServerBeforeDidNotAnswerIsAnsweredWhenItComesAgain) {
  volume_ = std::make_unique<MemoryVolume>(MemoryVolumeOptions{});
  TakeOverWith({});
  const FakeReply reply = CallAgain(2, FUSE_INIT, 0, InitRequest());
  EXPECT_EQ(reply.header.error, 0);
  const auto out = reply.As<fuse_init_out>();
  EXPECT_EQ(out.major, 7u);
  EXPECT_NE(out.flags & FUSE_HANDLE_KILLPRIV_V2, 0u);
  EXPECT_EQ(kernel_.Call(FUSE_GETATTR, FUSE_ROOT_ID, Bytes(fuse_getattr_in{})).header.error, 0);
}

TEST_F(VolumeServerTest, WhatTheServerBeforeHasDoneIsAnsweredAndNotDoneAgain) {
  volume_ = std::make_unique<MemoryVolume>(MemoryVolumeOptions{});
  const auto file = volume_->MakeNode({}, FUSE_ROOT_ID, "file", S_IFREG | 0644, 0);
  ASSERT_TRUE(file.has_value());
  ASSERT_TRUE(volume_->Write({}, file->ino, 0, "before", false).has_value());
  const auto dir = volume_->MakeDir({}, FUSE_ROOT_ID, "dir", 0755);
  ASSERT_TRUE(dir.has_value());
  const uint64_t before = volume_->GetStatus().inodes;
  TakeOverWith({{.unique = 100, .opcode = FUSE_UNLINK, .ino = file->ino},
                {.unique = 102, .opcode = FUSE_MKDIR, .ino = dir->ino},
                {.unique = 104, .opcode = FUSE_WRITE, .ino = file->ino, .value = 5},
                {.unique = 106, .opcode = FUSE_RENAME2},
                {.unique = 108, .opcode = FUSE_SETATTR, .ino = file->ino},
                {.unique = 110, .opcode = FUSE_SYMLINK, .ino = 999},
                {.unique = 112, .opcode = FUSE_RELEASE, .ino = file->ino}});

  EXPECT_EQ(CallAgain(100, FUSE_UNLINK, FUSE_ROOT_ID, Name("file")).header.error, 0);
  EXPECT_TRUE(volume_->Lookup(FUSE_ROOT_ID, "file").has_value()) << "not unlinked again";

  const FakeReply made = CallAgain(102, FUSE_MKDIR, FUSE_ROOT_ID,
                                   Bytes(fuse_mkdir_in{.mode = 0755, .umask = 0}) + Name("dir"));
  EXPECT_EQ(made.header.error, 0) << "not EEXIST";
  EXPECT_EQ(made.As<fuse_entry_out>().nodeid, dir->ino);
  EXPECT_EQ(made.As<fuse_entry_out>().attr.mode, S_IFDIR | 0755u);

  fuse_write_in write{};
  write.size = 5;
  const FakeReply written = CallAgain(104, FUSE_WRITE, file->ino, Bytes(write) + "after");
  EXPECT_EQ(written.As<fuse_write_out>().size, 5u);
  char contents[6];
  ASSERT_TRUE(volume_->Read(file->ino, 0, contents).has_value());
  EXPECT_EQ(std::string_view(contents, 6), "before");

  fuse_rename2_in rename{};
  rename.newdir = FUSE_ROOT_ID;
  EXPECT_EQ(CallAgain(106, FUSE_RENAME2, FUSE_ROOT_ID, Bytes(rename) + Name("gone") + Name("there"))
                .header.error,
            0)
      << "not ENOENT";

  fuse_setattr_in set{};
  set.valid = FATTR_MODE;
  set.mode = 0777;
  EXPECT_EQ(CallAgain(108, FUSE_SETATTR, file->ino, Bytes(set)).As<fuse_attr_out>().attr.mode,
            S_IFREG | 0644u);

  const FakeReply link = CallAgain(110, FUSE_SYMLINK, FUSE_ROOT_ID, Name("link") + Name("target"));
  EXPECT_EQ(link.As<fuse_entry_out>().nodeid, 999u) << "though it is gone again";
  EXPECT_EQ(link.As<fuse_entry_out>().entry_valid, 0u);
  EXPECT_TRUE(S_ISLNK(link.As<fuse_entry_out>().attr.mode));

  EXPECT_EQ(CallAgain(112, FUSE_RELEASE, file->ino, Bytes(fuse_release_in{})).header.error, 0);
  EXPECT_EQ(volume_->GetStatus().inodes, before);
  const auto resends = server_->resends();
  EXPECT_EQ(resends.size(), 7u);
  for (const auto& [opcode, count] : resends) {
    EXPECT_EQ(count.seen, 1u) << opcode;
    EXPECT_EQ(count.answered, 1u) << opcode;
  }
}

TEST_F(VolumeServerTest, ACreationAnsweredFromItsRecordIsOpen) {
  volume_ = std::make_unique<MemoryVolume>(MemoryVolumeOptions{});
  const auto file = volume_->MakeNode({}, FUSE_ROOT_ID, "file", S_IFREG | 0644, 0);
  ASSERT_TRUE(file.has_value());
  TakeOverWith({{.unique = 100, .opcode = FUSE_CREATE, .ino = file->ino}});
  fuse_create_in in{};
  in.flags = O_RDWR | O_EXCL;
  in.mode = S_IFREG | 0644;
  const FakeReply created = CallAgain(100, FUSE_CREATE, FUSE_ROOT_ID, Bytes(in) + Name("file"));
  EXPECT_EQ(created.header.error, 0) << "not EEXIST: this request has made it";
  EXPECT_EQ(created.As<fuse_entry_out>().nodeid, file->ino);
  EXPECT_EQ(volume_->OpensOf(file->ino).writable, 1u);
  EXPECT_TRUE(has_writers_);
  fuse_release_in release{};
  release.fh = created.As<fuse_open_out>(sizeof(fuse_entry_out)).fh;
  EXPECT_EQ(kernel_.Call(FUSE_RELEASE, file->ino, Bytes(release)).header.error, 0);
  EXPECT_EQ(volume_->open_handles(), 0u);
  EXPECT_FALSE(has_writers_);
}

TEST_F(VolumeServerTest, WhatLeftNoRecordIsServedLikeAnyOther) {
  volume_ = std::make_unique<MemoryVolume>(MemoryVolumeOptions{});
  TakeOverWith({{.unique = 100, .opcode = FUSE_UNLINK}});
  const auto made = [&](uint64_t unique) {
    return CallAgain(unique, FUSE_MKDIR, FUSE_ROOT_ID,
                     Bytes(fuse_mkdir_in{.mode = 0755, .umask = 0}) + Name("dir"))
        .header.error;
  };
  EXPECT_EQ(made(102), 0);
  EXPECT_EQ(made(104), -EEXIST) << "another request of the same";
  EXPECT_EQ(made(100), -EIO) << "its record is of another request";
  const auto resends = server_->resends();
  EXPECT_EQ(resends.at(FUSE_MKDIR).seen, 3u);
}

// A new request never meets a record: numbers are not used twice, but a record must not answer one
// that does not come again.
TEST_F(VolumeServerTest, OnlyWhatComesAgainIsAnsweredFromARecord) {
  volume_ = std::make_unique<MemoryVolume>(MemoryVolumeOptions{});
  TakeOverWith({{.unique = 100, .opcode = FUSE_MKDIR, .ino = 77}});
  kernel_.next_unique = 100;
  const FakeReply reply = kernel_.Call(
      FUSE_MKDIR, FUSE_ROOT_ID, Bytes(fuse_mkdir_in{.mode = 0755, .umask = 0}) + Name("dir"));
  EXPECT_NE(reply.As<fuse_entry_out>().nodeid, 77u);
}

}  // namespace
}  // namespace cairn
