#include "threads.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <new>

namespace snapgrad {
namespace {

// Below this a second thread does not pay: waking one takes about ten microseconds.
constexpr int64_t kSmallestTask = 20000;
constexpr int64_t kTasksPerThread = 8;

struct Shared {
  std::atomic<int64_t> next{0};
  std::atomic<int64_t> done{0};
  std::mutex mutex;
  std::condition_variable all_done;
  std::exception_ptr error;  // the first that a task threw
};

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

void parallel_for(Pool& pool, int64_t n, void (*task)(const void*, int64_t), const void* context) {
  const int64_t helpers = std::min(n, pool.size()) - 1;
  if (helpers <= 0) {
    for (int64_t i = 0; i < n; ++i) task(context, i);
    return;
  }
  // A helper that starts late finds no work left: it must still find `shared`, but never touches `context`.
  auto shared = std::make_shared<Shared>();
  auto work = [shared, n, task, context] {
    for (int64_t i; (i = shared->next.fetch_add(1)) < n;) {
      try {
        task(context, i);
      } catch (...) {
        std::lock_guard<std::mutex> lock(shared->mutex);
        if (!shared->error) shared->error = std::current_exception();
      }
      if (shared->done.fetch_add(1) + 1 == n) {
        std::lock_guard<std::mutex> lock(shared->mutex);
        shared->all_done.notify_one();
      }
    }
  };
  for (int64_t i = 0; i < helpers; ++i) pool.schedule(work);
  work();
  // The last tasks end at about the same time: look a few times before going to sleep.
  for (int spin = 0; spin < 2000 && shared->done.load() < n; ++spin) pause();
  std::unique_lock<std::mutex> lock(shared->mutex);
  shared->all_done.wait(lock, [&] { return shared->done.load() == n; });
  if (shared->error) std::rethrow_exception(shared->error);
}

int64_t task_count(int64_t cost, const Pool& pool) {
  return std::clamp<int64_t>(cost / kSmallestTask, 1, kTasksPerThread * std::max<int64_t>(1, pool.size()));
}

Range task_range(const int64_t* cost_up_to, int64_t things, int64_t task, int64_t tasks) {
  if (things == 0) return {0, 0};
  const int64_t total = cost_up_to[things - 1];
  const auto boundary = [&](int64_t n) {
    const auto boundary_cost = static_cast<int64_t>(static_cast<double>(total) * static_cast<double>(n) / tasks);
    return n == tasks ? things : std::lower_bound(cost_up_to, cost_up_to + things, boundary_cost) - cost_up_to;
  };
  return {task == 0 ? 0 : boundary(task), boundary(task + 1)};
}

void* allocate(size_t bytes) {
  void* memory = nullptr;
  if (posix_memalign(&memory, 64, bytes + 64) != 0) throw std::bad_alloc();
  return memory;
}

void release(void* memory) { std::free(memory); }

}  // namespace snapgrad
