// The handlers of the sparse kernels: what XLA calls, with buffers that are checked (buffers.h) before a kernel sees them.
#include "ffi.h"

#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "held.h"

namespace snapgrad {

ffi::TypeId Held::id = {};

namespace {

const ffi::TypeInfo held_info = ffi::MakeTypeInfo<Held>();

// The plan of the part of J that this device has; vmap gives every example the same part.
template <class P>
std::shared_ptr<const P> plan_of_part(const Held& held, const ffi::AnyBuffer& part) {
  if (check("part", part, ffi::DataType::S32, {}) < 1) throw Mismatch("snapgrad: `part` must not be empty");
  const int32_t number = *static_cast<const int32_t*>(part.untyped_data());
  if (number < 0 || number >= static_cast<int64_t>(held.places.size())) {
    throw Mismatch("snapgrad: `part` must be below " + std::to_string(held.places.size()) + ", got " +
                   std::to_string(number));
  }
  return plan_in<P>(*held.places[number]);
}

// J is [..., tiles, n, tile].
struct Tiles {
  int64_t count, size;
};

Tiles tiles_of(const char* name, const ffi::AnyBuffer& values) {
  const Tiles tiles{dimension(name, values, 3), dimension(name, values, 1)};
  if (!is_tile(tiles.size)) {
    throw Mismatch(std::string("snapgrad: `") + name + "` must have tiles of 1, 8 or 16 lanes, got " +
                   std::to_string(tiles.size));
  }
  return tiles;
}

ffi::Error influence_step(Held* held, ffi::ThreadPool threads, std::string_view, std::string_view, ffi::AnyBuffer old,
                          ffi::AnyBuffer dynamics, ffi::AnyBuffer left, ffi::AnyBuffer right, ffi::AnyBuffer delta,
                          ffi::AnyBuffer noise, ffi::AnyBuffer fresh, ffi::AnyBuffer part, Out influence, Out gradient) {
  return guarded([&] {
    const auto held_plan = plan_of_part<BlocksPlan>(*held, part);
    const auto held_products = plan_in<SumsPlan>(*held->second.at(0));
    const BlocksPlan& plan = *held_plan;
    const SumsPlan& products = *held_products;
    if (!products.is_product || products.sums != plan.immediate) {
      throw Mismatch("snapgrad: `products` must name one product for every entry of I");
    }
    const ffi::DataType type = dynamics.element_type(), stored = influence->element_type();
    const Type kind = arithmetic(type);
    const bool half = stored == ffi::DataType::BF16 && kind == Type::kFloat32;
    const auto [tiles, tile] = tiles_of("influence", *influence);
    const int64_t lanes = tiles * tile, words = half ? kNoiseWords : 0;
    const int64_t room = room_for("influence", *influence, plan.kept);
    const int64_t entries = room_for("dynamics", dynamics, plan.dynamics);
    const int64_t outer = check("influence", *influence, half ? stored : type, {tiles, room, tile});
    check_equal("dynamics", check("dynamics", dynamics, type, {entries, lanes}), outer);
    check_equal("left", check("left", left, type, {products.left, lanes}), outer);
    check_equal("right", check("right", right, type, {products.right, lanes}), outer);
    check_equal("delta", check("delta", delta, type, {plan.states, lanes}), outer);
    check_equal("noise", check("noise", noise, ffi::DataType::U32, {words, lanes}), outer);
    check_equal("fresh", check("fresh", fresh, ffi::DataType::PRED, {lanes}), outer);
    check_equal("gradient", check("gradient", *gradient, type, {plan.params}), outer);
    carry_over(old, *influence);
    XlaPool pool(threads);
    for (int64_t i = 0; i < outer; ++i) {
      kernels().influence_step(kind, half ? Type::kBfloat16 : kind,
                               {plan, products, tiles, tile, room, nth(*influence, i, room * lanes),
                                nth(dynamics, i, entries * lanes), nth(left, i, products.left * lanes),
                                nth(right, i, products.right * lanes), nth(delta, i, plan.states * lanes),
                                static_cast<const uint32_t*>(noise.untyped_data()) + i * words * lanes,
                                static_cast<const bool*>(fresh.untyped_data()) + i * lanes,
                                nth(*gradient, i, plan.params)},
                               pool);
    }
  });
}

ffi::Error credit_step(Held* held, ffi::ThreadPool threads, std::string_view, ffi::AnyBuffer later,
                       ffi::AnyBuffer dynamics, ffi::AnyBuffer delta, ffi::AnyBuffer part, Out lambda, Out credit) {
  return guarded([&] {
    const auto held_plan = plan_of_part<BlocksPlan>(*held, part);
    const BlocksPlan& plan = *held_plan;
    const ffi::DataType type = dynamics.element_type();
    const Type kind = arithmetic(type);
    const int64_t lanes = dimension("lambda", *lambda, 1);
    if (lanes % kTile != 0) throw Mismatch("snapgrad: `lambda` must have a multiple of 8 lanes, got " + std::to_string(lanes));
    const int64_t room = room_for("lambda", *lambda, plan.credits);
    const int64_t entries = room_for("dynamics", dynamics, plan.dynamics);
    const int64_t outer = check("lambda", *lambda, type, {room, lanes});
    check_equal("dynamics", check("dynamics", dynamics, type, {entries, lanes}), outer);
    check_equal("delta", check("delta", delta, type, {plan.states, lanes}), outer);
    check_equal("credit", check("credit", *credit, type, {plan.entries, lanes}), outer);
    carry_over(later, *lambda);
    XlaPool pool(threads);
    for (int64_t i = 0; i < outer; ++i) {
      kernels().credit_step(kind,
                            {plan, lanes, nth(*lambda, i, room * lanes), nth(dynamics, i, entries * lanes),
                             nth(delta, i, plan.states * lanes), nth(*credit, i, plan.entries * lanes)},
                            pool);
    }
  });
}

ffi::Error product(Held* held, ffi::ThreadPool threads, std::string_view, bool transposed, ffi::AnyBuffer values,
                   ffi::AnyBuffer x, Out out) {
  return guarded([&] {
    const auto held_plan = plan_in<MatrixPlan>(*held->places.at(0));
    const MatrixPlan& plan = *held_plan;
    const ffi::DataType type = values.element_type();
    const Type kind = arithmetic(type);
    const int64_t batch = dimension("x", x, 1), from = transposed ? plan.rows : plan.cols;
    check_equal("values", check("values", values, type, {plan.entries}), 1);
    check_equal("x", check("x", x, type, {from, batch}), 1);
    check_equal("out", check("out", *out, type, {plan.rows + plan.cols - from, batch}), 1);
    XlaPool pool(threads);
    if (batch > 0) {
      kernels().product(
          kind, {plan, batch, transposed, values.untyped_data(), x.untyped_data(), out->untyped_data()}, pool);
    }
  });
}

ffi::Error sampled_product(Held* held, ffi::ThreadPool threads, std::string_view, ffi::AnyBuffer y, ffi::AnyBuffer x,
                           Out out) {
  return guarded([&] {
    const auto held_plan = plan_in<MatrixPlan>(*held->places.at(0));
    const MatrixPlan& plan = *held_plan;
    const ffi::DataType type = y.element_type();
    const Type kind = arithmetic(type);
    const int64_t batch = dimension("y", y, 1);
    check_equal("y", check("y", y, type, {plan.rows, batch}), 1);
    check_equal("x", check("x", x, type, {plan.cols, batch}), 1);
    check_equal("out", check("out", *out, type, {plan.entries}), 1);
    XlaPool pool(threads);
    if (batch == 0) std::memset(out->untyped_data(), 0, out->size_bytes());
    kernels().sampled_product(kind, {plan, batch, y.untyped_data(), x.untyped_data(), out->untyped_data()}, pool);
  });
}

ffi::Error transpose(ffi::ThreadPool threads, ffi::AnyBuffer x, Out out) {
  return guarded([&] {
    const ffi::DataType type = x.element_type();
    const Type kind = arithmetic(type);
    const int64_t rows = dimension("x", x, 2), cols = dimension("x", x, 1);
    check_equal("x", check("x", x, type, {rows, cols}), 1);
    check_equal("out", check("out", *out, type, {cols, rows}), 1);
    XlaPool pool(threads);
    kernels().transpose(kind, {rows, cols, x.untyped_data(), out->untyped_data()}, pool);
  });
}

ffi::Error sums(Held* held, ffi::ThreadPool threads, std::string_view, ffi::AnyBuffer left, ffi::AnyBuffer right,
                Out out) {
  return guarded([&] {
    const auto held_plan = plan_in<SumsPlan>(*held->places.at(0));
    const SumsPlan& plan = *held_plan;
    const ffi::DataType type = left.element_type();
    const Type kind = arithmetic(type);
    const int64_t lanes = dimension("left", left, 1);
    const int64_t outer = check("left", left, type, {plan.left, lanes});
    const bool shared = dimension("right", right, 1) == 1;  // by all lanes
    const int64_t of_right = shared ? 1 : lanes;
    check_equal("right", check("right", right, type, {plan.right, of_right}), outer);
    const int64_t room = room_for("out", *out, plan.sums);
    check_equal("out", check("out", *out, type, {room, lanes}), outer);
    XlaPool pool(threads);
    for (int64_t i = 0; i < outer; ++i) {
      kernels().sums(kind,
                     {plan, lanes, shared, room, nth(left, i, plan.left * lanes), nth(right, i, plan.right * of_right),
                      nth(*out, i, room * lanes)},
                     pool);
    }
  });
}

XLA_FFI_DEFINE_HANDLER(kInstantiate, [](std::string_view plan) { return instantiate(plan); },
                       ffi::Ffi::BindInstantiate().Attr<std::string_view>("plan"));
XLA_FFI_DEFINE_HANDLER(kInstantiateInfluence, instantiate,
                       ffi::Ffi::BindInstantiate().Attr<std::string_view>("plan").Attr<std::string_view>("products"));
XLA_FFI_DEFINE_HANDLER(kInstantiateProduct, [](std::string_view plan, bool) { return instantiate(plan); },
                       ffi::Ffi::BindInstantiate().Attr<std::string_view>("plan").Attr<bool>("transposed"));
#define SNAPGRAD_BIND()                    \
  ffi::Ffi::Bind()                         \
      .Ctx<ffi::State<Held>>()             \
      .Ctx<ffi::ThreadPool>()              \
      .Attr<std::string_view>("plan")
XLA_FFI_DEFINE_HANDLER(kInfluenceStep, influence_step,
                       SNAPGRAD_BIND()
                           .Attr<std::string_view>("products")
                           .Arg<Any>()
                           .Arg<Any>()
                           .Arg<Any>()
                           .Arg<Any>()
                           .Arg<Any>()
                           .Arg<Any>()
                           .Arg<Any>()
                           .Arg<Any>()
                           .Ret<Any>()
                           .Ret<Any>());
XLA_FFI_DEFINE_HANDLER(kCreditStep, credit_step,
                       SNAPGRAD_BIND().Arg<Any>().Arg<Any>().Arg<Any>().Arg<Any>().Ret<Any>().Ret<Any>());
XLA_FFI_DEFINE_HANDLER(kProduct, product,
                       SNAPGRAD_BIND().Attr<bool>("transposed").Arg<Any>().Arg<Any>().Ret<Any>());
XLA_FFI_DEFINE_HANDLER(kSampledProduct, sampled_product, SNAPGRAD_BIND().Arg<Any>().Arg<Any>().Ret<Any>());
XLA_FFI_DEFINE_HANDLER(kTranspose, transpose, ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Any>().Ret<Any>());
XLA_FFI_DEFINE_HANDLER(kSums, sums, SNAPGRAD_BIND().Arg<Any>().Arg<Any>().Ret<Any>());

}  // namespace

StateType state_type() { return {address(&Held::id), address(&held_info)}; }

std::vector<Target> targets() {
  std::vector<Target> all = {{"snapgrad_influence_step", address(kInfluenceStep), address(kInstantiateInfluence)},
                             {"snapgrad_credit_step", address(kCreditStep), address(kInstantiate)},
                             {"snapgrad_product", address(kProduct), address(kInstantiateProduct)},
                             {"snapgrad_sampled_product", address(kSampledProduct), address(kInstantiate)},
                             {"snapgrad_transpose", address(kTranspose), nullptr},
                             {"snapgrad_sums", address(kSums), address(kInstantiate)}};
  for (const Target& target : training_targets()) all.push_back(target);
  return all;
}

}  // namespace snapgrad
