// share_memory against trying all pairs of bytes.

#include "runtime/overlap.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <sstream>

namespace monomoe::testing {
namespace {

constexpr int64_t kBase{1 << 20};

Tensor strided(int64_t at, std::vector<int64_t> shape, std::vector<int64_t> stride) {
  Tensor t;
  t.data = reinterpret_cast<void*>(kBase + at);  // NOLINT: never read
  t.ndim = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), t.shape.begin());
  std::copy(stride.begin(), stride.end(), t.stride.begin());
  return t;
}

std::set<int64_t> bytes_of(const Tensor& t, int64_t item) {
  std::set<int64_t> all;
  for (int64_t i{0}; i < t.numel(); ++i) {
    int64_t at{reinterpret_cast<intptr_t>(t.data)};
    int64_t left{i};
    for (auto d = static_cast<size_t>(t.ndim); d-- > 0; left /= t.shape[d]) {
      at += left % t.shape[d] * t.stride[d] * item;
    }
    for (int64_t b{0}; b < item; ++b) all.insert(at + b);
  }
  return all;
}

std::string text(const Tensor& t) {
  std::ostringstream s;
  s << reinterpret_cast<intptr_t>(t.data) - kBase << ":";
  for (size_t d{0}; d < static_cast<size_t>(t.ndim); ++d)
    s << " " << t.shape[d] << "*" << t.stride[d];
  return s.str();
}

TEST(Overlap, IsThatOfTheBytesForRandomTensors) {
  std::mt19937_64 random{1};
  const auto roll = [&](int64_t lowest, int64_t highest) {
    return std::uniform_int_distribution<int64_t>{lowest, highest}(random);
  };
  int meet{0};
  constexpr int kPairs{20'000};
  for (int n{0}; n < kPairs; ++n) {
    Tensor t[2];
    int64_t item[2];
    for (int i{0}; i < 2; ++i) {
      std::vector<int64_t> shape, stride;
      for (int64_t d{roll(1, 3)}; d > 0; --d) {
        shape.push_back(roll(1, 4));
        stride.push_back(roll(0, 3) == 0 ? roll(-20, 20) : roll(0, 12) * 4);
      }
      item[i] = int64_t{1} << roll(0, 2);
      t[i] = strided(roll(0, 150), shape, stride);
    }
    const std::set<int64_t> a{bytes_of(t[0], item[0])};
    bool wanted{false};
    for (const int64_t byte : bytes_of(t[1], item[1])) wanted = wanted || a.count(byte) > 0;
    meet += wanted ? 1 : 0;
    for (const bool swapped : {false, true}) {
      const Footprint f{Footprint::of(t[swapped ? 1 : 0], item[swapped ? 1 : 0])};
      const Footprint g{Footprint::of(t[swapped ? 0 : 1], item[swapped ? 0 : 1])};
      ASSERT_EQ(share_memory(f, g), wanted) << text(t[0]) << " and " << text(t[1]);
    }
  }
  EXPECT_GT(meet, kPairs / 5);
  EXPECT_LT(meet, kPairs * 4 / 5);
}

TEST(Overlap, IsNotSeenInInterleavedViewsOfLargeTensors) {
  constexpr int64_t kE{512}, kI{4096}, kH{7168};
  const auto of = [](const Tensor& t) { return Footprint::of(t, 4); };
  const Tensor gate{strided(0, {kE, kI, kH}, {2 * kI * kH, kH, 1})};
  const Tensor up{strided(kI * kH * 4, {kE, kI, kH}, {2 * kI * kH, kH, 1})};
  EXPECT_FALSE(share_memory(of(gate), of(up)));
  const Tensor late{strided(kI * kH * 4 - 4, {kE, kI, kH}, {2 * kI * kH, kH, 1})};
  EXPECT_TRUE(share_memory(of(gate), of(late)));
  const Tensor left{strided(0, {kE, kI, kH}, {kI * 3 * kH, 3 * kH, 1})};
  const Tensor right{strided(kH * 8, {kE, kI, kH}, {kI * 3 * kH, 3 * kH, 1})};
  EXPECT_FALSE(share_memory(of(left), of(right)));
  const Tensor wide{strided(kH * 8 - 4, {kE, kI, kH}, {kI * 3 * kH, 3 * kH, 1})};
  EXPECT_TRUE(
      share_memory(of(left), of(strided(kH * 4 - 4, {kE, kI, kH}, {kI * 3 * kH, 3 * kH, 1}))));
  EXPECT_FALSE(share_memory(of(left), of(wide)));
}

}  // namespace
}  // namespace monomoe::testing
