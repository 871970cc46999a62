// The CPU's matrix product: bit for bit the plain sum, k ascending, whatever the shape.
#include "arch/cpu/mma.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace monomoe::cpu {
namespace {

constexpr TileShape kTile{make_tile(128, 128, 16)};

/// A matrix stored one way or the other, rows or columns `ld` elements apart, garbage between them.
struct Matrix {
  int32_t num;    // rows of A, columns of B
  int32_t depth;  // k
  bool k_contiguous;
  int64_t ld;
  std::vector<Bf16> data;

  Matrix(int32_t n, int32_t k, bool along_k, std::mt19937& random)
      : num{n}, depth{k}, k_contiguous{along_k}, ld{(along_k ? k : n) + 3} {
    // NaN in the gaps: what is read by mistake shows.
    data.assign(static_cast<size_t>(ld * (along_k ? n : k)), Bf16{0x7FC0});
    std::normal_distribution<float> normal{0.0F, 1.0F};
    std::uniform_int_distribution<int> exponent{-12, 12};
    for (int32_t i{0}; i < num; ++i) {
      for (int32_t j{0}; j < depth; ++j) {
        at(i, j) = to_bf16(std::ldexp(normal(random), exponent(random)));
      }
    }
  }
  Bf16& at(int32_t i, int32_t k) {
    return data[static_cast<size_t>(k_contiguous ? i * ld + k : k * ld + i)];
  }
  [[nodiscard]] Operand operand() const { return {data.data(), ld, k_contiguous}; }
};

float& accumulator(Scratch& s, int32_t row, int32_t col) {
  return s.acc[static_cast<size_t>(row) * static_cast<size_t>(s.ld) + static_cast<size_t>(col)];
}

uint32_t bits(float v) { return std::bit_cast<uint32_t>(v); }

/// The plain sum on top of `start`.
float ordered_sum(float start, Matrix& a, int32_t i, Matrix& b, int32_t j) {
  float sum{start};
  for (int32_t k{0}; k < a.depth; ++k) sum += to_float(a.at(i, k)) * to_float(b.at(j, k));
  return sum;
}

struct Product {
  int32_t m, n, k;
};

class Products : public ::testing::TestWithParam<Product> {};

TEST_P(Products, AreTheOrderedSumForEveryOperandOrder) {
  const auto [m, n, k] = GetParam();
  std::mt19937 random{static_cast<uint32_t>(m * 10007 + n * 101 + k)};
  for (const bool a_along_k : {true, false}) {
    for (const bool b_along_k : {true, false}) {
      Matrix a{m, k, a_along_k, random};
      Matrix b{n, k, b_along_k, random};
      Scratch s{kTile};
      s.clear();
      multiply_add(s, a.operand(), m, {{b.operand(), n, 0}}, k);
      for (int32_t i{0}; i < m; ++i) {
        for (int32_t j{0}; j < n; ++j) {
          ASSERT_EQ(bits(accumulator(s, i, j)), bits(ordered_sum(0.0F, a, i, b, j)))
              << "[" << i << ", " << j << "], a along k " << a_along_k << ", b " << b_along_k;
        }
      }
    }
  }
}

TEST_P(Products, ContinueASumAsIfItHadNotStopped) {
  const auto [m, n, k] = GetParam();
  std::mt19937 random{static_cast<uint32_t>(k * 10007 + m * 101 + n)};
  Matrix a{m, k, true, random};
  Matrix b{n, k, false, random};
  Matrix a2{m, 21, false, random};
  Matrix b2{n, 21, true, random};
  Scratch s{kTile};
  s.clear();
  multiply_add(s, a.operand(), m, {{b.operand(), n, 0}}, k);
  multiply_add(s, a2.operand(), m, {{b2.operand(), n, 0}}, 21);
  for (int32_t i{0}; i < m; ++i) {
    for (int32_t j{0}; j < n; ++j) {
      const float first{ordered_sum(0.0F, a, i, b, j)};
      ASSERT_EQ(bits(accumulator(s, i, j)), bits(ordered_sum(first, a2, i, b2, j)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Mma, Products,
                         ::testing::Values(Product{1, 1, 1}, Product{1, 8, 7}, Product{3, 5, 9},
                                           Product{4, 8, 256}, Product{5, 9, 257},
                                           Product{33, 65, 40}, Product{64, 127, 511},
                                           Product{127, 31, 72}, Product{128, 128, 264}),
                         [](const auto& p) {
                           return "M" + std::to_string(p.param.m) + "_N" +
                                  std::to_string(p.param.n) + "_K" + std::to_string(p.param.k);
                         });

TEST(MultiplyAdd, PutsTwoOperandsSideBySide) {
  constexpr int32_t kHalf{40};
  std::mt19937 random{3};
  Matrix a{17, 72, true, random};
  Matrix gate{kHalf, 72, true, random};
  Matrix up{kHalf, 72, true, random};
  Scratch s{kTile};
  s.clear();
  multiply_add(s, a.operand(), 17, {{gate.operand(), kHalf, 0}, {up.operand(), kHalf, s.ld / 2}},
               72);
  for (int32_t i{0}; i < 17; ++i) {
    for (int32_t j{0}; j < kHalf; ++j) {
      ASSERT_EQ(bits(accumulator(s, i, j)), bits(ordered_sum(0.0F, a, i, gate, j)));
      ASSERT_EQ(bits(accumulator(s, i, s.ld / 2 + j)), bits(ordered_sum(0.0F, a, i, up, j)));
    }
  }
}

TEST(MultiplyAdd, DepthZeroLeavesTheSumAlone) {
  Scratch s{kTile};
  s.clear();
  accumulator(s, 2, 3) = 7.0F;
  multiply_add(s, {}, 5, {{{}, 5, 0}}, 0);
  EXPECT_EQ(accumulator(s, 2, 3), 7.0F);
}

TEST(MultiplyAdd, NanStaysInItsRowAndColumn) {
  constexpr float kNan{std::numeric_limits<float>::quiet_NaN()};
  std::mt19937 random{4};
  Matrix a{7, 40, true, random};
  Matrix b{11, 40, false, random};
  a.at(3, 20) = to_bf16(kNan);
  b.at(6, 5) = to_bf16(kNan);
  Scratch s{kTile};
  s.clear();
  multiply_add(s, a.operand(), 7, {{b.operand(), 11, 0}}, 40);
  for (int32_t i{0}; i < 7; ++i) {
    for (int32_t j{0}; j < 11; ++j) {
      EXPECT_EQ(std::isnan(accumulator(s, i, j)), i == 3 || j == 6) << i << ", " << j;
    }
  }
}

TEST(MultiplyAdd, TinyTilesOfTestsWorkToo) {
  std::mt19937 random{5};
  Matrix a{2, 24, true, random};
  Matrix b{2, 24, true, random};
  Scratch s{make_tile(2, 2, 1)};
  s.clear();
  multiply_add(s, a.operand(), 2, {{b.operand(), 2, 0}}, 24);
  for (int32_t i{0}; i < 2; ++i) {
    for (int32_t j{0}; j < 2; ++j) {
      ASSERT_EQ(bits(accumulator(s, i, j)), bits(ordered_sum(0.0F, a, i, b, j)));
    }
  }
}

}  // namespace
}  // namespace monomoe::cpu
