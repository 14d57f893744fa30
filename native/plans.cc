#include "plans.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <utility>

namespace snapgrad {
namespace {

constexpr int64_t kNearestCache = 26 << 10;  // bytes of a first-level cache that a kernel may count on
constexpr int64_t kCreditBytes = 64;          // a row of Lambda in the credit step: sixteen lanes of floats
constexpr int64_t kManyTerms = 16;            // a row, for sharing D to pay
constexpr int64_t kLimit = std::numeric_limits<int32_t>::max();

[[noreturn]] void fail(const std::string& what) { throw std::invalid_argument(what); }

void check_size(const char* name, int64_t size) {
  if (size < 0 || size > kLimit) {
    fail(std::string("`") + name + "` must be in [0, 2^31), got " + std::to_string(size));
  }
}

void check_below(const Indices& indices, int64_t limit) {
  check_size(indices.name, indices.size);
  for (int64_t i = 0; i < indices.size; ++i) {
    if (indices[i] < 0 || indices[i] >= limit) {
      fail(std::string("`") + indices.name + "` must be in [0, " + std::to_string(limit) + "), got " +
           std::to_string(indices[i]) + " at " + std::to_string(i));
    }
  }
}

// Starts ascend from 0 to the number of things that they divide.
void check_starts(const Indices& starts, int64_t things) {
  check_size(starts.name, starts.size);
  bool ok = starts.size >= 1 && starts[0] == 0 && starts[starts.size - 1] == things;
  for (int64_t i = 1; ok && i < starts.size; ++i) ok = starts[i - 1] <= starts[i];
  if (!ok) fail(std::string("`") + starts.name + "` must ascend from 0 to " + std::to_string(things));
}

void check_rows(const Rows& rows, int64_t limit) {
  check_starts(rows.starts, rows.columns.size);
  check_below(rows.columns, limit);
  for (int64_t r = 0; r < rows.count(); ++r) {
    for (int64_t i = rows.starts[r] + 1; i < rows.starts[r + 1]; ++i) {
      if (rows.columns[i - 1] >= rows.columns[i]) fail(std::string("`") + rows.columns.name + "` must ascend in a row");
    }
  }
}

// Turns terms that are sorted by row into the same terms sorted by column.
void transpose(int64_t columns, const std::vector<uint32_t>& starts, const std::vector<Term>& terms,
               std::vector<uint32_t>& back_starts, std::vector<Term>& back_terms) {
  back_starts.assign(columns + 1, 0);
  back_terms.resize(terms.size());
  for (const Term& term : terms) ++back_starts[term.row + 1];
  for (int64_t c = 0; c < columns; ++c) back_starts[c + 1] += back_starts[c];
  std::vector<uint32_t> next(back_starts.begin(), back_starts.end() - 1);
  for (size_t r = 0; r + 1 < starts.size(); ++r) {
    for (uint32_t t = starts[r]; t < starts[r + 1]; ++t) {
      back_terms[next[terms[t].row]++] = {terms[t].entry, static_cast<uint32_t>(r)};
    }
  }
}

// The numbers 0 .. n - 1, those with many terms first. A loop that runs as often as the last time is one that the processor
// predicts, and with few terms a wrong guess costs more than they do.
template <class Count>
std::vector<int32_t> by_count(int64_t n, Count&& count) {
  std::vector<int32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return count(a) > count(b); });
  return order;
}

// `by_column` numbers the entries of D column by column; `place` is -1 everywhere, on entry and on return.
Subnetwork subnetwork(const Rows& dynamics, const std::vector<uint32_t>& by_column, const std::vector<int32_t>& states,
                      std::vector<int32_t>& place) {
  Subnetwork net;
  const auto n = static_cast<int64_t>(states.size());
  for (int32_t state : states) place[state] = 0;
  std::vector<int32_t> counts(n, 0);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t entry = dynamics.starts[states[i]]; entry < dynamics.starts[states[i] + 1]; ++entry) {
      counts[i] += place[dynamics.columns[entry]] == 0;
    }
  }
  for (int32_t i : by_count(n, [&](int32_t i) { return counts[i]; })) {
    place[states[i]] = static_cast<int32_t>(net.rows.size());
    net.rows.push_back(states[i]);
  }
  net.starts.push_back(0);
  for (int32_t row : net.rows) {
    for (int64_t entry = dynamics.starts[row]; entry < dynamics.starts[row + 1]; ++entry) {
      const int32_t column = place[dynamics.columns[entry]];
      if (column >= 0) net.terms.push_back({static_cast<uint32_t>(entry), static_cast<uint32_t>(column)});
    }
    net.starts.push_back(static_cast<uint32_t>(net.terms.size()));
  }
  for (int32_t row : net.rows) place[row] = -1;

  transpose(n, net.starts, net.terms, net.back_starts, net.back_terms);
  for (Term& term : net.back_terms) term.entry = by_column[term.entry];
  // In the order in which they lie in memory.
  for (int64_t r = 0; r < n; ++r) {
    std::sort(net.back_terms.begin() + net.back_starts[r], net.back_terms.begin() + net.back_starts[r + 1],
              [](Term a, Term b) { return a.entry < b.entry; });
  }
  return net;
}

}  // namespace

BlocksPlan::BlocksPlan(int64_t n_states, int64_t n_params, Rows dynamics_rows, Rows reach, Rows group_params,
                       Rows group_entries, int vector_bytes)
    : states(n_states), params(n_params), dynamics(dynamics_rows.columns.size), immediate(0),
      entries(group_entries.columns.size) {
  check_size("states", states);
  check_size("params", params);
  check_rows(dynamics_rows, states);
  check_rows(reach, states);
  check_rows(group_params, params);
  check_rows(group_entries, states);
  if (dynamics_rows.count() != states) fail("`dynamics` must have one row a state entry");
  if (group_params.count() != reach.count() || group_entries.count() != reach.count()) {
    fail("`reach`, `group_params` and `group_entries` must have one row a group each");
  }

  std::vector<bool> seen(params, false);
  for (int64_t i = 0; i < group_params.columns.size; ++i) {
    if (seen[group_params.columns[i]]) fail("`group_params` must hold every parameter once");
    seen[group_params.columns[i]] = true;
  }
  if (group_params.columns.size != params) fail("`group_params` must hold every parameter once");

  immediate_rows.resize(entries);
  std::vector<int32_t> place(states, -1);
  std::vector<uint32_t> by_column(dynamics), next(states + 1, 0);
  for (int64_t e = 0; e < dynamics; ++e) ++next[dynamics_rows.columns[e] + 1];
  for (int64_t c = 0; c < states; ++c) next[c + 1] += next[c];
  for (int64_t e = 0; e < dynamics; ++e) by_column[e] = next[dynamics_rows.columns[e]]++;
  std::map<std::vector<int32_t>, int32_t> known;  // groups with the same reach share one D[R, R]
  for (int64_t g = 0; g < reach.count(); ++g) {
    std::vector<int32_t> rows(reach.columns.data + reach.starts[g], reach.columns.data + reach.starts[g + 1]);
    Block block;
    block.width = static_cast<int32_t>(group_params.starts[g + 1] - group_params.starts[g]);
    block.influence_at = kept;
    block.credit_at = credits;
    block.column_at = static_cast<int64_t>(column_param.size());
    block.immediate_at = immediate;
    block.entry_at = static_cast<int32_t>(group_entries.starts[g]);
    block.entries = static_cast<int32_t>(group_entries.starts[g + 1] - group_entries.starts[g]);
    const Indices entry_states = group_entries.columns;
    // A group without any reach is left out: another device has its block.
    for (int32_t e = 0; e < block.entries && !rows.empty(); ++e) {
      if (!std::binary_search(rows.begin(), rows.end(), static_cast<int32_t>(entry_states[block.entry_at + e]))) {
        fail("`reach` must contain `group_entries`");
      }
    }
    for (int64_t i = group_params.starts[g]; i < group_params.starts[g + 1]; ++i) {
      column_param.push_back(static_cast<int32_t>(group_params.columns[i]));
    }
    immediate += static_cast<int64_t>(block.entries) * block.width;
    if (block.width == 0) continue;
    if (rows.empty()) {
      is_complete = false;
      continue;
    }
    kept += static_cast<int64_t>(rows.size()) * block.width;
    credits += static_cast<int64_t>(rows.size());
    auto [found, is_new] = known.try_emplace(rows, static_cast<int32_t>(subnetworks.size()));
    if (is_new) subnetworks.push_back(subnetwork(dynamics_rows, by_column, rows, place));
    block.subnetwork = found->second;
    blocks.push_back(block);
    const Subnetwork& net = subnetworks[block.subnetwork];
    for (int32_t e = 0; e < block.entries; ++e) {
      const auto found = std::find(net.rows.begin(), net.rows.end(), entry_states[block.entry_at + e]);
      immediate_rows[block.entry_at + e] = {static_cast<int32_t>(found - net.rows.begin()), e};
    }
    const auto first = immediate_rows.begin() + block.entry_at;
    std::sort(first, first + block.entries, [](ImmediateRow a, ImmediateRow b) { return a.row < b.row; });
    most_rows = std::max(most_rows, static_cast<int64_t>(net.rows.size()));
    most_terms = std::max(most_terms, static_cast<int64_t>(net.terms.size()));
    most_columns = std::max<int64_t>(most_columns, block.width);
  }
  column_runs.assign(static_cast<int64_t>(column_param.size()),
                     [&](int64_t c) { return column_param[c - 1] + 1 == column_param[c]; });
  for (size_t run = 0; run + 1 < column_runs.begins.size(); ++run) {
    run_param.push_back(column_param[column_runs.begins[run]]);
  }
  group_credit();
  lane_strips = cut(1, most_strip_columns);
  column_strips32 = cut(vector_bytes / 4, [](int64_t) { return kAccumulators; });
  column_strips64 = cut(vector_bytes / 8, [](int64_t) { return kAccumulators; });
}

// Where rows have many terms, blocks whose part of Lambda fits the nearest cache go together, in the order of the state
// entries, so that what one has read of D is still near when the next wants it. Where rows have few, each block goes on its
// own, in the order of their number.
void BlocksPlan::group_credit() {
  int64_t cost = 0;
  for (size_t first = 0, end; first < blocks.size(); first = end) {
    int64_t rows = 0;
    std::vector<std::pair<int64_t, CreditRow>> order;
    for (end = first; end < blocks.size(); ++end) {
      const Subnetwork& net = subnetworks[blocks[end].subnetwork];
      const auto more = static_cast<int64_t>(net.rows.size());
      const bool many = static_cast<int64_t>(net.terms.size()) >= kManyTerms * more;
      if (end > first && (!many || (rows + more) * kCreditBytes > kNearestCache)) break;
      rows += more;
      cost += static_cast<int64_t>(2 * net.terms.size() + 4 * net.rows.size() + 8);
      for (int32_t row = 0; row < more; ++row) {
        const int64_t terms = net.back_starts[row + 1] - net.back_starts[row];
        const Term* const all = net.back_terms.data();
        order.push_back({many ? net.rows[row] : -terms,
                         {all + net.back_starts[row], all + net.back_starts[row + 1], blocks[end].credit_at,
                          blocks[end].credit_at + row}});
      }
      if (!many) {
        ++end;
        break;
      }
    }
    std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    const auto first_row = static_cast<int64_t>(credit_rows.size());
    for (const auto& key_and_row : order) credit_rows.push_back(key_and_row.second);
    credit_groups.push_back({static_cast<int32_t>(first), static_cast<int32_t>(end), first_row, first_row + rows});
    credit_cost_up_to.push_back(cost);
    most_credits = std::max(most_credits, rows);
  }
}

// Cuts every block into strips of at most most_units(rows) units of columns. Strips of a block differ by one unit at
// most, so that none is left narrow.
template <class Width>
Strips BlocksPlan::cut(int unit, Width&& most_units) const {
  Strips strips;
  int64_t cost = 0;
  for (size_t b = 0; b < blocks.size(); ++b) {
    const Subnetwork& net = subnetworks[blocks[b].subnetwork];
    const int64_t most = most_units(static_cast<int64_t>(net.rows.size()));
    const int64_t units = (blocks[b].width + unit - 1) / unit, count = (units + most - 1) / most;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t from = units * i / count * unit;
      const int64_t to = std::min<int64_t>(units * (i + 1) / count * unit, blocks[b].width);
      cost += static_cast<int64_t>(net.terms.size() + 4 * net.rows.size() + 8) * ((to - from + unit - 1) / unit);
      strips.all.push_back({static_cast<int32_t>(b), static_cast<int32_t>(from), static_cast<int32_t>(to - from)});
      strips.cost_up_to.push_back(cost);
    }
  }
  return strips;
}

// A strip's old rows should stay in the nearest cache; but very narrow strips use a value of D too seldom.
int64_t BlocksPlan::most_strip_columns(int64_t rows) {
  return std::clamp<int64_t>(kNearestCache / (rows * 32), 4, kAccumulators);
}

void BlocksPlan::places(int64_t tile, int32_t* state, int32_t* param) const {
  const auto put = [&](const Block& block, int64_t at, int64_t first, int64_t width) {
    for (const int32_t row : subnetworks[block.subnetwork].rows) {
      for (int64_t c = 0; c < width; ++c, ++at) {
        state[at] = row;
        param[at] = column_param[block.column_at + first + c];
      }
    }
  };
  if (tile == 1) {
    for (const Block& block : blocks) put(block, block.influence_at, 0, block.width);
    return;
  }
  for (const Strip& strip : lane_strips.all) {
    const Block& block = blocks[strip.block];
    const auto rows = static_cast<int64_t>(subnetworks[block.subnetwork].rows.size());
    put(block, block.influence_at + rows * strip.first, strip.first, strip.width);
  }
}

MatrixPlan::MatrixPlan(int64_t n_cols, Rows pattern)
    : rows(pattern.count()), cols(n_cols), entries(pattern.columns.size) {
  check_size("cols", cols);
  check_rows(pattern, cols);
  starts.assign(pattern.starts.data, pattern.starts.data + pattern.starts.size);
  for (int64_t e = 0; e < entries; ++e) {
    terms.push_back({static_cast<uint32_t>(e), static_cast<uint32_t>(pattern.columns[e])});
  }
  transpose(cols, starts, terms, back_starts, back_terms);
}

SumsPlan::SumsPlan(int64_t n_left, int64_t n_right, Indices term_starts, Indices left_of, Indices right_of)
    : left(n_left), right(n_right), sums(term_starts.size - 1) {
  check_size("left", left);
  check_size("right", right);
  check_starts(term_starts, left_of.size);
  check_below(left_of, left);
  check_below(right_of, right + 1);
  if (left_of.size != right_of.size) fail("`left_of` and `right_of` must have one length");
  starts.assign(term_starts.data, term_starts.data + term_starts.size);
  for (int64_t i = 0; i < left_of.size; ++i) {
    terms.push_back({static_cast<uint32_t>(left_of[i]), static_cast<uint32_t>(right_of[i])});
    is_product = is_product && right_of[i] < right;
  }
  for (int64_t i = 0; i < sums; ++i) is_product = is_product && starts[i + 1] == starts[i] + 1;
  if (!is_product) return;
  runs.assign(sums, [&](int64_t i) {
    return terms[i - 1].entry == terms[i].entry && terms[i - 1].row + 1 == terms[i].row;
  });
  for (size_t run = 0; run + 1 < runs.begins.size(); ++run) run_terms.push_back(terms[runs.begins[run]]);
}

}  // namespace snapgrad
