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

}  // namespace
}  // namespace cairn
