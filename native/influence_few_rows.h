// The fused influence step for one sample and blocks of one or two rows, as SnAp-1 has them. Included inside the namespace of
// one instruction set (kernels.cc).
//
// Such a block has next to no arithmetic: what costs is following the pattern. So it is cut into stretches of columns in which
// the parameters and the presynaptic values of every row follow one another; in a stretch all there is to know stands in
// registers, nothing is copied aside, and the gradient goes straight to its place.

// The run of thing i.
int64_t run_of(const Runs& runs, int64_t i) {
  int64_t run = runs.near[i / Runs::kNear];
  while (runs.begins[run + 1] <= i) ++run;
  return run;
}

template <class T, int R>
struct Stretch {
  T dynamics[R][R], factor[R], delta[R];
  const T* source[R];  // the presynaptic values
  T* influence[R];
  T* gradient;
};

template <class T, int R, int N>
void few_columns(const Stretch<T, R>& at, int64_t i, int64_t end, bool fresh) {
  using V = Vector<T, N>;
  for (; i + N <= end; i += N) {
    V old[R], g{};
    SNAPGRAD_UNROLL for (int k = 0; k < R; ++k) old[k] = fresh ? V{} : load<T, N>(at.influence[k] + i);
    SNAPGRAD_UNROLL for (int row = 0; row < R; ++row) {
      V sum = at.factor[row] * load<T, N>(at.source[row] + i);
      SNAPGRAD_UNROLL for (int k = 0; k < R; ++k) sum += at.dynamics[row][k] * old[k];
      g += at.delta[row] * sum;
      store<T, N>(at.influence[row] + i, sum);
    }
    store<T, N>(at.gradient + i, g);
  }
  if constexpr (N > 1) few_columns<T, R, N / 2>(at, i, end, fresh);
}

// Columns [first, end) of a block.
template <class T, int R>
void influence_few_rows(const InfluenceStep& call, const Block& block, int64_t first, int64_t end) {
  const BlocksPlan& plan = call.plan;
  const SumsPlan& products = call.products;
  const Subnetwork& net = plan.subnetworks[block.subnetwork];
  const ImmediateRow* const immediate = plan.immediate_rows.data() + block.entry_at;
  Stretch<T, R> at;
  int64_t run[R], begin[R];  // of I: the run that is being read, and where the row's products begin
  for (int row = 0; row < R; ++row) {
    for (int k = 0; k < R; ++k) {
      at.dynamics[row][k] = static_cast<const T*>(call.dynamics)[net.terms[row * R + k].entry];
    }
    at.delta[row] = static_cast<const T*>(call.delta)[net.rows[row]];
    begin[row] = block.immediate_at + immediate[row].nth * static_cast<int64_t>(block.width);
    run[row] = run_of(products.runs, begin[row] + first);
  }
  int64_t params = run_of(plan.column_runs, block.column_at + first);
  T* const J = static_cast<T*>(call.influence) + block.influence_at;
  for (int64_t column = first, to; column < end; column = to) {
    const int64_t same_params = plan.column_runs.begins[params + 1] - block.column_at;
    to = same_params < end ? same_params : end;
    for (int row = 0; row < R; ++row) {
      const int64_t same_factor = products.runs.begins[run[row] + 1] - begin[row];
      to = same_factor < to ? same_factor : to;
    }
    at.gradient = static_cast<T*>(call.gradient) + plan.run_param[params] +
                  (block.column_at + column - plan.column_runs.begins[params]);
    for (int row = 0; row < R; ++row) {
      const Term term = products.run_terms[run[row]];
      at.factor[row] = static_cast<const T*>(call.left)[term.entry];
      at.source[row] = static_cast<const T*>(call.right) + term.row + (begin[row] + column - products.runs.begins[run[row]]);
      at.influence[row] = J + row * static_cast<int64_t>(block.width) + column;
      if (products.runs.begins[run[row] + 1] == begin[row] + to) ++run[row];
    }
    few_columns<T, R, kLanes<T>>(at, 0, to - column, call.fresh[0]);
    if (to == same_params) ++params;
  }
}

// Whether the block is one of these: every row of its D is full, and has an I.
template <int R>
bool has_few_rows(const BlocksPlan& plan, const Block& block) {
  const Subnetwork& net = plan.subnetworks[block.subnetwork];
  return net.rows.size() == R && net.terms.size() == R * R && block.entries == R;
}
