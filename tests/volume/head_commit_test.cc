// Commits, reads of the merged view, freezing and sealing.
#include "tests/volume/head_fixture.h"

namespace cairn {
namespace {

TEST_F(HeadTest, CommittedStateIsReadAtOnceAndAfterReopening) {
  MustReopen();
  const std::string big(300000, 'b');
  Transaction t;
  t.Put(AttributesKey(5), Entry{"attributes", {}});
  t.PutData(5, 100, "small");
  t.PutData(5, 70000, big);
  t.SetNextInode(6);
  t.SetTotals(1, 370000);
  ASSERT_TRUE(head_->Commit(std::move(t)));
  for (int life = 0; life < 3; life++) {
    const auto layer = head_->current();
    EXPECT_EQ(GetPayload(*layer, AttributesKey(5)), "attributes");
    EXPECT_EQ(ReadFile(*layer, 5, 98, 9), std::string("\0\0small\0\0", 9));
    EXPECT_EQ(ReadFile(*layer, 5, 70000, big.size()), big);
    EXPECT_EQ(ReadFile(*layer, 5, 70000 + 4095, 5000), big.substr(0, 5000));
    EXPECT_EQ(head_->state().next_ino, 6u);
    EXPECT_EQ(head_->state().total_bytes, 370000u);
    MustReopen();
  }
}

}  // namespace
}  // namespace cairn
