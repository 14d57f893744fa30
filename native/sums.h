// Sums of products of gathered elements, lanes innermost: how D and I are put together from a rule's derivatives.
// Included inside the namespace of one instruction set (kernels.cc).

template <class T, int N, bool kShared>
void sums_range(const Sums& call, int64_t tile, int64_t first, int64_t end) {
  const SumsPlan& plan = call.plan;
  const T* const left = static_cast<const T*>(call.left) + tile * plan.left * N;
  const T* const right = static_cast<const T*>(call.right) + (kShared ? 0 : tile * plan.right * N);
  T* const out = static_cast<T*>(call.out) + tile * call.room * N;
  for (int64_t i = first; i < end; ++i) {
    Vector<T, N> sum = {};
    for (uint32_t t = plan.starts[i]; t < plan.starts[i + 1]; ++t) {
      const Vector<T, N> l = load<T, N>(left + static_cast<size_t>(plan.terms[t].entry) * N);
      if constexpr (kShared) {
        sum += right[plan.terms[t].row] * l;
      } else {
        sum += load<T, N>(right + static_cast<size_t>(plan.terms[t].row) * N) * l;
      }
    }
    store<T, N>(out + i * N, sum);
  }
}

// The same for tiles of one lane, where what stands together in `right` can be a vector.
template <class T, bool kShared>
void sums_of_runs(const Sums& call, int64_t tile, int64_t first, int64_t end) {
  const SumsPlan& plan = call.plan;
  const T* const left = static_cast<const T*>(call.left) + tile * plan.left;
  const T* const right = static_cast<const T*>(call.right) + (kShared ? 0 : tile * plan.right);
  T* const out = static_cast<T*>(call.out) + tile * call.room;
  size_t at = 0;  // the last run that begins at `first` or before
  for (size_t beyond = plan.runs.size(); beyond - at > 1;) {
    const size_t middle = (at + beyond) / 2;
    (plan.runs[middle].first <= first ? at : beyond) = middle;
  }
  for (; at < plan.runs.size() && plan.runs[at].first < end; ++at) {
    const Run& run = plan.runs[at];
    const int64_t run_end = static_cast<int64_t>(run.first) + run.count;
    const int64_t begin = run.first < first ? first : run.first, stop = run_end < end ? run_end : end;
    const T factor = left[run.entry];
    const T* const from = right + run.row + (begin - run.first);
    // The zero makes the bits those of a sum.
    for (int64_t n = 0; n < stop - begin; ++n) out[begin + n] = T{} + from[n] * factor;
  }
}

template <class T>
void sums(const Sums& call, Pool& pool) {
  const SumsPlan& plan = call.plan;
  const auto rest = static_cast<size_t>(call.room - plan.sums) * static_cast<size_t>(call.tile);
  for (int64_t tile = 0; rest > 0 && tile < call.tiles; ++tile) {
    T* const end = static_cast<T*>(call.out) + (tile + 1) * call.room * call.tile;
    __builtin_memset(end - rest, 0, sizeof(T) * rest);
  }
  const int64_t tasks = task_count((static_cast<int64_t>(plan.terms.size()) * 2 + 4 * plan.sums) * call.tiles, pool);
  parallel_for(pool, tasks, [&](int64_t task) {
    const int64_t first = plan.sums * task / tasks, end = plan.sums * (task + 1) / tasks;
    for (int64_t tile = 0; tile < call.tiles; ++tile) {
      if (call.tile == kTile) {
        call.right_is_shared ? sums_range<T, kTile, true>(call, tile, first, end)
                             : sums_range<T, kTile, false>(call, tile, first, end);
      } else if (!plan.runs.empty()) {
        call.right_is_shared ? sums_of_runs<T, true>(call, tile, first, end)
                             : sums_of_runs<T, false>(call, tile, first, end);
      } else {
        call.right_is_shared ? sums_range<T, 1, true>(call, tile, first, end)
                             : sums_range<T, 1, false>(call, tile, first, end);
      }
    }
  });
}
