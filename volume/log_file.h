// LogFile: one journal or side log, encrypted with a random key of its own
// (docs/formats/journal.md).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/error.h"
#include "store/base/file_system.h"
#include "store/base/mutex.h"
#include "store/key_ring.h"
#include "volume/journal_format.h"
#include "volume/layer.h"

struct evp_cipher_ctx_st;

namespace cairn {

// AES-256-GCM with one key and the file offset as nonce. Keeps a few OpenSSL contexts with the key
// schedule set, so that a message costs no key setup. Thread-safe. The caller sees to it that no
// offset is encrypted twice.
class OffsetCipher {
 public:
  explicit OffsetCipher(const Key256& key);
  OffsetCipher(const OffsetCipher&) = delete;
  OffsetCipher& operator=(const OffsetCipher&) = delete;
  ~OffsetCipher();

  // `out` has room for in.size() bytes (and may be `in`), `tag` for kGcmTagBytes.
  void Encrypt(uint64_t offset, std::string_view aad, std::string_view in, char* out, char* tag);
  // False when the tag does not match; `out` is then zeroed.
  bool Decrypt(uint64_t offset, std::string_view aad, std::string_view in, char* out,
               const char* tag);

  // A payload's frames from `offset` on; `tags` gets kGcmTagBytes per frame.
  void EncryptFrames(uint64_t offset, std::string_view in, char* out, char* tags);

 private:
  class Lease;
  evp_cipher_ctx_st* Take(bool encrypt);
  void Give(bool encrypt, evp_cipher_ctx_st* context);

  Key256 key_;
  Mutex mutex_;
  std::vector<evp_cipher_ctx_st*> idle_[2] GUARDED_BY(mutex_);  // [decrypt, encrypt]
};

// Thread-safe for reads, and for writes at disjoint offsets. Holders keep it readable after its
// files are unlinked.
class LogFile {
 public:
  // Makes `path` (replacing what is there) with a new key; `header.key` is filled in. The header is
  // written, not synced.
  static Result<std::shared_ptr<LogFile>> Create(FileSystem& fs, KeyRing& keys,
                                                 const std::string& path, LogHeader header);

  // Opens for reading (and Sync). Errors: NotFound (no such file, or no keys for the realm),
  // DataLoss (bad header, key does not unwrap, or another volume's or generation's file); messages
  // name the file.
  struct Expected {
    LogKind kind = LogKind::kJournal;
    Id128 realm;
    Id128 volume;
    uint64_t generation = 0;
  };
  static Result<std::shared_ptr<LogFile>> Open(FileSystem& fs, KeyRing& keys,
                                               const std::string& path, const Expected& expected);

  LogFile(std::unique_ptr<File> file, std::string path, LogHeader header, const Key256& key);

  // Writes the header again with this first LSN, not synced. Before the file is shared. Exhausted:
  // nothing was written.
  Status SetFirstLsn(uint64_t first_lsn);

  const LogHeader& header() const { return header_; }
  const std::string& path() const { return path_; }
  void set_path(std::string path) {
    path_ = std::move(path);
  }  // after a rename, before it is shared
  File& file() { return *file_; }
  OffsetCipher& cipher() { return cipher_; }

  // Plaintext bytes [within, within + out.size()) of a payload of this file. DataLoss (names file
  // and offset) when a frame is missing or does not verify.
  Status ReadPayload(const UnsealedPayload& payload, uint64_t within, std::span<char> out);

 private:
  std::unique_ptr<File> file_;
  std::string path_;
  LogHeader header_;  // constant once the file is shared
  OffsetCipher cipher_;
};

}  // namespace cairn
