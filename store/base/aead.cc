// AES-256-GCM by OpenSSL's EVP interface (NIST SP 800-38D): 96-bit nonces, 128-bit tags. The cipher
// is fetched once for the process, because OpenSSL 3 otherwise looks its implementation up at every
// call.
#include "store/base/aead.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <climits>
#include <cstring>
#include <memory>

#include "store/base/check.h"
#include "store/base/random.h"
#include "store/base/uninitialized.h"

namespace cairn {
namespace {

struct FreeContext {
  void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
};
using Context = std::unique_ptr<EVP_CIPHER_CTX, FreeContext>;

const EVP_CIPHER* Cipher() {
  static const EVP_CIPHER* const cipher = EVP_CIPHER_fetch(nullptr, "AES-256-GCM", nullptr);
  CAIRN_CHECK(cipher != nullptr);
  return cipher;
}

const uint8_t* Raw(std::string_view bytes) {
  return reinterpret_cast<const uint8_t*>(bytes.data());
}

Nonce96 NonceOf(std::string_view sealed) {
  Nonce96 nonce;
  std::memcpy(nonce.data(), sealed.data(), nonce.size());
  return nonce;
}

}  // namespace

AeadSealer::AeadSealer(const Key256& key) : context_(EVP_CIPHER_CTX_new()) {
  CAIRN_CHECK(context_ != nullptr);
  CAIRN_CHECK(EVP_EncryptInit_ex2(static_cast<EVP_CIPHER_CTX*>(context_), Cipher(), key.data(),
                                  nullptr, nullptr) == 1);
}

AeadSealer::~AeadSealer() { EVP_CIPHER_CTX_free(static_cast<EVP_CIPHER_CTX*>(context_)); }

void AeadSealer::Seal(const Nonce96& nonce, std::string_view plain, std::string_view aad,
                      char* out) {
  CAIRN_CHECK(plain.size() <= INT_MAX && aad.size() <= INT_MAX);
  auto* const context = static_cast<EVP_CIPHER_CTX*>(context_);
  auto* cursor = reinterpret_cast<uint8_t*>(out);
  int written = 0;
  CAIRN_CHECK(EVP_EncryptInit_ex2(context, nullptr, nullptr, nonce.data(), nullptr) == 1);
  CAIRN_CHECK(aad.empty() || EVP_EncryptUpdate(context, nullptr, &written, Raw(aad),
                                               static_cast<int>(aad.size())) == 1);
  CAIRN_CHECK(plain.empty() || EVP_EncryptUpdate(context, cursor, &written, Raw(plain),
                                                 static_cast<int>(plain.size())) == 1);
  cursor += plain.size();
  CAIRN_CHECK(EVP_EncryptFinal_ex(context, cursor, &written) == 1);
  CAIRN_CHECK(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, kAeadTagBytes, cursor) == 1);
}

void AppendSealed(const Key256& key, const Nonce96& nonce, std::string_view plain,
                  std::string_view aad, std::string& out) {
  const size_t begin = out.size();
  out.resize(begin + plain.size() + kAeadTagBytes);
  AeadSealer(key).Seal(nonce, plain, aad, out.data() + begin);
}

Result<std::string> OpenSealed(const Key256& key, const Nonce96& nonce, std::string_view sealed,
                               std::string_view aad) {
  if (sealed.size() < kAeadTagBytes || sealed.size() > INT_MAX || aad.size() > INT_MAX) {
    return Err(ErrorCode::kDataLoss, "sealed bytes have an impossible length");
  }
  const std::string_view body = sealed.substr(0, sealed.size() - kAeadTagBytes);
  uint8_t tag[kAeadTagBytes];
  std::memcpy(tag, sealed.data() + body.size(), sizeof tag);
  std::string plain;
  ResizeUninitialized(plain, body.size());
  Context context(EVP_CIPHER_CTX_new());
  int written = 0;
  CAIRN_CHECK(context != nullptr);
  CAIRN_CHECK(EVP_DecryptInit_ex2(context.get(), Cipher(), key.data(), nonce.data(), nullptr) == 1);
  CAIRN_CHECK(aad.empty() || EVP_DecryptUpdate(context.get(), nullptr, &written, Raw(aad),
                                               static_cast<int>(aad.size())) == 1);
  CAIRN_CHECK(body.empty() ||
              EVP_DecryptUpdate(context.get(), reinterpret_cast<uint8_t*>(plain.data()), &written,
                                Raw(body), static_cast<int>(body.size())) == 1);
  CAIRN_CHECK(EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_AEAD_SET_TAG, sizeof tag, tag) == 1);
  uint8_t none[16];
  if (EVP_DecryptFinal_ex(context.get(), none, &written) != 1) {
    return Err(ErrorCode::kDataLoss, "authentication tag does not match");
  }
  return plain;
}

std::string SealWithKey(const Key256& key, std::string_view plain, std::string_view aad) {
  Nonce96 nonce;
  FillRandom(nonce.data(), nonce.size());
  std::string out(reinterpret_cast<const char*>(nonce.data()), nonce.size());
  out.reserve(plain.size() + kSealOverheadBytes);
  AppendSealed(key, nonce, plain, aad, out);
  return out;
}

Result<std::string> OpenWithKey(const Key256& key, std::string_view sealed, std::string_view aad) {
  if (sealed.size() < kSealOverheadBytes) {
    return Err(ErrorCode::kDataLoss, "sealed bytes are too short");
  }
  return OpenSealed(key, NonceOf(sealed), sealed.substr(kAeadNonceBytes), aad);
}

Key256 RandomKey() {
  Key256 key;
  FillRandom(key.data(), key.size());
  return key;
}

void WipeKey(Key256& key) { OPENSSL_cleanse(key.data(), key.size()); }

}  // namespace cairn
