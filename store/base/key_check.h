// KeyCheck: which key is this? Eight bytes that tell keys apart and say nothing about them.
#pragma once

#include <string>

#include "store/base/aead.h"

namespace cairn {

// The first 8 bytes of HMAC-SHA-256(key, "cairn master key").
std::string KeyCheck(const Key256& key);

}  // namespace cairn
