// Sums of products of gathered elements, lanes innermost: how D is put together from a rule's derivatives. Included inside
// the namespace of one instruction set (kernels.cc).

// Of R vectors of lanes.
template <class T, int N, int R, bool kShared>
void sums_range(const Sums& call, int64_t first_lane, int64_t first, int64_t end) {
  const SumsPlan& plan = call.plan;
  const int64_t lanes = call.lanes;
  const T* const left = static_cast<const T*>(call.left) + first_lane;
  const T* const right = static_cast<const T*>(call.right) + (kShared ? 0 : first_lane);
  T* const out = static_cast<T*>(call.out) + first_lane;
  T ones[R * N];
  for (T& one : ones) one = 1;
  for (int64_t i = first; i < end; ++i) {
    Vector<T, N> sum[R] = {};
    for (uint32_t t = plan.starts[i]; t < plan.starts[i + 1]; ++t) {
      const T* const l = left + plan.terms[t].entry * lanes;
      const int64_t row = plan.terms[t].row;
      const T* const r = row == plan.right ? ones : right + (kShared ? row : row * lanes);
      SNAPGRAD_UNROLL for (int j = 0; j < R; ++j) {
        if constexpr (kShared) {
          sum[j] += *r * load<T, N>(l + j * N);
        } else {
          sum[j] += load<T, N>(r + j * N) * load<T, N>(l + j * N);
        }
      }
    }
    SNAPGRAD_UNROLL for (int j = 0; j < R; ++j) store<T, N>(out + i * lanes + j * N, sum[j]);
  }
}

template <class T, bool kShared>
void sums_of(const Sums& call, Pool& pool) {
  const SumsPlan& plan = call.plan;
  const int64_t lanes = call.lanes, vectors = lanes / kTile + lanes % kTile;
  const int64_t cost = (static_cast<int64_t>(plan.terms.size()) * 2 + 4 * plan.sums) * vectors;
  const int64_t tasks = task_count(lanes < kTile ? cost / kAsleep : cost, pool);
  parallel_for(pool, tasks, [&](int64_t task) {
    const int64_t first = plan.sums * task / tasks, end = plan.sums * (task + 1) / tasks;
    int64_t lane = 0;
    constexpr int kWide = kTogether<T, kWideTile>;
    for (; lane + kWideTile <= lanes; lane += kWideTile) {
      sums_range<T, kWide, kWideTile / kWide, kShared>(call, lane, first, end);
    }
    for (; lane + kTile <= lanes; lane += kTile) sums_range<T, kTile, 1, kShared>(call, lane, first, end);
    for (; lane < lanes; ++lane) sums_range<T, 1, 1, kShared>(call, lane, first, end);
  });
}

template <class T>
void sums(const Sums& call, Pool& pool) {
  T* const rest = static_cast<T*>(call.out) + call.plan.sums * call.lanes;
  __builtin_memset(rest, 0, sizeof(T) * static_cast<size_t>((call.room - call.plan.sums) * call.lanes));
  call.right_is_shared ? sums_of<T, true>(call, pool) : sums_of<T, false>(call, pool);
}
