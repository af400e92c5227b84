// DataDirectory: one data directory, locked, of a format that this program understands.
// docs/formats/data_directory.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "store/base/aead.h"
#include "store/base/error.h"
#include "store/base/file_system.h"
#include "store/base/id128.h"
#include "store/base/mutex.h"
#include "store/base/unique_fd.h"
#include "store/master_key.h"

namespace cairn {

// The lines of cairn.format.
struct DataDirectoryFormat {
  uint32_t version = 1;
  uint32_t min_reader = 1;
  Id128 store = {};
  uint64_t compatible = 0;
  uint64_t ro_compatible = 0;
  uint64_t incompatible = 0;
  uint64_t open_epoch = 0;
  std::string master_key_check = {};       // 16 hex digits
  std::string next_master_key_check = {};  // the same, or empty
  Id128 instance = {};                     // zero: the next opening gives it one
  std::string home = {};  // HomeOf; empty: unknown, or not served since it was copied
};

struct DataDirectoryOptions {
  FileSystem& fs;
  std::string dir;
  // Where the master key comes from. Neither: master.key in the directory, created with it.
  std::string master_key_file = {};
  std::string master_key_command = {};
  bool create = true;  // initialise an absent or empty directory
  bool adopt = false;  // serve a directory that was copied or moved, as an instance of its own
  std::string machine_id_file = "/etc/machine-id";
};

// Move-only owner of the locks, which it holds until it is destroyed. Thread-safe.
class DataDirectory {
 public:
  // Locks the directory and counts the opening, durably. Errors, all of which leave the directory
  // as it was:
  //   NotFound            there is none and `create` is off
  //   FailedPrecondition  another process serves it, or one that it is a copy of (its pid is in the
  //                       message); it was copied or moved and `adopt` is off; it is an unfinished
  //                       backup; its format is newer;
  //                       the master key is missing, another one, or readable by others; the master
  //                       key command failed
  //   InvalidArgument     a foreign directory: not empty and no data directory of ours; a malformed
  //                       master key
  //   Unavailable         the master key command took too long
  //   DataLoss            cairn.format is damaged; a backup lacks a file
  static Result<std::unique_ptr<DataDirectory>> Open(const DataDirectoryOptions& options);
  // Whether this program may serve what is there, by its format alone: locks and changes nothing.
  // NotFound, and FailedPrecondition and DataLoss as above.
  static Status CheckFormat(FileSystem& fs, const std::string& dir);
  ~DataDirectory();
  DataDirectory(const DataDirectory&) = delete;
  DataDirectory& operator=(const DataDirectory&) = delete;

  const std::string& dir() const { return dir_; }
  const Id128& store() const { return store_; }
  const Id128& instance() const { return instance_; }
  uint64_t open_epoch() const { return open_epoch_; }
  const MasterKeySource& master_key_source() const { return source_; }
  // Something was stored here by an earlier opening, so that there must be a catalog.
  bool holds_data() const { return holds_data_; }
  std::string CatalogDir() const { return dir_ + "/catalog"; }
  std::string KeysDir() const { return dir_ + "/keys"; }
  std::string VolumesDir() const { return dir_ + "/volumes"; }

  // The key that it was opened with, until ForgetMasterKey (its user has a copy by then).
  const Key256& master_key() const { return master_key_; }
  void ForgetMasterKey() { WipeKey(master_key_); }

  // ---- rotation of the master key (docs/formats/data_directory.md) ----
  // cairn.format names a second key that opens the directory, or none. Durable.
  Status SetNextMasterKey(const Key256& next);
  Status ClearNextMasterKey();
  // `key`, which cairn.format names in either place, is the only one. Durable.
  Status SetMasterKey(const Key256& key);
  // Whether a second key is named, and whether it is this one.
  bool has_next_master_key();
  bool IsNextMasterKey(const Key256& key);

  // Keeps blocks behind the end of LOCK, which the next opening takes when the disk is full and the
  // reserve file is used up or gone: at most kOpeningRoomBytes, less on a small disk. Of file
  // systems with fallocate(2). Nothing to do when it has them: call it again and again, while there
  // is room. Blocks on I/O.
  void KeepOpeningRoom();
  static constexpr uint64_t kOpeningRoomBytes = 16 << 20;

  // cairn.format for a backup: whoever serves it becomes an instance of its own.
  std::string FormatOfBackup();

 private:
  DataDirectory(FileSystem& fs, std::string dir) : fs_(fs), dir_(std::move(dir)) {}
  Status WriteFormat(const DataDirectoryFormat& format) REQUIRES(mutex_);

  FileSystem& fs_;
  const std::string dir_;
  UniqueFd lock_;
  UniqueFd instance_lock_;
  MasterKeySource source_;
  Id128 store_;
  Id128 instance_;
  uint64_t open_epoch_ = 0;
  bool holds_data_ = false;
  Key256 master_key_{};
  Mutex mutex_;  // held over the replacement of cairn.format
  DataDirectoryFormat format_ GUARDED_BY(mutex_);
};

std::string EncodeFormat(const DataDirectoryFormat& format);
// FailedPrecondition: made for a newer program (the message says how new). DataLoss: damaged.
Result<DataDirectoryFormat> DecodeFormat(std::string_view text);

}  // namespace cairn
