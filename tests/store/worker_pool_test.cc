// The pool runs every part once, whoever is free to, and ends with work queued.
#include "store/worker_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <memory>
#include <thread>
#include <vector>

namespace cairn {
namespace {

TEST(WorkerPool, RunsEachPartOnceForEachCaller) {
  for (const size_t threads : {0, 1, 3}) {
    WorkerPool pool(threads);
    std::vector<std::thread> callers;
    for (int c = 0; c < 3; ++c) {
      callers.emplace_back([&] {
        for (const size_t parts : {0, 1, 2, 50}) {
          std::vector<std::atomic<int>> runs(parts);
          pool.Run(parts, [&](size_t part) { runs[part].fetch_add(1); });
          for (const std::atomic<int>& run : runs) ASSERT_EQ(run.load(), 1);
        }
      });
    }
    for (std::thread& caller : callers) caller.join();
  }
}

TEST(WorkerPool, PartsRunSideBySide) {
  WorkerPool pool(1);
  std::latch both(2);
  pool.Run(2, [&](size_t) { both.arrive_and_wait(); });  // hangs if they do not
}

TEST(WorkerPool, TasksAreBoundedAndRefusedWithoutThreads) {
  EXPECT_FALSE(WorkerPool(0).Submit([] {}));
  WorkerPool pool(1);
  std::latch begun(1), go(1);
  ASSERT_TRUE(pool.Submit([&] {
    begun.count_down();
    go.wait();
  }));
  begun.wait();
  for (size_t i = 0; i < WorkerPool::kMaxTasks; ++i) EXPECT_TRUE(pool.Submit([] {}));
  EXPECT_FALSE(pool.Submit([] {}));
  go.count_down();
}

TEST(WorkerPool, StopDropsQueuedTasksAndLeavesPartsToTheirCaller) {
  WorkerPool pool(1);
  std::latch begun(1), go(1);
  std::atomic<int> tasks = 0, parts = 0;
  ASSERT_TRUE(pool.Submit([&] {
    begun.count_down();
    go.wait();
  }));
  begun.wait();
  auto held = std::make_shared<int>();
  const std::weak_ptr<int> queued = held;
  ASSERT_TRUE(pool.Submit([&tasks, held = std::move(held)] { tasks.fetch_add(1); }));
  std::latch in_part(1), stopping(1);
  std::thread caller([&] {
    pool.Run(5, [&](size_t part) {
      if (part == 0) {
        in_part.count_down();
        stopping.wait();
      }
      parts.fetch_add(1);
    });
  });
  in_part.wait();
  std::thread stopper([&] { pool.Stop(); });
  // The one thread is in the first task: only Stop can have let go of the second.
  while (!queued.expired()) std::this_thread::yield();
  EXPECT_FALSE(pool.Submit([&] { tasks.fetch_add(1); }));
  stopping.count_down();
  caller.join();
  go.count_down();
  stopper.join();
  EXPECT_EQ(parts.load(), 5);
  EXPECT_EQ(tasks.load(), 0);
  pool.Run(3, [&](size_t) { parts.fetch_add(1); });
  EXPECT_EQ(parts.load(), 8);
}

}  // namespace
}  // namespace cairn
