// What XLA is told of the handlers, as addresses, so that Python's side need not know XLA.
#pragma once

#include <vector>

namespace snapgrad {

struct Target {
  const char* name;
  const void *execute, *instantiate;  // the second is null where a program holds nothing
};
std::vector<Target> targets();

// Of what a compiled program holds.
struct StateType {
  const void *id, *info;
};
StateType state_type();

}  // namespace snapgrad
