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

/// An m_tiles x n_tiles grid walked in bands of about 8 row tiles, rows fastest, so that a band's
/// rows and the columns in work stay in L2. Bands differ by at most one row tile: with 9 row tiles
/// a band of 8 and one of 1 would read the columns twice.
struct Raster {
  int32_t n_tiles{1};
  int32_t height{1};  // row tiles of a band
  int32_t taller{0};  // the first bands have one row tile more

  MONOMOE_HD constexpr TilePos at(int32_t idx) const {
    const int32_t in_taller{taller * (height + 1) * n_tiles};
    const bool is_taller{idx < in_taller};
    const int32_t rows{is_taller ? height + 1 : height};
    const int32_t rest{is_taller ? idx : idx - in_taller};
    const int32_t band{rest / (rows * n_tiles)};
    const int32_t in_band{rest - band * rows * n_tiles};
    const int32_t first{(is_taller ? 0 : taller * (height + 1)) + band * rows};
    const int32_t n{in_band / rows};
    return {first + in_band - n * rows, n};
  }
};

MONOMOE_HD constexpr Raster make_raster(int32_t m_tiles, int32_t n_tiles) {
  const int32_t bands{max_of(1, (m_tiles + kRasterBlock / 2) / kRasterBlock)};
  const int32_t height{m_tiles / bands};
  return {n_tiles, height, m_tiles - bands * height};
}

/// Column tiles of gate_up: a tile holds cols/2 gate columns and the matching up columns.
template <class Tile>
MONOMOE_HD constexpr int32_t gate_up_tiles(int32_t inter, const Tile& t) {
  return ceil_div(inter, t.cols / 2);
}

template <class Tile>
MONOMOE_HD constexpr int32_t col_tiles(int32_t width, const Tile& t) {
  return ceil_div(width, t.cols);
}

template <class Tile>
MONOMOE_HD constexpr int32_t row_tiles(int32_t rows, const Tile& t) {
  return ceil_div(rows, t.rows);
}

}  // namespace monomoe
