// The scrubber over a real local store: what it finds, at which rate, how it goes on after stops
// and kills, and whom it names. Time is a FakeClock's: the waits move it.
#include "gc/scrub.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <thread>

#include "catalog/keys.h"
#include "catalog/records.h"
#include "store/base/random.h"
#include "store/pack_writer.h"
#include "tests/support/mem_catalog.h"
#include "tests/support/store_world.h"

namespace cairn {
namespace {

using State = ScrubReport::State;

class ScrubTest : public testing::Test {
 protected:
  ScrubTest() {
    catalog::Organization org;
    org.set_id(kOrg);
    org.set_realm(std::string(world_.realm_a.view()));
    Put(keys::Organization(kOrg), org);
    options_.step_bytes = 4096;
    options_.save_every_ms = 0;
    options_.wait = [this](int64_t ns) {
      world_.clock.Advance(ns);
      ++waits_;
      if (at_wait_) at_wait_(waits_);
    };
  }
  ~ScrubTest() override { scrubber_.reset(); }

  template <typename Message>
  void Put(const std::string& key, const Message& message) {
    ASSERT_TRUE(catalog_.Run([&](CatalogTransaction& txn) -> Status {
      PutRecord(txn, key, message);
      return {};
    }));
  }
  void Start() { scrubber_ = Scrubber::Start(catalog_, *world_.store, world_.clock, options_); }
  // A pass from beginning to end.
  ScrubReport Scrub(uint64_t rate_bytes = 0) {
    if (scrubber_ == nullptr) Start();
    const Status begun = scrubber_->Begin(rate_bytes);
    EXPECT_TRUE(begun) << begun.error().ToString();
    return AtRest();
  }
  ScrubReport AtRest() {
    for (int i = 0; i < 60000; ++i) {
      const auto report = scrubber_->Report();
      EXPECT_TRUE(report) << report.error().ToString();
      if (report && report->state != State::kRunning) return *report;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ADD_FAILURE() << "the pass does not end";
    return {};
  }
  // `count` blocks of 1000 bytes in sealed packs of about four.
  void Fill(int count) {
    for (int i = 0; i < count; ++i) {
      plains_.push_back(SeededRandom(i).Bytes(1000));
      refs_.push_back(world_.Put(world_.realm_a, plains_.back()));
    }
    ASSERT_TRUE(world_.store->SealOpenPacks());
  }
  uint64_t PackFileBytes() {
    uint64_t bytes = 0;
    for (const std::string& path : world_.PackPaths()) bytes += std::filesystem::file_size(path);
    return bytes;
  }
  // Where block `i` lies: path and offset of its frame.
  std::pair<std::string, uint64_t> FrameOf(int i) {
    for (const std::string& path : world_.PackPaths()) {
      const std::string bytes = ReadHostFile(path);
      const size_t at = bytes.find(refs_[i].address.view());
      if (at != std::string::npos) return {path, at - 16};
    }
    ADD_FAILURE() << "no frame of block " << i;
    return {};
  }
  void AddMemory(const std::string& snapshot_id, const BlockRef& ref) {
    catalog::Snapshot snapshot;
    snapshot.set_id(snapshot_id);
    snapshot.set_org(kOrg);
    snapshot.set_memory_image(ref.Encode());
    Put(keys::Snapshot(kOrg, snapshot_id), snapshot);
  }

  inline static const std::string kOrg = "org_00000000000000000000000000000001";
  StoreWorld world_{4 << 10};
  MemCatalog catalog_;
  ScrubOptions options_;
  int waits_ = 0;                     // the scrubber's thread
  std::function<void(int)> at_wait_;  // called there
  std::vector<BlockRef> refs_;
  std::vector<std::string> plains_;
  std::unique_ptr<Scrubber> scrubber_;
};

TEST_F(ScrubTest, CleanStoreIsVerifiedWhole) {
  Fill(40);
  const ScrubReport report = Scrub();
  EXPECT_EQ(report.state, State::kFinished);
  EXPECT_EQ(report.pass.number(), 1u);
  EXPECT_EQ(report.pass.blocks(), 40u);
  EXPECT_EQ(report.pass.packs(), world_.PackPaths().size());
  constexpr uint64_t kUncounted = kPackHeaderBytes + kPackTrailerBytes + 32;
  EXPECT_EQ(report.pass.bytes(), PackFileBytes() - kUncounted * report.pass.packs());
  EXPECT_TRUE(report.findings.empty());
  EXPECT_GT(report.pass.ended_ms(), report.pass.started_ms());
  EXPECT_EQ(Scrub().pass.number(), 2u);
}

TEST_F(ScrubTest, OpenPackIsSealedAndVerified) {
  world_.Put(world_.realm_a, "still in the open pack");
  const ScrubReport report = Scrub();
  EXPECT_EQ(report.pass.blocks(), 1u);
  EXPECT_EQ(world_.store->ListPacks(world_.realm_a).size(), 1u);
}

TEST_F(ScrubTest, FlippedByteOfEachPartIsFound) {
  struct Case {
    const char* what;
    bool from_end;
    uint64_t offset;  // in the file, or in the frame of block 5
    bool frame;
  };
  const Case cases[] = {{"frame at", false, 20, true},             // header of the frame
                        {"frame at", false, 64 + 500, true},       // ciphertext
                        {"frame at", false, 64 + 1000 + 5, true},  // tag
                        {"pack header:", false, 40, false},
                        {"pack footer:", true, 32 + 50, false},
                        {"pack footer:", true, 10, false}};
  Fill(8);
  for (const Case& c : cases) {
    const auto [path, frame] = FrameOf(5);
    const uint64_t at = c.from_end ? std::filesystem::file_size(path) - c.offset
                        : c.frame  ? frame + c.offset
                                   : c.offset;
    FlipBit(path, at);
    const ScrubReport report = Scrub();
    ASSERT_EQ(report.findings.size(), 1u) << c.what << c.offset;
    EXPECT_TRUE(report.findings[0].what.starts_with(c.what)) << report.findings[0].what;
    EXPECT_EQ(report.findings[0].where, path);
    EXPECT_FALSE(report.findings[0].resolved);
    EXPECT_EQ(report.pass.damaged_blocks(), c.frame ? 1u : 0u);
    EXPECT_EQ(report.quarantine.blocks, c.frame ? 1u : 0u);
    if (!c.frame) {
      EXPECT_EQ(report.findings[0].owners, std::vector<std::string>{"organization " + kOrg});
    }
    FlipBit(path, at);
    EXPECT_TRUE(Scrub().findings.empty());
    EXPECT_EQ(world_.store->CountQuarantine()->places, 0u) << "it reads good again";
  }
}

TEST_F(ScrubTest, DamageOfTheBaseRealmThatLosesNoBlockIsSaidToBeIts) {
  world_.Put(BaseRealm(), "of all organizations");
  ASSERT_TRUE(world_.store->SealOpenPacks());
  const std::string path = world_.PackPaths().at(0);
  FlipBit(path, std::filesystem::file_size(path) - 10);
  const ScrubReport report = Scrub();
  ASSERT_EQ(report.findings.size(), 1u);
  EXPECT_TRUE(report.findings[0].what.starts_with("pack footer:")) << report.findings[0].what;
  EXPECT_EQ(report.findings[0].owners, std::vector<std::string>{"the base realm"});
}

TEST_F(ScrubTest, RightTagOverWrongBytesIsFoundByItsAddress) {
  Fill(1);
  world_.Close();
  const std::string right = SeededRandom(77).Bytes(500), wrong = SeededRandom(78).Bytes(500);
  const Address address = *world_.keys.AddressOf(world_.realm_a, BlockKind::kData, right);
  auto writer = PackWriter::Create(HostFileSystem(), world_.keys,
                                   {.dir = world_.dir + "/packs/" + world_.realm_a.ToHex(),
                                    .pack = Id128::Random(),
                                    .realm = world_.realm_a,
                                    .epoch = 1});
  ASSERT_TRUE(writer);
  const PackWriter::Frame frame{.address = address,
                                .kind = BlockKind::kData,
                                .codec = Codec::kRaw,
                                .raw_length = 500,
                                .bytes = wrong};
  auto place = (*writer)->Reserve({&frame, 1}, kMaxPackBytes);
  ASSERT_TRUE(place);
  std::string room(frame.FrameBytes(), '\0');
  ASSERT_TRUE((*writer)->Write(*std::move(place), {&frame, 1}, room));
  ASSERT_TRUE((*writer)->Finish());
  world_.Open();
  int distrusted = 0;
  options_.distrusted = [&](const Id128& realm) {
    EXPECT_EQ(realm, world_.realm_a);
    ++distrusted;
  };
  const ScrubReport report = Scrub();
  ASSERT_EQ(report.findings.size(), 1u);
  EXPECT_TRUE(report.findings[0].what.ends_with("plaintext has another address"));
  EXPECT_EQ(distrusted, 1);
  const BlockRef ref{.kind = BlockKind::kData, .raw_length_bytes = 500, .address = address};
  EXPECT_EQ(world_.store->Get(world_.realm_a, ref).error().code(), ErrorCode::kDataLoss);
}

// Measured on the clock that the waits move: reading takes no time at all on it. Bytes are counted
// below the store, those of headers and footers too.
TEST_F(ScrubTest, RateIsBounded) {
  Fill(200);
  Start();
  for (const uint64_t rate : {10'000u, 100'000u, 1'000'000u}) {
    const int64_t begun_ns = world_.clock.MonotonicNs();
    const uint64_t before = world_.fs.read_bytes();
    const ScrubReport report = Scrub(rate);
    const double seconds = static_cast<double>(world_.clock.MonotonicNs() - begun_ns) / 1e9;
    const double bytes = static_cast<double>(report.pass.bytes());
    const uint64_t read = world_.fs.read_bytes() - before;
    EXPECT_GE(read, report.pass.blocks() * 1000);
    EXPECT_LE(read, report.pass.bytes() + report.pass.packs() * 1400) << "and what is not counted";
    EXPECT_GE(seconds * 1.01, bytes / static_cast<double>(rate)) << rate;
    EXPECT_LE(seconds, 1.01 * bytes / static_cast<double>(rate)) << "and it is used";
    EXPECT_EQ(report.rate_bytes, rate);
  }
}

TEST(TokenBucket, CreditsAtMostOneSecond) {
  constexpr int64_t kSecond = 1'000'000'000;
  TokenBucket bucket(1000, 0);
  EXPECT_EQ(bucket.Take(500, 0), kSecond / 2);
  EXPECT_EQ(bucket.Take(500, kSecond / 2), kSecond / 2);
  EXPECT_EQ(bucket.Take(500, 100 * kSecond), 0) << "of the second that is credited";
  EXPECT_EQ(bucket.Take(500, 100 * kSecond), 0);
  EXPECT_EQ(bucket.Take(500, 100 * kSecond), kSecond / 2);
  EXPECT_GT(TokenBucket(0, 0).Take(UINT64_MAX, 0), 0) << "does not overflow";
}

TEST_F(ScrubTest, SecondScrubIsRefusedWhileOneRuns) {
  Fill(20);
  Status second;
  ScrubReport seen;
  at_wait_ = [&](int n) {
    if (n != 2) return;
    second = scrubber_->Begin(0);
    seen = *scrubber_->Report();
  };
  Scrub();
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(seen.state, State::kRunning);
  EXPECT_GT(seen.pass.bytes(), 0u);
}

TEST_F(ScrubTest, GoesOnAfterARestartWhereItStopped) {
  Fill(60);
  options_.step_bytes = 1;  // a frame each
  const uint64_t packs = world_.PackPaths().size();
  // Interrupted 17 times, each time at the seventh wait.
  int lives = 0;
  uint64_t verified = 0;
  for (ScrubReport report;; ++lives) {
    ASSERT_LT(lives, 40);
    waits_ = 0;
    std::atomic<bool> there = false;
    std::atomic<bool> go = false;
    at_wait_ = [&](int n) {
      if (n != 7) return;
      there = true;
      while (!go) std::this_thread::yield();
    };
    Start();  // goes on by itself
    if (lives == 0) {
      ASSERT_TRUE(scrubber_->Begin(0));
    }
    while (!there && scrubber_->Report()->state == State::kRunning) std::this_thread::yield();
    if (!there) {
      report = AtRest();
      EXPECT_EQ(report.state, State::kFinished);
      EXPECT_EQ(report.pass.number(), 1u);
      EXPECT_EQ(report.pass.blocks(), 60u) << "each once";
      EXPECT_EQ(report.pass.packs(), packs);
      break;
    }
    std::thread stop([&] { scrubber_->Stop(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    go = true;
    stop.join();
    scrubber_.reset();
    at_wait_ = nullptr;
    const auto state = *GetRecord<catalog::ScrubState>(catalog_, keys::kScrub);
    EXPECT_GT(state->current().blocks(), verified);
    verified = state->current().blocks();
  }
  EXPECT_GT(lives, 5);
}

// The catalog of a moment in the middle is what a kill at that moment leaves.
TEST_F(ScrubTest, KilledPassReadsAgainOnlyWhatCameAfterTheLastSave) {
  Fill(200);
  constexpr uint64_t kRate = 10'000;
  options_.save_every_ms = 3000;
  std::vector<std::pair<catalog::ScrubState, uint64_t>> moments;  // and what was read until then
  Start();
  uint64_t before = world_.fs.read_bytes();
  at_wait_ = [&](int n) {
    if (n % 10 != 0) return;
    const auto state = GetRecord<catalog::ScrubState>(catalog_, keys::kScrub);
    moments.emplace_back(state->value(), world_.fs.read_bytes() - before);
  };
  const ScrubReport whole = Scrub(kRate);
  const uint64_t whole_bytes = world_.fs.read_bytes() - before;
  at_wait_ = nullptr;
  ASSERT_GE(moments.size(), 5u);
  uint64_t most_again = 0;
  for (const auto& [state, read] : moments) {
    scrubber_.reset();
    Put(std::string(keys::kScrub), state);
    before = world_.fs.read_bytes();
    Start();
    const ScrubReport report = AtRest();
    EXPECT_EQ(report.pass.number(), 1u);
    EXPECT_EQ(report.pass.blocks(), 200u) << "each counted once";
    EXPECT_EQ(report.pass.packs(), whole.pass.packs());
    const uint64_t both = read + world_.fs.read_bytes() - before;
    most_again = std::max(most_again, both - std::min(both, whole_bytes));
  }
  EXPECT_GT(most_again, 0u);
  // Three seconds and a step; and what the digest takes of the pack that was begun.
  EXPECT_LE(most_again, 3 * kRate + 2 * options_.step_bytes + 2 * (4 << 10) + 3000);
}

TEST_F(ScrubTest, StoppedPassWaitsUntilItIsAskedFor) {
  Fill(40);
  std::atomic<bool> there = false;
  std::atomic<bool> go = false;
  at_wait_ = [&](int n) {
    if (n != 4) return;
    there = true;
    while (!go) std::this_thread::yield();
  };
  Start();
  ASSERT_TRUE(scrubber_->Begin(0));
  while (!there) std::this_thread::yield();
  std::thread stop([&] { scrubber_->StopPass(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  go = true;
  stop.join();
  EXPECT_EQ(scrubber_->Report()->state, State::kStopped);
  scrubber_.reset();
  at_wait_ = nullptr;
  Start();
  const ScrubReport waiting = *scrubber_->Report();
  EXPECT_EQ(waiting.state, State::kStopped) << "a restart does not go on";
  EXPECT_LT(waiting.pass.blocks(), 40u);
  const ScrubReport report = Scrub();
  EXPECT_EQ(report.pass.number(), 1u);
  EXPECT_EQ(report.pass.blocks(), 40u);
}

TEST_F(ScrubTest, PacksThatLeaveInTheMiddleAreNoDamage) {
  for (const bool now : {true, false}) {
    Fill(40);
    at_wait_ = [&](int n) {
      if (n % 40 != 3) return;
      // All of them, the one that is being read too.
      for (const PackSummary& pack : world_.store->ListPacks(world_.realm_a)) {
        EXPECT_TRUE(world_.store->DropPack(pack.pack, {.now = now}));
      }
    };
    waits_ = 0;
    const ScrubReport report = Scrub();
    EXPECT_EQ(report.state, State::kFinished);
    EXPECT_TRUE(report.findings.empty());
    EXPECT_EQ(report.quarantine.places, 0u);
    EXPECT_LT(report.pass.blocks(), 40u);
    EXPECT_EQ(report.pass.unverified_packs(), 0u);
    at_wait_ = nullptr;
    refs_.clear();
    plains_.clear();
  }
}

TEST_F(ScrubTest, RewrittenPacksAreNoDamage) {
  Fill(40);
  LocalBlockStore::AddressSet keep;
  for (size_t i = 0; i < refs_.size(); i += 2) keep.insert(refs_[i].address);
  at_wait_ = [&](int n) {
    if (n != 3) return;
    for (const PackSummary& pack : world_.store->ListPacks(world_.realm_a)) {
      EXPECT_TRUE(world_.store->RewritePack(pack.pack, keep, {.now = true}));
    }
  };
  const ScrubReport report = Scrub();
  EXPECT_EQ(report.state, State::kFinished);
  EXPECT_TRUE(report.findings.empty());
  EXPECT_TRUE(Scrub().findings.empty());
}

TEST_F(ScrubTest, HealedBlockIsResolvedAndTheNextPassIsClean) {
  Fill(8);
  const auto [path, frame] = FrameOf(3);
  FlipBit(path, frame + 200);
  EXPECT_EQ(Scrub().findings.size(), 1u);
  world_.Put(world_.realm_a, plains_[3]);
  EXPECT_TRUE(scrubber_->Report()->findings.at(0).resolved);
  const ScrubReport again = Scrub();
  EXPECT_TRUE(again.findings.empty());
  EXPECT_EQ(again.pass.damaged_garbage(), 1u) << "the bad copy is still on the disk";
  EXPECT_EQ(again.quarantine.blocks, 0u);
}

TEST_F(ScrubTest, ResultSurvivesARestartAndOwnersAreNamedAgain) {
  Fill(8);
  AddMemory("snap_1", refs_[3]);
  AddMemory("snap_2", refs_[4]);
  const auto [path, frame] = FrameOf(3);
  FlipBit(path, frame + 200);
  const std::vector<std::string> owners{"snapshot snap_1 memory"};
  EXPECT_EQ(Scrub().findings.at(0).owners, owners);
  scrubber_.reset();
  world_.Reopen();
  Start();
  while (!scrubber_->Report()->owners_known) std::this_thread::yield();
  const ScrubReport report = *scrubber_->Report();
  EXPECT_EQ(report.state, State::kFinished);
  ASSERT_EQ(report.findings.size(), 1u);
  EXPECT_EQ(report.findings[0].owners, owners);
  EXPECT_EQ(report.last.damaged_blocks(), 1u);
  EXPECT_EQ(report.quarantine.blocks, 1u);
}

TEST_F(ScrubTest, MissingPackNamesAllItsOwners) {
  Fill(12);
  for (size_t i = 0; i < refs_.size(); ++i) AddMemory("snap_" + std::to_string(i), refs_[i]);
  const auto [path, frame] = FrameOf(6);
  const std::string bytes = ReadHostFile(path);
  size_t lost = 0;
  for (const BlockRef& ref : refs_) lost += bytes.find(ref.address.view()) != std::string::npos;
  std::filesystem::remove(path);
  const ScrubReport report = Scrub();
  ASSERT_EQ(report.findings.size(), 1u);
  EXPECT_EQ(report.findings[0].what, "pack file is missing");
  EXPECT_EQ(report.pass.damaged_blocks(), lost);
  EXPECT_EQ(report.findings[0].owners.size(), lost);
}

TEST_F(ScrubTest, APackThatWasLostWhileNobodyServedIsFoundByWhatItLacks) {
  Fill(12);
  for (size_t i = 0; i < refs_.size(); ++i) AddMemory("snap_" + std::to_string(i), refs_[i]);
  const auto [path, frame] = FrameOf(6);
  const std::string bytes = ReadHostFile(path);
  std::set<std::string> lost;
  for (const BlockRef& ref : refs_) {
    if (bytes.find(ref.address.view()) != std::string::npos) {
      lost.insert("block " + ref.address.ToHex());
    }
  }
  EXPECT_GT(lost.size(), 1u);
  world_.Close();
  std::filesystem::remove(path);
  world_.Open();
  for (int pass = 0; pass < 2; ++pass) {  // the index knows nothing of it any more, in any of them
    const ScrubReport report = Scrub();
    ASSERT_EQ(report.findings.size(), lost.size());
    EXPECT_EQ(report.pass.damaged_blocks(), lost.size());
    for (const ScrubReport::Finding& finding : report.findings) {
      EXPECT_TRUE(lost.contains(finding.where));
      EXPECT_EQ(finding.what, "block is in no pack");
      EXPECT_EQ(finding.owners.size(), 1u);
      EXPECT_FALSE(finding.resolved);
    }
  }
  // Written again: whole again.
  for (const std::string& plain : plains_) world_.Put(world_.realm_a, plain);
  const auto healed = scrubber_->Report();
  ASSERT_TRUE(healed);
  for (const ScrubReport::Finding& finding : healed->findings) EXPECT_TRUE(finding.resolved);
  EXPECT_TRUE(Scrub().findings.empty());
}

TEST_F(ScrubTest, APackThatWasCutShortIsFoundByWhatItLacks) {
  Fill(12);
  for (size_t i = 0; i < refs_.size(); ++i) AddMemory("snap_" + std::to_string(i), refs_[i]);
  const auto [path, frame] = FrameOf(6);
  world_.Close();
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  world_.Open();
  const ScrubReport report = Scrub();
  EXPECT_GT(report.findings.size(), 0u);
  EXPECT_EQ(report.findings[0].what, "block is in no pack");
}

TEST_F(ScrubTest, WhatNothingRefersToIsNotMissed) {
  Fill(12);
  AddMemory("snap_0", refs_[0]);
  const auto [path, frame] = FrameOf(6);
  ASSERT_NE(FrameOf(0).first, path);
  world_.Close();
  std::filesystem::remove(path);
  world_.Open();
  EXPECT_TRUE(Scrub().findings.empty());
}

TEST_F(ScrubTest, FindingsAreBounded) {
  Fill(30);
  options_.max_findings = 4;
  for (int i = 0; i < 10; ++i) {
    const auto [path, frame] = FrameOf(i);
    FlipBit(path, frame + 200);
  }
  const ScrubReport report = Scrub();
  EXPECT_EQ(report.findings.size(), 4u);
  EXPECT_EQ(report.pass.findings_left_off(), 6u);
  EXPECT_EQ(report.pass.damaged_blocks(), 10u);
  EXPECT_EQ(report.quarantine.blocks, 10u) << "all are quarantined all the same";
}

TEST_F(ScrubTest, PackWithoutKeysIsVerifiedByItsChecksumsAndSaidSo) {
  Fill(4);
  const auto [path, frame] = FrameOf(0);
  world_.keys.Remove(world_.realm_a);
  ScrubReport report = Scrub();
  EXPECT_EQ(report.pass.unverified_packs(), world_.PackPaths().size());
  EXPECT_TRUE(report.findings.empty());
  FlipBit(path, frame + 200);
  EXPECT_EQ(Scrub().findings.size(), 1u);
}

TEST_F(ScrubTest, StateThatDoesNotReadIsBegunAnew) {
  Fill(4);
  ASSERT_TRUE(catalog_.Run([&](CatalogTransaction& txn) -> Status {
    txn.Put(keys::kScrub, "\xff\xff");
    return {};
  }));
  EXPECT_EQ(Scrub().pass.blocks(), 4u);
}

}  // namespace
}  // namespace cairn
