// Must not compile under clang -Wthread-safety -Werror: the last function touches a guarded field
// without the lock.
// ./dev lint compiles it twice: as it is (must fail, naming the field) and with -DLOCKED (must
// pass), so that a failure for another reason cannot pass for the proof.
#include "store/base/mutex.h"

namespace cairn {

class Counter {
 public:
  void Add() {
#ifdef LOCKED
    MutexLock lock(mutex_);
#endif
    ++count_;
  }

 private:
  Mutex mutex_;
  int count_ GUARDED_BY(mutex_) = 0;
};

void Touch(Counter& counter) { counter.Add(); }

}  // namespace cairn
