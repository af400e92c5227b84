// Fixed keys, and a fixed nonce for the one message under the wrapping key of each file: this is
// for inputs of a fuzzer, where nothing is secret and everything must repeat.
#include "tests/fuzz/known_keys.h"

namespace cairn {

KnownKeys::KnownKeys() {
  realm.bytes.fill(0xaa);
  pack.bytes.fill(0x11);
  volume.bytes.fill(0x22);
  data_key.fill(0x33);
  wrapping_key.fill(0x44);
  RealmKeys keys;
  keys.address_key.fill(0x55);
  keys.current_key_id = key_id;
  keys.wrapping_keys[key_id] = wrapping_key;
  ring.Add(realm, keys);
}

std::string KnownKeys::WrapDataKey(std::string_view aad) const {
  Nonce96 nonce;
  nonce.fill(0x66);
  std::string out(reinterpret_cast<const char*>(nonce.data()), nonce.size());
  AppendSealed(wrapping_key, nonce,
               {reinterpret_cast<const char*>(data_key.data()), data_key.size()}, aad, out);
  return out;
}

KnownKeys& Known() {
  static KnownKeys known;
  return known;
}

}  // namespace cairn
