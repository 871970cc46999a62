// Heaps of virtual ranks: what growth keeps, and what it fills.
#include "comm/local.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace monomoe {
namespace {

uint8_t byte_at(const Arena& a, int64_t i) { return static_cast<uint8_t>(a.data()[i]); }

TEST(Arena, HoldsNothingAtFirst) {
  Arena a;
  EXPECT_EQ(a.bytes(), 0);
  EXPECT_EQ(a.data(), nullptr);
  a.fill(0xFF);  // nothing to fill
  a.reserve(0, 0xFF);
  EXPECT_EQ(a.bytes(), 0);
}

TEST(Arena, GivesAlignedMemoryFilledWithTheByte) {
  Arena a;
  a.reserve(1000, 0x3C);
  ASSERT_GE(a.bytes(), 1000);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data()) % 64, 0U);
  for (int64_t i{0}; i < a.bytes(); ++i) ASSERT_EQ(byte_at(a, i), 0x3C);
}

TEST(Arena, KeepsItsContentsWhileItIsLargeEnough) {
  Arena a;
  a.reserve(1000, 0x00);
  const std::byte* const before{a.data()};
  const int64_t bytes{a.bytes()};
  a.data()[7] = std::byte{42};
  a.reserve(10, 0xFF);
  a.reserve(bytes, 0xFF);
  EXPECT_EQ(a.data(), before);
  EXPECT_EQ(a.bytes(), bytes);
  EXPECT_EQ(byte_at(a, 7), 42);
}

TEST(Arena, FillsAllOfItWhenItGrows) {
  Arena a;
  a.reserve(1000, 0x00);
  const int64_t bytes{a.bytes()};
  a.reserve(bytes + 1, 0xFF);
  ASSERT_GT(a.bytes(), bytes);
  for (int64_t i{0}; i < a.bytes(); ++i) ASSERT_EQ(byte_at(a, i), 0xFF);
}

TEST(LocalHeaps, NewFlagsAndWordsHoldTheEpochOfTheLastLaunch) {
  LocalHeaps heaps{2};
  for (const int32_t rank : {0, 1}) heaps.reserve(rank, 100, 3, 2, 0xFFFFFFFFU, 0);
  for (const int32_t rank : {0, 1}) {
    const HeapView v{heaps.view(rank)};
    for (int32_t i{0}; i < 3; ++i) EXPECT_EQ(v.arrivals[i], 0);
    for (int32_t i{0}; i < 2; ++i) EXPECT_EQ(static_cast<uint32_t>(v.stage_flags[i]), 0xFFFFFFFFU);
    for (int32_t peer{0}; peer < 2; ++peer) EXPECT_EQ(v.words[peer].epoch(), 0xFFFFFFFFU);
    EXPECT_EQ(*v.abort, 0);
  }
}

TEST(LocalHeaps, GrowthKeepsRaisedFlagsAndCounts) {
  LocalHeaps heaps{2};
  heaps.reserve(0, 100, 3, 2, 4, 0);
  HeapView v{heaps.view(0)};
  v.arrivals[1] = 9;
  v.stage_flags[0] = 5;
  v.words[1] = LaunchWord::idle(5);
  heaps.reserve(0, 100000, 300, 200, 5, 0);
  v = heaps.view(0);
  EXPECT_EQ(v.arrivals[1], 9);
  EXPECT_EQ(v.arrivals[299], 0);
  EXPECT_EQ(v.stage_flags[0], 5);
  EXPECT_EQ(v.stage_flags[1], 4) << "never raised: the epoch it was made in";
  EXPECT_EQ(v.stage_flags[199], 5);
  EXPECT_EQ(v.words[1].epoch(), 5U);
  EXPECT_EQ(v.words[0].epoch(), 4U);
}

TEST(LocalHeaps, ASmallerLaunchShrinksNothing) {
  LocalHeaps heaps{1};
  heaps.reserve(0, 10000, 30, 20, 1, 0);
  heaps.view(0).stage_flags[19] = 2;
  const std::byte* const data{heaps.view(0).data};
  heaps.reserve(0, 10, 1, 1, 2, 0);
  EXPECT_EQ(heaps.view(0).data, data);
  EXPECT_EQ(heaps.view(0).stage_flags[19], 2);
}

TEST(LocalHeaps, SetEpochReachesEveryFlagAndWord) {
  LocalHeaps heaps{3};
  for (const int32_t rank : {0, 1, 2}) heaps.reserve(rank, 8, 1, 4, 7, 0);
  heaps.set_epoch(100);
  for (const int32_t rank : {0, 1, 2}) {
    const HeapView v{heaps.view(rank)};
    for (int32_t i{0}; i < 4; ++i) EXPECT_EQ(v.stage_flags[i], 100);
    for (int32_t peer{0}; peer < 3; ++peer) EXPECT_EQ(v.words[peer].epoch(), 100U);
  }
}

TEST(LocalHeaps, FillWritesDataButNoFlag) {
  LocalHeaps heaps{2};
  for (const int32_t rank : {0, 1}) heaps.reserve(rank, 64, 2, 2, 3, 0);
  heaps.fill(0xFF);
  for (const int32_t rank : {0, 1}) {
    const HeapView v{heaps.view(rank)};
    for (int32_t i{0}; i < 64; ++i) EXPECT_EQ(v.data[i], std::byte{0xFF});
    for (int32_t i{0}; i < 2; ++i) {
      EXPECT_EQ(v.arrivals[i], 0);
      EXPECT_EQ(v.stage_flags[i], 3);
    }
  }
}

TEST(LocalHeaps, RanksDoNotShareMemory) {
  LocalHeaps heaps{2};
  for (const int32_t rank : {0, 1}) heaps.reserve(rank, 64, 2, 2, 3, 0);
  heaps.view(0).data[0] = std::byte{1};
  heaps.view(0).arrivals[0] = 1;
  EXPECT_EQ(heaps.view(1).data[0], std::byte{0});
  EXPECT_EQ(heaps.view(1).arrivals[0], 0);
}

}  // namespace
}  // namespace monomoe
