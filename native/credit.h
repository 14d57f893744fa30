// The credit recursion of a window, one step back. Included inside the namespace of one instruction set (kernels.cc).
//
// Lambda has one row for every state entry of every block and the batch innermost, so that lanes are the vectors. Two tiles
// of lanes are worked on together, to follow the pattern once for both. D comes column by column, because that is how D^T is
// read.

constexpr int kTilesTogether = 2;

template <class T, int K>
void credit_group(const CreditStep& call, const CreditGroup& group, int64_t first_tile, T* later) {
  constexpr int N = kTile;
  using V = Vector<T, N>;
  const BlocksPlan& plan = call.plan;
  const int64_t lambda_tile = call.room * N, lanes = call.tiles * N;
  T* const lambda = static_cast<T*>(call.lambda) + first_tile * lambda_tile;
  const T* const dynamics = static_cast<const T*>(call.dynamics) + first_tile * N;
  const T* const delta = static_cast<const T*>(call.delta) + first_tile * N;
  T* const credit = static_cast<T*>(call.credit) + first_tile * N;
  const int64_t first = plan.blocks[group.first_block].credit_at;

  for (int32_t b = group.first_block; b < group.end_block; ++b) {
    const Block& block = plan.blocks[b];
    const Subnetwork& net = plan.subnetworks[block.subnetwork];
    const int64_t rows = static_cast<int64_t>(net.rows.size());
    T* const to = later + (block.credit_at - first) * K * N;
    for (int64_t row = 0; row < rows; ++row) {
      const T* const before = lambda + (block.credit_at + row) * N;
      const T* const own = delta + net.rows[row] * lanes;
      SNAPGRAD_UNROLL for (int k = 0; k < K; ++k) {
        const V sum = load<T, N>(before + k * lambda_tile) + load<T, N>(own + k * N);
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
      store<T, N>(lambda + k * lambda_tile + at.at * N, total);
    }
  }
}

template <class T>
void credit_step(const CreditStep& call, Pool& pool) {
  const BlocksPlan& plan = call.plan;
  const auto count = static_cast<int64_t>(plan.credit_groups.size());
  __builtin_memset(call.credit, 0, sizeof(T) * static_cast<size_t>(call.tiles * plan.entries * kTile));
  if (count == 0) return;
  const int64_t tasks = task_count(plan.credit_cost_up_to[count - 1] * call.tiles, pool);
  parallel_for(pool, tasks, [&](int64_t task) {
    const Range range = task_range(plan.credit_cost_up_to.data(), count, task, tasks);
    Scratch<T> later(plan.most_credits * kTilesTogether * kTile);
    int64_t tile = 0;
    for (; tile + kTilesTogether <= call.tiles; tile += kTilesTogether) {
      for (int64_t g = range.begin; g < range.end; ++g) {
        credit_group<T, kTilesTogether>(call, plan.credit_groups[g], tile, later.data);
      }
    }
    for (; tile < call.tiles; ++tile) {
      for (int64_t g = range.begin; g < range.end; ++g) {
        credit_group<T, 1>(call, plan.credit_groups[g], tile, later.data);
      }
    }
  });
}
