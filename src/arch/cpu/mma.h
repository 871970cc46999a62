// The CPU's matrix product: fp32 sums over bf16 operands, k strictly ascending.
//
// An output value is one chain of additions in k order, whatever the tile, block or thread: its
// bits depend on its operands only.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "base/dtype.h"
#include "base/int_math.h"
#include "plan/shape.h"

namespace monomoe::cpu {

constexpr int32_t kMicroRows{4};
constexpr int32_t kMicroCols{8};
constexpr int32_t kDepth{256};  // k of one packed block: both panels stay in the second-level cache

/// Memory of one thread, reused by every task it runs.
struct Scratch {
  std::vector<float> a;    // [rows / 4][kDepth][4]
  std::vector<float> b;    // [cols / 8][kDepth][8]
  std::vector<float> acc;  // [rows][ld]
  int32_t ld{0};

  explicit Scratch(const TileShape& t) {
    const int32_t rows{round_up(t.rows, kMicroRows)};
    // Two halves of a gate_up tile are rounded up one by one.
    ld = 2 * round_up(ceil_div(t.cols, 2), kMicroCols);
    a.resize(static_cast<size_t>(rows) * kDepth);
    b.resize(static_cast<size_t>(ld) * kDepth);
    acc.resize(static_cast<size_t>(rows) * static_cast<size_t>(ld));
  }
  void clear() { std::memset(acc.data(), 0, acc.size() * sizeof(float)); }
};

/// An operand of a product: element (i, k) for i of the tile's rows (or columns).
struct Operand {
  const Bf16* data{nullptr};
  int64_t ld{0};
  bool k_contiguous{true};  // else i is contiguous: element (i, k) at data[k * ld + i]

  [[nodiscard]] Operand from_k(int64_t k) const {
    return {data + (k_contiguous ? k : k * ld), ld, k_contiguous};
  }
};

/// Packs `n` x `depth` into panels of kWidth, zero-filled to a whole panel.
template <int32_t kWidth>
void pack(const Operand& src, int32_t n, int32_t depth, float* dst) {
  for (int32_t i0{0}; i0 < n; i0 += kWidth, dst += int64_t{kWidth} * depth) {
    const int32_t width{min_of(kWidth, n - i0)};
    if (width < kWidth) std::memset(dst, 0, sizeof(float) * kWidth * static_cast<size_t>(depth));
    if (src.k_contiguous) {
      for (int32_t i{0}; i < width; ++i) {
        const Bf16* row{src.data + (i0 + i) * src.ld};
        for (int32_t k{0}; k < depth; ++k) dst[k * kWidth + i] = to_float(row[k]);
      }
      continue;
    }
    for (int32_t k{0}; k < depth; ++k) {
      const Bf16* col{src.data + k * src.ld + i0};
      if (width == kWidth) {
        for (int32_t i{0}; i < kWidth; ++i) dst[k * kWidth + i] = to_float(col[i]);
      } else {
        for (int32_t i{0}; i < width; ++i) dst[k * kWidth + i] = to_float(col[i]);
      }
    }
  }
}

/// acc[4][8] += panel of a times panel of b.
inline void micro_kernel(const float* a, const float* b, int32_t depth, float* acc, int32_t ld) {
  using Vec = float __attribute__((vector_size(16), aligned(4)));
  constexpr int32_t kVecs{kMicroCols / 4};
  Vec sum[kMicroRows][kVecs];
  for (int32_t i{0}; i < kMicroRows; ++i) {
    for (int32_t j{0}; j < kVecs; ++j) {
      sum[i][j] = *reinterpret_cast<const Vec*>(acc + i * ld + 4 * j);
    }
  }
  for (int32_t k{0}; k < depth; ++k, a += kMicroRows, b += kMicroCols) {
    const Vec b0{*reinterpret_cast<const Vec*>(b)};
    const Vec b1{*reinterpret_cast<const Vec*>(b + 4)};
    for (int32_t i{0}; i < kMicroRows; ++i) {
      sum[i][0] += a[i] * b0;
      sum[i][1] += a[i] * b1;
    }
  }
  for (int32_t i{0}; i < kMicroRows; ++i) {
    for (int32_t j{0}; j < kVecs; ++j) {
      *reinterpret_cast<Vec*>(acc + i * ld + 4 * j) = sum[i][j];
    }
  }
}

/// A column operand and where its columns lie in the accumulators.
struct ColumnPart {
  Operand b;
  int32_t cols{0};
  int32_t col0{0};  // a multiple of kMicroCols
};

/// acc[m, part.col0 ..) += A * B for every part, over k = 0 .. depth.
inline void multiply_add(Scratch& s, const Operand& a, int32_t m,
                         std::initializer_list<ColumnPart> parts, int32_t depth) {
  for (int32_t k0{0}; k0 < depth; k0 += kDepth) {
    const int32_t d{min_of(kDepth, depth - k0)};
    pack<kMicroRows>(a.from_k(k0), m, d, s.a.data());
    for (const ColumnPart& p : parts) {
      pack<kMicroCols>(p.b.from_k(k0), p.cols, d, s.b.data());
      for (int32_t j{0}; j < p.cols; j += kMicroCols) {
        for (int32_t i{0}; i < m; i += kMicroRows) {
          micro_kernel(s.a.data() + int64_t{i} * d, s.b.data() + int64_t{j} * d, d,
                       s.acc.data() + int64_t{i} * s.ld + p.col0 + j, s.ld);
        }
      }
    }
  }
}

}  // namespace monomoe::cpu
