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
/// rows and the columns in work stay in L2. Bands are as equal as they can be: with 9 row tiles a
/// band of 8 and one of 1 would read the columns twice.
///
/// Tiles 2 i and 2 i + 1 share an operand, for two blocks that load it together: they lie above
/// each other, or, in the last row of an odd number of rows, beside each other. So bands have an
/// even number of rows, but the last one may have one more; it goes through two columns at a time.
struct Raster {
  int32_t n_tiles{1};
  int32_t height{0};  // row tiles of a band, even
  int32_t bands{1};
  int32_t taller{0};  // the first bands have two row tiles more
  int32_t odd{0};     // 1: the last band has one row tile more

  MONOMOE_HD constexpr TilePos at(int32_t idx) const {
    const int32_t in_taller{taller * (height + 2) * n_tiles};
    const bool is_taller{idx < in_taller};
    const int32_t rows{is_taller ? height + 2 : height};
    const int32_t rest{is_taller ? idx : idx - in_taller};
    const int32_t last{bands - 1 - taller};  // of the bands behind the taller ones
    int32_t band{0};                         // (kernels pay for each division, also in cold code)
    if (rows > 0 && bands > 1) band = rest / (rows * n_tiles);
    if (!is_taller) band = min_of(band, last);
    const int32_t in_band{rest - band * rows * n_tiles};
    const int32_t first{(is_taller ? 0 : taller * (height + 2)) + band * rows};
    const bool is_even{is_taller || odd == 0 || band < last};
    const int32_t turn{is_even ? rows : 2 * (rows + 1)};  // tiles of a column, or of two
    const int32_t two{in_band / turn};
    const int32_t in_two{in_band - two * turn};
    if (is_even) return {first + in_two, two};
    const int32_t cols{min_of(2, n_tiles - 2 * two)};
    if (in_two >= rows * cols) return {first + rows, 2 * two + in_two - rows * cols};
    const bool second{in_two >= rows};
    return {first + in_two - (second ? rows : 0), 2 * two + (second ? 1 : 0)};
  }
};

MONOMOE_HD constexpr Raster make_raster(int32_t m_tiles, int32_t n_tiles) {
  const int32_t pairs{m_tiles / 2};
  const int32_t bands{max_of(1, min_of(pairs, (m_tiles + kRasterBlock / 2) / kRasterBlock))};
  const int32_t in_band{bands == 1 ? pairs : pairs / bands};
  return {n_tiles, in_band * 2, bands, pairs - in_band * bands, m_tiles % 2};
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
