// The fused influence step: lanes of the batch are the vectors. Included inside the namespace of one instruction set
// (kernels.cc).
//
// A strip of a block and a tile of lanes, J[R, C columns, tile], is contiguous. Its old rows are copied to a scratch that
// stays in the nearest cache; each new row is then built in registers from the old rows that its entries of D name,
// multiplied into the gradient and written back. So J is read once and written once, in order. What is not arithmetic,
// such as following the pattern, is done once for N lanes: the whole tile, or a part of it where vectors are shorter.

// The values of N lanes.
template <class T, class S>
struct LaneValues {
  S* influence;
  const T *left, *right, *delta;
  const uint32_t *word, *turn;  // what rounding is drawn from, where S is rounded
  const BitsOf<T>* past;        // ones in the lanes that have one
};

template <class T, class S, int Tile, int C>
void influence_lanes(const InfluenceStep& call, const Strip& strip, const LaneValues<T, S>& at, const T* dynamics,
                     const uint32_t* old_at, int64_t stride, T* old_rows, T* gradient) {
  constexpr int N = kTogether<T, Tile>;
  using V = Vector<T, N>;
  const BlocksPlan& plan = call.plan;
  const Block& block = plan.blocks[strip.block];
  const Subnetwork& net = plan.subnetworks[block.subnetwork];
  const int64_t rows = static_cast<int64_t>(net.rows.size()), lanes = call.tiles * Tile;
  S* J = at.influence + (block.influence_at + rows * strip.first) * Tile;

  const auto has_past = load<BitsOf<T>, N>(at.past);
  for (int64_t row = 0; row < rows; ++row) {
    SNAPGRAD_UNROLL for (int c = 0; c < C; ++c) {
      store<T, N>(old_rows + row * stride + c * N, only<T, N>(has_past, load<T, N>(J + (row * C + c) * Tile)));
    }
  }
  V g[C];
  SNAPGRAD_UNROLL for (int c = 0; c < C; ++c) g[c] = load<T, N>(gradient + c * N);
  const ImmediateRow* immediate = plan.immediate_rows.data() + block.entry_at;
  const ImmediateRow* const end_immediate = immediate + block.entries;
  int64_t immediate_row = immediate != end_immediate ? immediate->row : -1;
  const uint32_t* const first_at = old_at;
  const uint32_t* const starts = net.starts.data() + 1;
  const int32_t* const states = net.rows.data();
  const int64_t ahead = rows * C * Tile;
  Vector<uint32_t, N> word{}, turn{};
  uint32_t column_places[C] = {};
  if constexpr (kIsRounded<S>) {
    word = load<uint32_t, N>(at.word);
    turn = load<uint32_t, N>(at.turn);
    const int32_t* const param = plan.column_param.data() + block.column_at + strip.first;
    for (int c = 0; c < C; ++c) column_places[c] = static_cast<uint32_t>(param[c]) * kGolden;
  }
  for (int64_t row = 0; row < rows; ++row) {
    V sum[C];
    SNAPGRAD_UNROLL for (int c = 0; c < C; ++c) sum[c] = V{};
    for (const uint32_t* const end = first_at + starts[row]; old_at < end; ++old_at) {
      const V d = load<T, N>(dynamics);
      dynamics += N;
      const T* const old = in_register(old_rows + *old_at);
      SNAPGRAD_UNROLL for (int c = 0; c < C; ++c) sum[c] += d * load<T, N>(old + c * N);
    }
    if (row == immediate_row) {
      const Term* const factors = call.products.terms.data() + block.immediate_at +
                                  static_cast<int64_t>(immediate->nth) * block.width + strip.first;
      SNAPGRAD_UNROLL for (int c = 0; c < C; ++c) {
        sum[c] += load<T, N>(at.left + factors[c].entry * lanes) * load<T, N>(at.right + factors[c].row * lanes);
      }
      ++immediate;
      immediate_row = immediate != end_immediate ? immediate->row : -1;
    }
    const V weight = load<T, N>(at.delta + states[row] * lanes);
    SNAPGRAD_UNROLL for (int c = 0; c < C; ++c) {
      g[c] += weight * sum[c];
      if constexpr (kIsRounded<S>) {
        store_rounded<N>(J + c * Tile, sum[c], word ^ (row_place(plan, states[row]) + column_places[c]), turn);
      } else {
        store<T, N>(J + c * Tile, sum[c]);
      }
    }
    // The next strip lies behind this one: ask for it now, because no processor sees so far ahead.
    constexpr int kLine = 64 / sizeof(S);
    SNAPGRAD_UNROLL for (int i = 0; i < C * Tile; i += kLine) __builtin_prefetch(J + ahead + i, 1, 2);
    J += C * Tile;
  }
  SNAPGRAD_UNROLL for (int c = 0; c < C; ++c) store<T, N>(gradient + c * N, g[c]);
}

// Strips of a block of one or two rows, as SnAp-1 has them: nothing has to be copied, and D and delta stay in registers.
template <class T, class S, int Tile, int R>
void influence_rows(const InfluenceStep& call, const Strip* strips, int64_t count, const BitsOf<T>* past, T* gradient) {
  constexpr int N = kTogether<T, Tile>, kParts = Tile / N;
  using V = Vector<T, N>;
  const BlocksPlan& plan = call.plan;
  const Block& block = plan.blocks[strips->block];
  const Subnetwork& net = plan.subnetworks[block.subnetwork];
  const int64_t lanes = call.tiles * Tile;
  const int32_t* const param = plan.column_param.data() + block.column_at;
  const Term* factors[R] = {};  // of the products in I, where the row has any
  for (int32_t e = 0; e < block.entries; ++e) {
    const ImmediateRow immediate = plan.immediate_rows[block.entry_at + e];
    factors[immediate.row] = call.products.terms.data() + block.immediate_at + static_cast<int64_t>(immediate.nth) * block.width;
  }
  const Term* entry[R][R] = {};  // of D, where there is one: what is not there may not turn an infinity into NaN
  for (int row = 0; row < R; ++row) {
    for (uint32_t t = net.starts[row]; t < net.starts[row + 1]; ++t) entry[row][net.terms[t].row] = &net.terms[t];
  }
  const int start = strips->first;
  for (int64_t tile = 0; tile < call.tiles; ++tile) {
    const T* const left = static_cast<const T*>(call.left) + tile * Tile;
    const T* const right = static_cast<const T*>(call.right) + tile * Tile;
    V d[kParts][R][R] = {}, weight[kParts][R];
    Vector<BitsOf<T>, N> has_past[kParts];
    SNAPGRAD_UNROLL for (int part = 0; part < kParts; ++part) {
      const int64_t lane = tile * Tile + part * N;
      has_past[part] = load<BitsOf<T>, N>(past + lane);
      for (int row = 0; row < R; ++row) {
        weight[part][row] = load<T, N>(static_cast<const T*>(call.delta) + net.rows[row] * lanes + lane);
        for (int k = 0; k < R; ++k) {
          if (entry[row][k] == nullptr) continue;
          d[part][row][k] = load<T, N>(static_cast<const T*>(call.dynamics) + entry[row][k]->entry * lanes + lane);
        }
      }
    }
    for (const Strip* strip = strips; strip < strips + count; ++strip) {
      S* J = static_cast<S*>(call.influence) + (tile * call.room + block.influence_at + R * strip->first) * Tile;
      const int64_t next_row = static_cast<int64_t>(strip->width) * Tile;
      for (int c = strip->first; c < strip->first + strip->width; ++c, J += Tile) {
        V g = tile == 0 ? V{} : load<T, N>(gradient + (c - start) * N);
        SNAPGRAD_UNROLL for (int part = 0; part < kParts; ++part) {
          V old[R];
          SNAPGRAD_UNROLL for (int k = 0; k < R; ++k) {
            old[k] = only<T, N>(has_past[part], load<T, N>(J + k * next_row + part * N));
          }
          SNAPGRAD_UNROLL for (int row = 0; row < R; ++row) {
            V sum{};
            SNAPGRAD_UNROLL for (int k = 0; k < R; ++k) {
              if (entry[row][k] != nullptr) sum += d[part][row][k] * old[k];
            }
            if (factors[row] != nullptr) {
              const Term factor = factors[row][c];
              sum += load<T, N>(left + factor.entry * lanes + part * N) * load<T, N>(right + factor.row * lanes + part * N);
            }
            g += weight[part][row] * sum;
            S* const to = J + row * next_row + part * N;
            if constexpr (kIsRounded<S>) {
              const uint32_t* const word = call.noise + tile * Tile + part * N;
              const uint32_t place = row_place(plan, net.rows[row]) + static_cast<uint32_t>(param[c]) * kGolden;
              store_rounded<N>(to, sum, load<uint32_t, N>(word) ^ place, load<uint32_t, N>(word + lanes));
            } else {
              store<T, N>(to, sum);
            }
          }
        }
        store<T, N>(gradient + (c - start) * N, g);
      }
    }
  }
  for (int c = start; c < strips[count - 1].first + strips[count - 1].width; ++c) {
    static_cast<T*>(call.gradient)[param[c]] = total<T, N>(load<T, N>(gradient + (c - start) * N));
  }
}

// Asks for what a block takes from D, the factors of I and delta. They lie anywhere, and a small block ends before they come.
template <class T>
void prefetch_values(const InfluenceStep& call, const Block& block) {
  constexpr size_t kFew = 32;
  const Subnetwork& net = call.plan.subnetworks[block.subnetwork];
  if (net.terms.size() > kFew) return;
  const int64_t lanes = call.tiles * call.tile;
  for (const Term& term : net.terms) __builtin_prefetch(static_cast<const T*>(call.dynamics) + term.entry * lanes);
  for (const int32_t state : net.rows) __builtin_prefetch(static_cast<const T*>(call.delta) + state * lanes);
  const Term* const factors = call.products.terms.data() + block.immediate_at;
  for (int64_t i = 0; i < static_cast<int64_t>(block.entries) * block.width; ++i) {
    __builtin_prefetch(static_cast<const T*>(call.right) + factors[i].row * lanes);
  }
}

template <int C, class Run>
inline void with_columns(int columns, Run&& run) {
  if constexpr (C > 1) {
    if (columns < C) return with_columns<C - 1>(columns, run);
  }
  run(Constant<C>{});
}

template <class T, class S, int Tile>
void influence_step_lanes(const InfluenceStep& call, Pool& pool) {
  constexpr int N = kTogether<T, Tile>, kParts = Tile / N;
  const BlocksPlan& plan = call.plan;
  const Strips& strips = plan.lane_strips;
  const auto count = static_cast<int64_t>(strips.all.size());
  const int64_t lanes = call.tiles * Tile;
  T* const out = static_cast<T*>(call.gradient);

  // A task is a run of consecutive strips; a strip's gradient is summed in the order of the lanes, and no two tasks write
  // to the same place.
  const int64_t tasks = task_count(strips.cost_up_to[count - 1] * call.tiles * kParts, pool);
  parallel_for(pool, tasks, [&](int64_t task) {
    const Range range = task_range(strips.cost_up_to.data(), count, task, tasks);
    Scratch<T> old_rows(plan.most_rows * kAccumulators * N), in_order(plan.most_terms * Tile);
    Scratch<T> gradients(plan.most_columns * N);
    Scratch<uint32_t> old_at(plan.most_terms);
    Scratch<BitsOf<T>> past(lanes);
    for (int64_t i = 0; i < lanes; ++i) past.data[i] = call.fresh[i] ? 0 : ~BitsOf<T>{0};
    for (int64_t s = range.begin, end; s < range.end; s = end) {
      const int32_t number = strips.all[s].block;
      for (end = s; end < range.end && strips.all[end].block == number;) ++end;
      const Block& block = plan.blocks[number];
      const Subnetwork& net = plan.subnetworks[block.subnetwork];
      if (net.rows.size() <= 2) {  // and not empty: plans leave such blocks out
        const auto rows = net.rows.size() == 1 ? influence_rows<T, S, Tile, 1> : influence_rows<T, S, Tile, 2>;
        rows(call, &strips.all[s], end - s, past.data, gradients.data);
        continue;
      }
      __builtin_memset(gradients.data, 0, sizeof(T) * static_cast<size_t>(block.width) * N);
      int64_t stride = 0;
      for (int64_t i = s; i < end; ++i) stride = strips.all[i].width * N > stride ? strips.all[i].width * N : stride;
      for (size_t t = 0; t < net.terms.size(); ++t) {
        old_at.data[t] = net.terms[t].row * static_cast<uint32_t>(stride);
      }
      const auto terms = static_cast<int64_t>(net.terms.size());
      for (int64_t tile = 0; tile < call.tiles; ++tile) {
        // D in the order in which every strip of the block will use it.
        const T* const dynamics = static_cast<const T*>(call.dynamics) + tile * Tile;
        for (int64_t t = 0; t < terms; ++t) {
          const T* const from = dynamics + net.terms[t].entry * lanes;
          SNAPGRAD_UNROLL for (int part = 0; part < kParts; ++part) {
            store<T, N>(in_order.data + (part * terms + t) * N, load<T, N>(from + part * N));
          }
        }
        if (tile == 0 && end < range.end) prefetch_values<T>(call, plan.blocks[strips.all[end].block]);
        for (int64_t i = s; i < end; ++i) {
          const Strip& strip = strips.all[i];
          for (int part = 0; part < kParts; ++part) {
            const int64_t lane = tile * Tile + part * N;
            const auto of_lane = [&](const void* values) { return static_cast<const T*>(values) + lane; };
            LaneValues<T, S> at{static_cast<S*>(call.influence) + tile * call.room * Tile + part * N,
                                of_lane(call.left), of_lane(call.right), of_lane(call.delta), nullptr, nullptr,
                                past.data + lane};
            if constexpr (kIsRounded<S>) {
              at.word = call.noise + lane;
              at.turn = at.word + lanes;
            }
            with_columns<kAccumulators>(strip.width, [&](auto columns) {
              influence_lanes<T, S, Tile, decltype(columns)::value>(call, strip, at, in_order.data + part * terms * N,
                                                                    old_at.data, stride, old_rows.data,
                                                                    gradients.data + strip.first * N);
            });
          }
        }
      }
      const int last_column = strips.all[end - 1].first + strips.all[end - 1].width;
      for (int c = strips.all[s].first; c < last_column; ++c) {
        out[plan.column_param[block.column_at + c]] = total<T, N>(load<T, N>(gradients.data + c * N));
      }
    }
  });
}

template <class T, class S>
void influence_step(const InfluenceStep& call, Pool& pool) {
  if (!call.plan.is_complete) __builtin_memset(call.gradient, 0, sizeof(T) * static_cast<size_t>(call.plan.params));
  if (call.plan.blocks.empty()) return;
  if (call.tile == kWideTile) return influence_step_lanes<T, S, kWideTile>(call, pool);
  if (call.tile == kTile) return influence_step_lanes<T, S, kTile>(call, pool);
  influence_step_columns<T, S>(call, pool);
}
