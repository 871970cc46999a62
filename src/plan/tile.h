// How rows and columns split into tiles, and their order within a block.
#pragma once

#include <cstdint>

#include "base/hd.h"
#include "base/int_math.h"
#include "plan/shape.h"

namespace monomoe {

struct TilePos {
  int32_t m;  // row tile
  int32_t n;  // column tile
};

constexpr int32_t kRasterBlock{8};

/// Tile `idx` of an m_tiles x n_tiles grid walked in blocks of 8 x 8, rows fastest: bands of 8 row
/// tiles, in a band all columns block by block. The last band and block may be ragged.
MONOMOE_HD constexpr TilePos raster(int32_t idx, int32_t m_tiles, int32_t n_tiles) {
  const int32_t band{idx / (kRasterBlock * n_tiles)};
  const int32_t in_band{idx - band * kRasterBlock * n_tiles};
  const int32_t height{min_of(kRasterBlock, m_tiles - band * kRasterBlock)};
  return {band * kRasterBlock + in_band % height, in_band / height};
}

/// Column tiles of gate_up: a tile holds cols/2 gate columns and the matching up columns.
MONOMOE_HD constexpr int32_t gate_up_tiles(int32_t inter, const TileShape& t) {
  return ceil_div(inter, t.cols / 2);
}

MONOMOE_HD constexpr int32_t col_tiles(int32_t width, const TileShape& t) {
  return ceil_div(width, t.cols);
}

MONOMOE_HD constexpr int32_t row_tiles(int32_t rows, const TileShape& t) {
  return ceil_div(rows, t.rows);
}

}  // namespace monomoe
