#include "plan/shape.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace monomoe {
namespace {

TEST(ShapeOwners, HoldContiguousRangesOfAllExperts) {
  for (int32_t ranks{1}; ranks <= 9; ++ranks) {
    for (int32_t experts{0}; experts <= 20; ++experts) {
      int32_t next{0};
      for (int32_t rank{0}; rank < ranks; ++rank) {
        const Dims d{.ranks = ranks, .rank = rank, .experts = experts};
        EXPECT_EQ(d.first_expert(), next) << "R " << ranks << " E " << experts << " rank " << rank;
        EXPECT_EQ(d.local_experts(), experts / ranks + (rank < experts % ranks ? 1 : 0));
        next += d.local_experts();
      }
      EXPECT_EQ(next, experts) << "R " << ranks;
    }
  }
}

TEST(ShapeTile, FamilyKeepsItsPromises) {
  for (const int32_t rows : {1, 2, 4, 8, 16, 32, 64, 128}) {
    for (const int32_t tokens : {1, 2, 4, 16}) {
      const TileShape t{make_tile(rows, 2, tokens)};
      EXPECT_EQ(t.rows % t.align, 0) << rows;       // zero rows end inside of the tile
      EXPECT_EQ(t.align % t.move_rows, 0) << rows;  // and with a dispatch task
      EXPECT_EQ(t.stage_tokens % t.sum_tokens, 0) << tokens;
    }
  }
}

}  // namespace
}  // namespace monomoe
