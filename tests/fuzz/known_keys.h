// The identities and keys that the fuzz targets, their repairs and their seeds agree on, so that
// what a repair encrypts the decoder opens. Nothing is random: the same input is the same bytes in
// every run.
#pragma once

#include <string>
#include <string_view>

#include "store/base/aead.h"
#include "store/base/id128.h"
#include "store/key_ring.h"

namespace cairn {

struct KnownKeys {
  KnownKeys();
  // What KeyRing::Wrap of data_key under the realm's key could have given.
  std::string WrapDataKey(std::string_view aad) const;

  Id128 realm, pack, volume;
  Key256 data_key;
  Key256 wrapping_key;
  uint32_t key_id = 1;
  KeyRing ring;
};

KnownKeys& Known();

}  // namespace cairn
