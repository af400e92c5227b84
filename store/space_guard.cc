// Admission by arithmetic over one number of the file system and a few of our own.
//
// free_bytes_ is what statvfs(2) said last. What has been written since (Use) and what is set aside
// but not written yet is taken off it. A write that ended between the question and its answer
// counts twice until the next question: too careful, never too generous. ext4 and xfs take delayed
// allocations off the number at write(2), so that it needs no sync to be right.
//
// The reserve file is real blocks (fallocate(2)), so that others who fill the disk cannot have
// them. It is shortened by slices, for freeing and draining work alone, and synced then: a
// journaling file system gives blocks back when its transaction has committed. Maintain makes it
// longer again.
//
// Locks: file_mutex_ over the reserve file's I/O -> mutex_ over the numbers, never over I/O.
#include "store/space_guard.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "store/base/check.h"
#include "store/base/log.h"

namespace cairn {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kGiB = 1 << 30;
constexpr int64_t kNsPerMs = 1'000'000;
constexpr uint64_t kBlockBytes = 4096;
constexpr uint64_t kSlices = 8;  // the reserve file changes its length by an eighth at least

constexpr size_t Index(SpaceUse use) { return static_cast<size_t>(use); }

std::string ReservePath(const std::string& dir) { return dir + "/reserve"; }

// "12.3 MiB".
std::string Readable(uint64_t bytes) {
  const auto n = static_cast<double>(bytes);
  if (bytes < kMiB) return fmt::format("{:.1f} KiB", n / 1024);
  if (bytes < 10 * kGiB) return fmt::format("{:.1f} MiB", n / static_cast<double>(kMiB));
  return fmt::format("{:.1f} GiB", n / static_cast<double>(kGiB));
}

uint64_t AtLeastZero(int64_t n) { return n > 0 ? static_cast<uint64_t>(n) : 0; }

const char* WhatToDo(SpaceUse use) {
  switch (use) {
    case SpaceUse::kRetaining:
      return "delete snapshots, Artifacts or Environments, then `cairn reap` and `cairn gc --now`, "
             "or make the file system larger";
    case SpaceUse::kWriting:
    case SpaceUse::kGrowing:
      return "delete files, then `cairn gc --now`; or delete snapshots, Artifacts or Environments, "
             "then `cairn reap` and `cairn gc --now`; or make the file system larger";
    default:
      return "others have filled the file system: delete files there, or make it larger";
  }
}

}  // namespace

std::string_view SpaceUseName(SpaceUse use) {
  switch (use) {
    case SpaceUse::kFreeing:
      return "freeing";
    case SpaceUse::kDraining:
      return "draining";
    case SpaceUse::kWriting:
      return "writing";
    case SpaceUse::kGrowing:
      return "growing";
    case SpaceUse::kRetaining:
      return "retaining";
    case SpaceUse::kUnsealed:
      return "unsealed";
    case SpaceUse::kDirty:
      return "dirty";
  }
  return "unknown";
}

SpaceLimits DefaultSpaceLimits(uint64_t total_bytes) {
  // A share of the disk, at least what a busy store needs, at most what no store needs; on a disk
  // too small for that a fixed part of it.
  const auto part = [total_bytes](uint64_t least, uint64_t share, uint64_t most,
                                  uint64_t of_small) {
    const uint64_t wanted = std::clamp(total_bytes / share, least, most);
    return std::min(wanted, total_bytes / of_small) / kBlockBytes * kBlockBytes;
  };
  return {
      .reserve_bytes = part(64 * kMiB, 100, 4 * kGiB, 8),
      .floor_bytes = part(16 * kMiB, 400, 1 * kGiB, 32),
      .headroom_bytes = part(256 * kMiB, 20, 64 * kGiB, 6),
      .dirty_bytes_per_mount = std::min(64 * kMiB, total_bytes / 32 / kBlockBytes * kBlockBytes)};
}

// ---- SpaceReservation ----

SpaceReservation& SpaceReservation::operator=(SpaceReservation&& other) noexcept {
  if (this == &other) return *this;
  if (guard_ != nullptr && bytes_ > 0) guard_->Give(use_, bytes_);
  guard_ = std::exchange(other.guard_, nullptr);
  use_ = other.use_;
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

SpaceReservation::~SpaceReservation() {
  if (guard_ != nullptr && bytes_ > 0) guard_->Give(use_, bytes_);
}

Status SpaceReservation::Cover(uint64_t bytes, std::string_view what) {
  if (guard_ == nullptr || bytes <= bytes_) return {};
  const uint64_t missing = bytes - bytes_;
  uint64_t taken = 0;
  CAIRN_TRY(guard_->Take(use_, missing, std::max(missing, kStepBytes), what, taken));
  bytes_ += taken;
  return {};
}

void SpaceReservation::Use(uint64_t bytes) {
  if (guard_ == nullptr) return;
  const uint64_t used = std::min(bytes, bytes_);
  bytes_ -= used;
  if (used > 0) guard_->Wrote(use_, used);
}

void SpaceReservation::TakeFrom(SpaceReservation& from, uint64_t bytes) {
  if (guard_ == nullptr || from.guard_ == nullptr) return;
  const uint64_t moved = std::min(bytes, from.bytes_);
  guard_->Move(from.use_, use_, moved);
  from.bytes_ -= moved;
  bytes_ += moved;
}

// ---- SpaceGuard ----

Result<std::unique_ptr<SpaceGuard>> SpaceGuard::Open(const SpaceGuardOptions& options) {
  std::unique_ptr<SpaceGuard> guard(new SpaceGuard(options));
  CAIRN_TRY(options.fs.Space(options.dir));
  const std::string path = ReservePath(options.dir);
  auto file = options.fs.Open(path, {.create = true});
  if (file) {
    const uint64_t size = CAIRN_TRY((*file)->SizeBytes());
    MutexLock file_lock(guard->file_mutex_);
    guard->reserve_ = *std::move(file);
    MutexLock lock(guard->mutex_);
    guard->reserve_bytes_ = size;
  } else {
    LogWarning("no_reserve_file", {{"path", path}, {"error", file.error().ToString()}});
  }
  guard->Maintain();
  return guard;
}

void SpaceGuard::Refresh() {
  uint64_t written;
  {
    MutexLock lock(mutex_);
    written = written_;
  }
  const auto space = options_.fs.Space(options_.dir);
  const int64_t now_ns = options_.clock.MonotonicNs();
  MutexLock lock(mutex_);
  asked_at_ns_ = now_ns;
  if (!space) {
    if (!std::exchange(space_unknown_, true)) {
      LogError("space_unknown", {{"dir", options_.dir}, {"error", space.error().ToString()}});
    }
    return;  // the last number stays
  }
  space_unknown_ = false;
  free_bytes_ = space->free_bytes;
  written_before_ = written;
  if (space->total_bytes == total_bytes_) return;
  total_bytes_ = space->total_bytes;
  const SpaceLimits defaults = DefaultSpaceLimits(total_bytes_);
  const auto choose = [](uint64_t asked, uint64_t otherwise) { return asked ? asked : otherwise; };
  limits_ = {
      .reserve_bytes = choose(options_.limits.reserve_bytes, defaults.reserve_bytes),
      .floor_bytes = choose(options_.limits.floor_bytes, defaults.floor_bytes),
      .headroom_bytes = choose(options_.limits.headroom_bytes, defaults.headroom_bytes),
      .dirty_bytes_per_mount =
          choose(options_.limits.dirty_bytes_per_mount, defaults.dirty_bytes_per_mount),
  };
  const uint64_t kept = limits_.reserve_bytes + limits_.floor_bytes + limits_.headroom_bytes;
  if (kept >= total_bytes_) {
    LogWarning("space_limits_exceed_disk",
               {{"dir", options_.dir}, {"kept_bytes", kept}, {"disk_bytes", total_bytes_}});
  }
}

bool SpaceGuard::FreshLocked() {
  const int64_t age_ns = options_.clock.MonotonicNs() - asked_at_ns_;
  return asked_at_ns_ != 0 && age_ns >= 0 && age_ns < kMaxAgeMs * kNsPerMs;
}

int64_t SpaceGuard::FreeLocked() {
  return static_cast<int64_t>(free_bytes_) - static_cast<int64_t>(written_ - written_before_);
}

// What is free when everything set aside, but for what `use` does not heed, has been written.
int64_t SpaceGuard::LeftByOthersLocked(SpaceUse use) {
  int64_t left = FreeLocked();
  for (size_t i = 0; i < kSpaceUses; i++) {
    const auto other = static_cast<SpaceUse>(i);
    // Seals are what unsealed bytes are kept for, and deletions come before everything.
    const bool heeded = use > SpaceUse::kDraining
                            ? other != SpaceUse::kDirty || use > SpaceUse::kWriting
                            : other <= SpaceUse::kDraining;
    if (heeded) left -= static_cast<int64_t>(set_aside_[i]);
  }
  return left;
}

int64_t SpaceGuard::AvailableLocked(SpaceUse use) {
  const int64_t left = LeftByOthersLocked(use);
  const auto reserve = static_cast<int64_t>(reserve_bytes_);
  // What the reserve file lacks comes before new work.
  const int64_t lacking =
      std::max<int64_t>(static_cast<int64_t>(limits_.reserve_bytes) - reserve, 0);
  switch (use) {
    case SpaceUse::kFreeing:
      return left + reserve;
    case SpaceUse::kDraining: {
      const auto kept = static_cast<int64_t>(limits_.reserve_bytes / 2);
      return left + std::max<int64_t>(reserve - kept, 0);
    }
    case SpaceUse::kWriting:
    case SpaceUse::kGrowing:
      return left - lacking - static_cast<int64_t>(limits_.floor_bytes);
    case SpaceUse::kRetaining:
      return left - lacking - static_cast<int64_t>(limits_.floor_bytes + limits_.headroom_bytes);
    case SpaceUse::kUnsealed:
    case SpaceUse::kDirty:
      break;
  }
  return INT64_MAX;
}

Error SpaceGuard::RefusalLocked(SpaceUse use, uint64_t bytes, std::string_view what) {
  std::string left;
  const auto leave = [&left](uint64_t amount, const char* for_what) {
    if (amount == 0) return;
    left += fmt::format("{}{} {}", left.empty() ? ", of which " : ", ", Readable(amount), for_what);
  };
  if (use > SpaceUse::kDraining) {
    leave(limits_.floor_bytes + AtLeastZero(static_cast<int64_t>(limits_.reserve_bytes) -
                                            static_cast<int64_t>(reserve_bytes_)),
          "are kept for deletions");
    leave(set_aside_[Index(SpaceUse::kUnsealed)], "for what is not sealed yet");
    leave(set_aside_[Index(SpaceUse::kRetaining)] + set_aside_[Index(SpaceUse::kWriting)] +
              set_aside_[Index(SpaceUse::kGrowing)] + set_aside_[Index(SpaceUse::kDraining)] +
              set_aside_[Index(SpaceUse::kFreeing)],
          "for work under way");
    if (use > SpaceUse::kWriting) leave(set_aside_[Index(SpaceUse::kDirty)], "for page caches");
    if (use == SpaceUse::kRetaining) leave(limits_.headroom_bytes, "for running volumes");
  }
  return Error(ErrorCode::kExhausted,
               fmt::format("no space for {}: it needs {} and its budget has {}; {} are free{}: {}",
                           what, Readable(bytes), Readable(AtLeastZero(AvailableLocked(use))),
                           Readable(AtLeastZero(FreeLocked())), left, WhatToDo(use)),
               ENOSPC);
}

// Takes `bytes`, or `at_least` when there is no room for all of them. Freeing and draining work is
// granted what is still in the reserve file, too, and then gets it out: slice by slice, because
// others, who take without asking, may have had what the last one freed. It is refused when the
// file has no more for it, so that a refusal is true: the budget that it names is less than was
// asked for. (What seals have taken comes first; a deletion beside them shortens the file further.)
Status SpaceGuard::Take(SpaceUse use, uint64_t at_least, uint64_t bytes, std::string_view what,
                        uint64_t& taken) {
  for (int attempt = 0;; attempt++) {
    {
      MutexLock lock(mutex_);
      const int64_t available = AvailableLocked(use);
      const bool current = attempt > 0 || use > SpaceUse::kRetaining || FreshLocked();
      if (current && available >= static_cast<int64_t>(at_least)) {
        taken = available >= static_cast<int64_t>(bytes) ? bytes : at_least;
        set_aside_[Index(use)] += taken;
        // Only freeing and draining work is granted what is not free yet.
        if (use > SpaceUse::kDraining || LeftByOthersLocked(use) >= 0) return {};
        break;
      }
      if (attempt > 0) {
        ++refusals_[Index(use)];
        if (use == SpaceUse::kWriting || use == SpaceUse::kGrowing) {
          refused_ = true;
          refused_at_ns_ = options_.clock.MonotonicNs();
        }
        return std::unexpected(RefusalLocked(use, at_least, what));
      }
    }
    Refresh();
  }
  for (;;) {
    uint64_t before;
    {
      MutexLock lock(mutex_);
      before = reserve_bytes_;
    }
    Shorten(use);
    MutexLock lock(mutex_);
    int64_t left = LeftByOthersLocked(use);
    // What deletions beside it wait for is not this one's to free.
    if (use == SpaceUse::kDraining) {
      left += static_cast<int64_t>(set_aside_[Index(SpaceUse::kFreeing)]);
    }
    if (left >= 0) return {};
    if (left + static_cast<int64_t>(taken - at_least) >= 0) {
      set_aside_[Index(use)] -= taken - at_least;
      taken = at_least;
      return {};
    }
    const uint64_t keep = use == SpaceUse::kDraining ? limits_.reserve_bytes / 2 : 0;
    if (reserve_bytes_ > keep && reserve_bytes_ != before) continue;
    set_aside_[Index(use)] -= std::exchange(taken, 0);
    ++refusals_[Index(use)];
    Error refusal = RefusalLocked(use, at_least, what);
    if (reserve_bytes_ > keep) {
      return std::unexpected(
          std::move(refusal).WithContext("the reserve file cannot be shortened"));
    }
    return std::unexpected(std::move(refusal));
  }
}

// Shortens the reserve file by what is set aside for freeing and draining and not free, an eighth
// at least.
void SpaceGuard::Shorten(SpaceUse use) {
  MutexLock file_lock(file_mutex_);
  Refresh();
  uint64_t length;
  {
    MutexLock lock(mutex_);
    const uint64_t missing = AtLeastZero(-LeftByOthersLocked(SpaceUse::kFreeing));
    const uint64_t keep = use == SpaceUse::kDraining ? limits_.reserve_bytes / 2 : 0;
    if (missing == 0 || reserve_bytes_ <= keep) return;
    const uint64_t slice = std::max(missing, limits_.reserve_bytes / kSlices);
    length = std::max(reserve_bytes_ - std::min(slice, reserve_bytes_), keep);
    length = length / kBlockBytes * kBlockBytes;
  }
  ResizeReserve(length);
  LogWarning("reserve_shortened", {{"bytes", length}});
}

void SpaceGuard::ResizeReserve(uint64_t bytes) {
  if (reserve_ == nullptr) return;
  uint64_t now;
  {
    MutexLock lock(mutex_);
    now = reserve_bytes_;
  }
  Status resized = bytes < now ? reserve_->Truncate(bytes)
                               : reserve_->Allocate(now, bytes - now, /*keep_size=*/false);
  if (resized && bytes < now) resized = reserve_->Sync();
  if (!resized && resized.error().code() != ErrorCode::kExhausted) {
    LogError("reserve_file", {{"error", resized.error().ToString()}});
  }
  const auto size = reserve_->SizeBytes();
  {
    MutexLock lock(mutex_);
    if (size) reserve_bytes_ = *size;
  }
  Refresh();
}

void SpaceGuard::Maintain() {
  Refresh();
  MutexLock file_lock(file_mutex_);
  uint64_t length;
  {
    MutexLock lock(mutex_);
    if (reserve_bytes_ == limits_.reserve_bytes) return;
    length = limits_.reserve_bytes;
    if (reserve_bytes_ < limits_.reserve_bytes) {
      const uint64_t lacking = limits_.reserve_bytes - reserve_bytes_;
      const uint64_t room = AtLeastZero(LeftByOthersLocked(SpaceUse::kWriting) -
                                        static_cast<int64_t>(limits_.floor_bytes));
      if (room < std::min(limits_.reserve_bytes / kSlices, lacking)) return;
      length = reserve_bytes_ + std::min(lacking, room) / kBlockBytes * kBlockBytes;
    }
  }
  ResizeReserve(length);
}

Result<SpaceReservation> SpaceGuard::Reserve(SpaceUse use, uint64_t bytes, std::string_view what) {
  uint64_t taken = 0;
  CAIRN_TRY(Take(use, bytes, bytes, what, taken));
  return SpaceReservation(*this, use, taken);
}

Status SpaceGuard::MakeRoom(uint64_t bytes, std::string_view what) {
  CAIRN_TRY(Reserve(SpaceUse::kFreeing, bytes, what));
  return {};
}

bool SpaceGuard::HasRoom(SpaceUse use, uint64_t bytes) {
  for (int attempt = 0;; attempt++) {
    {
      MutexLock lock(mutex_);
      if (attempt > 0 || FreshLocked()) {
        return AvailableLocked(use) >= static_cast<int64_t>(bytes);
      }
    }
    Refresh();
  }
}

bool SpaceGuard::Tight() {
  Refresh();
  MutexLock lock(mutex_);
  const int64_t now_ns = options_.clock.MonotonicNs();
  if (refused_ && now_ns - refused_at_ns_ < kTightMs * kNsPerMs) return true;
  const uint64_t unsealed = set_aside_[Index(SpaceUse::kUnsealed)];
  return unsealed > 0 &&
         AvailableLocked(SpaceUse::kWriting) < static_cast<int64_t>(unsealed + limits_.floor_bytes);
}

SpaceStatus SpaceGuard::GetStatus() {
  Refresh();
  MutexLock lock(mutex_);
  SpaceStatus status;
  status.total_bytes = total_bytes_;
  status.free_bytes = free_bytes_;
  status.reserve_file_bytes = reserve_bytes_;
  status.limits = limits_;
  for (size_t i = 0; i <= Index(SpaceUse::kRetaining); i++) {
    status.available_bytes[i] = AtLeastZero(AvailableLocked(static_cast<SpaceUse>(i)));
  }
  status.set_aside_bytes = set_aside_;
  status.written_bytes = written_by_;
  status.refusals = refusals_;
  return status;
}

SpaceGuard::Usable SpaceGuard::ForWriters() {
  bool fresh;
  {
    MutexLock lock(mutex_);
    fresh = FreshLocked();
  }
  if (!fresh) Refresh();
  MutexLock lock(mutex_);
  return {.total_bytes = total_bytes_,
          .available_bytes = AtLeastZero(AvailableLocked(SpaceUse::kGrowing))};
}

SpaceLimits SpaceGuard::limits() {
  MutexLock lock(mutex_);
  return limits_;
}

void SpaceGuard::Give(SpaceUse use, uint64_t bytes) {
  MutexLock lock(mutex_);
  CAIRN_DCHECK(set_aside_[Index(use)] >= bytes);
  set_aside_[Index(use)] -= bytes;
}

void SpaceGuard::Wrote(SpaceUse use, uint64_t bytes) {
  MutexLock lock(mutex_);
  CAIRN_DCHECK(set_aside_[Index(use)] >= bytes);
  set_aside_[Index(use)] -= bytes;
  written_ += bytes;
  written_by_[Index(use)] += bytes;
}

void SpaceGuard::Move(SpaceUse from, SpaceUse to, uint64_t bytes) {
  MutexLock lock(mutex_);
  CAIRN_DCHECK(set_aside_[Index(from)] >= bytes);
  set_aside_[Index(from)] -= bytes;
  set_aside_[Index(to)] += bytes;
}

void FreeFromReserve(FileSystem& fs, const std::string& dir, uint64_t bytes) {
  const auto space = fs.Space(dir);
  if (!space || space->free_bytes >= bytes) return;
  const auto file = fs.Open(ReservePath(dir), {});
  if (!file) return;
  const auto size = (*file)->SizeBytes();
  if (!size) return;
  const uint64_t missing = bytes - space->free_bytes;
  Status cut = (*file)->Truncate(*size > missing ? *size - missing : 0);
  if (cut) cut = (*file)->Sync();
  if (!cut) LogWarning("reserve_file", {{"dir", dir}, {"error", cut.error().ToString()}});
}

}  // namespace cairn
