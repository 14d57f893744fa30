// Index structures, made and checked once for a network: the kernels trust them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace snapgrad {

// Accumulators that a kernel holds in registers: as many again hold the gradient, and one of sixteen the factor.
constexpr int kAccumulators = 7;

// Lanes of a batch that stand together in J, [tiles, n, kWideTile] or [tiles, n, kTile], so that a tile of lanes is a
// vector or two; or, for batches too small to fill one, [batch, n, 1]. Which of them depends on the batch alone, because
// states are saved: the same on every machine.
constexpr int kTile = 8, kWideTile = 16;
inline bool is_tile(int64_t lanes) { return lanes == 1 || lanes == kTile || lanes == kWideTile; }

// A borrowed array of indices, as it comes from NumPy.
struct Indices {
  const char* name;
  const int64_t* data;
  int64_t size;
  int64_t operator[](int64_t i) const { return data[i]; }
};

// Rows of column numbers: those of row r stand from starts[r] to starts[r + 1], ascending.
struct Rows {
  Indices starts, columns;
  int64_t count() const { return starts.size - 1; }
};

// Plans hold pointers into themselves: they are never copied.
class Plan {
 public:
  Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  virtual ~Plan() = default;
};

// One multiply-add: an entry of a values array, and a row of what it is multiplied with.
struct Term {
  uint32_t entry, row;
};

// Things 0 .. n - 1 in runs, each of things that follow one another in some way. Kernels go from run to run: what they have
// to read is then short and stays in the caches, which an index for every thing does not.
struct Runs {
  static constexpr int64_t kNear = 16;
  std::vector<uint32_t> begins;  // of every run, and n
  std::vector<uint32_t> near;    // the run of every kNear-th thing

  // goes_on(i): thing i is in the run of thing i - 1.
  template <class GoesOn>
  void assign(int64_t n, GoesOn&& goes_on) {
    begins.clear();
    near.clear();
    for (int64_t i = 0; i < n; ++i) {
      if (i == 0 || !goes_on(i)) begins.push_back(static_cast<uint32_t>(i));
      if (i % kNear == 0) near.push_back(static_cast<uint32_t>(begins.size() - 1));
    }
    begins.push_back(static_cast<uint32_t>(n));
  }
};

// A set of state entries R, and D[R, R].
struct Subnetwork {
  std::vector<int32_t> rows;          // the state entries
  std::vector<uint32_t> starts;       // of each row's terms
  std::vector<Term> terms;            // row by row: entry of D, column within R
  // The same for D^T, with the entries of D numbered column by column.
  std::vector<uint32_t> back_starts;
  std::vector<Term> back_terms;
};

// An immediate row of a block: its row within R, and which of the parameters' values of I it takes.
struct ImmediateRow {
  int32_t row, nth;
};

// The parameters of one group, with the subnetwork that they reach.
struct Block {
  int32_t subnetwork;
  int32_t width;         // parameters, P
  int64_t influence_at;  // where J[R, P] begins in a lane of J
  int64_t credit_at;     // where Lambda[R] begins
  int64_t column_at;     // where its parameters begin in `column_param`
  int64_t immediate_at;  // where I[E, P] begins in a lane of I
  int32_t entry_at;      // where its immediate rows begin in `immediate_rows`; also the number of its first credit
  int32_t entries;       // immediate rows, E
};

// Columns of a block that one pass of the influence step works on.
struct Strip {
  int32_t block, first, width;
};
struct Strips {
  std::vector<Strip> all;
  std::vector<int64_t> cost_up_to;
};

// Blocks that take the credit step together, and the order in which their rows do.
struct CreditGroup {
  int32_t first_block, end_block;
  int64_t first_row, end_row;  // in `credit_rows`
};
struct CreditRow {
  const Term *begin, *end;  // the row of D[R, R]^T, in the block's subnetwork
  int64_t block_at, at;     // where the block's Lambda begins, and the row of it
};

// The kept part of J, for the influence step and the credit recursion.
struct BlocksPlan : Plan {
  int64_t states, params, dynamics, immediate, entries;  // sizes of s, theta, D, I, and of the groups' entries
  int64_t kept = 0;                                      // entries of J in one lane
  int64_t credits = 0;                                   // entries of Lambda in one lane
  std::vector<Subnetwork> subnetworks;
  std::vector<Block> blocks;
  std::vector<int32_t> column_param;       // the parameter of every column
  Runs column_runs;                        // of columns whose parameters follow one another
  std::vector<int32_t> run_param;          // the first parameter of each run
  bool is_complete = true;                 // every parameter has a column of J
  std::vector<ImmediateRow> immediate_rows;  // block by block, by row
  int64_t most_rows = 0, most_terms = 0, most_columns = 0;  // of any block
  Strips lane_strips;                      // for vectors of lanes: J is stored strip by strip
  Strips column_strips32, column_strips64;  // for vectors of columns of four and of eight bytes
  std::vector<CreditGroup> credit_groups;
  std::vector<CreditRow> credit_rows;      // group by group
  std::vector<int64_t> credit_cost_up_to;  // of the groups
  int64_t most_credits = 0;                // rows of any group

  // reach, group_params, group_entries: one row a group. dynamics: one row a state entry.
  BlocksPlan(int64_t states, int64_t params, Rows dynamics, Rows reach, Rows group_params, Rows group_entries,
             int vector_bytes);

  // Columns of a strip of J at most, in a block of so many rows.
  static int64_t most_strip_columns(int64_t rows);

  // The state entry and the parameter of every kept entry, in the order in which J is stored in tiles of so many lanes.
  void places(int64_t tile, int32_t* state, int32_t* param) const;

 private:
  void group_credit();
  template <class Width>
  Strips cut(int unit, Width&& most_units) const;
};

// A sparse matrix, by rows and by columns.
struct MatrixPlan : Plan {
  int64_t rows, cols, entries;
  std::vector<uint32_t> starts, back_starts;
  std::vector<Term> terms, back_terms;  // row by row: entry, column; column by column: entry, row

  MatrixPlan(int64_t cols, Rows pattern);
};

// out[i] = sum over the terms of i of left[term.left] * right[term.right]; what would stand behind the last on the right is one.
struct SumsPlan : Plan {
  int64_t left, right, sums;
  bool is_product = true;          // every sum has one term, of two factors
  Runs runs;                       // of products: with the same left factor, and right ones in order
  std::vector<Term> run_terms;     // the first of each run
  std::vector<uint32_t> starts;
  std::vector<Term> terms;  // {left, right}

  SumsPlan(int64_t left, int64_t right, Indices starts, Indices left_of, Indices right_of);
};

}  // namespace snapgrad
