// The kernels, compiled once for each instruction set and chosen at run time.
#pragma once

#include <cstdint>

#include "plans.h"
#include "threads.h"

namespace snapgrad {

enum class Type { kFloat32, kFloat64, kBfloat16 };

// What the rounding of J is drawn from, for each lane: a word and a turn (rounding.h).
constexpr int64_t kNoiseWords = 2;

// Buffers whose size goes with the pattern may be longer than the plan asks for: they have room for another plan. Then
// `room` says how many entries a lane has of each; the rest is not used.

// J <- D J + I on every block, in place, and J <- I in fresh lanes; g <- sum over lanes of delta . J.
struct InfluenceStep {
  struct Room {
    int64_t influence, dynamics, immediate;
  };
  const BlocksPlan& plan;
  int64_t tiles, tile;    // tile is kTile, and J stored strip by strip, each [R, columns, kTile]; or 1, and each [R, P]
  Room room;              // at least plan.kept, plan.dynamics, plan.immediate
  void* influence;        // [tiles, room, tile], of type `storage`
  const void* dynamics;   // [tiles, room, tile]
  const void* immediate;  // [tiles, room, tile]: group by group, each [E, P]
  const void* delta;      // [tiles, states, tile]
  const uint32_t* noise;  // [tiles, kNoiseWords, tile] where J is stored in bfloat16
  const bool* fresh;      // [tiles, tile]: lanes in which J has no past, whatever stands there
  void* gradient;         // [params]
};

// Lambda <- Lambda + delta; credit <- Lambda at the immediate rows; Lambda <- D^T Lambda, in place.
struct CreditStep {
  struct Room {
    int64_t lambda, dynamics;
  };
  const BlocksPlan& plan;
  int64_t tiles;
  Room room;             // at least plan.credits, plan.dynamics
  void* lambda;          // [tiles, room, kTile]
  const void* dynamics;  // [tiles, room, kTile], column by column
  const void* delta;     // [tiles, states, kTile]
  void* credit;          // [tiles, entries, kTile]
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

// out <- sums of products of gathered elements.
struct Sums {
  const SumsPlan& plan;
  int64_t tiles, tile;  // tile is kTile or 1
  bool right_is_shared;
  int64_t room;       // at least plan.sums; sums without a term are zero
  const void* left;   // [tiles, left, tile]
  const void* right;  // [tiles, right, tile], or [right] for all lanes
  void* out;          // [tiles, room, tile]
};

struct Kernels {
  const char* name;
  int vector_bytes;
  void (*influence_step)(Type arithmetic, Type storage, const InfluenceStep&, Pool&);
  void (*credit_step)(Type, const CreditStep&, Pool&);
  void (*product)(Type, const Product&, Pool&);
  void (*sampled_product)(Type, const SampledProduct&, Pool&);
  void (*sums)(Type, const Sums&, Pool&);
};

// The best that this machine can run, or what the environment variable SNAPGRAD_INSTRUCTIONS names.
const Kernels& kernels();

}  // namespace snapgrad
