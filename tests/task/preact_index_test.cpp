// The order of saved pre-activations, against the accumulator layout of wgmma.m64nNk16 (PTX ISA,
// "Register Fragments for wgmma.mma_async.m64nNk16", matrix D), written down here a second time.
#include <gtest/gtest.h>

#include <vector>

#include "task/gate_up.h"

namespace monomoe {
namespace {

constexpr int32_t kThreads{128};  // of a warpgroup
constexpr int64_t kBlockSize{64 * 64};

struct Position {
  int32_t row;
  int32_t col;
};

/// Where accumulator `i` of thread `t` lies in the 64 x N tile of a warpgroup.
Position accumulator(int32_t t, int32_t i) {
  const int32_t warp{t / 32};
  const int32_t lane{t % 32};
  return {16 * warp + lane / 4 + 8 * (i / 2 % 2), 8 * (i / 4) + 2 * (lane % 4) + i % 2};
}

class PreactWidths : public ::testing::TestWithParam<int32_t> {};

TEST_P(PreactWidths, NoTwoValuesShareAPlaceAndAllLieInside) {
  const int32_t inter{GetParam()};
  for (const int64_t rows : {1, 63, 64, 130, 256}) {
    std::vector<bool> taken(static_cast<size_t>(preact_elements(rows, inter)));
    for (int64_t row{0}; row < rows; ++row) {
      for (int32_t col{0}; col < inter; ++col) {
        for (const int32_t which : {0, 1}) {
          const int64_t at{preact_index(row, col, which, inter)};
          ASSERT_GE(at, 0);
          ASSERT_LT(at, static_cast<int64_t>(taken.size()));
          ASSERT_FALSE(taken[static_cast<size_t>(at)]) << row << ", " << col << ", " << which;
          taken[static_cast<size_t>(at)] = true;
        }
      }
    }
  }
}

TEST_P(PreactWidths, WholeBlocksAreFilledWithoutAGap) {
  const int32_t inter{round_up(GetParam(), kPreactBlock)};
  constexpr int64_t kRows{128};
  std::vector<bool> taken(static_cast<size_t>(preact_elements(kRows, inter)));
  for (int64_t row{0}; row < kRows; ++row) {
    for (int32_t col{0}; col < inter; ++col) {
      for (const int32_t which : {0, 1}) {
        taken[static_cast<size_t>(preact_index(row, col, which, inter))] = true;
      }
    }
  }
  for (size_t i{0}; i < taken.size(); ++i) ASSERT_TRUE(taken[i]) << "element " << i;
}

TEST_P(PreactWidths, BlocksAreOrderedByRowsColumnsAndGateBeforeUp) {
  const int32_t inter{GetParam()};
  const int64_t col_blocks{ceil_div(inter, 64)};
  for (int64_t row{0}; row < 200; row += 7) {
    for (int32_t col{0}; col < inter; ++col) {
      for (const int32_t which : {0, 1}) {
        const int64_t block{(row / 64 * col_blocks + col / 64) * 2 + which};
        ASSERT_EQ(preact_index(row, col, which, inter) / kBlockSize, block);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Preact, PreactWidths, ::testing::Values(8, 40, 64, 72, 200, 256),
                         [](const auto& p) { return "I" + std::to_string(p.param); });

/// gate_up: one warpgroup has 64 gate and the matching 64 up columns of 64 rows, in 2 x 32
/// accumulators a thread, and stores them as 16-byte vectors of 8.
TEST(PreactIndex, IsTheFragmentOrderOfGateUp) {
  constexpr int32_t kInter{192};
  for (const int64_t row0 : {0, 64, 192}) {
    for (const int32_t col0 : {0, 64, 128}) {
      for (const int32_t which : {0, 1}) {
        const int64_t block{preact_index(row0, col0, which, kInter) / kBlockSize * kBlockSize};
        for (int32_t t{0}; t < kThreads; ++t) {
          for (int32_t i{0}; i < 32; ++i) {
            const Position p{accumulator(t, i)};
            ASSERT_EQ(preact_index(row0 + p.row, col0 + p.col, which, kInter),
                      block + (i / 8 * kThreads + t) * 8 + i % 8)
                << "thread " << t << ", accumulator " << i;
          }
        }
      }
    }
  }
}

/// dgrad_down: 128 columns, 64 accumulators a thread. Each finds gate and up of its own positions
/// among the values it would have stored, 8 neighbours at a time.
TEST(PreactIndex, GivesEveryThreadOfDgradDownItsOwnVectors) {
  constexpr int32_t kInter{256};
  for (const int32_t col0 : {0, 128}) {
    for (int32_t t{0}; t < kThreads; ++t) {
      for (int32_t i{0}; i < 64; ++i) {
        const Position p{accumulator(t, i)};
        for (const int32_t which : {0, 1}) {
          const int64_t at{preact_index(p.row, col0 + p.col, which, kInter)};
          ASSERT_EQ(at % (kThreads * 8) / 8, t);
          ASSERT_EQ(at % 8, i % 8);
          if (i % 8 == 0) continue;
          const Position before{accumulator(t, i - 1)};
          ASSERT_EQ(at, preact_index(before.row, col0 + before.col, which, kInter) + 1);
        }
      }
    }
  }
}

}  // namespace
}  // namespace monomoe
