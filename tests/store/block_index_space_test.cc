// The block index on a full disk: refused, read on, and healed by the first write that there is
// space for.
#include <gtest/gtest.h>

#include <memory>

#include "store/block_index.h"
#include "store/key_ring.h"
#include "tests/support/faulty_rocksdb.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

class FullIndex : public testing::Test {
 protected:
  FullIndex() : env_(FaultyRocksEnv(faults_)) {
    auto opened = BlockIndex::Open({.dir = temp_ / "index",
                                    .store = BaseRealm(),
                                    .make_room = [this](uint64_t bytes) -> Status {
                                      asked_bytes_ = bytes;
                                      if (no_room_) return Err(ErrorCode::kExhausted, "no room");
                                      return {};
                                    },
                                    .env = env_.get()});
    EXPECT_TRUE(opened) << opened.error().ToString();
    index_ = *std::move(opened);
  }
  Status Add(uint8_t n) {
    PackEntry entry;
    entry.address.bytes[0] = n;
    entry.offset = 160;
    entry.stored_length = 100 + n;
    entry.raw_length = 1;
    PackSummary pack;
    pack.pack.bytes[0] = n;
    pack.entry_count = 1;
    return index_->AddPack(pack, 1, {entry});
  }
  bool Has(uint8_t n) {
    Address address;
    address.bytes[0] = n;
    const auto found = index_->Get(address);
    EXPECT_TRUE(found) << found.error().ToString();
    return found && found->has_value() && (*found)->entry.stored_length == 100u + n;
  }

  TempDir temp_;
  RocksFaults faults_;
  bool no_room_ = false;
  uint64_t asked_bytes_ = 0;
  std::unique_ptr<rocksdb::Env> env_;
  std::unique_ptr<BlockIndex> index_;
};

TEST_F(FullIndex, IsExhaustedReadsOnAndHealsWithTheFirstWriteThereIsSpaceFor) {
  for (const bool everywhere : {false, true}) {
    faults_.everywhere = everywhere;  // then it cannot even be opened again, but for reading
    ASSERT_TRUE(Add(1));
    faults_.no_space = true;
    for (int i = 0; i < 3; ++i) {
      const Status refused = Add(2);
      ASSERT_FALSE(refused);
      EXPECT_EQ(refused.error().code(), ErrorCode::kExhausted) << refused.error().ToString();
      EXPECT_TRUE(Has(1)) << "everywhere " << everywhere;
      EXPECT_FALSE(Has(2));
    }
    faults_.no_space = false;
    ASSERT_TRUE(Add(3)) << "everywhere " << everywhere;
    EXPECT_TRUE(Has(1) && Has(3));
    EXPECT_EQ(index_->Packs()->size(), 2u);
    ASSERT_TRUE(index_->Clear());
  }
}

TEST_F(FullIndex, ClosesAndOpensAgainAfterAFullDisk) {
  faults_.everywhere = true;
  ASSERT_TRUE(Add(1));
  faults_.no_space = true;
  EXPECT_FALSE(Add(2));
  EXPECT_TRUE(index_->Close());
  faults_.no_space = false;
  index_ = *BlockIndex::Open({.dir = temp_ / "index", .store = BaseRealm(), .env = env_.get()});
  EXPECT_TRUE(Has(1));
  EXPECT_TRUE(Add(2));
}

TEST_F(FullIndex, AsksForRoomAndDoesNotWriteWithoutIt) {
  ASSERT_TRUE(Add(1));
  EXPECT_GT(asked_bytes_, 256u << 10);
  no_room_ = true;
  EXPECT_EQ(Add(2).error().code(), ErrorCode::kExhausted);
  EXPECT_TRUE(Has(1));
  Address address;
  address.bytes[0] = 1;
  EXPECT_EQ(index_->SetCondemnCycle(address, 0, 5).error().code(), ErrorCode::kExhausted);
  no_room_ = false;
  EXPECT_TRUE(Add(2));
  EXPECT_TRUE(*index_->SetCondemnCycle(address, 0, 5));
}

}  // namespace
}  // namespace cairn
