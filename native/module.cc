// The module: the only file that knows Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <stdexcept>
#include <string>

#include "ffi.h"
#include "kernels.h"
#include "registry.h"

namespace nb = nanobind;

namespace snapgrad {
namespace {

using Array = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Writable = nb::ndarray<int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

Indices indices(const char* name, const Array& array) { return {name, array.data(), static_cast<int64_t>(array.size())}; }

// Makes a plan while other threads of Python go on: that of a large network takes a while.
template <class Plan, class... Args>
std::shared_ptr<Place> add_plan(const std::string& name, Args... args) {
  nb::gil_scoped_release others_go_on;
  return registry().add(name, std::make_shared<Plan>(args...));
}

nb::capsule capsule(const void* address) { return nb::capsule(address); }

}  // namespace

NB_MODULE(_native, m) {
  m.attr("instructions") = kernels().name;
  m.attr("tiles") = nb::make_tuple(kTile, kWideTile);

  nb::class_<Place>(m, "Place", "Holds index structures of one network, checked when they were made.")
      .def("put", [](Place& slot, const Place& other) { slot.put(other.plan()); }, nb::arg("other"));
  m.def("slot", [](const std::string& name) { return registry().add(name, nullptr); }, nb::arg("name"));
  m.def("most_strip_columns", [](int64_t rows) { return BlocksPlan::most_strip_columns(rows); }, nb::arg("rows"));
  m.def(
      "influence_places",
      [](const Place& place, int64_t tile, Writable states, Writable params) {
        const auto plan = plan_in<BlocksPlan>(place);
        if (!is_tile(tile)) throw std::invalid_argument("`tile` must be 1, 8 or 16");
        if (static_cast<int64_t>(states.size()) != plan->kept || static_cast<int64_t>(params.size()) != plan->kept) {
          throw std::invalid_argument("`states` and `params` must have " + std::to_string(plan->kept) + " elements");
        }
        plan->places(tile, states.data(), params.data());
      },
      nb::arg("place"), nb::kw_only(), nb::arg("tile"), nb::arg("states"), nb::arg("params"));
  m.def(
      "blocks_plan",
      [](const std::string& name, int64_t states, int64_t params, Array dynamics_starts, Array dynamics, Array reach_starts,
         Array reach, Array params_starts, Array group_params, Array entries_starts, Array group_entries) {
        return add_plan<BlocksPlan>(
            name, states, params, Rows{indices("dynamics_starts", dynamics_starts), indices("dynamics", dynamics)},
            Rows{indices("reach_starts", reach_starts), indices("reach", reach)},
            Rows{indices("params_starts", params_starts), indices("group_params", group_params)},
            Rows{indices("entries_starts", entries_starts), indices("group_entries", group_entries)},
            kernels().vector_bytes);
      },
      nb::arg("name"), nb::kw_only(), nb::arg("states"), nb::arg("params"), nb::arg("dynamics_starts"),
      nb::arg("dynamics"), nb::arg("reach_starts"), nb::arg("reach"), nb::arg("params_starts"), nb::arg("group_params"),
      nb::arg("entries_starts"), nb::arg("group_entries"));
  m.def(
      "matrix_plan",
      [](const std::string& name, int64_t cols, Array starts, Array columns) {
        return add_plan<MatrixPlan>(name, cols, Rows{indices("starts", starts), indices("columns", columns)});
      },
      nb::arg("name"), nb::kw_only(), nb::arg("cols"), nb::arg("starts"), nb::arg("columns"));
  m.def(
      "sums_plan",
      [](const std::string& name, int64_t left, int64_t right, Array starts, Array left_of, Array right_of) {
        return add_plan<SumsPlan>(name, left, right, indices("starts", starts), indices("left_of", left_of),
                                  indices("right_of", right_of));
      },
      nb::arg("name"), nb::kw_only(), nb::arg("left"), nb::arg("right"), nb::arg("starts"), nb::arg("left_of"),
      nb::arg("right_of"));

  m.def("state_type", [] {
    nb::dict out;
    out["type_id"] = capsule(state_type().id);
    out["type_info"] = capsule(state_type().info);
    return out;
  });
  m.def("targets", [] {
    nb::dict out;
    for (const Target& target : targets()) {
      nb::dict stages;
      stages["execute"] = capsule(target.execute);
      if (target.instantiate != nullptr) stages["instantiate"] = capsule(target.instantiate);
      out[target.name] = stages;
    }
    return out;
  });
}

}  // namespace snapgrad
