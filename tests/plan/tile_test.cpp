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

// Two blocks load what the tiles of a pair share.
TEST(TileRaster, PairsLieAboveOrBesideEachOther) {
  for (int32_t m{1}; m <= 40; ++m) {
    for (int32_t n{1}; n <= 12; ++n) {
      const Raster raster{make_raster(m, n)};
      for (int32_t i{0}; i + 1 < m * n; i += 2) {
        const TilePos a{raster.at(i)};
        const TilePos b{raster.at(i + 1)};
        const bool above{a.n == b.n && b.m == a.m + 1};
        const bool beside{a.m == b.m && b.n == a.n + 1};
        ASSERT_TRUE(above || beside) << m << " x " << n << " at " << i;
        ASSERT_TRUE(above || (m % 2 == 1 && a.m == m - 1)) << m << " x " << n << " at " << i;
      }
    }
  }
}

// A band of one row tile behind one of eight would read all columns for itself.
TEST(TileRaster, BandsHaveAboutEightRowTilesAndDifferLittle) {
  constexpr int32_t kCols{3};
  for (int32_t m{1}; m <= 100; ++m) {
    // A row tile belongs to the band in whose stretch of tickets it is first seen: bands follow
    // each other, so each row's first ticket tells how many rows came before.
    std::vector<int32_t> heights;
    for (int32_t row{0}; row < m;) {
      std::set<int32_t> rows;
      for (int32_t i{row * kCols}; i < m * kCols; ++i) {
        const int32_t r{make_raster(m, kCols).at(i).m};
        if (rows.size() * kCols == static_cast<size_t>(i - row * kCols) && !rows.empty() &&
            !rows.contains(r)) {
          break;
        }
        rows.insert(r);
      }
      heights.push_back(static_cast<int32_t>(rows.size()));
      row += heights.back();
    }
    const auto [low, high] = std::minmax_element(heights.begin(), heights.end());
    EXPECT_LE(*high - *low, 3) << m;
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
