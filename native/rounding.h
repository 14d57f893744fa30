// Stochastic rounding to bfloat16. Included inside the namespace of one instruction set (kernels.cc).
//
// src/snapgrad/kernels/rounding.py says what is drawn and why, and draws the same bits.

template <class S>
constexpr bool kIsRounded = false;
template <>
constexpr bool kIsRounded<Bfloat16> = true;

constexpr uint32_t kGolden = 0x9e3779b9u;

// An entry's place is kGolden times its number in the whole J [states, params]. Numbers wrap: only their bits matter.
inline uint32_t row_place(const BlocksPlan& plan, int32_t state) {
  return static_cast<uint32_t>(state) * static_cast<uint32_t>(plan.params) * kGolden;
}

// Rounds at random, by a hash of `place`: the lane's word ^ that of the entry. What is finite stays so;
// infinities and NaN are kept.
template <int N>
inline void store_rounded(Bfloat16* to, Vector<float, N> v, Vector<uint32_t, N> place, Vector<uint32_t, N> turn) {
  Vector<uint32_t, N> x = (place ^ (place >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  const Vector<uint32_t, N> bits = (x + turn) >> 16;
  Vector<uint32_t, N> wide;
  __builtin_memcpy(&wide, &v, sizeof v);
  const Vector<uint32_t, N> cut = wide | (v == v ? wide & 0u : (wide & 0u) | 0x400000u);
  const Vector<uint32_t, N> rounded = ((wide & 0x7fffffffu) < 0x7f7f0000u ? wide + bits : cut) >> 16;
  if constexpr (N == 1) {
    to->bits = static_cast<uint16_t>(rounded);
  } else {
    const Vector<uint16_t, N> half = __builtin_convertvector(rounded, Vector<uint16_t, N>);
    __builtin_memcpy(to, &half, sizeof half);
  }
}
