// The dimensions of one launch on one rank, and the tile a kernel works on.
#pragma once

#include <cstdint>

#include "base/hd.h"
#include "base/int_math.h"

namespace monomoe {

/// How work is cut. Kernels pass constants; exhaustive tests pass tiny ones.
struct TileShape {
  int32_t rows{128};         // rows of an output tile; every expert starts at a multiple of it
  int32_t cols{128};         // columns of an output tile (gate_up: half gate, half up)
  int32_t align{64};         // rows behind an expert's end are zero up to a multiple of it
  int32_t move_rows{16};     // rows of one dispatch task
  int32_t stage_tokens{64};  // tokens of one stage task; a multiple of sum_tokens
  int32_t sum_tokens{16};    // tokens of one combine task and of one arrival counter
};

/// The one family of tile shapes: everything follows from three numbers.
MONOMOE_HD constexpr TileShape make_tile(int32_t rows, int32_t cols, int32_t tokens) {
  return {rows, cols, max_of(1, rows / 2), max_of(1, rows / 8), 4 * tokens, tokens};
}
static_assert(make_tile(128, 128, 16).move_rows == TileShape{}.move_rows);
static_assert(make_tile(128, 128, 16).stage_tokens == TileShape{}.stage_tokens);

/// The default tile as compile-time constants, for kernels.
struct FixedTile {
  static constexpr int32_t rows{TileShape{}.rows};
  static constexpr int32_t cols{TileShape{}.cols};
  static constexpr int32_t align{TileShape{}.align};
  static constexpr int32_t move_rows{TileShape{}.move_rows};
  static constexpr int32_t stage_tokens{TileShape{}.stage_tokens};
  static constexpr int32_t sum_tokens{TileShape{}.sum_tokens};
};

/// What a launch on one rank works on.
struct Dims {
  int32_t ranks{1};
  int32_t rank{0};
  int32_t tokens{0};  // of this rank
  int32_t hidden{0};
  int32_t inter{0};
  int32_t experts{0};
  int32_t top_k{0};
  int32_t shared{0};  // intermediate width of the shared expert, 0 = none
  bool score{false};  // the shared expert has a sigmoid gate

  MONOMOE_HD constexpr int32_t local_experts() const {
    return experts / ranks + (rank < experts % ranks ? 1 : 0);
  }
  MONOMOE_HD constexpr int32_t first_expert() const {
    return rank * (experts / ranks) + min_of(rank, experts % ranks);
  }
};

/// Limits that keep every int32 of the plan exact. validate.cpp turns them into sentences.
constexpr int64_t kMaxExperts{1 << 16};
constexpr int64_t kMaxRanks{1 << 10};
constexpr int64_t kMaxWidth{1 << 20};             // H, I, Is
constexpr int64_t kMaxRows{int64_t{1} << 30};     // tokens of the group times top-k, plus gaps
constexpr int64_t kMaxTickets{int64_t{1} << 30};  // of one line

}  // namespace monomoe
