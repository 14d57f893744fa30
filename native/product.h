// Products of a sparse matrix with a batch of vectors, the batch innermost. Included inside the namespace of one
// instruction set (kernels.cc).

constexpr int kBatchRegisters = 4;

// Cuts the batch into parts of 1 to kBatchRegisters vectors, alike to within one vector, and calls
// run(Constant N, Constant R, first lane, lanes). A part's last vector is moved back to end with the part.
template <class T, class Run>
void over_batch(int64_t batch, Run&& run) {
  const int64_t vectors = (batch + kLanes<T> - 1) / kLanes<T>;
  const int64_t parts = (vectors + kBatchRegisters - 1) / kBatchRegisters;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t from = vectors * part / parts * kLanes<T>, to = vectors * (part + 1) / parts * kLanes<T>;
    const int64_t lanes = (to < batch ? to : batch) - from;
    with_vectors<kLanes<T>, kBatchRegisters>(lanes, [&](auto n, auto r) { run(n, r, from, lanes); });
  }
}

// Rows [first_row, end_row) of the product: out[row, lanes] = bias[row], if there is one, + sum over the row's terms of
// values[entry] * x[term.row, lanes].
template <class T, int N, int R>
void product_rows(const T* values, const T* x, const T* bias, T* out, const uint32_t* starts, const Term* terms, int64_t first_row,
                  int64_t end_row, int64_t batch, int64_t lanes) {
  using V = Vector<T, N>;
  const int64_t last = lanes - N;
  const auto at = [last](int j) { return j < R - 1 ? j * N : last; };
  for (int64_t row = first_row; row < end_row; ++row, out += batch) {
    V sum[R] = {};
    if (bias != nullptr) {
      for (int j = 0; j < R; ++j) sum[j] += bias[row];
    }
    for (uint32_t t = starts[row]; t < starts[row + 1]; ++t) {
      const T value = values[terms[t].entry];
      const T* const from = x + static_cast<int64_t>(terms[t].row) * batch;
      for (int j = 0; j < R; ++j) sum[j] += value * load<T, N>(from + at(j));
    }
    for (int j = 0; j < R; ++j) store<T, N>(out + at(j), sum[j]);
  }
}

template <class T>
void product(const Product& call, Pool& pool) {
  const MatrixPlan& plan = call.plan;
  const uint32_t* const starts = (call.transposed ? plan.back_starts : plan.starts).data();
  const Term* const terms = (call.transposed ? plan.back_terms : plan.terms).data();
  const int64_t rows = call.transposed ? plan.cols : plan.rows;
  const int64_t vectors = (call.batch + kLanes<T> - 1) / kLanes<T>;
  const int64_t cost = (plan.entries + 4 * rows) * vectors;
  const int64_t tasks = task_count(call.batch < kTile ? cost / kAsleep : cost, pool);
  parallel_for(pool, tasks, [&](int64_t task) {
    const int64_t first = rows * task / tasks, end = rows * (task + 1) / tasks;
    over_batch<T>(call.batch, [&](auto n, auto r, int64_t from, int64_t lanes) {
      product_rows<T, decltype(n)::value, decltype(r)::value>(
          static_cast<const T*>(call.values), static_cast<const T*>(call.x) + from, nullptr,
          static_cast<T*>(call.out) + first * call.batch + from, starts, terms, first, end, call.batch, lanes);
    });
  });
}

// Lanes that are summed before going on to the next entry: both operands' rows then stay in the second-level cache.
constexpr int64_t kSampledLanes = 64;

template <class T, int N>
void sampled_rows(const SampledProduct& call, int64_t first_row, int64_t end_row) {
  const MatrixPlan& plan = call.plan;
  const T* const x = static_cast<const T*>(call.x);
  const T* const y = static_cast<const T*>(call.y);
  T* const out = static_cast<T*>(call.out);
  for (int64_t from = 0; from < call.batch; from += kSampledLanes) {
    const int64_t lanes = call.batch - from < kSampledLanes ? call.batch - from : kSampledLanes;
    const int64_t whole = lanes / N * N;
    for (int64_t row = first_row; row < end_row; ++row) {
      const T* const left = y + row * call.batch + from;
      for (uint32_t t = plan.starts[row]; t < plan.starts[row + 1]; ++t) {
        const T* const right = x + static_cast<int64_t>(plan.terms[t].row) * call.batch + from;
        Vector<T, N> sum = {};
        for (int64_t i = 0; i < whole; i += N) sum += load<T, N>(left + i) * load<T, N>(right + i);
        T value = (from == 0 ? T(0) : out[t]) + total<T, N>(sum);
        for (int64_t i = whole; i < lanes; ++i) value += left[i] * right[i];
        out[t] = value;
      }
    }
  }
}

template <class T>
void sampled_product(const SampledProduct& call, Pool& pool) {
  const MatrixPlan& plan = call.plan;
  const int64_t vectors = (call.batch + kLanes<T> - 1) / kLanes<T>;
  const int64_t tasks = task_count(plan.entries * (vectors + 8), pool);
  parallel_for(pool, tasks, [&](int64_t task) {
    sampled_rows<T, kLanes<T>>(call, plan.rows * task / tasks, plan.rows * (task + 1) / tasks);
  });
}
