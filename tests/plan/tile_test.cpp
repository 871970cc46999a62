#include "plan/tile.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <utility>

namespace monomoe {
namespace {

TEST(TileRaster, VisitsEveryTileOnce) {
  for (int32_t m{1}; m <= 20; ++m) {
    for (int32_t n{1}; n <= 20; ++n) {
      std::set<std::pair<int32_t, int32_t>> seen;
      for (int32_t i{0}; i < m * n; ++i) {
        const TilePos at{raster(i, m, n)};
        ASSERT_TRUE(at.m >= 0 && at.m < m && at.n >= 0 && at.n < n)
            << i << " of " << m << " x " << n << ": " << at.m << ", " << at.n;
        seen.insert({at.m, at.n});
      }
      ASSERT_EQ(seen.size(), static_cast<size_t>(m * n)) << m << " x " << n;
    }
  }
}

// 64 tiles in a row touch at most 8 row tiles and 8 column tiles: their operands stay in L2.
TEST(TileRaster, WalksBlocksOfEightByEight) {
  constexpr int32_t kTiles{24};
  for (int32_t block{0}; block < kTiles * kTiles / 64; ++block) {
    std::set<int32_t> rows;
    std::set<int32_t> cols;
    for (int32_t i{0}; i < 64; ++i) {
      const TilePos at{raster(block * 64 + i, kTiles, kTiles)};
      rows.insert(at.m);
      cols.insert(at.n);
    }
    EXPECT_EQ(rows.size(), 8U) << "block " << block;
    EXPECT_EQ(cols.size(), 8U) << "block " << block;
  }
}

TEST(TileColumns, CoverTheWidth) {
  for (const int32_t cols : {2, 4, 128}) {
    const TileShape t{make_tile(128, cols, 16)};
    for (int32_t width{1}; width <= 3 * cols; ++width) {
      const int32_t full{col_tiles(width, t)};
      EXPECT_TRUE(full * cols >= width && (full - 1) * cols < width) << width;
      const int32_t half{gate_up_tiles(width, t)};
      EXPECT_TRUE(half * cols / 2 >= width && (half - 1) * cols / 2 < width) << width;
    }
    EXPECT_EQ(col_tiles(0, t), 0);
    EXPECT_EQ(gate_up_tiles(0, t), 0);
  }
}

}  // namespace
}  // namespace monomoe
