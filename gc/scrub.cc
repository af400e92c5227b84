// A pass: packs in the order of their ids -> each in steps of about 1 MiB (LocalBlockStore::
// Verification quarantines what is bad) -> after each step counters and cursor move together under
// the lock, and the token bucket says how long to wait -> at the end the result becomes the last
// one, durably, and the owners of what was found are looked for. Owners are also looked for
// meanwhile, at most a twentieth of the time. Invariant: every frame before the saved cursor was
// verified in this pass, or its pack came later than the pass.
#include "gc/scrub.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "catalog/keys.h"
#include "catalog/records.h"
#include "gc/absent_blocks.h"
#include "gc/owners.h"
#include "gc/root_set.h"
#include "store/base/log.h"

namespace cairn {

namespace {

constexpr uint64_t kPackDone = UINT64_MAX;  // as a cursor's offset
constexpr int64_t kNamingShare = 20;        // looking for owners takes at most 1/20 of a pass

// Of this thread: the CPU's and the disk's lowest priority (setpriority(2), ioprio_set(2); where a
// disk's scheduler knows no priorities, the rate alone bounds what the others feel).
void TakeLowestPriority() {
  constexpr int kWhoThread = 1;        // IOPRIO_WHO_PROCESS with 0: the calling thread
  constexpr int kIdleClass = 3 << 13;  // IOPRIO_CLASS_IDLE
  const auto thread = static_cast<id_t>(::syscall(SYS_gettid));
  if (::setpriority(PRIO_PROCESS, thread, 19) != 0 ||
      ::syscall(SYS_ioprio_set, kWhoThread, 0, kIdleClass) != 0) {
    LogInfo("scrub_priority_unchanged");
  }
}

}  // namespace

Scrubber::Scrubber(Catalog& catalog, LocalBlockStore& store, Clock& clock, ScrubOptions options)
    : catalog_(catalog),
      store_(store),
      clock_(clock),
      options_(std::move(options)),
      bucket_(options_.rate_bytes, clock.MonotonicNs()) {}

std::unique_ptr<Scrubber> Scrubber::Start(Catalog& catalog, LocalBlockStore& store, Clock& clock,
                                          ScrubOptions options) {
  std::unique_ptr<Scrubber> scrubber(new Scrubber(catalog, store, clock, std::move(options)));
  const auto state = GetRecord<catalog::ScrubState>(catalog, keys::kScrub);
  if (!state) LogError("scrub_state_unreadable", {{"error", state.error().ToString()}});
  const catalog::ScrubState saved =
      state ? state->value_or(catalog::ScrubState()) : catalog::ScrubState();
  const catalog::ScrubPass& shown = saved.has_current() ? saved.current() : saved.last();
  {
    MutexLock lock(scrubber->mutex_);
    scrubber->state_ = saved;
    scrubber->running_ = saved.has_current() && !saved.stopped();
    scrubber->owners_known_ = shown.findings().empty();
  }
  scrubber->thread_ = std::thread([s = scrubber.get()] { s->Run(); });
  return scrubber;
}

Scrubber::~Scrubber() { Stop(); }

void Scrubber::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

Status Scrubber::Begin(uint64_t rate_bytes) {
  MutexLock lock(mutex_);
  if (stopping_) return Err(ErrorCode::kUnavailable, "the daemon is stopping");
  if (running_) {
    return Err(ErrorCode::kFailedPrecondition,
               "a scrub is running: scrub --status shows it, scrub --stop ends it");
  }
  if (!state_.has_current()) {
    catalog::ScrubPass& pass = *state_.mutable_current();
    pass.set_number(state_.last().number() + 1);
    pass.set_started_ms(clock_.NowMs());
    state_.clear_cursor_pack();
    state_.clear_cursor_offset();
    owners_.clear();
    owners_known_ = true;
  }
  state_.set_stopped(false);
  state_.set_rate_bytes(rate_bytes == 0 ? options_.rate_bytes : rate_bytes);
  running_ = true;
  stop_pass_ = false;
  changed_.NotifyAll();
  return {};
}

void Scrubber::StopPass() {
  MutexLock lock(mutex_);
  if (!running_) return;
  stop_pass_ = true;
  changed_.NotifyAll();
  while (running_ && !stopping_) changed_.Wait(mutex_);
}

bool Scrubber::Interrupted() {
  MutexLock lock(mutex_);
  return stopping_ || stop_pass_;
}

void Scrubber::Wait(int64_t ns) {
  if (ns <= 0) return;
  if (options_.wait) {
    options_.wait(ns);
    return;
  }
  const int64_t until_ns = clock_.MonotonicNs() + ns;
  MutexLock lock(mutex_);
  while (!stopping_ && !stop_pass_) {
    const int64_t left_ns = until_ns - clock_.MonotonicNs();
    if (left_ns <= 0) return;
    changed_.WaitFor(mutex_, left_ns / 1000000 + 1);
  }
}

// False: stop.
bool Scrubber::Pace(uint64_t bytes) {
  Wait(bucket_.Take(bytes, clock_.MonotonicNs()));
  return !Interrupted();
}

void Scrubber::Save() {
  catalog::ScrubState state;
  {
    MutexLock lock(mutex_);
    state = state_;
  }
  const Status saved = catalog_.Run([&](CatalogTransaction& txn) -> Status {
    PutRecord(txn, keys::kScrub, state);
    return {};
  });
  // What is lost is the place to go on from.
  if (!saved) LogWarning("scrub_state_not_saved", {{"error", saved.error().ToString()}});
  saved_ms_ = clock_.NowMs();
}

void Scrubber::Run() {
  TakeLowestPriority();
  bool name;
  {
    MutexLock lock(mutex_);
    name = !owners_known_ && !running_;
  }
  if (name) NameOwners();
  while (true) {
    {
      MutexLock lock(mutex_);
      while (!stopping_ && !running_) changed_.Wait(mutex_);
      if (stopping_) return;
    }
    RunPass();
    {
      MutexLock lock(mutex_);
      running_ = false;
      stop_pass_ = false;
      changed_.NotifyAll();
    }
    // Of a pass that was stopped: whoever asked for the stop does not wait for this.
    if (unnamed_ && !Interrupted()) NameOwners();
  }
}

void Scrubber::RunPass() {
  std::string cursor;
  uint64_t cursor_offset;
  uint64_t number;
  {
    MutexLock lock(mutex_);
    cursor = state_.cursor_pack();
    cursor_offset = state_.cursor_offset();
    number = state_.current().number();
    bucket_ = TokenBucket(state_.rate_bytes(), clock_.MonotonicNs());
    LogInfo("scrub_runs", {{"pass", number}, {"rate_bytes", state_.rate_bytes()}});
  }
  const bool resumed = cursor.size() == 16;
  const Id128 at = resumed ? Id128::FromView(cursor) : Id128{};
  unnamed_ = resumed;  // what an earlier life found
  next_naming_ns_ = clock_.MonotonicNs();
  Save();
  for (const Id128& pack : store_.ListAllPacks()) {
    if (resumed && (pack < at || (pack == at && cursor_offset == kPackDone))) continue;
    if (Interrupted()) break;
    VerifyPack(pack, resumed && pack == at ? cursor_offset : 0);
    const int64_t begun_ns = clock_.MonotonicNs();
    if (unnamed_ && begun_ns >= next_naming_ns_ && !Interrupted()) {
      NameOwners();
      const int64_t ended_ns = clock_.MonotonicNs();
      next_naming_ns_ = ended_ns + kNamingShare * (ended_ns - begun_ns);
    }
  }
  if (!Interrupted()) LookForAbsentBlocks();
  {
    MutexLock lock(mutex_);
    if (stop_pass_) {
      state_.set_stopped(true);
    } else if (!stopping_) {
      catalog::ScrubPass& pass = *state_.mutable_current();
      pass.set_ended_ms(clock_.NowMs());
      LogInfo("scrub_finished", {{"pass", number},
                                 {"packs", pass.packs()},
                                 {"blocks", pass.blocks()},
                                 {"bytes", pass.bytes()},
                                 {"damaged_blocks", pass.damaged_blocks()}});
      state_.mutable_last()->Swap(&pass);
      state_.clear_current();
    }
  }
  Save();
  if (unnamed_ && !Interrupted()) NameOwners();
}

void Scrubber::VerifyPack(const Id128& pack, uint64_t from_offset) {
  const auto verify = [&]() -> Status {
    CAIRN_TRY(store_.SealPack(pack));
    const auto verification = CAIRN_TRY(store_.BeginVerify(pack, from_offset));
    while (true) {
      const LocalBlockStore::Verification::Step step =
          CAIRN_TRY(verification->Next(options_.step_bytes));
      {
        MutexLock lock(mutex_);
        catalog::ScrubPass& pass = *state_.mutable_current();
        pass.set_blocks(pass.blocks() + step.blocks);
        pass.set_bytes(pass.bytes() + step.bytes);
        pass.set_damaged_garbage(pass.damaged_garbage() + step.damaged_garbage);
        state_.set_cursor_pack(std::string(pack.view()));
        state_.set_cursor_offset(step.done ? kPackDone : verification->offset());
        if (step.done && !step.gone) pass.set_packs(pass.packs() + 1);
        if (step.done && verification->locked()) {
          pass.set_unverified_packs(pass.unverified_packs() + 1);
        }
      }
      if (!step.damage.empty()) AddFindings(step);
      if (clock_.NowMs() - saved_ms_ >= options_.save_every_ms) Save();
      if (!Pace(step.bytes) || step.done) return {};
    }
  };
  const Status verified = verify();
  if (verified || verified.error().code() == ErrorCode::kNotFound) return;
  LogError("scrub_pack_unverified",
           {{"pack", pack.ToHex()}, {"error", verified.error().ToString()}});
  MutexLock lock(mutex_);
  catalog::ScrubPass& pass = *state_.mutable_current();
  pass.set_unverified_packs(pass.unverified_packs() + 1);
}

void Scrubber::AddFindings(const LocalBlockStore::Verification::Step& step) {
  unnamed_ = true;
  for (const StoreDamage& damage : step.damage) {
    LogError("scrub_found", {{"pack", damage.where}, {"what", damage.what}});
    if (options_.distrusted) options_.distrusted(damage.realm);
    MutexLock lock(mutex_);
    catalog::ScrubPass& pass = *state_.mutable_current();
    // A pack that was begun before a restart says again what concerns it as a whole, and its digest
    // differs because of what is known already.
    const bool known = std::ranges::any_of(pass.findings(), [&](const auto& finding) {
      return finding.pack() == damage.pack.view() &&
             (damage.what.starts_with("pack digest") ||
              (finding.what() == damage.what && finding.offset() == damage.offset));
    });
    if (known) continue;
    owners_known_ = false;
    pass.set_damaged_blocks(pass.damaged_blocks() + damage.addresses.size());
    if (static_cast<size_t>(pass.findings_size()) >= options_.max_findings) {
      pass.set_findings_left_off(pass.findings_left_off() + 1);
      continue;
    }
    catalog::ScrubFinding& finding = *pass.add_findings();
    finding.set_realm(std::string(damage.realm.view()));
    finding.set_pack(std::string(damage.pack.view()));
    finding.set_where(damage.where);
    finding.set_what(damage.what);
    finding.set_offset(damage.offset);
    finding.set_whole_pack(damage.whole_pack);
    if (!damage.whole_pack && !damage.addresses.empty()) {
      finding.set_address(std::string(damage.addresses[0].view()));
    }
  }
}

void Scrubber::LookForAbsentBlocks() {
  const auto pace = [this](uint64_t bytes) { return Pace(bytes); };
  const auto roots = ReadRootSet(catalog_);
  if (!roots) {
    LogError("scrub_roots_unreadable", {{"error", roots.error().ToString()}});
    return;
  }
  AbsentBlocks absent =
      FindAbsentBlocks(store_, *roots, {.pace = pace, .most = options_.max_findings});
  if (!absent.complete && !Interrupted()) LogError("scrub_absent_blocks_unknown", {});
  if (absent.blocks.empty()) return;
  // Not what has been deleted and collected since.
  const auto now = ReadRootSet(catalog_);
  if (!now) return LogError("scrub_roots_unreadable", {{"error", now.error().ToString()}});
  std::vector<std::vector<Address>> hurt;
  for (const AbsentBlocks::Absent& block : absent.blocks) hurt.push_back({block.ref.address});
  const Owners owners = OwnersOf(catalog_, store_, *now, hurt, {.pace = pace});
  if (!owners.complete) return;
  MutexLock lock(mutex_);
  catalog::ScrubPass& pass = *state_.mutable_current();
  for (size_t i = 0; i < absent.blocks.size(); ++i) {
    const auto& [realm, ref] = absent.blocks[i];
    if (owners.of_damage[i].empty()) continue;
    const bool known = std::ranges::any_of(pass.findings(), [&](const auto& finding) {
      return finding.address() == ref.address.view() && finding.pack().empty();
    });
    if (known) continue;
    LogError("scrub_found", {{"block", ref.address.ToHex()}, {"what", "block is in no pack"}});
    unnamed_ = true;
    owners_known_ = false;
    pass.set_damaged_blocks(pass.damaged_blocks() + 1);
    if (static_cast<size_t>(pass.findings_size()) >= options_.max_findings) {
      pass.set_findings_left_off(pass.findings_left_off() + 1);
      continue;
    }
    catalog::ScrubFinding& finding = *pass.add_findings();
    finding.set_realm(std::string(realm.view()));
    finding.set_where("block " + ref.address.ToHex());
    finding.set_what("block is in no pack");
    finding.set_address(std::string(ref.address.view()));
    finding.set_absent(ref.Encode());
  }
  pass.set_damaged_blocks(pass.damaged_blocks() + absent.left_off);
  pass.set_findings_left_off(pass.findings_left_off() + absent.left_off);
}

Result<bool> Scrubber::IsResolved(const catalog::ScrubFinding& finding) {
  if (!finding.absent().empty()) {
    BlockRef ref = CAIRN_TRY(BlockRef::Decode(finding.absent()));
    ref.realm = RealmTag::kOwn;  // of the realm that is named
    return store_.Contains(Id128::FromView(finding.realm()), ref);
  }
  if (finding.pack().size() != 16 || finding.realm().size() != 16) return false;
  const Id128 pack = Id128::FromView(finding.pack());
  if (!store_.HasPack(pack)) return true;
  if (finding.address().size() != 32) return false;
  return !CAIRN_TRY(store_.LiesAt(Id128::FromView(finding.realm()),
                                  Address::FromView(finding.address()), pack, finding.offset()));
}

// Everything that the shown pass has found so far.
void Scrubber::NameOwners() {
  catalog::ScrubPass pass;
  {
    MutexLock lock(mutex_);
    pass = state_.has_current() ? state_.current() : state_.last();
    if (pass.findings().empty()) {
      owners_known_ = true;
      unnamed_ = false;
      return;
    }
  }
  std::vector<std::vector<Address>> hurt(static_cast<size_t>(pass.findings_size()));
  size_t left = options_.max_hurt;
  for (size_t i = 0; i < hurt.size() && left > 0; ++i) {
    const catalog::ScrubFinding& finding = pass.findings(static_cast<int>(i));
    const auto resolved = IsResolved(finding);
    if (resolved && *resolved) continue;
    if (finding.whole_pack()) {
      auto addresses = store_.AddressesIn(Id128::FromView(finding.pack()), left);
      if (addresses) hurt[i] = *std::move(addresses);
    } else if (finding.address().size() == 32) {
      hurt[i].push_back(Address::FromView(finding.address()));
    }
    left -= std::min(left, hurt[i].size());
  }
  const auto roots = ReadRootSet(catalog_);
  if (!roots) {
    LogError("scrub_owners_unknown", {{"error", roots.error().ToString()}});
    unnamed_ = false;
    return;
  }
  Owners owners = OwnersOf(catalog_, store_, *roots, hurt,
                           {.pace = [this](uint64_t bytes) { return Pace(bytes); }});
  unnamed_ = !owners.complete;
  NameOrganizations(pass, owners.of_damage);
  MutexLock lock(mutex_);
  owners_ = std::move(owners.of_damage);
  owners_known_ = owners.complete;
}

// Where no block is lost (a header, a footer), no root names an owner: whose pack it is.
void Scrubber::NameOrganizations(const catalog::ScrubPass& pass,
                                 std::vector<std::vector<std::string>>& owners) {
  const auto name = [&](std::string_view realm, const std::string& owner) {
    for (size_t i = 0; i < owners.size(); ++i) {
      const catalog::ScrubFinding& finding = pass.findings(static_cast<int>(i));
      if (finding.address().empty() && !finding.whole_pack() && finding.realm() == realm) {
        owners[i].push_back(owner);
      }
    }
  };
  name(BaseRealm().view(), "the base realm");
  IgnoreError(
      ScanRecords<catalog::Organization>(catalog_, keys::Below("org"),
                                         [&](std::string_view, const catalog::Organization& org) {
                                           name(org.realm(), "organization " + org.id());
                                           return true;
                                         }),
      "only names are lost");
}

Result<ScrubReport> Scrubber::Report() {
  ScrubReport report;
  {
    MutexLock lock(mutex_);
    using State = ScrubReport::State;
    report.state = running_               ? State::kRunning
                   : state_.has_current() ? State::kStopped
                   : state_.has_last()    ? State::kFinished
                                          : State::kNever;
    report.rate_bytes = state_.rate_bytes() == 0 ? options_.rate_bytes : state_.rate_bytes();
    report.pass = state_.has_current() ? state_.current() : state_.last();
    report.last = state_.last();
    report.owners_known = owners_known_;
    for (const catalog::ScrubFinding& finding : report.pass.findings()) {
      const size_t i = report.findings.size();
      report.findings.push_back(
          {.where = finding.where(),
           .what = finding.what(),
           .owners = i < owners_.size() ? owners_[i] : std::vector<std::string>()});
    }
  }
  for (size_t i = 0; i < report.findings.size(); ++i) {
    ScrubReport::Finding& finding = report.findings[i];
    finding.resolved = CAIRN_TRY(IsResolved(report.pass.findings(static_cast<int>(i))));
    if (finding.resolved) finding.owners.clear();
  }
  report.pack_count = store_.Stats().pack_count;
  report.quarantine = CAIRN_TRY(store_.CountQuarantine());
  return report;
}

}  // namespace cairn
