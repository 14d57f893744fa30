// All kernels for one instruction set. Built several times, with other flags and another SNAPGRAD_TARGET each time; what
// is compiled with those flags lives in a namespace of its own, so that nothing made for one machine is linked into the code
// for another. (Of the standard library only accessors are used here, which are always inlined when optimising.)
#include "kernels.h"

namespace snapgrad {
namespace SNAPGRAD_TARGET {
namespace {

#include "simd.h"

#include "rounding.h"
#include "influence_few_rows.h"
#include "influence_columns.h"
#include "influence.h"
#include "credit.h"
#include "product.h"
#include "transpose.h"
#include "sums.h"
#include "adam.h"
#include "functions.h"
#include "unit_step.h"

void run_influence_step(Type arithmetic, Type storage, const InfluenceStep& call, Pool& pool) {
  if (arithmetic == Type::kFloat64) return influence_step<double, double>(call, pool);
  if (storage == Type::kBfloat16) return influence_step<float, Bfloat16>(call, pool);
  influence_step<float, float>(call, pool);
}

template <class Call, void (*f32)(const Call&, Pool&), void (*f64)(const Call&, Pool&)>
void run(Type type, const Call& call, Pool& pool) {
  type == Type::kFloat64 ? f64(call, pool) : f32(call, pool);
}

}  // namespace

extern const Kernels kernels;
const Kernels kernels = {
    SNAPGRAD_TARGET_NAME,
    SNAPGRAD_VECTOR_BYTES,
    run_influence_step,
    run<CreditStep, credit_step<float>, credit_step<double>>,
    run<Product, product<float>, product<double>>,
    run<SampledProduct, sampled_product<float>, sampled_product<double>>,
    run<Transpose, transpose<float>, transpose<double>>,
    run<Sums, sums<float>, sums<double>>,
    run<AdamUpdate, adam_update<float>, adam_update<double>>,
    run<UnitStep, unit_step<float>, unit_step<double>>,
};

}  // namespace SNAPGRAD_TARGET
}  // namespace snapgrad
