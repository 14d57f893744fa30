// The handlers of what surrounds the sparse kernels in a training step: the cell's own step, and Adam's.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "held.h"

namespace snapgrad {
namespace {

// Weights and gradients come in pieces, which need not be cut alike: spans are what is whole in both, and not too long to be
// one thread's.
std::vector<Span> spans_of(std::vector<ffi::AnyBuffer>& params, std::vector<ffi::AnyBuffer>& gradients) {
  constexpr int64_t kLongest = 4096;
  std::vector<Span> spans;
  size_t from = 0;
  int64_t read = 0, at = 0;
  for (ffi::AnyBuffer& piece : params) {
    const auto size = static_cast<int64_t>(piece.element_count());
    for (int64_t done = 0; done < size;) {
      const int64_t left = static_cast<int64_t>(gradients[from].element_count()) - read;
      if (left == 0) {
        ++from, read = 0;
        continue;
      }
      const int64_t length = std::min({size - done, left, kLongest});
      spans.push_back({nth(piece, done, 1), nth(gradients[from], read, 1), at, length});
      done += length, read += length, at += length;
    }
  }
  return spans;
}

// After the operands that have names come `pieces` pieces of the weights, then those of the gradient. `seen` goes through as
// it is: what XLA computes from the weights, it must have computed before they change.
ffi::Error adam_update(ffi::ThreadPool threads, double rate, double b1, double b2, double eps, double clip, int64_t pieces,
                       ffi::AnyBuffer first, ffi::AnyBuffer second, ffi::AnyBuffer updates, ffi::AnyBuffer seen,
                       ffi::AnyBuffer asked, ffi::RemainingArgs rest, Out new_first, Out new_second, Out new_updates,
                       Out still_seen, Out whole, ffi::RemainingRets new_params) {
  return guarded([&] {
    const ffi::DataType type = first.element_type();
    const Type kind = arithmetic(type);
    const int64_t size = dimension("first", first, 1);
    std::vector<ffi::AnyBuffer> params, gradients;
    if (pieces < 0 || static_cast<int64_t>(rest.size()) < pieces || static_cast<int64_t>(new_params.size()) != pieces) {
      throw Mismatch("snapgrad: `pieces` must be the number of pieces of the weights, got " + std::to_string(pieces));
    }
    int64_t weights = 0, values = 0;
    for (size_t i = 0; i < rest.size(); ++i) {
      ffi::AnyBuffer piece = *rest.get<ffi::AnyBuffer>(i);
      const bool is_params = static_cast<int64_t>(i) < pieces;
      (is_params ? weights : values) += check(is_params ? "params" : "gradient", piece, type, {});
      if (is_params) {
        params.push_back(**new_params.get<ffi::AnyBuffer>(i));
        carry_over(piece, params.back());
      } else {
        gradients.push_back(piece);
      }
    }
    check_equal("params", weights, size);
    check_equal("gradient", values, size);
    check_equal("first", check("first", first, type, {size}), 1);
    check_equal("second", check("second", second, type, {size}), 1);
    check_equal("updates", check("updates", updates, ffi::DataType::S32, {}), 1);
    check_equal("asked", check("asked", asked, ffi::DataType::PRED, {}), 1);
    check_equal("whole", check("whole", *whole, ffi::DataType::PRED, {}), 1);
    carry_over(first, *new_first);
    carry_over(second, *new_second);
    carry_over(updates, *new_updates);
    carry_over(seen, *still_seen);
    const std::vector<Span> spans = spans_of(params, gradients);
    XlaPool pool(threads);
    kernels().adam_update(kind,
                          {rate, b1, b2, eps, clip, spans.data(), static_cast<int64_t>(spans.size()), size,
                           new_first->untyped_data(), new_second->untyped_data(),
                           static_cast<int32_t*>(new_updates->untyped_data()),
                           static_cast<const bool*>(asked.untyped_data()), static_cast<bool*>(whole->untyped_data())},
                          pool);
  });
}

// Of a program with so many places in all; those of inputs and constants are not written to.
std::vector<Instruction> program_of(ffi::Span<const int32_t> code, int64_t inputs, int64_t outputs, int64_t constants,
                                    int64_t registers) {
  const int64_t places = inputs + outputs + constants + registers;
  constexpr size_t kFields = sizeof(Instruction) / sizeof(int32_t);
  if (code.size() % kFields != 0) throw Mismatch("snapgrad: `code` must have four numbers an instruction");
  std::vector<Instruction> program;
  for (size_t i = 0; i < code.size(); i += kFields) {
    const int32_t operation = code[i];
    const bool known = operation >= 0 && operation <= static_cast<int32_t>(Operation::kTanh);
    const auto is_place = [&](int64_t place) { return place >= 0 && place < places; };
    const int64_t to = code[i + 1];
    const bool may_write = to >= inputs && (to < inputs + outputs || to >= inputs + outputs + constants);
    if (!known || !is_place(to) || !is_place(code[i + 2]) || !is_place(code[i + 3]) || !may_write) {
      throw Mismatch("snapgrad: `code` must have known operations on places that exist, and write to outputs and registers");
    }
    program.push_back({static_cast<Operation>(operation), code[i + 1], code[i + 2], code[i + 3]});
  }
  return program;
}

// How many there are of a thing that every unit has.
int64_t for_each_unit(const char* name, int64_t size, int64_t units) {
  if (units < 1 || size % units != 0) {
    throw Mismatch(std::string("snapgrad: `") + name + "` must have a multiple of `units` rows, got " + std::to_string(size));
  }
  return size / units;
}

// A matrix's `values` come with what it is multiplied with; without a plan they are the product already.
ffi::Error unit_step(Held* held, ffi::ThreadPool threads, std::string_view, std::string_view,
                     ffi::Span<const int32_t> code, ffi::Span<const double> constants, int64_t registers, int64_t units,
                     ffi::AnyBuffer state, ffi::AnyBuffer input, ffi::AnyBuffer x, ffi::AnyBuffer bias,
                     ffi::AnyBuffer recurrent, ffi::AnyBuffer recurrent_bias, Out next, Out derivatives) {
  return guarded([&] {
    const auto input_plan = held->places.empty() ? nullptr : plan_in<MatrixPlan>(*held->places[0]);
    const auto recurrent_plan = held->second.empty() ? nullptr : plan_in<MatrixPlan>(*held->second[0]);
    const ffi::DataType type = state.element_type();
    const Type kind = arithmetic(type);
    const int64_t lanes = dimension("state", state, 1), state_rows = dimension("state", state, 2);
    const int64_t rows = dimension("bias", bias, 1), biases = dimension("recurrent_bias", recurrent_bias, 1);
    const int64_t derivative_rows = dimension("derivatives", *derivatives, 2);
    const int64_t states = for_each_unit("state", state_rows, units), gates = for_each_unit("bias", rows, units);
    const int64_t of_unit = for_each_unit("derivatives", derivative_rows, units);
    if (states < 1) throw Mismatch("snapgrad: `state` must have rows");
    if (registers < 0) throw Mismatch("snapgrad: `registers` must not be negative, got " + std::to_string(registers));
    const int64_t outer = check("state", state, type, {state_rows, lanes});
    const auto of_matrix = [&](const char* name, ffi::AnyBuffer& values, const MatrixPlan* plan, int64_t cols) {
      if (plan != nullptr && (plan->rows != rows || plan->cols != cols)) {
        throw Mismatch(std::string("snapgrad: `") + name + "` must be the plan of a matrix [" + std::to_string(rows) + ", " +
                       std::to_string(cols) + "], got [" + std::to_string(plan->rows) + ", " + std::to_string(plan->cols) + "]");
      }
      const int64_t size = plan == nullptr ? rows * lanes : plan->entries;
      check_equal(name, plan == nullptr ? check(name, values, type, {rows, lanes}) : check(name, values, type, {size}), outer);
      return size;
    };
    const int64_t cols = dimension("x", x, 2);
    const int64_t input_size = of_matrix("input", input, input_plan.get(), cols);
    const int64_t recurrent_size = of_matrix("recurrent", recurrent, recurrent_plan.get(), units);
    check_equal("x", check("x", x, type, {cols, lanes}), outer);
    check_equal("bias", check("bias", bias, type, {rows}), outer);
    check_equal("recurrent_bias", check("recurrent_bias", recurrent_bias, type, {biases == 0 ? 0 : rows}), outer);
    check_equal("next", check("next", *next, type, {state_rows, lanes}), outer);
    check_equal("derivatives", check("derivatives", *derivatives, type, {derivative_rows, lanes}), outer);
    const int64_t inputs = states + 2 * gates, outputs = states + of_unit;
    const auto program = program_of(code, inputs, outputs, static_cast<int64_t>(constants.size()), registers);
    XlaPool pool(threads);
    for (int64_t i = 0; i < outer && lanes > 0; ++i) {
      const void* const s = nth(state, i, state_rows * lanes);
      const Preactivations u{input_plan.get(), nth(input, i, input_size), nth(x, i, cols * lanes), nth(bias, i, rows)};
      const Preactivations v{recurrent_plan.get(), nth(recurrent, i, recurrent_size), s,
                             biases == 0 ? nullptr : nth(recurrent_bias, i, rows)};
      kernels().unit_step(kind,
                          {program.data(), static_cast<int64_t>(program.size()), units, lanes, states, gates, of_unit,
                           static_cast<int64_t>(constants.size()), registers, constants.begin(), s, u, v,
                           nth(*next, i, state_rows * lanes), nth(*derivatives, i, derivative_rows * lanes)},
                          pool);
    }
  });
}

XLA_FFI_DEFINE_HANDLER(kAdamUpdate, adam_update,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Attr<double>("rate")
                           .Attr<double>("b1")
                           .Attr<double>("b2")
                           .Attr<double>("eps")
                           .Attr<double>("clip")
                           .Attr<int64_t>("pieces")
                           .Arg<Any>()
                           .Arg<Any>()
                           .Arg<Any>()
                           .Arg<Any>()
                           .Arg<Any>()
                           .RemainingArgs()
                           .Ret<Any>()
                           .Ret<Any>()
                           .Ret<Any>()
                           .Ret<Any>()
                           .Ret<Any>()
                           .RemainingRets());

XLA_FFI_DEFINE_HANDLER(kInstantiateUnitStep,
                       [](std::string_view input, std::string_view recurrent, ffi::Span<const int32_t>,
                          ffi::Span<const double>, int64_t, int64_t) { return instantiate(input, recurrent); },
                       ffi::Ffi::BindInstantiate()
                           .Attr<std::string_view>("input")
                           .Attr<std::string_view>("recurrent")
                           .Attr<ffi::Span<const int32_t>>("code")
                           .Attr<ffi::Span<const double>>("constants")
                           .Attr<int64_t>("registers")
                           .Attr<int64_t>("units"));
XLA_FFI_DEFINE_HANDLER(kUnitStep, unit_step,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::State<Held>>()
                           .Ctx<ffi::ThreadPool>()
                           .Attr<std::string_view>("input")
                           .Attr<std::string_view>("recurrent")
                           .Attr<ffi::Span<const int32_t>>("code")
                           .Attr<ffi::Span<const double>>("constants")
                           .Attr<int64_t>("registers")
                           .Attr<int64_t>("units")
                           .Arg<Any>()
                           .Arg<Any>()
                           .Arg<Any>()
                           .Arg<Any>()
                           .Arg<Any>()
                           .Arg<Any>()
                           .Ret<Any>()
                           .Ret<Any>());

}  // namespace

std::vector<Target> training_targets() {
  return {{"snapgrad_adam_update", address(kAdamUpdate), nullptr},
          {"snapgrad_unit_step", address(kUnitStep), address(kInstantiateUnitStep)}};
}

}  // namespace snapgrad
