// The fused influence step for small batches: columns of J are the vectors. Included inside the namespace of one
// instruction set (kernels.cc).
//
// A block J[R, P] is worked on in strips of columns. The strip's old rows are copied to a scratch that stays in the
// nearest cache; each new row is then built in registers from the old rows that its entries of D name, multiplied into
// the gradient and written back. So J is read once and written once, and every value of D is used for a whole strip.

template <class T, class S, int N, int R>
void influence_columns(const InfluenceStep& call, int64_t lane, const Strip& strip, T* old_rows, T* gradient) {
  using V = Vector<T, N>;
  using V32 = Vector<uint32_t, N>;
  const BlocksPlan& plan = call.plan;
  const Block& block = plan.blocks[strip.block];
  const Subnetwork& net = plan.subnetworks[block.subnetwork];
  const int64_t rows = static_cast<int64_t>(net.rows.size()), stride = block.width, lanes = call.tiles;
  S* const J = static_cast<S*>(call.influence) + lane * call.room + block.influence_at + strip.first;
  const T* const dynamics = static_cast<const T*>(call.dynamics) + lane;
  const T* const left = static_cast<const T*>(call.left) + lane;
  const T* const right = static_cast<const T*>(call.right) + lane;
  const T* const delta = static_cast<const T*>(call.delta) + lane;
  const bool fresh = call.fresh[lane];
  const int last = strip.width - N;  // the last vector ends with the strip
  const auto at = [last](int j) { return j < R - 1 ? j * N : last; };

  for (int64_t row = 0; row < rows; ++row) {
    SNAPGRAD_UNROLL for (int j = 0; j < R; ++j) {
      store<T, N>(old_rows + (row * R + j) * N, fresh ? V{} : load<T, N>(J + row * stride + at(j)));
    }
  }
  V g[R];
  SNAPGRAD_UNROLL for (int j = 0; j < R; ++j) g[j] = load<T, N>(gradient + at(j));
  const ImmediateRow* next = plan.immediate_rows.data() + block.entry_at;
  const ImmediateRow* const end_immediate = next + block.entries;
  const Term* term = net.terms.data();
  for (int64_t row = 0; row < rows; ++row) {
    V sum[R];
    SNAPGRAD_UNROLL for (int j = 0; j < R; ++j) sum[j] = V{};
    for (const Term* const end = net.terms.data() + net.starts[row + 1]; term < end; ++term) {
      const T d = dynamics[term->entry * lanes];
      const T* const old = old_rows + static_cast<size_t>(term->row) * (R * N);
      SNAPGRAD_UNROLL for (int j = 0; j < R; ++j) sum[j] += d * load<T, N>(old + j * N);
    }
    if (next != end_immediate && next->row == row) {
      const int64_t first = block.immediate_at + next->nth * stride + strip.first;
      const Term* const factors = call.products.terms.data() + first;
      const uint32_t* const together = call.products.together.data() + first;
      // Whole vectors where the sources have them: what one writes beyond its run, the next run overwrites.
      T values[(R + 1) * N];
      for (int c = 0; c < strip.width;) {
        const int run = static_cast<int64_t>(together[c]) < strip.width - c ? together[c] : strip.width - c;
        const T factor = left[factors[c].entry * lanes];
        const T* const sources = right + factors[c].row * lanes;
        int i = 0;
        if (lanes == 1) {
          const int64_t whole = call.products.right - factors[c].row - N;
          for (; i < run && i <= whole; i += N) store<T, N>(values + c + i, factor * load<T, N>(sources + i));
        }
        for (; i < run; ++i) values[c + i] = factor * sources[i * lanes];
        c += run;
      }
      SNAPGRAD_UNROLL for (int j = 0; j < R; ++j) sum[j] += load<T, N>(values + at(j));
      ++next;
    }
    const T weight = delta[net.rows[row] * lanes];
    SNAPGRAD_UNROLL for (int j = 0; j < R; ++j) {
      g[j] += weight * sum[j];
      if constexpr (kIsRounded<S>) {
        const int32_t* const param = plan.column_param.data() + block.column_at + strip.first + at(j);
        const V32 params = load<uint32_t, N>(reinterpret_cast<const uint32_t*>(param));
        const V32 places = row_place(plan, net.rows[row]) + params * kGolden;
        store_rounded<N>(J + row * stride + at(j), sum[j], call.noise[lane] ^ places, call.noise[lanes + lane] + V32{});
      } else {
        store<T, N>(J + row * stride + at(j), sum[j]);
      }
    }
  }
  SNAPGRAD_UNROLL for (int j = 0; j < R; ++j) store<T, N>(gradient + at(j), g[j]);
}

template <class T, class S>
void influence_step_columns(const InfluenceStep& call, Pool& pool) {
  const BlocksPlan& plan = call.plan;
  const Strips& strips = sizeof(T) == 4 ? plan.column_strips32 : plan.column_strips64;
  const auto count = static_cast<int64_t>(strips.all.size());
  T* const out = static_cast<T*>(call.gradient);

  // A task is a run of consecutive strips, for one lane after the other: J is then read in order, a strip's gradient is
  // always summed in the order of the lanes, and no two tasks write to the same place.
  const int64_t tasks = task_count(strips.cost_up_to[count - 1] * call.tiles, pool);
  parallel_for(pool, tasks, [&](int64_t task) {
    const Range range = task_range(strips.cost_up_to.data(), count, task, tasks);
    constexpr int64_t kSlots = kAccumulators * kLanes<T>;
    const int64_t slots = (range.end - range.begin) * kSlots;
    Scratch<T> old_rows(plan.most_rows * kSlots), gradients(slots);
    __builtin_memset(gradients.data, 0, sizeof(T) * static_cast<size_t>(slots));
    for (int64_t lane = 0; lane < call.tiles; ++lane) {
      for (int64_t s = range.begin; s < range.end; ++s) {
        T* const gradient = gradients.data + (s - range.begin) * kSlots;
        with_vectors<kLanes<T>, kAccumulators>(strips.all[s].width, [&](auto n, auto r) {
          influence_columns<T, S, decltype(n)::value, decltype(r)::value>(call, lane, strips.all[s], old_rows.data,
                                                                         gradient);
        });
      }
    }
    for (int64_t s = range.begin; s < range.end; ++s) {
      const Strip& strip = strips.all[s];
      const T* const gradient = gradients.data + (s - range.begin) * kSlots;
      const int64_t column = plan.blocks[strip.block].column_at + strip.first;
      for (int64_t c = 0; c < strip.width;) {
        const int64_t run = plan.column_run[column + c], left = strip.width - c, n = run < left ? run : left;
        __builtin_memcpy(out + plan.column_param[column + c], gradient + c, sizeof(T) * static_cast<size_t>(n));
        c += n;
      }
    }
  });
}
