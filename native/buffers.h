// Buffers of XLA: every one is checked here before a kernel sees it.
#pragma once

#include <cstring>
#include <functional>
#include <initializer_list>
#include <stdexcept>
#include <string>

#include "kernels.h"
#include "xla/ffi/api/ffi.h"

namespace snapgrad {

namespace ffi = xla::ffi;

class Mismatch : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

inline std::string text(ffi::AnyBuffer::Dimensions dims) {
  std::string out = "[";
  for (size_t i = 0; i < dims.size(); ++i) out += (i ? ", " : "") + std::to_string(dims[i]);
  return out + "]";
}

// Requires that a buffer is [outer..., last...] of the given type and returns the product of the outer dimensions.
inline int64_t check(const char* name, const ffi::AnyBuffer& buffer, ffi::DataType type, std::initializer_list<int64_t> last) {
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

inline void check_equal(const char* name, int64_t outer, int64_t wanted) {
  if (outer != wanted) {
    throw Mismatch(std::string("snapgrad: `") + name + "` must have " + std::to_string(wanted) +
                   " leading elements, got " + std::to_string(outer));
  }
}

inline int64_t dimension(const char* name, const ffi::AnyBuffer& buffer, size_t from_end) {
  const auto dims = buffer.dimensions();
  if (dims.size() < from_end) throw Mismatch(std::string("snapgrad: `") + name + "` must have more axes, got " + text(dims));
  return dims[dims.size() - from_end];
}

inline Type arithmetic(ffi::DataType type) {
  if (type == ffi::DataType::F32) return Type::kFloat32;
  if (type == ffi::DataType::F64) return Type::kFloat64;
  throw Mismatch("snapgrad: arithmetic must be float32 or float64");
}

// Entries a lane of a buffer [..., n, lanes]: as many as the plan asks for, or more.
inline int64_t room_for(const char* name, const ffi::AnyBuffer& buffer, int64_t needed) {
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

inline char* nth(ffi::AnyBuffer& buffer, int64_t i, int64_t elements) {
  return static_cast<char*>(buffer.untyped_data()) +
         static_cast<size_t>(i * elements) * ffi::ByteWidth(buffer.element_type());
}

// The result starts as the operand. XLA gives both one buffer; where it does not, this makes them equal.
inline void carry_over(ffi::AnyBuffer& from, ffi::AnyBuffer& to) {
  if (to.size_bytes() != from.size_bytes()) throw Mismatch("snapgrad: what is updated in place must keep its shape");
  if (from.untyped_data() != to.untyped_data()) std::memcpy(to.untyped_data(), from.untyped_data(), from.size_bytes());
}

}  // namespace snapgrad
