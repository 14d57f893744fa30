// One step of a unit-wise cell: its pre-activations, its rule and the rule's derivatives. Included inside the namespace of
// one instruction set (kernels.cc).
//
// The rule is a program of a few operations on every element. It runs on a chunk of units at a time: pre-activations and what
// lies between two operations stay in the nearest cache, and following the program is done once for a chunk. Only whole
// vectors are computed, so that an element's bits do not depend on where it stands.

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
void run_program(const Instruction* code, int64_t length, T* const* places, int64_t n) {
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

// W x + b of rows [first, end), each of all lanes.
template <class T>
void preactivations(const Preactivations& of, int64_t lanes, int64_t first, int64_t end, T* out) {
  const T* const values = static_cast<const T*>(of.values);
  const T* const bias = static_cast<const T*>(of.bias);
  if (of.plan != nullptr) {
    over_batch<T>(lanes, [&](auto n, auto r, int64_t from, int64_t part) {
      product_rows<T, decltype(n)::value, decltype(r)::value>(values, static_cast<const T*>(of.x) + from, bias, out + from,
                                                              of.plan->starts.data(), of.plan->terms.data(), first, end,
                                                              lanes, part);
    });
    return;
  }
  for (int64_t row = first; row < end; ++row, out += lanes) {
    const T added = bias == nullptr ? T(0) : bias[row];
    for (int64_t lane = 0; lane < lanes; ++lane) out[lane] = values[row * lanes + lane] + added;
  }
}

template <class T>
void unit_step(const UnitStep& call, Pool& pool) {
  const int64_t units = call.units, lanes = call.lanes, in_chunk = kChunkBytes / static_cast<int64_t>(sizeof(T));
  const int64_t together = in_chunk > lanes ? in_chunk / lanes : 1, chunks = (units + together - 1) / together;
  const int64_t stride = (together * lanes + kLanes<T> - 1) / kLanes<T> * kLanes<T>;  // of the places in the scratch
  const int64_t inputs = call.states + 2 * call.gates, outputs = call.states + call.derivatives;
  const int64_t count = inputs + outputs + call.constants + call.registers;
  int64_t cost = 0;
  for (int64_t i = 0; i < call.length; ++i) cost += call.code[i].operation >= Operation::kExp ? 12 : 2;
  for (const Preactivations* of : {&call.input, &call.recurrent}) {
    cost += 4 * call.gates + (of->plan == nullptr ? 0 : of->plan->entries / units);
  }
  // Half: a second thread was no gain below some forty microseconds (512 units of a vanilla network, or 128 of a GRU). An
  // eighth, one thread for 512 units of a GRU or LSTM, made their training steps a fifth to two thirds longer.
  const int64_t tasks = task_count(cost * chunks * (stride / kLanes<T>) / 2, pool);
  parallel_for(pool, tasks, [&](int64_t task) {
    Scratch<T> scratch(count * stride);
    Scratch<T*> places(count);
    for (int64_t p = 0; p < count; ++p) places.data[p] = scratch.data + p * stride;
    for (int64_t c = 0; c < call.constants; ++c) {
      T* const all = places.data[inputs + outputs + c];
      for (int64_t i = 0; i < stride; ++i) all[i] = static_cast<T>(call.constant[c]);
    }
    for (int64_t chunk = chunks * task / tasks; chunk < chunks * (task + 1) / tasks; ++chunk) {
      const int64_t first = chunk * together, end = first + together < units ? first + together : units;
      const int64_t n = (end - first) * lanes;
      const bool is_whole = n % kLanes<T> == 0;
      const auto fill = [&](T* own) {
        if (!is_whole) __builtin_memset(own + n, 0, sizeof(T) * static_cast<size_t>(stride - n));
      };
      for (int64_t s = 0; s < call.states; ++s) {
        const T* const from = static_cast<const T*>(call.state) + (s * units + first) * lanes;
        places.data[s] = is_whole ? const_cast<T*>(from) : scratch.data + s * stride;  // no instruction writes to an input
        if (is_whole) continue;
        __builtin_memcpy(places.data[s], from, sizeof(T) * static_cast<size_t>(n));
        fill(places.data[s]);
      }
      T* own = scratch.data + call.states * stride;
      for (const Preactivations* of : {&call.input, &call.recurrent}) {
        for (int64_t gate = 0; gate < call.gates; ++gate, own += stride) {
          preactivations<T>(*of, lanes, gate * units + first, gate * units + end, own);
          fill(own);
        }
      }
      const auto output = [&](int64_t p) {
        T* const to = static_cast<T*>(p < call.states ? call.next : call.derivative);
        return to + ((p < call.states ? p : p - call.states) * units + first) * lanes;
      };
      for (int64_t p = 0; p < outputs && is_whole; ++p) places.data[inputs + p] = output(p);
      if (!is_whole) {
        for (int64_t p = inputs; p < inputs + outputs; ++p) places.data[p] = scratch.data + p * stride;
      }
      run_program(call.code, call.length, places.data, n);
      for (int64_t p = 0; p < outputs && !is_whole; ++p) {
        __builtin_memcpy(output(p), places.data[inputs + p], sizeof(T) * static_cast<size_t>(n));
      }
    }
  });
}
