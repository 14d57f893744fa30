// The transpose of a matrix. Included inside the namespace of one instruction set (kernels.cc).

// Squares of so many rows and columns are moved at once: of both matrices they take a cache line or two a row, so that no line
// is fetched twice, also where rows lie a power of two apart.
constexpr int64_t kSquare = 16;

template <class T>
void transpose(const Transpose& call, Pool& pool) {
  const T* const x = static_cast<const T*>(call.x);
  T* const out = static_cast<T*>(call.out);
  const int64_t rows = call.rows, cols = call.cols;
  const int64_t down = (rows + kSquare - 1) / kSquare, squares = down * ((cols + kSquare - 1) / kSquare);
  const int64_t tasks = task_count(rows * cols / 2, pool);
  parallel_for(pool, tasks, [&](int64_t task) {
    for (int64_t square = squares * task / tasks; square < squares * (task + 1) / tasks; ++square) {
      const int64_t row = square % down * kSquare, height = rows - row < kSquare ? rows - row : kSquare;
      const int64_t col = square / down * kSquare, width = cols - col < kSquare ? cols - col : kSquare;
      const T* const from = x + row * cols + col;
      T* const to = out + col * rows + row;
      for (int64_t j = 0; j < width; ++j) {
        for (int64_t i = 0; i < height; ++i) to[j * rows + i] = from[i * cols + j];
      }
    }
  });
}
