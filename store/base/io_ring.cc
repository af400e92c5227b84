// io_uring by liburing (io_uring_setup(2), io_uring_register_buffers(3)). The arena is one
// registered buffer; a read takes consecutive slots of it, so that one ring serves single blocks
// and long runs within one bound. COOP_TASKRUN (Linux 5.19, left out before) spares the interrupts;
// SINGLE_ISSUER with DEFER_TASKRUN would bind a ring to one thread and gave nothing beyond the
// noise (decision 9). Invariant: the arena outlives every read in flight.
#include "store/base/io_ring.h"

#include <liburing.h>
#include <sched.h>

#include <array>
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
  struct Read {
    uint64_t tag = 0;
    uint64_t offset = 0;
    size_t length_bytes = 0;
    uint32_t slots = 0;  // bits; 0: this entry is unused
  };

  ~Impl() {
    while (in_flight > 0) Reap();
    io_uring_queue_exit(&ring);
  }

  // Submits and blocks for one completion, which it takes off the queue. Submits first, though a
  // completion may be there already: the disk works while the caller decrypts.
  io_uring_cqe Reap() {
    CAIRN_CHECK(in_flight > 0);
    if (io_uring_sq_ready(&ring) > 0) io_uring_submit(&ring);  // what it refuses stays queued
    io_uring_cqe* cqe = nullptr;
    while (io_uring_peek_cqe(&ring, &cqe) != 0) {
      const int done = io_uring_submit_and_wait(&ring, 1);
      // EAGAIN and EBUSY: the kernel is short of memory or of room for completions.
      CAIRN_CHECK(done >= 0 || done == -EINTR || done == -EAGAIN || done == -EBUSY);
      if (done == -EAGAIN) sched_yield();
    }
    const io_uring_cqe copy{.user_data = cqe->user_data, .res = cqe->res, .flags = cqe->flags};
    io_uring_cqe_seen(&ring, cqe);
    --in_flight;
    return copy;
  }

  io_uring ring{};
  std::unique_ptr<char, FreeArena> arena;
  bool registered = false;
  unsigned in_flight = 0;
  uint32_t used_slots = 0;  // bits; of completions not yet released too
  std::array<Read, kSlots> reads;
};

static_assert(IoRing::kSlots == 32, "slots are the bits of a uint32_t");
static_assert(IoRing::kSlotBytes % IoRing::kAlignment == 0);

IoRing::IoRing(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
IoRing::IoRing(IoRing&&) noexcept = default;
IoRing& IoRing::operator=(IoRing&&) noexcept = default;
IoRing::~IoRing() = default;

Result<IoRing> IoRing::Create() {
  io_uring ring{};
  int made = io_uring_queue_init(kSlots, &ring, IORING_SETUP_COOP_TASKRUN);
  if (made == -EINVAL) made = io_uring_queue_init(kSlots, &ring, 0);
  if (made < 0) return Err(ErrorCode::kUnavailable, "io_uring_setup", -made);
  auto impl = std::make_unique<Impl>();
  impl->ring = ring;
  impl->arena.reset(static_cast<char*>(std::aligned_alloc(kAlignment, kSlots * kSlotBytes)));
  if (impl->arena == nullptr) return Err(ErrorCode::kUnavailable, "no memory for a ring", ENOMEM);
  const iovec whole{.iov_base = impl->arena.get(), .iov_len = kSlots * kSlotBytes};
  impl->registered = io_uring_register_buffers(&impl->ring, &whole, 1) == 0;
  return IoRing(std::move(impl));
}

unsigned IoRing::in_flight() const { return impl_->in_flight; }

bool IoRing::Start(int fd, uint64_t offset, size_t length_bytes, uint64_t tag) {
  CAIRN_CHECK(length_bytes > 0 && length_bytes <= kMaxReadBytes);
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
  impl_->reads[first] = {
      .tag = tag, .offset = offset, .length_bytes = length_bytes, .slots = run << first};
  impl_->used_slots |= run << first;
  ++impl_->in_flight;
  return true;
}

IoRing::Completion IoRing::Wait() {
  const io_uring_cqe cqe = impl_->Reap();
  const size_t first = cqe.user_data;
  const Impl::Read& read = impl_->reads[first];
  return {.tag = read.tag,
          .offset = read.offset,
          .result = cqe.res,
          .buffer = {impl_->arena.get() + first * kSlotBytes, read.length_bytes}};
}

void IoRing::Release(const Completion& completion) {
  const auto at = static_cast<size_t>(completion.buffer.data() - impl_->arena.get()) / kSlotBytes;
  impl_->used_slots &= ~std::exchange(impl_->reads[at].slots, 0);
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
  Result<IoRing> ring = IoRing::Create();
  if (!ring) {
    refused_ = true;
    LogInfo("io_backend", {{"reads", "posix"}, {"why", ring.error().ToString()}});
    return std::nullopt;
  }
  ++made_;
  return std::optional<Lease>(std::in_place, *this, *std::move(ring));
}

}  // namespace cairn
