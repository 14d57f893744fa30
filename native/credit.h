// The credit recursion of a window, one step back. Included inside the namespace of one instruction set (kernels.cc).
//
// Lambda has one row for every state entry of every block and the batch innermost, so that lanes are the vectors. Two vectors
// of lanes are worked on together, to follow the pattern once for both. D comes column by column, because that is how D^T is
// read.

template <class T, int N, int K>
void credit_group(const CreditStep& call, const CreditGroup& group, int64_t first_lane, T* later) {
  using V = Vector<T, N>;
  const BlocksPlan& plan = call.plan;
  const int64_t lanes = call.lanes;
  T* const lambda = static_cast<T*>(call.lambda) + first_lane;
  const T* const dynamics = static_cast<const T*>(call.dynamics) + first_lane;
  const T* const delta = static_cast<const T*>(call.delta) + first_lane;
  T* const credit = static_cast<T*>(call.credit) + first_lane;
  const int64_t first = plan.blocks[group.first_block].credit_at;

  for (int32_t b = group.first_block; b < group.end_block; ++b) {
    const Block& block = plan.blocks[b];
    const Subnetwork& net = plan.subnetworks[block.subnetwork];
    const int64_t rows = static_cast<int64_t>(net.rows.size());
    T* const to = later + (block.credit_at - first) * K * N;
    for (int64_t row = 0; row < rows; ++row) {
      const T* const before = lambda + (block.credit_at + row) * lanes;
      const T* const own = delta + net.rows[row] * lanes;
      SNAPGRAD_UNROLL for (int k = 0; k < K; ++k) {
        const V sum = load<T, N>(before + k * N) + load<T, N>(own + k * N);
        store<T, N>(to + (row * K + k) * N, sum);
      }
    }
    for (int32_t e = 0; e < block.entries; ++e) {
      const ImmediateRow immediate = plan.immediate_rows[block.entry_at + e];
      T* const at = credit + (block.entry_at + immediate.nth) * lanes;
      for (int k = 0; k < K; ++k) store<T, N>(at + k * N, load<T, N>(to + (immediate.row * K + k) * N));
    }
  }
  for (int64_t i = group.first_row; i < group.end_row; ++i) {
    const CreditRow& at = plan.credit_rows[i];
    const T* const from = later + (at.block_at - first) * K * N;
    // Several sums at a time: one would wait for itself.
    constexpr int kSums = 4 / K;
    V sum[kSums][K];
    SNAPGRAD_UNROLL for (int n = 0; n < kSums; ++n) {
      SNAPGRAD_UNROLL for (int k = 0; k < K; ++k) sum[n][k] = V{};
    }
    const auto add = [&](V* to, const Term& term) {
      const T* const d = dynamics + term.entry * lanes;
      const T* const row = from + static_cast<size_t>(term.row) * (K * N);
      SNAPGRAD_UNROLL for (int k = 0; k < K; ++k) {
        to[k] += load<T, N>(d + k * N) * load<T, N>(row + k * N);
      }
    };
    const Term* term = at.begin;
    for (; term + kSums <= at.end; term += kSums) {
      SNAPGRAD_UNROLL for (int n = 0; n < kSums; ++n) add(sum[n], term[n]);
    }
    for (; term < at.end; ++term) add(sum[0], *term);
    SNAPGRAD_UNROLL for (int k = 0; k < K; ++k) {
      V total = sum[0][k];
      SNAPGRAD_UNROLL for (int n = 1; n < kSums; ++n) total += sum[n][k];
      store<T, N>(lambda + at.at * lanes + k * N, total);
    }
  }
}

template <class T>
void credit_step(const CreditStep& call, Pool& pool) {
  const BlocksPlan& plan = call.plan;
  const auto count = static_cast<int64_t>(plan.credit_groups.size());
  constexpr int N = kTogether<T, kWideTile>;
  __builtin_memset(call.credit, 0, sizeof(T) * static_cast<size_t>(plan.entries * call.lanes));
  if (count == 0) return;
  const int64_t tasks = task_count(plan.credit_cost_up_to[count - 1] * call.lanes / N, pool);
  parallel_for(pool, tasks, [&](int64_t task) {
    const Range range = task_range(plan.credit_cost_up_to.data(), count, task, tasks);
    Scratch<T> later(plan.most_credits * 2 * N);
    int64_t lane = 0;
    const auto run = [&](auto n, auto k) {
      constexpr int kVector = decltype(n)::value, kVectors = decltype(k)::value;
      for (; lane + kVector * kVectors <= call.lanes; lane += kVector * kVectors) {
        for (int64_t g = range.begin; g < range.end; ++g) {
          credit_group<T, kVector, kVectors>(call, plan.credit_groups[g], lane, later.data);
        }
      }
    };
    run(Constant<N>{}, Constant<2>{});
    run(Constant<N>{}, Constant<1>{});
    if constexpr (N > kTile) run(Constant<kTile>{}, Constant<1>{});
  });
}
