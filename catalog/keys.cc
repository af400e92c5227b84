// The parts of keys that need code: numbers whose text sorts as they do, and reading a key's owner
// back.
#include "catalog/keys.h"

#include <fmt/format.h>

namespace cairn::keys {

std::string Number(uint64_t number) { return fmt::format("{:016x}", number); }

std::string_view OwnerOf(std::string_view key) {
  const size_t slash = key.find('/');
  if (slash == std::string_view::npos) return {};
  std::string_view owner = key.substr(slash + 1);
  owner = owner.substr(0, owner.find('/'));
  return owner.starts_with("org_") ? owner : std::string_view{};
}

std::string_view LastPart(std::string_view key) {
  const size_t slash = key.rfind('/');
  return slash == std::string_view::npos ? key : key.substr(slash + 1);
}

}  // namespace cairn::keys
