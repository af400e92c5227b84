// VolumeServer and DeviceTransport against a fake kernel: exact replies, without a mount.
#include "tests/fuse/volume_server_fixture.h"

namespace cairn {
namespace {

// What the page cache may hold is told by the writable opens alone.
TEST_F(VolumeServerTest, ItIsSaidWhetherTheKernelMayHoldWhatWeHaveNotSeen) {
  Start();
  const auto open = [&](uint64_t node, uint32_t flags) {
    fuse_open_in in{};
    in.flags = flags;
    return kernel_.Call(FUSE_OPEN, node, Bytes(in)).As<fuse_open_out>().fh;
  };
  const auto release = [&](uint64_t node, uint64_t handle) {
    fuse_release_in in{};
    in.fh = handle;
    kernel_.Call(FUSE_RELEASE, node, Bytes(in));
  };
  const FakeReply created = Create("a");
  const uint64_t node = created.As<fuse_entry_out>().nodeid;
  const uint64_t writer = created.As<fuse_open_out>(sizeof(fuse_entry_out)).fh;
  EXPECT_TRUE(has_writers_);
  const uint64_t reader = open(node, O_RDONLY);
  const uint64_t second = open(node, O_WRONLY);
  release(node, writer);
  EXPECT_TRUE(has_writers_) << "there is one more";
  release(node, second);
  EXPECT_FALSE(has_writers_);
  EXPECT_EQ(writers_changes_, 2);
  EXPECT_NE(Create("a", O_RDWR | O_EXCL).header.error, 0);
  EXPECT_EQ(writers_changes_, 4) << "before it was refused";
  EXPECT_FALSE(has_writers_);
  release(node, open(node, O_RDONLY));
  EXPECT_EQ(Create("b", O_RDONLY).header.error, 0);
  EXPECT_EQ(writers_changes_, 4);
  release(node, reader);
  fuse_create_in unnamed{};
  unnamed.flags = O_RDWR;
  unnamed.mode = S_IFREG | 0600;
  const FakeReply temporary = kernel_.Call(FUSE_TMPFILE, FUSE_ROOT_ID, Bytes(unnamed) + Name("x"));
  ASSERT_EQ(temporary.header.error, 0);
  EXPECT_TRUE(has_writers_);
  release(temporary.As<fuse_entry_out>().nodeid,
          temporary.As<fuse_open_out>(sizeof(fuse_entry_out)).fh);
  EXPECT_FALSE(has_writers_);
  open(node, O_RDWR);
  EXPECT_TRUE(has_writers_);
  kernel_.Hangup();
  for (int i = 0; i < 1000 && has_writers_; ++i) ::usleep(10'000);
  EXPECT_FALSE(has_writers_) << "the connection has ended";
}

TEST_F(VolumeServerTest, InitNegotiatesWhatTheDesignAsksFor) {
  StartWith(MemoryVolumeOptions{});
  const fuse_init_out out = Init();
  for (const uint32_t wanted :
       {FUSE_WRITEBACK_CACHE, FUSE_EXPORT_SUPPORT, FUSE_DO_READDIRPLUS, FUSE_PARALLEL_DIROPS,
        FUSE_HANDLE_KILLPRIV_V2, FUSE_MAX_PAGES, FUSE_CACHE_SYMLINKS, FUSE_EXPLICIT_INVAL_DATA}) {
    EXPECT_EQ(out.flags & wanted, wanted) << wanted;
  }
  for (const uint32_t refused :
       {FUSE_ATOMIC_O_TRUNC, FUSE_POSIX_LOCKS, FUSE_FLOCK_LOCKS, FUSE_POSIX_ACL,
        FUSE_NO_OPEN_SUPPORT, FUSE_NO_OPENDIR_SUPPORT, FUSE_AUTO_INVAL_DATA, FUSE_DONT_MASK}) {
    EXPECT_EQ(out.flags & refused, 0u) << refused;
  }
  EXPECT_EQ(out.max_write, 1u << 20);
  EXPECT_EQ(out.max_pages, 256);
  EXPECT_EQ(out.time_gran, 1u);
}

TEST_F(VolumeServerTest, InitWithoutWritebackWhenSwitchedOff) {
  StartWith(MemoryVolumeOptions{}, /*writeback_cache=*/false);
  EXPECT_EQ(Init().flags & FUSE_WRITEBACK_CACHE, 0u);
}

TEST_F(VolumeServerTest, InitBytesAreKeptForATakeover) {
  Start();
  EXPECT_TRUE(server_->WaitForInit(10'000));
  transport_->Stop();  // joins the thread that runs on_init
  EXPECT_EQ(saved_init_.size(), sizeof(fuse_in_header) + sizeof(fuse_init_in));
}

TEST_F(VolumeServerTest, WaitForInitEndsWithTheConnection) {
  StartWith(MemoryVolumeOptions{});
  kernel_.Hangup();
  EXPECT_FALSE(server_->WaitForInit(60'000));
  transport_->Stop();
  EXPECT_EQ(closed_.load(), 1);
}

TEST_F(VolumeServerTest, LookupOfNothingIsCachedForEver) {
  Start();
  const FakeReply reply = kernel_.Call(FUSE_LOOKUP, FUSE_ROOT_ID, Name("absent"));
  ASSERT_EQ(reply.header.error, 0);
  const auto entry = reply.As<fuse_entry_out>();
  EXPECT_EQ(entry.nodeid, 0u);
  EXPECT_EQ(entry.entry_valid, kForever);
}

TEST_F(VolumeServerTest, CreateAnswersNodeGenerationAndHandle) {
  Start();
  kernel_.uid = 1000;
  kernel_.gid = 1001;
  const FakeReply reply = Create("file");
  ASSERT_EQ(reply.header.error, 0);
  ASSERT_EQ(reply.body.size(), sizeof(fuse_entry_out) + sizeof(fuse_open_out));
  const auto entry = reply.As<fuse_entry_out>();
  EXPECT_EQ(entry.nodeid, 2u);
  EXPECT_EQ(entry.generation, 7u);
  EXPECT_EQ(entry.entry_valid, kForever);
  EXPECT_EQ(entry.attr.mode, static_cast<uint32_t>(S_IFREG | 0644));
  EXPECT_EQ(entry.attr.uid, 1000u);
  EXPECT_EQ(entry.attr.gid, 1001u);
  EXPECT_EQ(entry.attr.nlink, 1u);
  const auto open = reply.As<fuse_open_out>(sizeof(fuse_entry_out));
  EXPECT_NE(open.open_flags & FOPEN_KEEP_CACHE, 0u);
  EXPECT_EQ(volume_->WritableOpens(), std::vector<InodeNumber>{2});

  const auto again = Create("file");
  EXPECT_EQ(again.header.error, -EEXIST);
}

TEST_F(VolumeServerTest, WriteAnswersTheCountAndReadGivesTheBytes) {
  Start();
  Create("file");
  const FakeReply written = Write(2, "hello", 3);
  ASSERT_EQ(written.header.error, 0);
  EXPECT_EQ(written.As<fuse_write_out>().size, 5u);
  fuse_read_in in{};
  in.size = 4096;
  const FakeReply read = kernel_.Call(FUSE_READ, 2, Bytes(in));
  EXPECT_EQ(read.body, std::string("\0\0\0hello", 8));
}

TEST_F(VolumeServerTest, WriteOfMoreThanTheRequestHoldsIsRefused) {
  Start();
  Create("file");
  fuse_write_in in{};
  in.size = 4096;
  EXPECT_EQ(kernel_.Call(FUSE_WRITE, 2, Bytes(in) + "short").header.error, -EIO);
}

TEST_F(VolumeServerTest, KillPrivFlagsClearSetuid) {
  Start();
  Create("file", O_RDWR, S_IFREG | 06755);
  const auto mode = [&] { return volume_->GetAttributes(2)->mode & 07777; };
  Write(2, "x", 0);
  EXPECT_EQ(mode(), 06755u);
  Write(2, "x", 0, FUSE_WRITE_KILL_SUIDGID);
  EXPECT_EQ(mode(), 0755u);

  Create("other", O_RDWR, S_IFREG | 06755);
  fuse_setattr_in in{};
  in.valid = FATTR_SIZE | FATTR_KILL_SUIDGID;
  in.size = 10;
  ASSERT_EQ(kernel_.Call(FUSE_SETATTR, 3, Bytes(in)).header.error, 0);
  EXPECT_EQ(volume_->GetAttributes(3)->mode & 07777, 0755u);
  EXPECT_EQ(volume_->GetAttributes(3)->size_bytes, 10u);
}

TEST_F(VolumeServerTest, SetAttrSetsTimesToTheNanosecond) {
  Start();
  Create("file");
  fuse_setattr_in in{};
  in.valid = FATTR_MTIME | FATTR_CTIME;
  in.mtime = static_cast<uint64_t>(-5);  // before 1970
  in.mtimensec = 123456789;
  in.ctime = 77;
  in.ctimensec = 1;
  const auto out = kernel_.Call(FUSE_SETATTR, 2, Bytes(in)).As<fuse_attr_out>();
  EXPECT_EQ(static_cast<int64_t>(out.attr.mtime), -5);
  EXPECT_EQ(out.attr.mtimensec, 123456789u);
  EXPECT_EQ(out.attr.ctime, 77u);
}

TEST_F(VolumeServerTest, OnlyTheTimesOfAFileThatIsGoneMayBeWrittenBack) {
  Start();
  fuse_setattr_in in{};
  in.valid = FATTR_MTIME | FATTR_CTIME;
  in.mtime = 5;
  EXPECT_EQ(kernel_.Call(FUSE_SETATTR, 99, Bytes(in)).As<fuse_attr_out>().attr.nlink, 0u);
  in.valid = FATTR_CTIME | FATTR_MODE;
  EXPECT_EQ(kernel_.Call(FUSE_SETATTR, 99, Bytes(in)).header.error, -ENOENT);
  in.valid = FATTR_SIZE;
  EXPECT_EQ(kernel_.Call(FUSE_SETATTR, 99, Bytes(in)).header.error, -ENOENT);
}

TEST_F(VolumeServerTest, TmpFileIsDecodedBeforeLibfuse) {
  Start();
  fuse_create_in in{};
  in.flags = O_RDWR | O_TMPFILE;
  in.mode = S_IFREG | 0600;
  const FakeReply reply = kernel_.Call(kFuseTmpFile, FUSE_ROOT_ID, Bytes(in) + Name("/"));
  ASSERT_EQ(reply.header.error, 0);
  ASSERT_EQ(reply.body.size(), sizeof(fuse_entry_out) + sizeof(fuse_open_out));
  const auto entry = reply.As<fuse_entry_out>();
  EXPECT_EQ(entry.nodeid, 2u);
  EXPECT_EQ(entry.attr.nlink, 0u);
  EXPECT_EQ(entry.attr.mode, static_cast<uint32_t>(S_IFREG | 0600));
  EXPECT_EQ(volume_->WritableOpens(), std::vector<InodeNumber>{2});
  fuse_release_in release{};
  release.fh = reply.As<fuse_open_out>(sizeof(fuse_entry_out)).fh;
  EXPECT_EQ(kernel_.Call(FUSE_RELEASE, 2, Bytes(release)).header.error, 0);
  EXPECT_FALSE(volume_->GetAttributes(2).has_value());  // nothing kept it
}

TEST_F(VolumeServerTest, StatxCarriesTheBirthTime) {
  Start();
  Create("file");
  const FakeReply reply = kernel_.Call(kFuseStatx, 2, Bytes(FuseStatxIn{}));
  ASSERT_EQ(reply.header.error, 0);
  const auto out = reply.As<FuseStatxOut>();
  EXPECT_EQ(out.stat.ino, 2u);
  EXPECT_EQ(out.stat.btime.seconds, volume_->GetAttributes(2)->btime.seconds);
  EXPECT_EQ(out.stat.mask, static_cast<uint32_t>(STATX_BASIC_STATS | STATX_BTIME));
  EXPECT_EQ(kernel_.Call(kFuseStatx, 99, Bytes(FuseStatxIn{})).header.error, -ENOENT);
}

TEST_F(VolumeServerTest, UnknownAndLeftOutOperationsAreENOSYS) {
  Start();
  EXPECT_EQ(kernel_.Call(999, FUSE_ROOT_ID, {}).header.error, -ENOSYS);
  EXPECT_EQ(kernel_.Call(FUSE_FLUSH, FUSE_ROOT_ID, Bytes(fuse_flush_in{})).header.error, -ENOSYS);
  EXPECT_EQ(kernel_.Call(FUSE_COPY_FILE_RANGE, FUSE_ROOT_ID, Bytes(fuse_copy_file_range_in{}))
                .header.error,
            -ENOSYS);
  EXPECT_EQ(kernel_.Call(FUSE_IOCTL, FUSE_ROOT_ID, Bytes(fuse_ioctl_in{})).header.error, -ENOTTY);
}

TEST_F(VolumeServerTest, ForgetAndInterruptGetNoReply) {
  Start();
  kernel_.Send(FUSE_FORGET, 2, Bytes(fuse_forget_in{.nlookup = 1}));
  kernel_.Send(FUSE_INTERRUPT, 0, Bytes(fuse_interrupt_in{.unique = 4}));
  const uint64_t unique = kernel_.Send(FUSE_STATFS, FUSE_ROOT_ID, {});
  const auto reply = kernel_.Receive();
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->header.unique, unique);
}

TEST_F(VolumeServerTest, FsyncSyncsAndItsErrorIsSeen) {
  Start();
  Create("file");
  EXPECT_EQ(Fsync(2).header.error, 0);
  EXPECT_EQ(volume_->syncs(), 1u);
  volume_->FailSyncs(true);
  EXPECT_EQ(Fsync(2).header.error, -EIO);
  EXPECT_EQ(kernel_.Call(FUSE_FSYNCDIR, FUSE_ROOT_ID, Bytes(fuse_fsync_in{})).header.error, -EIO);
}

TEST_F(VolumeServerTest, BarriersHelperIsAnsweredAtOnceAndLeavesNoOpen) {
  Start();
  Create("file");
  server_->SetBarrierPid(4711);
  kernel_.pid = 4711;
  fuse_open_in in{};
  in.flags = O_RDONLY;
  const FakeReply opened = kernel_.Call(FUSE_OPEN, 2, Bytes(in));
  ASSERT_EQ(opened.header.error, 0);
  EXPECT_EQ(volume_->open_handles(), 1u);  // the creator's
  EXPECT_EQ(Fsync(2).header.error, 0);
  EXPECT_EQ(volume_->syncs(), 0u);
  kernel_.pid = 4712;  // another process meanwhile
  Fsync(2);
  EXPECT_EQ(volume_->syncs(), 1u);
  server_->SetBarrierPid(0);
  kernel_.pid = 4711;
  fuse_release_in release{};
  release.fh = opened.As<fuse_open_out>().fh;
  EXPECT_EQ(kernel_.Call(FUSE_RELEASE, 2, Bytes(release)).header.error, 0);
  EXPECT_EQ(volume_->open_handles(), 1u);
  Fsync(2);
  EXPECT_EQ(volume_->syncs(), 2u);
}

TEST_F(VolumeServerTest, LookupOfDotFindsTheNodeItself) {
  Start();
  fuse_mkdir_in in{};
  in.mode = 0755;
  kernel_.Call(FUSE_MKDIR, FUSE_ROOT_ID, Bytes(in) + Name("dir"));
  EXPECT_EQ(kernel_.Call(FUSE_LOOKUP, 2, Name(".")).As<fuse_entry_out>().nodeid, 2u);
  EXPECT_EQ(kernel_.Call(FUSE_LOOKUP, 2, Name("..")).As<fuse_entry_out>().nodeid, 1u);
  EXPECT_EQ(kernel_.Call(FUSE_LOOKUP, 99, Name(".")).header.error, -ENOENT);
}

TEST_F(VolumeServerTest, ReadDirGoesOnWhereTheBufferEnded) {
  Start();
  std::set<std::string> expected = {".", ".."};
  for (int i = 0; i < 100; ++i) {
    expected.insert("name" + std::to_string(i));
    Create("name" + std::to_string(i));
  }
  for (const uint32_t opcode : {FUSE_READDIR, FUSE_READDIRPLUS}) {
    std::multiset<std::string> seen;
    uint64_t offset = 0;
    while (true) {
      fuse_read_in in{};
      in.size = 1000;
      in.offset = offset;
      const FakeReply reply = kernel_.Call(opcode, FUSE_ROOT_ID, Bytes(in));
      ASSERT_EQ(reply.header.error, 0);
      ASSERT_LE(reply.body.size(), 1000u);
      if (reply.body.empty()) break;
      for (size_t at = 0; at < reply.body.size();) {
        const size_t plus = opcode == FUSE_READDIRPLUS ? sizeof(fuse_entry_out) : 0;
        const auto dirent = reply.As<fuse_dirent>(at + plus);
        const size_t name_at = at + plus + FUSE_NAME_OFFSET;
        seen.insert(reply.body.substr(name_at, dirent.namelen));
        offset = dirent.off;
        at += FUSE_DIRENT_ALIGN(plus + FUSE_NAME_OFFSET + dirent.namelen);
      }
    }
    EXPECT_EQ(seen, std::multiset<std::string>(expected.begin(), expected.end())) << opcode;
  }
}

TEST_F(VolumeServerTest, StatfsShowsTheQuota) {
  StartWith(MemoryVolumeOptions{.quota_bytes = 1 << 20, .quota_inodes = 10});
  Init();
  Create("file");
  Write(2, std::string(8192, 'x'), 0);
  const auto out = kernel_.Call(FUSE_STATFS, FUSE_ROOT_ID, {}).As<fuse_statfs_out>();
  EXPECT_EQ(out.st.blocks * out.st.bsize, 1u << 20);
  EXPECT_EQ(out.st.bavail * out.st.bsize, (1u << 20) - 8192);
  EXPECT_EQ(out.st.files, 10u);
  EXPECT_EQ(out.st.ffree, 8u);
  EXPECT_EQ(Write(2, std::string(4096, 'x'), 1 << 20).header.error, -ENOSPC);
}

TEST_F(VolumeServerTest, XattrSizesAreProbedAndTooSmallIsERANGE) {
  Start();
  Create("file");
  struct {
    uint32_t size, flags;
  } set{.size = 5, .flags = 0};
  ASSERT_EQ(kernel_.Call(FUSE_SETXATTR, 2, Bytes(set) + Name("user.a") + "value").header.error, 0);
  fuse_getxattr_in in{};
  EXPECT_EQ(kernel_.Call(FUSE_GETXATTR, 2, Bytes(in) + Name("user.a")).As<fuse_getxattr_out>().size,
            5u);
  in.size = 4;
  EXPECT_EQ(kernel_.Call(FUSE_GETXATTR, 2, Bytes(in) + Name("user.a")).header.error, -ERANGE);
  in.size = 5;
  EXPECT_EQ(kernel_.Call(FUSE_GETXATTR, 2, Bytes(in) + Name("user.a")).body, "value");
  EXPECT_EQ(kernel_.Call(FUSE_GETXATTR, 2, Bytes(in) + Name("user.b")).header.error, -ENODATA);
  in.size = 100;
  EXPECT_EQ(kernel_.Call(FUSE_LISTXATTR, 2, Bytes(in)).body, Name("user.a"));
}

TEST_F(VolumeServerTest, BlocksOfAFileOpenForWritingAreNeverNoneAndNotKept) {
  Start();
  const auto created = Create("file").As<fuse_entry_out>();
  EXPECT_EQ(created.attr_valid, 1u);
  EXPECT_EQ(created.attr.blocks, 8u);  // nothing was written yet, as far as we know
  const auto attributes = [&] {
    return kernel_.Call(FUSE_GETATTR, 2, Bytes(fuse_getattr_in{})).As<fuse_attr_out>();
  };
  EXPECT_EQ(attributes().attr_valid, 1u);
  EXPECT_EQ(attributes().attr.blocks, 8u);
  EXPECT_EQ(kernel_.Call(kFuseStatx, 2, Bytes(FuseStatxIn{})).As<FuseStatxOut>().stat.blocks, 8u);
  Write(2, std::string(100'000, 'x'), 0);
  EXPECT_EQ(attributes().attr.blocks, volume_->GetAttributes(2)->allocated_bytes / 512);
  fuse_release_in release{};
  release.fh = 1;  // a writer
  ASSERT_EQ(kernel_.Call(FUSE_RELEASE, 2, Bytes(release)).header.error, 0);
  EXPECT_EQ(attributes().attr_valid, kForever);

  const auto open = [&](uint32_t flags) {
    fuse_open_in in{};
    in.flags = flags;
    return kernel_.Call(FUSE_OPEN, 2, Bytes(in)).header.error;
  };
  ASSERT_EQ(open(O_RDONLY), 0);
  EXPECT_TRUE(kernel_.notifications.empty());
  EXPECT_EQ(attributes().attr_valid, kForever);
  ASSERT_EQ(open(O_WRONLY), 0);  // what it was told for ever is so no more
  ASSERT_EQ(kernel_.notifications.size(), 1u);
  EXPECT_EQ(kernel_.notifications[0].header.error, FUSE_NOTIFY_INVAL_INODE);
  const auto notice = kernel_.notifications[0].As<fuse_notify_inval_inode_out>();
  EXPECT_EQ(notice.ino, 2u);
  EXPECT_EQ(notice.off, -1);
  EXPECT_EQ(attributes().attr_valid, 1u);
}

TEST_F(VolumeServerTest, WithoutWritebackTheKernelKeepsAllAttributes) {
  StartWith(MemoryVolumeOptions{}, /*writeback_cache=*/false);
  Init();
  const auto created = Create("file").As<fuse_entry_out>();
  EXPECT_EQ(created.attr_valid, kForever);
  EXPECT_EQ(created.attr.blocks, 0u);
}

TEST_F(VolumeServerTest, SeekOnAFileOpenForWritingMakesTheKernelWriteBackFirst) {
  Start();
  Create("file");
  Write(2, std::string(4096, 'x'), 8192);
  fuse_lseek_in in{};
  in.whence = SEEK_DATA;
  kernel_.Send(FUSE_LSEEK, 2, Bytes(in));
  const auto notice = kernel_.Receive();
  ASSERT_TRUE(notice.has_value());
  EXPECT_EQ(notice->header.unique, 0u);
  EXPECT_EQ(notice->header.error, FUSE_NOTIFY_INVAL_INODE);
  EXPECT_EQ(notice->As<fuse_notify_inval_inode_out>().ino, 2u);
  const auto reply = kernel_.Receive();
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->As<fuse_lseek_out>().offset, 8192u);
}

TEST_F(VolumeServerTest, OpensLeftByADeadConnectionAreGivenBack) {
  Start();
  Create("a");
  Create("b", O_RDONLY);
  EXPECT_EQ(volume_->open_handles(), 2u);
  kernel_.Hangup();
  server_->StopFlusher();
  transport_->Stop();
  server_->ReleaseLeftOpens();
  EXPECT_EQ(volume_->open_handles(), 0u);
}

TEST_F(VolumeServerTest, DamagedRequestsAreDroppedAndTheNextIsServed) {
  Start();
  kernel_.SendRaw("tiny");
  fuse_in_header header{};
  header.len = 4000;  // longer than what comes
  header.opcode = FUSE_GETATTR;
  kernel_.SendRaw(Bytes(header));
  EXPECT_EQ(kernel_.Call(FUSE_GETATTR, FUSE_ROOT_ID, Bytes(fuse_getattr_in{})).header.error, 0);
}

TEST_F(VolumeServerTest, StopWakesIdleThreadsAndIsIdempotent) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, &before);  // as a daemon does before it starts threads
  Start();
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  transport_->Stop();
  transport_->Stop();
  EXPECT_EQ(closed_.load(), 0);  // stopped, not ended
}

}  // namespace
}  // namespace cairn
