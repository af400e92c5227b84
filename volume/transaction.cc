// A transaction under construction: a list of operations in the order they were asked for.
#include "volume/head.h"

namespace cairn {

void Transaction::Put(std::string key, Entry entry) {
  Op& op = ops_.emplace_back(Op::Kind::kPut);
  op.key = std::move(key);
  op.entry = std::move(entry);
}

void Transaction::Delete(std::string key) {
  Op& op = ops_.emplace_back(Op::Kind::kDelete);
  op.key = std::move(key);
}

void Transaction::PutHole(InodeNumber ino, uint64_t offset, uint64_t length_bytes) {
  Op& op = ops_.emplace_back(Op::Kind::kHole);
  op.ino = ino;
  op.offset = offset;
  op.length_bytes = length_bytes;
}

void Transaction::PutData(InodeNumber ino, uint64_t offset, std::string_view data) {
  Op& op = ops_.emplace_back(Op::Kind::kData);
  op.ino = ino;
  op.offset = offset;
  op.length_bytes = data.size();
  op.data = data;
}

}  // namespace cairn
