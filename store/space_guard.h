// SpaceGuard: who may still take how much of the disk that a data directory lies on, decided before
// anything is written. Why it is so, and the numbers: docs/decisions/0006-space.md.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "store/base/clock.h"
#include "store/base/error.h"
#include "store/base/file_system.h"
#include "store/base/mutex.h"

namespace cairn {

// What space is for. From the first to the last each one stops earlier as the disk fills up.
enum class SpaceUse : uint8_t {
  kFreeing,    // what lets go of space, and what must be recorded on the way: to the last byte,
               // the whole reserve file included
  kDraining,   // seals: journals become packs and go. All but half of the reserve file
  kWriting,    // file contents, which a kernel has accepted already: down to the floor
  kGrowing,    // new names, preallocation: also leaves what mounts may still hold in page caches
  kRetaining,  // snapshots, pauses, publications, forks, imports: also leaves the headroom of
               // running volumes
  // Only set aside, never refused:
  kUnsealed,  // what journals hold and a seal will write once more
  kDirty,     // what the kernel may accept for mounts without telling us
};
inline constexpr size_t kSpaceUses = 7;
// "freeing", "draining", ...
std::string_view SpaceUseName(SpaceUse use);

// In bytes. A limit of 0 is replaced by DefaultSpaceLimits'.
struct SpaceLimits {
  uint64_t reserve_bytes = 0;          // length of the reserve file
  uint64_t floor_bytes = 0;            // live work leaves them free
  uint64_t headroom_bytes = 0;         // retaining work leaves them too
  uint64_t dirty_bytes_per_mount = 0;  // what a kernel may hold back for one mount
};
SpaceLimits DefaultSpaceLimits(uint64_t total_bytes);

struct SpaceStatus {
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;  // as the file system says; the reserve file is not in it
  uint64_t reserve_file_bytes = 0;
  SpaceLimits limits;
  std::array<uint64_t, kSpaceUses> available_bytes{};  // what each use would still be granted
  std::array<uint64_t, kSpaceUses> set_aside_bytes{};
  std::array<uint64_t, kSpaceUses> written_bytes{};  // since the guard was opened
  std::array<uint64_t, kSpaceUses> refusals{};       // since the guard was opened
};

class SpaceGuard;

// Bytes set aside for one use. Move-only: what was not written is given back when it is destroyed.
// One thread at a time; its guard outlives it. A default-constructed one belongs to no guard:
// everything succeeds and counts nothing.
class SpaceReservation {
 public:
  SpaceReservation() = default;
  SpaceReservation(SpaceReservation&& other) noexcept { *this = std::move(other); }
  SpaceReservation& operator=(SpaceReservation&& other) noexcept;
  ~SpaceReservation();

  uint64_t bytes() const { return bytes_; }

  // Makes it at least `bytes`, by at least kStepBytes where there is room for that. Errors: as of
  // SpaceGuard::Reserve; it is unchanged then.
  Status Cover(uint64_t bytes, std::string_view what);
  // So much of it has been written: it is the file system's number now.
  void Use(uint64_t bytes);
  // `bytes` of `from`, a reservation of the same guard, belong to this one from now on.
  void TakeFrom(SpaceReservation& from, uint64_t bytes);

  static constexpr uint64_t kStepBytes = 1 << 20;

 private:
  friend class SpaceGuard;
  SpaceReservation(SpaceGuard& guard, SpaceUse use, uint64_t bytes)
      : guard_(&guard), use_(use), bytes_(bytes) {}

  SpaceGuard* guard_ = nullptr;
  SpaceUse use_ = SpaceUse::kFreeing;
  uint64_t bytes_ = 0;
};

struct SpaceGuardOptions {
  FileSystem& fs;
  std::string dir;  // the data directory; the reserve file is `reserve` in it
  Clock& clock;
  SpaceLimits limits = {};
};

// Thread-safe. Numbers are the file system's own, at most kMaxAgeMs old while there is plenty and
// asked for anew before anything is refused.
//
//   granted(use) <=> bytes + what is set aside for others + what `use` leaves <= free
class SpaceGuard {
 public:
  // Makes the reserve file as long as there is room for it above the floor. Errors: only those of
  // looking at the directory.
  static Result<std::unique_ptr<SpaceGuard>> Open(const SpaceGuardOptions& options);

  // Exhausted (ENOSPC): `what` does not fit into the budget of `use`; the message has the numbers
  // and says what to do. kFreeing and kDraining shorten the reserve file when they need to: blocks
  // on I/O then.
  Result<SpaceReservation> Reserve(SpaceUse use, uint64_t bytes, std::string_view what);

  // For work that must go on: afterwards `bytes` are free, as far as this guard knows. The reserve
  // file is shortened when they are not. Exhausted when that is not enough.
  Status MakeRoom(uint64_t bytes, std::string_view what);

  // Whether Reserve would grant it now.
  bool HasRoom(SpaceUse use, uint64_t bytes);

  // Live work was refused lately, or will be before what is unsealed could be written once more:
  // sealing helps.
  bool Tight();

  // Looks at the file system and makes the reserve file longer again where there is room. Blocks on
  // I/O; call it a few times a second.
  void Maintain();

  SpaceStatus GetStatus();
  // What statfs(2) of a mount should say.
  struct Usable {
    uint64_t total_bytes = 0;
    uint64_t available_bytes = 0;
  };
  Usable ForWriters();
  SpaceLimits limits();

  static constexpr int64_t kMaxAgeMs = 20;
  static constexpr int64_t kTightMs = 2000;

 private:
  friend class SpaceReservation;
  explicit SpaceGuard(const SpaceGuardOptions& options) : options_(options) {}

  Status Take(SpaceUse use, uint64_t at_least, uint64_t bytes, std::string_view what,
              uint64_t& taken);
  void Give(SpaceUse use, uint64_t bytes);
  void Wrote(SpaceUse use, uint64_t bytes);
  void Move(SpaceUse from, SpaceUse to, uint64_t bytes);

  void Refresh();
  bool FreshLocked() REQUIRES(mutex_);
  int64_t FreeLocked() REQUIRES(mutex_);
  int64_t AvailableLocked(SpaceUse use) REQUIRES(mutex_);
  int64_t LeftByOthersLocked(SpaceUse use) REQUIRES(mutex_);
  Error RefusalLocked(SpaceUse use, uint64_t bytes, std::string_view what) REQUIRES(mutex_);
  void Shorten(SpaceUse use) EXCLUDES(file_mutex_, mutex_);
  void ResizeReserve(uint64_t bytes) REQUIRES(file_mutex_) EXCLUDES(mutex_);

  const SpaceGuardOptions options_;

  Mutex file_mutex_;  // the reserve file; held over its truncation and allocation
  std::unique_ptr<File> reserve_ GUARDED_BY(file_mutex_);

  Mutex mutex_;  // the numbers; never held over I/O; taken after file_mutex_
  SpaceLimits limits_ GUARDED_BY(mutex_);
  uint64_t total_bytes_ GUARDED_BY(mutex_) = 0;
  uint64_t free_bytes_ GUARDED_BY(mutex_) = 0;
  uint64_t written_before_ GUARDED_BY(mutex_) = 0;  // written_ when free_bytes_ was asked for
  uint64_t written_ GUARDED_BY(mutex_) = 0;
  int64_t asked_at_ns_ GUARDED_BY(mutex_) = 0;
  int64_t refused_at_ns_ GUARDED_BY(mutex_) = 0;
  bool refused_ GUARDED_BY(mutex_) = false;
  bool space_unknown_ GUARDED_BY(mutex_) = false;  // said once in the log
  uint64_t reserve_bytes_ GUARDED_BY(mutex_) = 0;
  std::array<uint64_t, kSpaceUses> set_aside_ GUARDED_BY(mutex_){};
  std::array<uint64_t, kSpaceUses> written_by_ GUARDED_BY(mutex_){};
  std::array<uint64_t, kSpaceUses> refusals_ GUARDED_BY(mutex_){};
};

// For what runs before a guard is open, with the data directory locked: shortens its reserve file
// when fewer than `bytes` are free. Never fails: the write that needs them says so.
void FreeFromReserve(FileSystem& fs, const std::string& dir, uint64_t bytes);

}  // namespace cairn
