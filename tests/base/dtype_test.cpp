// bf16 rounding against an oracle that looks at values, not at bits.
#include "base/dtype.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

namespace monomoe {
namespace {

constexpr uint32_t kSignBit{0x80000000U};
constexpr uint16_t kLargest{0x7F7F};

float from_bits(uint32_t bits) { return std::bit_cast<float>(bits); }

/// Magnitude of a bf16 pattern without sign. The pattern behind the largest counts as 2^128: that
/// is where rounding to infinity begins.
double magnitude(uint16_t bits) {
  return bits > kLargest ? std::ldexp(1.0, 128) : static_cast<double>(to_float(Bf16{bits}));
}

/// The nearest pattern to |v|, of two equally near ones the even one; `below` is the largest <=
/// |v|.
uint16_t nearest(double v, uint16_t below) {
  const auto above = static_cast<uint16_t>(below + 1);
  const double down{v - magnitude(below)};
  const double up{magnitude(above) - v};
  if (down != up) return down < up ? below : above;
  return below % 2 == 0 ? below : above;
}

TEST(Bf16, IsTheUpperHalfOfAFloat) {
  for (uint32_t b{0}; b < 0x10000U; ++b) {
    const float v{to_float(Bf16{static_cast<uint16_t>(b)})};
    ASSERT_EQ(std::bit_cast<uint32_t>(v), b << 16U);
  }
  EXPECT_EQ(to_float(Bf16{0x3F80}), 1.0F);
  EXPECT_EQ(to_float(Bf16{0xC040}), -3.0F);
}

TEST(Bf16, RoundingKeepsEveryBf16Value) {
  for (uint32_t b{0}; b < 0x10000U; ++b) {
    const Bf16 v{static_cast<uint16_t>(b)};
    if (std::isnan(to_float(v))) continue;
    ASSERT_EQ(to_bf16(to_float(v)).bits, v.bits);
  }
}

TEST(Bf16, RoundsToTheNearestAndTiesToEven) {
  constexpr std::array<uint32_t, 7> kBetween{0x0001, 0x3A5C, 0x7FFF, 0x8000,
                                             0x8001, 0xC3A5, 0xFFFF};
  for (uint32_t below{0}; below <= kLargest; ++below) {
    for (const uint32_t low : kBetween) {
      const float v{from_bits(below << 16U | low)};
      const uint16_t expected{nearest(static_cast<double>(v), static_cast<uint16_t>(below))};
      ASSERT_EQ(to_bf16(v).bits, expected) << v;
      ASSERT_EQ(to_bf16(-v).bits, expected | 0x8000U) << -v;
    }
  }
}

TEST(Bf16, DenormalsAreRoundedLikeOthers) {
  EXPECT_EQ(to_bf16(from_bits(0x00000001U)).bits, 0x0000);
  EXPECT_EQ(to_bf16(from_bits(0x00008000U)).bits, 0x0000) << "a tie goes to even: zero";
  EXPECT_EQ(to_bf16(from_bits(0x00008001U)).bits, 0x0001);
  EXPECT_EQ(to_bf16(from_bits(0x00018000U)).bits, 0x0002);
  EXPECT_EQ(to_bf16(from_bits(0x007FFFFFU)).bits, 0x0080) << "up to the smallest normal value";
}

TEST(Bf16, ZeroKeepsItsSign) {
  EXPECT_EQ(to_bf16(0.0F).bits, 0x0000);
  EXPECT_EQ(to_bf16(-0.0F).bits, 0x8000);
}

TEST(Bf16, InfinityStaysAndLargeValuesBecomeIt) {
  constexpr float kInf{std::numeric_limits<float>::infinity()};
  EXPECT_EQ(to_bf16(kInf).bits, 0x7F80);
  EXPECT_EQ(to_bf16(-kInf).bits, 0xFF80);
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()).bits, 0x7F80);
  EXPECT_EQ(to_bf16(from_bits(0x7F7F7FFFU)).bits, kLargest) << "below the tie";
  EXPECT_EQ(to_bf16(from_bits(0x7F7F8000U)).bits, 0x7F80) << "the tie: the largest is odd";
}

TEST(Bf16, NanStaysNanWithItsSign) {
  for (const uint32_t bits : {0x7F800001U, 0x7F80FFFFU, 0x7FBFFFFFU, 0x7FC00000U, 0x7FFFFFFFU}) {
    const Bf16 plus{to_bf16(from_bits(bits))};
    const Bf16 minus{to_bf16(from_bits(bits | kSignBit))};
    EXPECT_TRUE(std::isnan(to_float(plus))) << std::hex << bits;
    EXPECT_TRUE(std::isnan(to_float(minus))) << std::hex << bits;
    EXPECT_EQ(plus.bits & 0x8040U, 0x0040U) << "quiet, positive";
    EXPECT_EQ(minus.bits & 0x8040U, 0x8040U) << "quiet, negative";
  }
}

TEST(Bf16, RoundBf16IsRoundingAndReadingBack) {
  for (const float v : {1.0F, 1.00390625F, -2.7182818F, 3.0e-39F}) {
    EXPECT_EQ(std::bit_cast<uint32_t>(round_bf16(v)),
              std::bit_cast<uint32_t>(to_float(to_bf16(v))));
  }
}

}  // namespace
}  // namespace monomoe
