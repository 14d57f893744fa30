// exp, logistic and tanh of vectors, to a few units in the last place where the result is a normal number. Included inside the namespace of one instruction set
// (kernels.cc).
//
//     y = n ln 2 + r,  |r| <= ln 2 / 2        exp(y) - 1 = 2^n (exp(r) - 1) + (2^n - 1)
//
// so that nothing is lost where y is small. NaN stays NaN: comparisons with it are false, and r is NaN.

template <class T>
struct Exponential;
template <>
struct Exponential<float> {
  static constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the last bits
  static constexpr float kHigh = 0.693359375f, kLow = -2.12194440e-4f;  // ln 2 in two parts; n times the first is exact
  static constexpr float kLeast = -87.3f, kMost = 88.3f;                // 2^n is a normal number in between
  static constexpr uint32_t kBias = 127, kMantissa = 23;
  static constexpr int kTerms = 7;  // of the series of exp(r) - 1
};
template <>
struct Exponential<double> {
  static constexpr double kRound = 6755399441055744.0;
  static constexpr double kHigh = 6.93147180369123816490e-01, kLow = 1.90821492927058770002e-10;
  static constexpr double kLeast = -708.0, kMost = 709.0;
  static constexpr uint64_t kBias = 1023, kMantissa = 52;
  static constexpr int kTerms = 13;
};

template <class To, class From>
inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "");
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

// 1, 1/1!, 1/2!, ...
template <class T>
struct Series {
  T factor[Exponential<T>::kTerms + 1];
  constexpr Series() : factor{} {
    double factorial = 1;
    for (int k = 0; k <= Exponential<T>::kTerms; factorial *= ++k) factor[k] = static_cast<T>(1 / factorial);
  }
};

// 2^n and exp(r) - 1.
template <class V>
struct Parts {
  V power, rest;
};

template <class T, int N>
inline Parts<Vector<T, N>> exponential_parts(Vector<T, N> y) {
  using E = Exponential<T>;
  using V = Vector<T, N>;
  using Bits = Vector<BitsOf<T>, N>;
  const V least = V{} + E::kLeast, most = V{} + E::kMost;
  y = y < least ? least : y;
  y = y > most ? most : y;
  const V rounded = y * T(1.44269504088896340736) + E::kRound;
  const V n = rounded - E::kRound;
  const V r = (y - n * E::kHigh) - n * E::kLow;
  constexpr Series<T> series;
  V sum = V{} + series.factor[E::kTerms];
  SNAPGRAD_UNROLL for (int k = E::kTerms - 1; k >= 1; --k) sum = sum * r + series.factor[k];
  const Bits power = (bits_as<Bits>(rounded) + E::kBias) << E::kMantissa;
  return {bits_as<V>(power), sum * r};
}

// Of half the argument, squared: it then overflows and vanishes where it should.
template <class T, int N>
inline Vector<T, N> exponential(Vector<T, N> y) {
  const auto half = exponential_parts<T, N>(y * T(0.5));
  const Vector<T, N> root = half.power * half.rest + half.power;
  return root * root;
}

template <class T, int N>
inline Vector<T, N> logistic(Vector<T, N> x) {
  return T(1) / (T(1) + exponential<T, N>(-x));
}

template <class T, int N>
inline Vector<T, N> hyperbolic_tangent(Vector<T, N> x) {
  const auto parts = exponential_parts<T, N>(x * T(-2));
  const Vector<T, N> less_one = parts.power * parts.rest + (parts.power - T(1));  // exp(-2x) - 1
  return (T(0) - less_one) / (less_one + T(2));
}
