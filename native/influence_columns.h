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
      const SumsPlan& products = call.products;
      const int64_t first = block.immediate_at + next->nth * stride + strip.first, end = first + strip.width;
      // Whole vectors where the sources have them: what one writes beyond its run, the next run overwrites.
      T values[(R + 1) * N];
      for (int64_t run = run_of(products.runs, first), from = first, to; from < end; ++run, from = to) {
        to = products.runs.begins[run + 1] < end ? products.runs.begins[run + 1] : end;
        const Term term = products.run_terms[run];
        const T factor = left[term.entry * lanes];
        const int64_t source = term.row + (from - products.runs.begins[run]), length = to - from;
        T* const out = values + (from - first);
        int64_t i = 0;
        if (lanes == 1) {
          const int64_t whole = products.right - source - N;
          for (; i < length && i <= whole; i += N) store<T, N>(out + i, factor * load<T, N>(right + source + i));
        }
        for (; i < length; ++i) out[i] = factor * right[(source + i) * lanes];
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
  const int64_t tasks = task_count(strips.cost_up_to[count - 1] * call.tiles / kAsleep, pool);
  parallel_for(pool, tasks, [&](int64_t task) {
    const Range range = task_range(strips.cost_up_to.data(), count, task, tasks);
    constexpr int64_t kSlots = kAccumulators * kLanes<T>;
    // With one lane a strip's gradient is whole at once: nothing has to be kept for the next lane.
    const int64_t kept = call.tiles == 1 ? 1 : range.end - range.begin;
    Scratch<T> old_rows(plan.most_rows * kSlots), gradients(kept * kSlots);
    for (int64_t begin = range.begin; begin < range.end; begin += kept) {
      if constexpr (!kIsRounded<S>) {
        const Block& block = plan.blocks[strips.all[begin].block];
        const bool one = has_few_rows<1>(plan, block);
        if (call.tiles == 1 && (one || has_few_rows<2>(plan, block))) {
          const int64_t first = strips.all[begin].first;
          while (begin + 1 < range.end && strips.all[begin + 1].block == strips.all[begin].block) ++begin;
          const int64_t end = strips.all[begin].first + strips.all[begin].width;
          one ? influence_few_rows<T, 1>(call, block, first, end) : influence_few_rows<T, 2>(call, block, first, end);
          continue;
        }
      }
      __builtin_memset(gradients.data, 0, sizeof(T) * static_cast<size_t>(kept * kSlots));
      for (int64_t lane = 0; lane < call.tiles; ++lane) {
        for (int64_t s = begin; s < begin + kept; ++s) {
          T* const gradient = gradients.data + (s - begin) * kSlots;
          with_vectors<kLanes<T>, kAccumulators>(strips.all[s].width, [&](auto n, auto r) {
            influence_columns<T, S, decltype(n)::value, decltype(r)::value>(call, lane, strips.all[s], old_rows.data,
                                                                           gradient);
          });
        }
      }
      for (int64_t s = begin; s < begin + kept; ++s) {
        const Strip& strip = strips.all[s];
        const T* const gradient = gradients.data + (s - begin) * kSlots;
        const int64_t first = plan.blocks[strip.block].column_at + strip.first, end = first + strip.width;
        for (int64_t run = run_of(plan.column_runs, first), from = first, to; from < end; ++run, from = to) {
          to = plan.column_runs.begins[run + 1] < end ? plan.column_runs.begins[run + 1] : end;
          T* const there = out + plan.run_param[run] + (from - plan.column_runs.begins[run]);
          __builtin_memcpy(there, gradient + (from - first), sizeof(T) * static_cast<size_t>(to - from));
        }
      }
    }
  });
}
