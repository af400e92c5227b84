// WriterGate: counts live write sessions and lets a collector hold new ones off until it is done.
#pragma once

#include <cstdint>
#include <map>

#include "store/base/error.h"
#include "store/base/id128.h"
#include "store/base/mutex.h"

namespace cairn {

// Thread-safe. States: free --Hold--> held (only once no session lives) --Release--> free; Close at
// any time, for good.
class WriterGate {
 public:
  // Blocks while writers are held off. Unavailable once closed.
  Status Enter(const Id128& realm);
  void Leave(const Id128& realm);

  // Stops new sessions and waits until the live ones ended. Unavailable after `timeout_ms`
  // (sessions go on as before) or once closed; FailedPrecondition when somebody else holds.
  Status Hold(int64_t timeout_ms);
  void Release();

  void Close();
  uint64_t Live(const Id128& realm);

 private:
  Mutex mutex_;
  CondVar changed_;
  bool held_ GUARDED_BY(mutex_) = false;
  bool closed_ GUARDED_BY(mutex_) = false;
  uint64_t live_total_ GUARDED_BY(mutex_) = 0;
  std::map<Id128, uint64_t> live_ GUARDED_BY(mutex_);
};

// Writers are held off while this lives. Move-only.
class WritersHeld {
 public:
  explicit WritersHeld(WriterGate& gate) : gate_(&gate) {}
  WritersHeld(WritersHeld&& other) noexcept : gate_(other.gate_) { other.gate_ = nullptr; }
  WritersHeld& operator=(WritersHeld&&) = delete;
  ~WritersHeld() {
    if (gate_ != nullptr) gate_->Release();
  }

 private:
  WriterGate* gate_;
};

}  // namespace cairn
