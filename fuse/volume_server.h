// VolumeServer: answers FUSE requests from a Volume. libfuse's low-level API is the codec (one
// fuse_session over our own transport); what libfuse 3.14 cannot decode (TMPFILE, STATX, the
// killpriv v2 bits) is decoded here before it.
//
// What the kernel is told: node id = inode number, generation = rollback_epoch, infinite entry,
// attribute and negative timeouts, cached directories, writeback cache. One kernel owns the volume,
// so no content is ever invalidated from here. Only the block count of a file that is open for
// writing is not the kernel's to keep: see Reported.
#pragma once

#include <sys/stat.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "fuse/seek_flusher.h"
#include "fuse/transport.h"
#include "store/base/error.h"
#include "store/base/id128.h"
#include "store/base/mutex.h"
#include "volume/volume.h"

struct fuse_entry_out;
struct fuse_session;

namespace cairn {

struct VolumeServerOptions {
  Id128 connection;  // into the reply record of every change
  bool writeback_cache = true;
  // INIT is about to be answered, has been answered; called on a transport thread.
  std::function<void(std::string_view init, bool answered)> on_init;
  std::function<void()> on_closed;  // the connection has ended; called on a transport thread
  // Whether the kernel may hold bytes that have not been written to us: from before the first
  // writable open is answered, and before what it creates is made, until the last one is released
  // (which the kernel does after their write-back). One call at a time, under a lock: it must not
  // block, nor call back.
  std::function<void(bool writers)> on_writers;
  // What the server before this one may have done without an answer (Head::recovered_replies).
  std::vector<ReplyRecord> replies;
};

// Thread-safe. Volume and transport outlive it; the transport is stopped before it is destroyed.
class VolumeServer final : public FuseRequestHandler {
 public:
  static Result<std::unique_ptr<VolumeServer>> Create(Volume& volume, Transport& transport,
                                                      const VolumeServerOptions& options);
  ~VolumeServer() override;

  void HandleRequest(const FuseRequest& request) override;
  void HandleClosed() override;

  // While set (not 0), FSYNC of that pid is answered at once and its OPENs leave no trace in the
  // volume: the barrier's rule.
  void SetBarrierPid(uint32_t pid) { barrier_pid_.store(pid); }

  // Ends what answers later than HandleRequest returns. Before the transport stops.
  void StopFlusher() { seek_flusher_.Stop(); }

  // Gives back to the volume the opens that the kernel never released (an aborted connection).
  // After the transport has stopped.
  void ReleaseLeftOpens();

  // In place of INIT, for a connection whose INIT another server has answered, or had begun to:
  // `init` is that request. Before the transport starts. Internal: the codec refuses it.
  Status TakeOver(std::string_view init);
  // Has the kernel send again what it has sent and got no answer to. After TakeOver, before the
  // transport starts, so that these come before everything new. Unavailable: this kernel cannot
  // (before Linux 6.9).
  Status AskForResend();
  // Where the kernel sends nothing again: the answer to the INIT of TakeOver, should it have none.
  void AnswerTakenInit();
  // By opcode: requests that came again, and those of them that a record answered.
  struct Resends {
    uint64_t seen = 0;
    uint64_t answered = 0;
  };
  std::map<uint32_t, Resends> resends();

  // True once INIT has been answered; waits up to `timeout_ms`. False also when the connection has
  // ended before.
  bool WaitForInit(int64_t timeout_ms);

 private:
  friend struct VolumeOps;

  // Attributes as the kernel is told them. With the writeback cache it counts no blocks by itself
  // and keeps what it was told until the last close, while it holds pages that we have not seen: a
  // file of 5 MB with 0 blocks, which tar -S takes for one hole. So a file that is open for writing
  // has at least one page, and its attributes are good for a second.
  struct Reported {
    struct stat stat;
    uint64_t valid_seconds;
  };

  VolumeServer(Volume& volume, Transport& transport, const VolumeServerOptions& options)
      : volume_(volume), transport_(transport), options_(options), seek_flusher_(transport) {
    for (const ReplyRecord& record : options_.replies) records_[record.unique] = record;
  }

  void HandleTmpFile(const FuseRequest& request);
  void HandleStatx(const FuseRequest& request);
  void HandleInit(const FuseRequest& request);
  // ---- resent_requests.cc ----
  // True: the request had been done, and was answered.
  bool AnswerFromRecord(const FuseRequest& request);
  void ReplyFromRecord(const FuseRequest& request, const ReplyRecord& record);
  fuse_entry_out EntryFromRecord(const FuseRequest& request, const ReplyRecord& record);
  // ----
  fuse_entry_out EntryOut(const NamedInode& named);
  // Of CREATE and TMPFILE. False: nobody waits for it.
  bool ReplyCreated(const FuseRequest& request, const fuse_entry_out& entry, bool writable);
  int Reply(const FuseRequest& request, int error, std::span<const iovec> body);
  void ReplyError(const FuseRequest& request, int error);
  int SendFromCodec(struct iovec* iov, int count);
  void AddWriter();  // before an open that may be writable is decided
  void DropWriter();
  void NoteWriters();  // some have been released, or were there before
  void EndWriters();   // the kernel holds nothing any more
  void TellWriters() REQUIRES(writers_mutex_);
  bool MayBeDirty(InodeNumber ino);  // in the kernel's page cache
  Reported Report(InodeNumber ino, const Inode& inode);
  void ForgetAttributes(InodeNumber ino);  // makes the kernel ask again
  // The errno of an error; logs what is not a caller's doing.
  int Failed(const Error& error);

  Volume& volume_;
  Transport& transport_;
  const VolumeServerOptions options_;
  fuse_session* session_ = nullptr;
  SeekFlusher seek_flusher_;
  std::atomic<uint32_t> barrier_pid_{0};
  std::atomic<int64_t> last_failure_log_ns_{0};

  Mutex mutex_;
  CondVar changed_;
  bool initialized_ GUARDED_BY(mutex_) = false;
  bool closed_ GUARDED_BY(mutex_) = false;

  Mutex writers_mutex_;
  uint64_t opening_ GUARDED_BY(writers_mutex_) = 0;  // writable opens under way
  bool told_writers_ GUARDED_BY(writers_mutex_) = false;
  bool writers_ended_ GUARDED_BY(writers_mutex_) = false;

  uint64_t taken_init_unique_ = 0;
  std::string taken_init_reply_;  // what TakeOver's INIT would have been answered; constant then
  bool taking_over_ = false;      // in TakeOver
  std::unordered_map<uint64_t, ReplyRecord> records_;  // by request; constant after construction
  Mutex resends_mutex_;
  std::map<uint32_t, Resends> resends_ GUARDED_BY(resends_mutex_);
};

}  // namespace cairn
