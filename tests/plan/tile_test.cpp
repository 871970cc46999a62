#include "plan/tile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

namespace monomoe {
namespace {

TEST(TileRaster, VisitsEveryTileOnce) {
  for (int32_t m{1}; m <= 20; ++m) {
    for (int32_t n{1}; n <= 20; ++n) {
      std::set<std::pair<int32_t, int32_t>> seen;
      for (int32_t i{0}; i < m * n; ++i) {
        const TilePos at{make_raster(m, n).at(i)};
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
      const TilePos at{make_raster(kTiles, kTiles).at(block * 64 + i)};
      rows.insert(at.m);
      cols.insert(at.n);
    }
    EXPECT_EQ(rows.size(), 8U) << "block " << block;
    EXPECT_EQ(cols.size(), 8U) << "block " << block;
  }
}

// A band of one row tile behind one of eight would read all columns for itself.
TEST(TileRaster, BandsHaveAboutEightRowTilesAndDifferByAtMostOne) {
  constexpr int32_t kCols{3};
  for (int32_t m{1}; m <= 100; ++m) {
    std::vector<int32_t> heights;
    for (int32_t i{0}; i < m * kCols; i += kCols * heights.back()) {
      const int32_t first{make_raster(m, kCols).at(i).m};
      int32_t height{1};  // a band walks its first column before the second
      while (i + height < m * kCols && make_raster(m, kCols).at(i + height).n == 0) ++height;
      EXPECT_EQ(make_raster(m, kCols).at(i + height - 1).m, first + height - 1) << m;
      heights.push_back(height);
    }
    const auto [low, high] = std::minmax_element(heights.begin(), heights.end());
    EXPECT_LE(*high - *low, 1) << m;
    EXPECT_LE(*high, 11) << m;
    EXPECT_GE(*low, std::min(m, 6)) << m;
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
