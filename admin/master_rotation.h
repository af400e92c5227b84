// MasterRotation: another master key for a data directory, while it is served. Nothing that was
// written is written again: only the wrapped keys of realms and of the catalog are
// (docs/formats/keys.md, docs/decisions/0007-keys.md).
#pragma once

#include <string>

#include "catalog/key_store.h"
#include "store/base/error.h"
#include "store/base/file_system.h"
#include "store/base/mutex.h"
#include "store/data_directory.h"

namespace cairn {

// Thread-safe. Both outlive it. At any moment, and after a crash at any moment, the key that the
// source gives opens the directory:
//
//   one key --Rotate: files wrapped by both -> cairn.format names both--> two keys
//   two keys --the source gives the new one -> cairn.format names it alone--> one key; what the old
//   one wrapped is erased
class MasterRotation {
 public:
  MasterRotation(FileSystem& fs, DataDirectory& directory, KeyStore& keys)
      : fs_(fs), directory_(directory), keys_(keys) {}

  // At start, before keys are used: goes on where a crash stopped a rotation, or clears what was
  // begun only.
  Status Resume();

  enum class Outcome { kRotated, kPending };
  // `new_key_file` empty: a random key takes the place of the old one in the source, which must be
  // a file; all of it is done on return. Else: the key in that file, and the source is the
  // operator's to change; kPending, and both keys open the directory, until Finish or a start that
  // is given the new one. Errors: FailedPrecondition (the source is a command and no file was
  // named; a key file that does not open), InvalidArgument, those of files; after an error the
  // rotation may be repeated.
  Result<Outcome> Rotate(const std::string& new_key_file);

  // Ends a pending rotation once the source gives the new key. FailedPrecondition: nothing is
  // pending, or the source still gives the old key.
  Result<Outcome> Finish();

 private:
  std::string NextFile() const { return directory_.master_key_source().file + ".next"; }
  Status Switch(const Key256& next) REQUIRES(mutex_);
  Status TakeUp(const Key256& next) REQUIRES(mutex_);

  FileSystem& fs_;
  DataDirectory& directory_;
  KeyStore& keys_;
  Mutex mutex_;  // one rotation at a time; held over its I/O
  bool operators_key_pending_ GUARDED_BY(mutex_) = false;
};

}  // namespace cairn
