// A program of a few operations on every element of some arrays. Included inside the namespace of one instruction set
// (kernels.cc).
//
// It runs chunk by chunk: what lies between two operations stays in the nearest cache, and following the program is done once
// for a chunk. Only whole vectors are computed, so that an element's bits do not depend on where it stands.

constexpr int64_t kChunkBytes = 1024;

template <class T, class F>
inline void map(T* out, const T* a, int64_t n, F&& f) {
  constexpr int N = kLanes<T>;
  for (int64_t i = 0; i < n; i += N) store<T, N>(out + i, f(load<T, N>(a + i)));
}

template <class T, class F>
inline void map(T* out, const T* a, const T* b, int64_t n, F&& f) {
  constexpr int N = kLanes<T>;
  for (int64_t i = 0; i < n; i += N) store<T, N>(out + i, f(load<T, N>(a + i), load<T, N>(b + i)));
}

template <class T>
void run_chunk(const Instruction* code, int64_t length, T* const* places, int64_t n) {
  constexpr int N = kLanes<T>;
  using V = Vector<T, N>;
  for (const Instruction* at = code; at < code + length; ++at) {
    T* const out = places[at->out];
    const T *const a = places[at->a], *const b = places[at->b];
    switch (at->operation) {
      case Operation::kCopy: map(out, a, n, [](V x) { return x; }); break;
      case Operation::kNegate: map(out, a, n, [](V x) { return -x; }); break;
      case Operation::kAdd: map(out, a, b, n, [](V x, V y) { return x + y; }); break;
      case Operation::kSubtract: map(out, a, b, n, [](V x, V y) { return x - y; }); break;
      case Operation::kMultiply: map(out, a, b, n, [](V x, V y) { return x * y; }); break;
      case Operation::kDivide: map(out, a, b, n, [](V x, V y) { return x / y; }); break;
      case Operation::kExp: map(out, a, n, [](V x) { return exponential<T, N>(x); }); break;
      case Operation::kLogistic: map(out, a, n, [](V x) { return logistic<T, N>(x); }); break;
      case Operation::kTanh: map(out, a, n, [](V x) { return hyperbolic_tangent<T, N>(x); }); break;
    }
  }
}

// Values [rows] repeated over the lanes of each, elements [first, first + n).
template <class T>
void repeat_over_lanes(const T* of_row, int64_t lanes, int64_t first, int64_t n, T* out) {
  int64_t row = first / lanes, until = (row + 1) * lanes - first;
  constexpr int N = kLanes<T>;
  if (lanes % N == 0 && first % N == 0 && n % N == 0) {
    for (int64_t i = 0; i < n; ++row, until += lanes) {
      const Vector<T, N> value = Vector<T, N>{} + of_row[row];
      for (const int64_t end = until < n ? until : n; i < end; i += N) store<T, N>(out + i, value);
    }
    return;
  }
  for (int64_t i = 0; i < n; ++row, until += lanes) {
    const T value = of_row[row];
    for (const int64_t end = until < n ? until : n; i < end; ++i) out[i] = value;
  }
}

template <class T>
void elementwise(const Elementwise& call, Pool& pool) {
  constexpr int64_t kChunk = kChunkBytes / sizeof(T);
  const int64_t elements = call.rows * call.lanes, chunks = (elements + kChunk - 1) / kChunk;
  const int64_t count = call.inputs + call.outputs + call.constants + call.registers;
  int64_t cost = 0;
  for (int64_t i = 0; i < call.length; ++i) cost += call.code[i].operation >= Operation::kExp ? 12 : 2;
  const int64_t tasks = task_count(cost * chunks * (kChunk / kLanes<T>), pool);
  parallel_for(pool, tasks, [&](int64_t task) {
    Scratch<T> scratch(count * kChunk);
    Scratch<T*> places(count);
    for (int64_t p = 0; p < count; ++p) places.data[p] = scratch.data + p * kChunk;
    for (int64_t c = 0; c < call.constants; ++c) {
      T* const all = places.data[call.inputs + call.outputs + c];
      for (int64_t i = 0; i < kChunk; ++i) all[i] = static_cast<T>(call.constant[c]);
    }
    for (int64_t chunk = chunks * task / tasks; chunk < chunks * (task + 1) / tasks; ++chunk) {
      const int64_t first = chunk * kChunk, n = elements - first < kChunk ? elements - first : kChunk;
      const bool is_whole = n % kLanes<T> == 0;
      for (int64_t p = 0; p < call.inputs; ++p) {
        T* const own = scratch.data + p * kChunk;
        const T* const from = static_cast<const T*>(call.input[p]);
        places.data[p] = own;
        if (call.is_shared[p]) {
          repeat_over_lanes(from, call.lanes, first, n, own);
        } else if (is_whole) {
          places.data[p] = const_cast<T*>(from + first);  // no instruction writes to an input
        } else {
          __builtin_memcpy(own, from + first, sizeof(T) * static_cast<size_t>(n));
        }
        if (!is_whole) __builtin_memset(own + n, 0, sizeof(T) * static_cast<size_t>(kChunk - n));
      }
      for (int64_t p = 0; p < call.outputs; ++p) {
        T* const to = static_cast<T*>(call.output[p]) + first;
        places.data[call.inputs + p] = is_whole ? to : scratch.data + (call.inputs + p) * kChunk;
      }
      run_chunk(call.code, call.length, places.data, n);
      for (int64_t p = 0; p < call.outputs && !is_whole; ++p) {
        __builtin_memcpy(static_cast<T*>(call.output[p]) + first, places.data[call.inputs + p],
                         sizeof(T) * static_cast<size_t>(n));
      }
    }
  });
}
