// Plans that a compiled program holds, found by name when XLA loads it; and what all handlers are written with.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "buffers.h"
#include "ffi.h"
#include "registry.h"

namespace snapgrad {

using Any = ffi::AnyBuffer;
using Out = ffi::Result<ffi::AnyBuffer>;

// What a compiled program holds.
struct Held {
  static ffi::TypeId id;
  std::vector<std::shared_ptr<Place>> places;  // one; or of a program that runs on several devices, one for each part of J
  std::vector<std::shared_ptr<Place>> second;  // where a program needs another plan: of I, or of the recurrent weights
};

inline ffi::ErrorOr<std::unique_ptr<Held>> instantiate(std::string_view plan, std::string_view second = {}) {
  auto held = std::make_unique<Held>();
  for (auto [places, names] : {std::pair{&held->places, plan}, {&held->second, second}}) {
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

template <class T>
const void* address(T* of) {
  return reinterpret_cast<const void*>(of);
}

// The handlers in ffi_training.cc.
std::vector<Target> training_targets();

}  // namespace snapgrad
