// Which of the compiled kernels this machine can run.
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "kernels.h"

namespace snapgrad {

namespace portable {
extern const Kernels kernels;
}
#if defined(SNAPGRAD_X86)
namespace avx2 {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}
#endif

namespace {

const Kernels& best() {
  const char* const asked = std::getenv("SNAPGRAD_INSTRUCTIONS");
  const std::string name = asked == nullptr ? "" : asked;
#if defined(SNAPGRAD_X86)
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (has_avx512 && (name.empty() || name == "avx512")) return avx512::kernels;
  if (has_avx2 && (name.empty() || name == "avx2")) return avx2::kernels;
#endif
  if (name.empty() || name == "portable") return portable::kernels;
  throw std::runtime_error(
      "the environment variable SNAPGRAD_INSTRUCTIONS must be avx512, avx2 or portable, and this machine must have "
      "it, got " + name);
}

}  // namespace

const Kernels& kernels() {
  static const Kernels& chosen = best();
  return chosen;
}

}  // namespace snapgrad
