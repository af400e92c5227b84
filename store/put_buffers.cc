// A stack of idle pairs: the one used last is the one whose pages are in the cache.
#include "store/put_buffers.h"

namespace cairn {

PutBuffers::Lease PutBuffers::Take() {
  MutexLock lock(mutex_);
  while (idle_.empty() && unmade_ == 0) given_back_.Wait(mutex_);
  if (idle_.empty()) {
    --unmade_;
    return {this, std::make_unique<Pair>()};
  }
  std::unique_ptr<Pair> pair = std::move(idle_.back());
  idle_.pop_back();
  return {this, std::move(pair)};
}

void PutBuffers::GiveBack(std::unique_ptr<Pair> pair) {
  {
    MutexLock lock(mutex_);
    idle_.push_back(std::move(pair));
  }
  given_back_.NotifyOne();
}

}  // namespace cairn
