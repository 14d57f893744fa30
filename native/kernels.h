// The kernels, compiled once for each instruction set and chosen at run time.
#pragma once

#include <cstdint>

#include "plans.h"
#include "threads.h"

namespace snapgrad {

enum class Type { kFloat32, kFloat64, kBfloat16 };

// What the rounding of J is drawn from, for each lane: a word and a turn (rounding.h).
constexpr int64_t kNoiseWords = 2;

// Values of a batch are [n, lanes], lanes a multiple of the tile. J is cut into tiles of lanes.
//
// Buffers whose size goes with the pattern may be longer than the plan asks for: they have room for another plan. Then
// `room` says how many entries a lane has of each; the rest is not used.

// J <- D J + I on every block, in place, and J <- I in fresh lanes; g <- sum over lanes of delta . J.
struct InfluenceStep {
  const BlocksPlan& plan;
  const SumsPlan& products;  // I, group by group, each [E, P]: the one product that every entry is
  int64_t tiles, tile;    // kWideTile or kTile, and J stored strip by strip, each [R, columns, tile]; or 1, and each [R, P]
  int64_t room;           // entries of J in a lane, at least plan.kept
  void* influence;        // [tiles, room, tile], of type `storage`
  const void* dynamics;   // [plan.dynamics or more, lanes]
  const void* left;       // [products.left, lanes]
  const void* right;      // [products.right, lanes]
  const void* delta;      // [states, lanes]
  const uint32_t* noise;  // [kNoiseWords, lanes] where J is stored in bfloat16
  const bool* fresh;      // [lanes] in which J has no past, whatever stands there
  void* gradient;         // [params]
};

// Lambda <- Lambda + delta; credit <- Lambda at the immediate rows; Lambda <- D^T Lambda, in place.
struct CreditStep {
  const BlocksPlan& plan;
  int64_t lanes;         // a multiple of kTile
  void* lambda;          // [plan.credits or more, lanes]
  const void* dynamics;  // [plan.dynamics or more, lanes], column by column
  const void* delta;     // [states, lanes]
  void* credit;          // [entries, lanes]
};

// out <- W x, or W^T x.
struct Product {
  const MatrixPlan& plan;
  int64_t batch;
  bool transposed;
  const void* values;  // [entries]
  const void* x;       // [cols or rows, batch]
  void* out;           // [rows or cols, batch]
};

// out <- the entries of y x^T at the pattern, summed over the batch.
struct SampledProduct {
  const MatrixPlan& plan;
  int64_t batch;
  const void* y;  // [rows, batch]
  const void* x;  // [cols, batch]
  void* out;      // [entries]
};

// out <- x^T.
struct Transpose {
  int64_t rows, cols;
  const void* x;  // [rows, cols]
  void* out;      // [cols, rows]
};

// out <- sums of products of gathered elements.
struct Sums {
  const SumsPlan& plan;
  int64_t lanes;
  bool right_is_shared;
  int64_t room;       // at least plan.sums; sums without a term are zero
  const void* left;   // [left, lanes]
  const void* right;  // [right, lanes], or [right] for all lanes
  void* out;          // [room, lanes]
};

// Weights that follow one another, as their gradient does.
struct Span {
  void* params;
  const void* gradient;
  int64_t at, size;  // the first one's place in the moments
};

// One update of Adam from a gradient whose norm is clipped, in place: made where it is asked for and the gradient's square
// is finite in float32.
struct AdamUpdate {
  double rate, b1, b2, eps, clip;
  const Span* spans;
  int64_t count, size;   // spans, and weights in all of them
  void *first, *second;  // [size]: the moments
  int32_t* updates;      // made so far
  const bool* asked;
  bool* whole;  // whether the square was finite
};

// One operation of a program on every element: the place `out` from the places `a` and `b`, or from `a` alone.
enum class Operation : int32_t { kCopy, kNegate, kAdd, kSubtract, kMultiply, kDivide, kExp, kLogistic, kTanh };
struct Instruction {
  Operation operation;
  int32_t out, a, b;
};

// W x + b.
struct Preactivations {
  const MatrixPlan* plan;  // of W, or null: `values` are W x already
  const void* values;      // [entries]; or [rows, lanes]
  const void* x;           // [cols, lanes]
  const void* bias;        // [rows], or null
};

// next, derivative <- a program on the state and the pre-activations of every unit. Its places are state, input's and
// recurrent pre-activations; next state and derivatives; constants; registers.
struct UnitStep {
  const Instruction* code;
  int64_t length;
  int64_t units, lanes;
  int64_t states, gates, derivatives, constants, registers;
  const double* constant;
  const void* state;  // [states * units, lanes]
  Preactivations input, recurrent;
  void* next;        // [states * units, lanes]
  void* derivative;  // [derivatives * units, lanes]
};

struct Kernels {
  const char* name;
  int vector_bytes;
  void (*influence_step)(Type arithmetic, Type storage, const InfluenceStep&, Pool&);
  void (*credit_step)(Type, const CreditStep&, Pool&);
  void (*product)(Type, const Product&, Pool&);
  void (*sampled_product)(Type, const SampledProduct&, Pool&);
  void (*transpose)(Type, const Transpose&, Pool&);
  void (*sums)(Type, const Sums&, Pool&);
  void (*adam_update)(Type, const AdamUpdate&, Pool&);
  void (*unit_step)(Type, const UnitStep&, Pool&);
};

// The best that this machine can run, or what the environment variable SNAPGRAD_INSTRUCTIONS names.
const Kernels& kernels();

}  // namespace snapgrad
