// Splitting work over a thread pool that belongs to someone else.
//
// What kernels call is defined in threads.cc, which is compiled for the least machine, and takes plain pointers, so that
// as little as can be of the standard library is instantiated in code that is made for one instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace snapgrad {

// The pool that XLA lends for the time of one call.
class Pool {
 public:
  virtual ~Pool() = default;
  virtual int64_t size() const = 0;
  virtual void schedule(std::function<void()> task) = 0;
};

// Runs task(context, 0) .. task(context, n - 1) in any order, each exactly once, and returns when all have ended.
//
// The caller works too, and waits only for tasks that others have begun: a pool that is busy, or that this very call
// occupies, cannot make it hang. What a task throws is thrown here, when all have ended. Tasks must write to places of their own, which makes the result independent of who ran
// them.
void parallel_for(Pool& pool, int64_t n, void (*task)(const void* context, int64_t), const void* context);

template <class Task>
void parallel_for(Pool& pool, int64_t n, const Task& task) {
  parallel_for(pool, n, [](const void* context, int64_t i) { (*static_cast<const Task*>(context))(i); }, &task);
}

// Into how many tasks to cut work of the given cost, in vector operations.
int64_t task_count(int64_t cost, const Pool& pool);

// Small batches come as single samples, and between two of them a pool falls asleep. To wake it takes longer than to do the
// smallest task: their cost is divided by this.
constexpr int64_t kAsleep = 16;

// The things of one task, given the cost of all things up to and with each.
struct Range {
  int64_t begin, end;
};
Range task_range(const int64_t* cost_up_to, int64_t things, int64_t task, int64_t tasks);

// Uninitialised memory, aligned for vectors.
void* allocate(size_t bytes);
void release(void* memory);

template <class T>
struct Scratch {
  T* const data;
  explicit Scratch(int64_t n) : data(static_cast<T*>(allocate(static_cast<size_t>(n) * sizeof(T)))) {}
  ~Scratch() { release(data); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
};

}  // namespace snapgrad
