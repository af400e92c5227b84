// Byte layouts, hex, identifiers, errors and seeded random numbers.
#include "store/base/bytes.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <set>

#include "store/base/hex.h"
#include "store/base/id128.h"
#include "store/base/random.h"

namespace cairn {
namespace {

TEST(ByteReader, ReadsWhatByteWriterWrote) {
  std::string bytes;
  ByteWriter w(bytes);
  w.U8(1);
  w.U16(0x0203);
  w.U32(0x04050607);
  w.U64(0x08090a0b0c0d0e0full);
  w.I64(-5);
  w.Bytes("abc");
  w.Zeros(2);
  EXPECT_EQ(HexEncode(bytes.substr(0, 15)), "010302070605040f0e0d0c0b0a0908");
  ByteReader r(bytes);
  EXPECT_EQ(r.U8(), 1);
  EXPECT_EQ(r.U16(), 0x0203);
  EXPECT_EQ(r.U32(), 0x04050607u);
  EXPECT_EQ(r.U64(), 0x08090a0b0c0d0e0full);
  EXPECT_EQ(r.I64(), -5);
  EXPECT_EQ(r.Bytes(3), "abc");
  EXPECT_FALSE(r.done());
  EXPECT_EQ(r.Bytes(2), std::string(2, '\0'));
  EXPECT_TRUE(r.done());
}

TEST(ByteReader, ReadPastTheEndGivesZerosAndStaysNotOk) {
  ByteReader r("abc");
  EXPECT_EQ(r.U32(), 0u);
  EXPECT_FALSE(r.ok());
  EXPECT_EQ(r.U8(), 0) << "even where bytes are left";
  EXPECT_FALSE(r.done());
  ByteReader huge("abc");
  EXPECT_TRUE(huge.Bytes(SIZE_MAX).empty());
  EXPECT_FALSE(huge.ok());
}

TEST(BigEndian64, SortsAsItsNumber) {
  std::string low, high;
  AppendBigEndian64(low, 255);
  AppendBigEndian64(high, 256);
  EXPECT_LT(low, high);
  EXPECT_EQ(BigEndian64(high), 256u);
}

TEST(Hex, RoundTripsAndRefusesWhatIsNotHex) {
  std::string all;
  for (int i = 0; i < 256; ++i) all.push_back(static_cast<char>(i));
  EXPECT_EQ(*HexDecode(HexEncode(all)), all);
  EXPECT_EQ(*HexDecode("AbCd"), "\xab\xcd");
  for (const char* bad : {"a", "zz", "0g", " 0", "0x"}) {
    EXPECT_EQ(HexDecode(bad).error().code(), ErrorCode::kInvalidArgument) << bad;
  }
}

TEST(Id128, RandomOnesDifferAndHexRoundTrips) {
  const Id128 a = Id128::Random();
  EXPECT_NE(a, Id128::Random());
  EXPECT_FALSE(a.is_zero());
  EXPECT_TRUE(Id128{}.is_zero());
  EXPECT_EQ(*Id128::FromHex(a.ToHex()), a);
  EXPECT_FALSE(Id128::FromHex("00").has_value());
}

TEST(Error, CodeFollowsFromErrno) {
  EXPECT_EQ(Error::FromErrno(ENOENT).code(), ErrorCode::kNotFound);
  EXPECT_EQ(Error::FromErrno(ENOSPC).code(), ErrorCode::kExhausted);
  EXPECT_EQ(Error::FromErrno(EEXIST).code(), ErrorCode::kAlreadyExists);
  EXPECT_EQ(Error::FromErrno(EIO).code(), ErrorCode::kInternal);
  EXPECT_EQ(Error::FromErrno(EIO).sys_errno(), EIO);
}

TEST(Error, TextNamesCodeMessageAndErrno) {
  EXPECT_EQ(Error(ErrorCode::kDataLoss, "block x").WithContext("pack y").ToString(),
            "data_loss: pack y: block x");
  EXPECT_EQ(Error::FromErrno(ENOENT, "open /x").ToString(),
            "not_found: open /x (errno 2: No such file or directory)");
}

Result<int> Half(int n) {
  if (n % 2 != 0) return Err(ErrorCode::kInvalidArgument, "odd");
  return n / 2;
}
Result<int> Quarter(int n) { return Half(CAIRN_TRY(Half(n))); }

TEST(CairnTry, PassesValuesOnAndReturnsErrors) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Quarter(6).error().message(), "odd");
}

TEST(SeededRandom, SameSeedSameSequence) {
  SeededRandom a(7), b(7), c(8);
  EXPECT_EQ(a.Bytes(33), b.Bytes(33));
  EXPECT_NE(a.Next(), c.Next());
  std::set<uint64_t> seen;
  for (int i = 0; i < 200; ++i) seen.insert(a.Below(10));
  EXPECT_EQ(seen.size(), 10u);
}

}  // namespace
}  // namespace cairn
