// JournalWriter: appends transactions to the two files of one generation.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/error.h"
#include "store/base/file_system.h"
#include "store/base/mutex.h"
#include "store/key_ring.h"
#include "store/space_guard.h"
#include "volume/head.h"
#include "volume/journal_format.h"
#include "volume/log_file.h"

namespace cairn {

struct JournalOptions {
  Id128 realm;
  Id128 volume;
  std::string dir;
  uint64_t generation = 1;
  uint64_t small_payload_limit_bytes = 32 * 1024;
  uint64_t chunk_bytes = 4 << 20;
  SpaceGuard* space = nullptr;              // null: the journal grows until the disk says no
  SpaceUse first_use = SpaceUse::kFreeing;  // what its first bytes are taken for
};

// A part of a transaction's data within one window of the grid, and where it ends up.
struct PayloadPiece {
  size_t op_index = 0;
  uint64_t offset = 0;    // in the file
  std::string_view data;  // plaintext, the transaction's
  PayloadPlace place = PayloadPlace::kJournal;
  std::shared_ptr<UnsealedPayload> payload;  // whole once the record is appended
};

// States:  unborn (made ahead; recovery removes it) --Begin--> begun
//
// Invariants: content_start <= end_ <= allocated_; bytes in [end_, allocated_) are zeros; no offset
// of a file is encrypted twice (an append that failed after encryption ends the journal, a side
// write that failed leaves a gap). The last tail_bytes() before allocated_ are for records that
// free space. An I/O error other than those marked Exhausted is final: the owner stops using the
// writer.
class JournalWriter {
 public:
  // Creates both files, unborn; they are durable, with their names, on return. Whatever had the
  // names is replaced. Exhausted when there is no space.
  static Result<std::shared_ptr<JournalWriter>> Create(FileSystem& fs, KeyRing& keys,
                                                       const JournalOptions& options);

  // From now on it is the volume's journal, from this record on: durable on return. Takes no space.
  // After any error but Exhausted (nothing was written) it may be so or not.
  Status Begin(uint64_t first_lsn);

  // Cuts the data of a transaction at the grid and chooses the places. InvalidArgument when it is
  // over a limit of the format.
  Result<std::vector<PayloadPiece>> Cut(const Transaction& transaction) const;

  // What the pieces add to the side log.
  static uint64_t SideBytes(const std::vector<PayloadPiece>& pieces);
  // Writes the pieces that go to the side log. Exhausted: no space, nothing lost. Thread-safe.
  Status WriteSide(std::vector<PayloadPiece>& pieces);

  // Writes one record with its small payloads, volatile until Sync. `fields` need no op_count.
  // Exhausted or InvalidArgument: nothing was written. One caller at a time.
  Status Append(const Transaction& transaction, RecordFields fields, uint64_t synced_lsn,
                std::vector<PayloadPiece>& pieces);

  // Everything appended before the call is durable on return. One caller at a time; Append may run
  // beside it.
  Status Sync();

  // Makes room ahead of Append if it is getting short, so that Append need not wait for it. Same
  // caller as Sync. No space is not an error here.
  Status ExtendAhead();

  uint64_t generation() const { return options_.generation; }
  // Where the last whole record ends, and a side log length that covers its payloads: bytes below
  // never change. Thread-safe.
  struct Extent {
    uint64_t journal_bytes = 0;
    uint64_t side_bytes = 0;
  };
  Extent extent() const {
    const uint64_t journal_bytes = end_.load(std::memory_order_acquire);
    return {.journal_bytes = journal_bytes,
            .side_bytes = side_end_.load(std::memory_order_acquire)};
  }

  uint64_t records() const { return records_.load(std::memory_order_relaxed); }
  uint64_t payload_bytes() const { return payload_bytes_.load(std::memory_order_relaxed); }

 private:
  JournalWriter(const JournalOptions& options, std::shared_ptr<LogFile> journal,
                std::shared_ptr<LogFile> side);
  uint64_t tail_bytes() const;
  // Makes [.., end) allocated, for work of that use.
  Status ExtendTo(uint64_t end, SpaceUse use);

  const JournalOptions options_;
  const std::shared_ptr<LogFile> journal_;
  const std::shared_ptr<LogFile> side_;

  std::atomic<uint64_t> end_{kLogContentOffset};
  std::atomic<uint64_t> allocated_{0};
  Mutex extend_mutex_;  // one extension at a time

  std::atomic<uint64_t> side_end_{kLogContentOffset};
  std::atomic<uint64_t> side_written_bytes_{0};
  uint64_t side_synced_bytes_ = 0;  // Sync's caller alone

  std::atomic<uint64_t> records_{0};
  std::atomic<uint64_t> payload_bytes_{0};

  // Append's caller alone; kept for their capacity.
  std::string record_;
  std::string aad_;
  std::vector<DataOpPosition> positions_;

  Mutex scratch_mutex_;
  std::vector<std::string> scratch_ GUARDED_BY(scratch_mutex_);  // for side writes
};

}  // namespace cairn
