// io_uring by liburing (io_uring_setup(2), io_uring_register_buffers(3)). The arena is one
// registered buffer; a read takes consecutive slots of it, so that one ring serves single blocks
// and long runs within one bound. COOP_TASKRUN (Linux 5.19, left out before) spares the interrupts;
// SINGLE_ISSUER with DEFER_TASKRUN would bind a ring to one thread and gave nothing beyond the
// noise (decision 9). Invariant: the arena outlives every read in flight.
#include "store/base/io_ring.h"

#include <liburing.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "store/base/check.h"
#include "store/base/log.h"

namespace cairn {

struct IoRing::Impl {
  struct FreeArena {
    void operator()(char* memory) const { std::free(memory); }
  };
  struct Operation {
    uint64_t tag = 0;
    uint64_t offset = 0;
    size_t length_bytes = 0;  // of a read
    uint32_t slots = 0;       // bits; 0: this entry is unused
  };

  ~Impl() {
    while (in_flight > 0) Reap();
    io_uring_queue_exit(&ring);
  }

  // Submits and blocks for one completion, which it takes off the queue. Submits though a
  // completion may be there already: the disk works while the caller decrypts. But not each read by
  // itself while the disk has enough to do: several at once cost one doorbell of the device, which
  // in a virtual machine is an exit to the host.
  io_uring_cqe Reap() {
    CAIRN_CHECK(in_flight > 0);
    const bool queued = io_uring_sq_ready(&ring) > 0;
    const auto used = static_cast<unsigned>(std::popcount(used_slots));
    if (queued &&
        (arena == nullptr || queued_slots >= kTogether || used < queued_slots + kEnough)) {
      io_uring_submit(&ring);  // what it refuses stays queued
    }
    io_uring_cqe* cqe = nullptr;
    while (io_uring_peek_cqe(&ring, &cqe) != 0) {
      const int done = io_uring_submit_and_wait(&ring, 1);
      // EAGAIN and EBUSY: the kernel is short of memory or of room for completions.
      CAIRN_CHECK(done >= 0 || done == -EINTR || done == -EAGAIN || done == -EBUSY);
      if (done == -EAGAIN) sched_yield();
    }
    if (io_uring_sq_ready(&ring) == 0) queued_slots = 0;
    const io_uring_cqe copy{.user_data = cqe->user_data, .res = cqe->res, .flags = cqe->flags};
    io_uring_cqe_seen(&ring, cqe);
    --in_flight;
    return copy;
  }

  static constexpr unsigned kTogether = kSlots / 4;
  static constexpr unsigned kEnough = kSlots / 2;

  io_uring ring{};
  std::unique_ptr<char, FreeArena> arena;
  bool registered = false;
  unsigned in_flight = 0;
  unsigned queued_slots = 0;  // of operations that the kernel has not been handed yet
  uint32_t used_slots = 0;    // bits; of completions not yet released too
  std::array<Operation, kSlots> operations;  // each at its first slot
};

namespace {
constexpr size_t kMaxWriteBytes = 1 << 30;  // write(2) takes less than 2 GiB
}  // namespace

static_assert(IoRing::kSlots == 32, "slots are the bits of a uint32_t");
static_assert(IoRing::kSlotBytes % IoRing::kAlignment == 0);

IoRing::IoRing(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
IoRing::IoRing(IoRing&&) noexcept = default;
IoRing& IoRing::operator=(IoRing&&) noexcept = default;
IoRing::~IoRing() = default;

Result<IoRing> IoRing::Create(Use use) {
  io_uring ring{};
  int made = io_uring_queue_init(kSlots, &ring, IORING_SETUP_COOP_TASKRUN);
  if (made == -EINVAL) made = io_uring_queue_init(kSlots, &ring, 0);
  if (made < 0) return Err(ErrorCode::kUnavailable, "io_uring_setup", -made);
  auto impl = std::make_unique<Impl>();
  impl->ring = ring;
  if (use == Use::kWrites) return IoRing(std::move(impl));
  impl->arena.reset(static_cast<char*>(std::aligned_alloc(kAlignment, kSlots * kSlotBytes)));
  if (impl->arena == nullptr) return Err(ErrorCode::kUnavailable, "no memory for a ring", ENOMEM);
  const iovec whole{.iov_base = impl->arena.get(), .iov_len = kSlots * kSlotBytes};
  impl->registered = io_uring_register_buffers(&impl->ring, &whole, 1) == 0;
  return IoRing(std::move(impl));
}

unsigned IoRing::in_flight() const { return impl_->in_flight; }

bool IoRing::Start(int fd, uint64_t offset, size_t length_bytes, uint64_t tag) {
  CAIRN_CHECK(impl_->arena != nullptr && length_bytes > 0 && length_bytes <= kMaxReadBytes);
  const size_t wanted = (length_bytes + kSlotBytes - 1) / kSlotBytes;
  const uint32_t run = (uint32_t{1} << wanted) - 1;
  size_t first = 0;
  while (first + wanted <= kSlots && (impl_->used_slots & (run << first)) != 0) ++first;
  if (first + wanted > kSlots) return false;
  io_uring_sqe* sqe = io_uring_get_sqe(&impl_->ring);
  CAIRN_CHECK(sqe != nullptr);  // as many entries as slots
  char* const buffer = impl_->arena.get() + first * kSlotBytes;
  if (impl_->registered) {
    io_uring_prep_read_fixed(sqe, fd, buffer, static_cast<unsigned>(length_bytes), offset, 0);
  } else {
    io_uring_prep_read(sqe, fd, buffer, static_cast<unsigned>(length_bytes), offset);
  }
  io_uring_sqe_set_data64(sqe, first);
  impl_->operations[first] = {
      .tag = tag, .offset = offset, .length_bytes = length_bytes, .slots = run << first};
  impl_->used_slots |= run << first;
  impl_->queued_slots += static_cast<unsigned>(wanted);
  ++impl_->in_flight;
  return true;
}

bool IoRing::StartWrite(int fd, uint64_t offset, std::string_view data, uint64_t tag) {
  CAIRN_CHECK(impl_->arena == nullptr && !data.empty());
  const auto slot = static_cast<unsigned>(std::countr_one(impl_->used_slots));
  if (slot == kSlots) return false;
  io_uring_sqe* sqe = io_uring_get_sqe(&impl_->ring);
  CAIRN_CHECK(sqe != nullptr);  // as many entries as slots
  // A longer one ends short, like any other that the kernel did not do whole.
  const auto length = static_cast<unsigned>(std::min<size_t>(data.size(), kMaxWriteBytes));
  io_uring_prep_write(sqe, fd, data.data(), length, offset);
  io_uring_sqe_set_data64(sqe, slot);
  impl_->operations[slot] = {.tag = tag, .offset = offset, .slots = uint32_t{1} << slot};
  impl_->used_slots |= uint32_t{1} << slot;
  ++impl_->in_flight;
  io_uring_submit(&impl_->ring);  // what it refuses stays queued: Wait submits again
  return true;
}

IoRing::Completion IoRing::Wait() {
  const io_uring_cqe cqe = impl_->Reap();
  const size_t first = cqe.user_data;
  Impl::Operation& operation = impl_->operations[first];
  Completion completion{
      .tag = operation.tag, .offset = operation.offset, .result = cqe.res, .buffer = {}};
  if (impl_->arena == nullptr) {
    impl_->used_slots &= ~std::exchange(operation.slots, 0);
  } else {
    completion.buffer = {impl_->arena.get() + first * kSlotBytes, operation.length_bytes};
  }
  return completion;
}

void IoRing::Release(const Completion& completion) {
  const auto at = static_cast<size_t>(completion.buffer.data() - impl_->arena.get()) / kSlotBytes;
  impl_->used_slots &= ~std::exchange(impl_->operations[at].slots, 0);
}

IoRingPool::Lease::~Lease() {
  if (!ring_) return;
  MutexLock lock(pool_->mutex_);
  pool_->idle_.push_back(*std::move(ring_));
}

std::optional<IoRingPool::Lease> IoRingPool::Take() {
  MutexLock lock(mutex_);
  if (!idle_.empty()) {
    std::optional<Lease> lease(std::in_place, *this, std::move(idle_.back()));
    idle_.pop_back();
    return lease;
  }
  if (refused_ || made_ == max_rings_) return std::nullopt;
  Result<IoRing> ring = IoRing::Create(use_);
  if (!ring) {
    refused_ = true;
    LogInfo("io_backend", {{use_ == IoRing::Use::kReads ? "reads" : "writes", "posix"},
                           {"why", ring.error().ToString()}});
    return std::nullopt;
  }
  ++made_;
  return std::optional<Lease>(std::in_place, *this, *std::move(ring));
}

}  // namespace cairn
