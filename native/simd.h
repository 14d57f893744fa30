// Vectors by the compiler's own extension (GCC, Clang): one source for every instruction set.
//
// Included inside the namespace of one instruction set (kernels.cc). A vector has N elements; arrays of any length
// n >= N are covered by ceil(n / N) vectors of which the last is moved back to end with the array. What overlaps is then
// computed twice, to the same result, and no element outside the array is ever touched.

// Loops over a vector's worth of registers must be unrolled, or the registers become memory.
#define SNAPGRAD_UNROLL _Pragma("GCC unroll 16")

template <class T, int N>
struct VectorOf {
  typedef T type __attribute__((vector_size(N * sizeof(T))));
};
template <class T>
struct VectorOf<T, 1> {
  typedef T type;
};
template <class T, int N>
using Vector = typename VectorOf<T, N>::type;

// Elements of a full vector.
template <class T>
constexpr int kLanes = SNAPGRAD_VECTOR_BYTES / sizeof(T);

// Lanes of a tile that are worked on together.
template <class T, int Tile>
constexpr int kTogether = Tile > kTile && Tile <= kLanes<T> ? Tile : kTile;

// The pointer in a register of its own. Left alone, compilers add base and index in every access, which costs Intel's
// processors a second operation each: a tenth of the time of the influence step.
template <class T>
inline const T* in_register(const T* pointer) {
  __asm__("" : "+r"(pointer));
  return pointer;
}

struct Bfloat16 {
  uint16_t bits;
};

template <class T, int N>
inline Vector<T, N> load(const T* from) {
  Vector<T, N> v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}

template <class T, int N>
inline void store(T* to, Vector<T, N> v) {
  __builtin_memcpy(to, &v, sizeof v);
}

// The sum of a vector's elements, by halves: one after the other, each addition would wait for the last.
template <class T, int N>
inline T total(Vector<T, N> v) {
  if constexpr (N == 1) {
    return v;
  } else {
    Vector<T, N / 2> halves[2];
    __builtin_memcpy(halves, &v, sizeof v);
    return total<T, N / 2>(halves[0] + halves[1]);
  }
}

template <class T>
using BitsOf = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

// `v` where `bits` are all ones, zero where they are all zeros: whatever stands there, infinities and NaN included.
template <class T, int N>
inline Vector<T, N> only(Vector<BitsOf<T>, N> bits, Vector<T, N> v) {
  Vector<BitsOf<T>, N> of_v;
  __builtin_memcpy(&of_v, &v, sizeof v);
  of_v &= bits;
  __builtin_memcpy(&v, &of_v, sizeof v);
  return v;
}

// bfloat16 is the upper half of a float32.
template <class T, int N>
inline Vector<T, N> load(const Bfloat16* from) {
  Vector<T, N> v;
  if constexpr (N == 1) {
    const uint32_t wide = static_cast<uint32_t>(from->bits) << 16;
    __builtin_memcpy(&v, &wide, sizeof v);
  } else {
    Vector<uint16_t, N> half;
    __builtin_memcpy(&half, from, sizeof half);
    const Vector<uint32_t, N> wide = __builtin_convertvector(half, Vector<uint32_t, N>) << 16;
    __builtin_memcpy(&v, &wide, sizeof v);
  }
  return v;
}

template <int K>
struct Constant {
  static constexpr int value = K;
};

template <int N, int R, class Run>
inline void with_registers(int registers, Run&& run) {
  if constexpr (R > 1) {
    if (registers < R) return with_registers<N, R - 1>(registers, run);
  }
  run(Constant<N>{}, Constant<R>{});
}

// Calls run(Constant N, Constant R) for vectors of N elements, R of them, that cover `width` elements: full vectors where
// there are enough elements, 1 <= R <= kMax; else the largest power of two.
template <int N, int kMax, class Run>
inline void with_vectors(int64_t width, Run&& run) {
  if constexpr (N > 1) {
    if (width < N) return with_vectors<N / 2, 2>(width, run);
  }
  with_registers<N, kMax>(static_cast<int>((width + N - 1) / N), run);
}
