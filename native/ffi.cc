// The handlers: the only file that knows XLA. Every buffer is checked here before a kernel sees it.
#include "ffi.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels.h"
#include "registry.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace snapgrad {
namespace {

// What a compiled program holds.
struct Held {
  static ffi::TypeId id;
  std::vector<std::shared_ptr<Place>> places;  // one; or of a program that runs on several devices, one for each part of J
  std::vector<std::shared_ptr<Place>> products;  // where a program needs a second plan
};
ffi::TypeId Held::id = {};
const ffi::TypeInfo held_info = ffi::MakeTypeInfo<Held>();

ffi::ErrorOr<std::unique_ptr<Held>> instantiate(std::string_view plan, std::string_view products = {}) {
  auto held = std::make_unique<Held>();
  for (auto [places, names] : {std::pair{&held->places, plan}, {&held->products, products}}) {
    while (!names.empty()) {  // one a line
      const std::string_view name = names.substr(0, names.find('\n'));
      names.remove_prefix(std::min(names.size(), name.size() + 1));
      places->push_back(registry().find(name));
      if (places->back() == nullptr) {
        return ffi::Unexpected(ffi::Error::InvalidArgument("snapgrad: the plan " + std::string(name) +
                                                           " is not known in this process"));
      }
    }
  }
  return held;
}

// ---- checks

class Mismatch : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

std::string text(ffi::AnyBuffer::Dimensions dims) {
  std::string out = "[";
  for (size_t i = 0; i < dims.size(); ++i) out += (i ? ", " : "") + std::to_string(dims[i]);
  return out + "]";
}

// Requires that a buffer is [outer..., last...] of the given type and returns the product of the outer dimensions.
int64_t check(const char* name, const ffi::AnyBuffer& buffer, ffi::DataType type, std::initializer_list<int64_t> last) {
  const auto dims = buffer.dimensions();
  bool ok = buffer.element_type() == type && dims.size() >= last.size();
  size_t i = dims.size() - last.size();
  int64_t outer = 1;
  for (size_t d = 0; ok && d < i; ++d) outer *= dims[d];
  std::string wanted;
  for (int64_t n : last) {
    wanted += (wanted.empty() ? "" : ", ") + std::to_string(n);
    ok = ok && dims[i++] == n;
  }
  if (!ok) {
    throw Mismatch(std::string("snapgrad: `") + name + "` must be [..., " + wanted + "] of XLA type " +
                   std::to_string(static_cast<int>(type)) + ", got " + text(dims) + " of type " +
                   std::to_string(static_cast<int>(buffer.element_type())));
  }
  return outer;
}

void check_equal(const char* name, int64_t outer, int64_t wanted) {
  if (outer != wanted) {
    throw Mismatch(std::string("snapgrad: `") + name + "` must have " + std::to_string(wanted) +
                   " leading elements, got " + std::to_string(outer));
  }
}

int64_t dimension(const char* name, const ffi::AnyBuffer& buffer, size_t from_end) {
  const auto dims = buffer.dimensions();
  if (dims.size() < from_end) throw Mismatch(std::string("snapgrad: `") + name + "` must have more axes, got " + text(dims));
  return dims[dims.size() - from_end];
}

Type arithmetic(ffi::DataType type) {
  if (type == ffi::DataType::F32) return Type::kFloat32;
  if (type == ffi::DataType::F64) return Type::kFloat64;
  throw Mismatch("snapgrad: arithmetic must be float32 or float64");
}

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

// Entries a lane of a buffer [..., n, lanes]: as many as the plan asks for, or more.
int64_t room_for(const char* name, const ffi::AnyBuffer& buffer, int64_t needed) {
  const int64_t room = dimension(name, buffer, 2);
  if (room < needed) {
    throw Mismatch(std::string("snapgrad: `") + name + "` must be [..., n, lanes] with n >= " + std::to_string(needed) +
                   ", got " + text(buffer.dimensions()));
  }
  return room;
}

class XlaPool : public Pool {
 public:
  explicit XlaPool(ffi::ThreadPool& pool) : pool_(pool) {}
  int64_t size() const override { return pool_.num_threads(); }
  void schedule(std::function<void()> task) override { pool_.Schedule(std::move(task)); }

 private:
  ffi::ThreadPool& pool_;
};

// Nothing may be thrown into XLA.
template <class Body>
ffi::Error guarded(Body&& body) {
  try {
    body();
    return ffi::Error::Success();
  } catch (const std::invalid_argument& error) {
    return ffi::Error::InvalidArgument(error.what());
  } catch (const std::exception& error) {
    return ffi::Error::Internal(std::string("snapgrad: ") + error.what());
  }
}

char* nth(ffi::AnyBuffer& buffer, int64_t i, int64_t elements) {
  return static_cast<char*>(buffer.untyped_data()) +
         static_cast<size_t>(i * elements) * ffi::ByteWidth(buffer.element_type());
}

// The result starts as the operand. XLA gives both one buffer; where it does not, this makes them equal.
void carry_over(ffi::AnyBuffer& from, ffi::AnyBuffer& to) {
  if (to.size_bytes() != from.size_bytes()) throw Mismatch("snapgrad: what is updated in place must keep its shape");
  if (from.untyped_data() != to.untyped_data()) std::memcpy(to.untyped_data(), from.untyped_data(), from.size_bytes());
}

// ---- handlers

using Out = ffi::Result<ffi::AnyBuffer>;

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
    const auto held_products = plan_in<SumsPlan>(*held->products.at(0));
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
using Any = ffi::AnyBuffer;
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
XLA_FFI_DEFINE_HANDLER(kSums, sums, SNAPGRAD_BIND().Arg<Any>().Arg<Any>().Ret<Any>());

template <class T>
const void* address(T* of) {
  return reinterpret_cast<const void*>(of);
}

}  // namespace

StateType state_type() { return {address(&Held::id), address(&held_info)}; }

std::vector<Target> targets() {
  return {{"snapgrad_influence_step", address(kInfluenceStep), address(kInstantiateInfluence)},
          {"snapgrad_credit_step", address(kCreditStep), address(kInstantiate)},
          {"snapgrad_product", address(kProduct), address(kInstantiateProduct)},
          {"snapgrad_sampled_product", address(kSampledProduct), address(kInstantiate)},
          {"snapgrad_sums", address(kSums), address(kInstantiate)}};
}

}  // namespace snapgrad
