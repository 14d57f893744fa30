// Adam behind a clipped gradient, in one pass over weights and moments. Included inside the namespace of one instruction
// set (kernels.cc).
//
//     g <- g min(1, clip / |g|)       m <- b1 m + (1 - b1) g       v <- b2 v + (1 - b2) g^2
//     p <- p - rate m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps)
//
// Spans are summed each by itself, so that the norm does not depend on who summed them.

template <class T>
double span_squares(const T* g, int64_t n) {
  constexpr int N = kLanes<T>;
  Vector<T, N> sum[4] = {};
  int64_t i = 0;
  for (; i + 4 * N <= n; i += 4 * N) {
    SNAPGRAD_UNROLL for (int j = 0; j < 4; ++j) {
      const Vector<T, N> value = load<T, N>(g + i + j * N);
      sum[j] += value * value;
    }
  }
  double rest = 0;
  for (; i < n; ++i) rest += static_cast<double>(g[i]) * static_cast<double>(g[i]);
  return static_cast<double>(total<T, N>((sum[0] + sum[1]) + (sum[2] + sum[3]))) + rest;
}

template <class T>
void update_span(const AdamUpdate& call, const Span& span, double norm, double first_left, double second_left) {
  const T* const __restrict g = static_cast<const T*>(span.gradient);
  T* const __restrict p = static_cast<T*>(span.params);
  T* const __restrict m = static_cast<T*>(call.first) + span.at;
  T* const __restrict v = static_cast<T*>(call.second) + span.at;
  const T scale = static_cast<T>(norm < call.clip ? 1 : call.clip / norm), eps = static_cast<T>(call.eps);
  const T b1 = static_cast<T>(call.b1), less_b1 = static_cast<T>(1 - call.b1);
  const T b2 = static_cast<T>(call.b2), less_b2 = static_cast<T>(1 - call.b2);
  const T rate = static_cast<T>(call.rate / first_left), correction = static_cast<T>(1 / second_left);
  for (int64_t i = 0; i < span.size; ++i) {
    const T clipped = g[i] * scale;
    m[i] = b1 * m[i] + less_b1 * clipped;
    v[i] = b2 * v[i] + less_b2 * (clipped * clipped);
    const T square = v[i] * correction;
    if constexpr (sizeof(T) == 8) {
      p[i] -= rate * m[i] / (__builtin_sqrt(square) + eps);
    } else {
      p[i] -= rate * m[i] / (__builtin_sqrtf(square) + eps);
    }
  }
}

template <class T>
void adam_update(const AdamUpdate& call, Pool& pool) {
  const auto in_tasks = [&](int64_t cost, const auto& of_span) {
    const int64_t tasks = task_count(cost / kAsleep, pool);
    parallel_for(pool, tasks, [&](int64_t task) {
      for (int64_t i = call.count * task / tasks; i < call.count * (task + 1) / tasks; ++i) of_span(i);
    });
  };
  const int64_t vectors = call.size / kLanes<T>;
  Scratch<double> squares(call.count);
  in_tasks(vectors, [&](int64_t i) {
    squares.data[i] = span_squares(static_cast<const T*>(call.spans[i].gradient), call.spans[i].size);
  });
  double sum = 0;
  for (int64_t i = 0; i < call.count; ++i) sum += squares.data[i];
  *call.whole = sum <= 3.4028234663852886e38;  // the largest float32; false for NaN
  if (!*call.whole || !*call.asked) return;
  if (*call.updates < 0x7fffffff) ++*call.updates;
  const double norm = __builtin_sqrt(sum), t = *call.updates;
  const double first_left = 1 - __builtin_pow(call.b1, t), second_left = 1 - __builtin_pow(call.b2, t);
  in_tasks(16 * vectors, [&](int64_t i) { update_span<T>(call, call.spans[i], norm, first_left, second_left); });
}
