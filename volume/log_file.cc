// An encrypted append-only file. The nonce of every message is the file offset it is stored at, so
// nothing but the bytes and their tags needs keeping, and a frame that turns up at another place
// does not verify. Safe because a key lives for one file and writers never write an offset twice
// (NIST SP 800-38D: one nonce, one message).
//
// Reads decrypt whole frames straight into the caller's buffer where they fit, and through a frame
// on the stack at ragged ends.
#include "volume/log_file.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>

#include "store/base/aead.h"
#include "store/base/check.h"

namespace cairn {
namespace {

constexpr size_t kMaxIdleContexts = 8;

}  // namespace

// A context taken from the pool and given back.
class OffsetCipher::Lease {
 public:
  Lease(OffsetCipher& cipher, bool encrypt)
      : cipher_(cipher), encrypt_(encrypt), context_(cipher.Take(encrypt)) {}
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease() { cipher_.Give(encrypt_, context_); }
  void Start(uint64_t offset, std::string_view aad) {
    std::array<unsigned char, 12> nonce{};
    std::memcpy(nonce.data(), &offset, sizeof offset);
    int n = 0;
    CAIRN_CHECK(EVP_CipherInit_ex(context_, nullptr, nullptr, nullptr, nonce.data(), -1) == 1);
    if (!aad.empty()) {
      CAIRN_CHECK(EVP_CipherUpdate(context_, nullptr, &n, Bytes(aad.data()),
                                   static_cast<int>(aad.size())) == 1);
    }
  }
  void Encrypt(uint64_t offset, std::string_view aad, std::string_view in, char* out, char* tag) {
    Start(offset, aad);
    int n = 0;
    CAIRN_CHECK(EVP_CipherUpdate(context_, Bytes(out), &n, Bytes(in.data()),
                                 static_cast<int>(in.size())) == 1);
    std::array<unsigned char, 16> rest;
    CAIRN_CHECK(EVP_CipherFinal_ex(context_, rest.data(), &n) == 1);
    CAIRN_CHECK(EVP_CIPHER_CTX_ctrl(context_, EVP_CTRL_GCM_GET_TAG, kGcmTagBytes, tag) == 1);
  }
  bool Decrypt(uint64_t offset, std::string_view aad, std::string_view in, char* out,
               const char* tag) {
    Start(offset, aad);
    int n = 0;
    CAIRN_CHECK(EVP_CipherUpdate(context_, Bytes(out), &n, Bytes(in.data()),
                                 static_cast<int>(in.size())) == 1);
    CAIRN_CHECK(EVP_CIPHER_CTX_ctrl(context_, EVP_CTRL_GCM_SET_TAG, kGcmTagBytes,
                                    const_cast<char*>(tag)) == 1);
    std::array<unsigned char, 16> rest;
    if (EVP_CipherFinal_ex(context_, rest.data(), &n) == 1) return true;
    std::fill_n(out, in.size(), '\0');
    return false;
  }

 private:
  static unsigned char* Bytes(char* p) { return reinterpret_cast<unsigned char*>(p); }
  static const unsigned char* Bytes(const char* p) {
    return reinterpret_cast<const unsigned char*>(p);
  }
  OffsetCipher& cipher_;
  const bool encrypt_;
  EVP_CIPHER_CTX* context_;
};

OffsetCipher::OffsetCipher(const Key256& key) : key_(key) {}

OffsetCipher::~OffsetCipher() {
  MutexLock lock(mutex_);
  for (auto& idle : idle_) {
    for (EVP_CIPHER_CTX* context : idle) EVP_CIPHER_CTX_free(context);
  }
  WipeKey(key_);
}

EVP_CIPHER_CTX* OffsetCipher::Take(bool encrypt) {
  {
    MutexLock lock(mutex_);
    auto& idle = idle_[encrypt ? 1 : 0];
    if (!idle.empty()) {
      EVP_CIPHER_CTX* context = idle.back();
      idle.pop_back();
      return context;
    }
  }
  EVP_CIPHER_CTX* context = EVP_CIPHER_CTX_new();
  CAIRN_CHECK(context != nullptr);
  CAIRN_CHECK(EVP_CipherInit_ex(context, EVP_aes_256_gcm(), nullptr, key_.data(), nullptr,
                                encrypt ? 1 : 0) == 1);
  return context;
}

void OffsetCipher::Give(bool encrypt, EVP_CIPHER_CTX* context) {
  {
    MutexLock lock(mutex_);
    auto& idle = idle_[encrypt ? 1 : 0];
    if (idle.size() < kMaxIdleContexts) {
      idle.push_back(context);
      return;
    }
  }
  EVP_CIPHER_CTX_free(context);
}

void OffsetCipher::Encrypt(uint64_t offset, std::string_view aad, std::string_view in, char* out,
                           char* tag) {
  Lease(*this, true).Encrypt(offset, aad, in, out, tag);
}

bool OffsetCipher::Decrypt(uint64_t offset, std::string_view aad, std::string_view in, char* out,
                           const char* tag) {
  return Lease(*this, false).Decrypt(offset, aad, in, out, tag);
}

void OffsetCipher::EncryptFrames(uint64_t offset, std::string_view in, char* out, char* tags) {
  Lease lease(*this, true);
  while (!in.empty()) {
    const size_t n = std::min<size_t>(in.size(), kLogFrameBytes);
    lease.Encrypt(offset, {}, in.substr(0, n), out, tags);
    in.remove_prefix(n);
    offset += n;
    out += n;
    tags += kGcmTagBytes;
  }
}

LogFile::LogFile(std::unique_ptr<File> file, std::string path, LogHeader header, const Key256& key)
    : file_(std::move(file)), path_(std::move(path)), header_(std::move(header)), cipher_(key) {}

Result<std::shared_ptr<LogFile>> LogFile::Create(FileSystem& fs, KeyRing& keys,
                                                 const std::string& path, LogHeader header) {
  Key256 key = RandomKey();
  header.key = CAIRN_TRY(keys.Wrap(header.realm, key, header.KeyAad()));
  std::unique_ptr<File> file =
      CAIRN_TRY(fs.Open(path, {.create = true, .exclusive = false, .truncate = true}));
  CAIRN_TRY(file->WriteAt(0, header.Encode()));
  auto log = std::make_shared<LogFile>(std::move(file), path, std::move(header), key);
  WipeKey(key);
  return log;
}

Result<std::shared_ptr<LogFile>> LogFile::Open(FileSystem& fs, KeyRing& keys,
                                               const std::string& path, const Expected& expected) {
  std::unique_ptr<File> file = CAIRN_TRY(fs.Open(path, {}));
  std::string bytes(kLogHeaderBytes, '\0');
  bytes.resize(CAIRN_TRY(file->ReadAt(0, bytes)));
  auto header = LogHeader::Decode(bytes);
  if (!header) return std::unexpected(std::move(header).error().WithContext(path));
  if (header->kind != expected.kind || header->realm != expected.realm ||
      header->volume != expected.volume || header->generation != expected.generation) {
    return Err(ErrorCode::kDataLoss,
               fmt::format("{}: header is of another volume, generation or kind", path));
  }
  auto key = keys.Unwrap(header->realm, header->key, header->KeyAad());
  if (!key) return std::unexpected(std::move(key).error().WithContext(path));
  auto log = std::make_shared<LogFile>(std::move(file), path, *std::move(header), *key);
  WipeKey(*key);
  return log;
}

Status LogFile::SetFirstLsn(uint64_t first_lsn) {
  header_.first_lsn = first_lsn;
  return file_->WriteAt(0, header_.Encode());
}

Status LogFile::ReadPayload(const UnsealedPayload& payload, uint64_t within, std::span<char> out) {
  CAIRN_CHECK(within <= payload.length_bytes && out.size() <= payload.length_bytes - within);
  const auto torn = [&](uint64_t offset) {
    return Err(ErrorCode::kDataLoss,
               fmt::format("{}: payload frame at offset {} does not verify", path_, offset));
  };
  std::array<char, kLogFrameBytes> frame;
  while (!out.empty()) {
    const uint64_t index = within / kLogFrameBytes;
    const uint64_t frame_start = index * kLogFrameBytes;
    const uint64_t skip = within - frame_start;
    if (skip == 0 && out.size() >= kLogFrameBytes) {
      // Whole frames: one read of all of them, then each decrypted where it lies.
      const size_t bytes = out.size() / kLogFrameBytes * kLogFrameBytes;
      const std::span<char> whole = out.first(bytes);
      const size_t got = CAIRN_TRY(file_->ReadAt(payload.log_offset + frame_start, whole));
      if (got < bytes) return torn(payload.log_offset + frame_start + got);
      for (size_t at = 0; at < bytes; at += kLogFrameBytes) {
        const uint64_t offset = payload.log_offset + frame_start + at;
        const char* tag = payload.tags.data() + (index + at / kLogFrameBytes) * kGcmTagBytes;
        const std::string_view cipher_text(whole.data() + at, kLogFrameBytes);
        if (!cipher_.Decrypt(offset, {}, cipher_text, whole.data() + at, tag)) return torn(offset);
      }
      out = out.subspan(bytes);
      within += bytes;
      continue;
    }
    const size_t length = std::min<uint64_t>(kLogFrameBytes, payload.length_bytes - frame_start);
    const uint64_t offset = payload.log_offset + frame_start;
    const size_t got = CAIRN_TRY(file_->ReadAt(offset, std::span(frame).first(length)));
    const char* tag = payload.tags.data() + index * kGcmTagBytes;
    if (got < length || !cipher_.Decrypt(offset, {}, {frame.data(), length}, frame.data(), tag)) {
      return torn(offset);
    }
    const size_t n = std::min(out.size(), length - static_cast<size_t>(skip));
    std::copy_n(frame.data() + skip, n, out.data());
    out = out.subspan(n);
    within += n;
  }
  return {};
}

}  // namespace cairn
