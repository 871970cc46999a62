// What the Hopper backward loads, without a GPU: a stand-in for TMA writes down which element each
// box brings to each place of a stage, and the products' definitions say which it must be.
#include "arch/sm90/work.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <tuple>

#include "plan/builder.h"
#include "plan/order.h"

namespace monomoe::sm90 {
namespace {

using cuda::Map;
using plan_tests::Dice;
using plan_tests::Layer;
using plan_tests::Sequence;

/// An element of an operand: map, column, row, matrix. `map` -1: zero.
using Element = std::tuple<int32_t, int32_t, int32_t, int32_t>;
constexpr Element kZero{-1, 0, 0, 0};

struct Extents {
  int32_t cols, rows, matrices;
};

/// The tensor maps of a backward launch.
class Maps {
 public:
  explicit Maps(const Plan& p) {
    const Dims& d{p.dims};
    const int32_t ring{p.knobs.ring_tiles * p.tile.rows};
    const int32_t saved{p.knobs.save_tiles * p.tile.rows};
    const int32_t experts{d.local_experts()};
    set(Map::kXRing, d.hidden, ring, 1);
    set(Map::kXSaved, d.hidden, saved, 1);
    set(Map::kAct, d.inter, ring, 1);
    set(Map::kGate, d.hidden, d.inter, experts);
    set(Map::kUp, d.hidden, d.inter, experts);
    set(Map::kDown, d.inter, d.hidden, experts);
    set(Map::kX, d.hidden, d.tokens, 1);
    set(Map::kSharedAct, d.shared, d.tokens, 1);
    set(Map::kSharedGate, d.hidden, d.shared, 1);
    set(Map::kSharedUp, d.hidden, d.shared, 1);
    set(Map::kSharedDown, d.shared, d.hidden, 1);
    set(Map::kDyRing, d.hidden, ring, 1);
    set(Map::kGrad, d.inter, ring, 2);
    set(Map::kDy, d.hidden, d.tokens, 1);
    set(Map::kSharedGrad, d.shared, d.tokens, 2);
  }
  [[nodiscard]] Element at(Map map, int32_t col, int32_t row, int32_t matrix) const {
    return at(static_cast<int32_t>(map), col, row, matrix);
  }
  [[nodiscard]] Element at(int32_t map, int32_t col, int32_t row, int32_t matrix) const {
    const Extents& e{extents_.at(map)};
    const bool inside{col < e.cols && row < e.rows && matrix < e.matrices};
    return inside ? Element{map, col, row, matrix} : kZero;
  }

 private:
  void set(Map map, int32_t cols, int32_t rows, int32_t matrices) {
    extents_[static_cast<int32_t>(map)] = {cols, rows, matrices};
  }
  std::map<int32_t, Extents> extents_;
};

/// Remembers the boxes of a task as the stages would hold them.
class Recorder {
 public:
  Recorder(const Maps& maps, const Work& w) : maps_{maps}, rows_{w.rows} {}
  void begin() { blocks_.emplace_back(); }
  struct Handle {
    int32_t which;
    bool is_tall;
  };
  [[nodiscard]] Handle map(int32_t which, bool is_tall) const { return {which, is_tall}; }
  void load_a_rows(const Handle& map, int32_t x, int32_t y, int32_t z) {
    EXPECT_EQ(map.is_tall, rows_ > kHalfTile);
    for (int32_t i{0}; i < (map.is_tall ? 2 : 1); ++i) put(map, i, x, y, z);
  }
  void load_a_cols(const Handle& map, int32_t x, int32_t y, int32_t z) {
    put(map, 0, x, y, z);
    if (rows_ > kHalfTile) put(map, 1, x + kHalfTile, y, z);
  }
  void load_b_cols(const Handle& map, int32_t x, int32_t y, int32_t z) {
    put(map, 2, x, y, z);
    put(map, 3, x + kHalfTile, y, z);
  }
  void end() const {
    EXPECT_EQ(static_cast<int32_t>(blocks_.back().size()), rows_ > kHalfTile ? 4 : 3);
  }

  [[nodiscard]] int32_t depth() const { return static_cast<int32_t>(blocks_.size()) * kBlockK; }

  /// Element (i, k) of A or B (`first_half` 0 or 2), K-major or not.
  [[nodiscard]] Element element(int32_t first_half, bool k_major, int32_t i, int32_t k) const {
    const int32_t half{first_half + i / kHalfTile};
    const Box& b{blocks_[static_cast<size_t>(k / kBlockK)].at(half)};
    const int32_t in_box{b.is_tall ? i : i % kHalfTile};
    if (k_major) return maps_.at(b.map, b.x + k % kBlockK, b.y + in_box, b.z);
    EXPECT_FALSE(b.is_tall);
    return maps_.at(b.map, b.x + in_box, b.y + k % kBlockK, b.z);
  }

 private:
  struct Box {
    int32_t map;
    bool is_tall;
    int32_t x, y, z;
  };
  void put(const Handle& map, int32_t half, int32_t x, int32_t y, int32_t z) {
    EXPECT_TRUE(blocks_.back().emplace(half, Box{map.which, map.is_tall, x, y, z}).second)
        << "half " << half << " twice";
  }

  const Maps& maps_;
  int32_t rows_;
  std::vector<std::map<int32_t, Box>> blocks_;
};

/// Rows of tokens that a wgrad task sums over: ring row, or saved row.
struct TokenRow {
  int32_t a, b;
  bool b_saved;
};
std::vector<TokenRow> token_rows(const Plan& p, const Task& t) {
  std::vector<TokenRow> rows;
  if (detail::is_shared(t.kind)) {
    for (int32_t i{0}; i < p.dims.tokens; ++i) rows.push_back({i, i, false});
    return rows;
  }
  for (int32_t n{t.chunk.begin}; n < t.chunk.end; ++n) {
    const int32_t padded{padded_rows(p.rows_of(t.expert, n), p.tile)};
    for (int32_t i{0}; i < padded; ++i) {
      const int32_t ring{p.ring_slot(n) * p.tile.rows + i};
      const bool saved{t.kind == Kind::kWgradGateUp && p.x_in_saved(n)};
      rows.push_back({ring, saved ? n * p.tile.rows + i : ring, saved});
    }
  }
  return rows;
}

constexpr int32_t kProbes[]{0, 1, 63, 64, 65, 127};

void check_wgrad(const Plan& p, const Maps& maps, const Task& t, const Work& w) {
  Recorder r{maps, w};
  walk_wgrad(w, r);
  const bool shared{detail::is_shared(t.kind)};
  const bool gate_up{t.kind == Kind::kWgradGateUp || t.kind == Kind::kSharedWgradGateUp};
  const int32_t inter{shared ? p.dims.shared : p.dims.inter};
  const int32_t tiles{ceil_div(gate_up ? inter : p.dims.hidden, 128)};
  const int32_t which{gate_up ? t.row / tiles : 0};
  const int32_t row0{(gate_up ? t.row % tiles : t.row) * 128};
  const Map a{gate_up ? (shared ? Map::kSharedGrad : Map::kGrad)
                      : (shared ? Map::kDy : Map::kDyRing)};
  const Map b{gate_up ? (shared ? Map::kX : Map::kXRing) : (shared ? Map::kSharedAct : Map::kAct)};
  EXPECT_EQ(w.rows, std::min(128, (gate_up ? inter : p.dims.hidden) - row0));
  const std::vector<TokenRow> rows{token_rows(p, t)};
  const auto num_rows = static_cast<int32_t>(rows.size());
  ASSERT_EQ(r.depth(), round_up(num_rows, kBlockK));
  for (int32_t k{0}; k < r.depth(); ++k) {
    for (const int32_t i : kProbes) {
      if (k < num_rows) {
        const TokenRow& at{rows[static_cast<size_t>(k)]};
        if (i < w.rows) {
          ASSERT_EQ(r.element(0, false, i, k), maps.at(a, row0 + i, at.a, which));
        }
        ASSERT_EQ(r.element(2, false, i, k),
                  maps.at(at.b_saved ? Map::kXSaved : b, t.col * 128 + i, at.b, 0));
      } else {
        if (i < w.rows) {
          ASSERT_EQ(r.element(0, false, i, k), kZero);
        }
        ASSERT_EQ(r.element(2, false, i, k), kZero);
      }
    }
  }
}

void check_dgrad(const Plan& p, const Maps& maps, const Task& t, const Work& w) {
  Recorder r{maps, w};
  walk_dgrad(w, r);
  const bool shared{detail::is_shared(t.kind)};
  const bool down{t.kind == Kind::kDgradDown || t.kind == Kind::kSharedDgradDown};
  const int32_t depth{down ? p.dims.hidden : shared ? p.dims.shared : p.dims.inter};
  const int32_t row0{(shared ? t.row : p.ring_slot(t.row)) * 128};
  const Map a{down ? (shared ? Map::kDy : Map::kDyRing) : (shared ? Map::kSharedGrad : Map::kGrad)};
  const int32_t padded_depth{round_up(depth, kBlockK)};
  ASSERT_EQ(r.depth(), (down ? 1 : 2) * padded_depth);
  EXPECT_EQ(w.rows,
            shared ? std::min(128, p.dims.tokens - t.row * 128) : p.rows_of(t.expert, t.row));
  for (int32_t k{0}; k < r.depth(); ++k) {
    const int32_t second{k >= padded_depth ? 1 : 0};  // dup and up
    const int32_t at{k - second * padded_depth};
    const Map b{down     ? (shared ? Map::kSharedDown : Map::kDown)
                : second ? (shared ? Map::kSharedUp : Map::kUp)
                         : (shared ? Map::kSharedGate : Map::kGate)};
    for (const int32_t i : kProbes) {
      if (i < w.rows) {
        ASSERT_EQ(r.element(0, true, i, k), maps.at(a, at, row0 + i, second));
      }
      ASSERT_EQ(r.element(2, false, i, k), maps.at(b, t.col * 128 + i, at, t.expert));
    }
  }
}

/// Backward of a random layer in tiles of the kernels' size.
Layer kernel_layer(Dice& dice) {
  Layer l;
  l.tile = TileShape{};
  l.hidden = 8 * dice.roll(1, 40);
  l.inter = 8 * dice.roll(1, 40);
  l.shared = dice.coin() ? 8 * dice.roll(1, 30) : 0;
  l.routing.experts = dice.roll(1, 4);
  l.routing.top_k = 2;
  l.routing.tokens = plan_tests::random_split(dice.roll(0, 600), dice.roll(1, 3), dice);
  for (int32_t i{0}; i < l.routing.group_tokens() * 2; ++i) {
    l.routing.ids.push_back(dice.roll(-1, l.routing.experts));
  }
  l.knobs.ring_tiles = dice.roll(2, 6);
  l.knobs.piece_tiles = l.knobs.ring_tiles / 2;
  l.knobs.save_tiles = dice.roll(0, 8);
  l.knobs.save_x = dice.coin();
  l.wanted.shared_gate_up = l.wanted.shared_down = l.shared > 0;
  l.wanted.score = false;
  return l;
}

class BackwardOperands : public ::testing::TestWithParam<int32_t> {};

TEST_P(BackwardOperands, AreThoseOfTheProducts) {
  Dice dice{static_cast<uint64_t>(GetParam())};
  const Layer layer{kernel_layer(dice)};
  SCOPED_TRACE(plan_tests::describe(layer));
  Sequence calls{1};
  calls.backward(layer, calls.forward(layer));
  int32_t seen{0};
  for (const Plan& p : calls.launches()[1].plans) {
    const Maps maps{p};
    Task t;
    MainCursor cursor{p};
    for (int32_t ticket{0}; cursor.seek(p, ticket, &t); ++ticket) {
      Work w{};
      describe(p, t, &w);
      ASSERT_EQ(w.kind, static_cast<int32_t>(t.kind));
      if (w.feed == Feed::kWgrad) check_wgrad(p, maps, t, w);
      if (w.feed == Feed::kDgrad) check_dgrad(p, maps, t, w);
      if (::testing::Test::HasFailure()) {
        FAIL() << name_of(t.kind) << " expert " << t.expert << " row " << t.row << " col " << t.col;
      }
      seen += w.feed == Feed::kForward ? 0 : 1;
    }
  }
  EXPECT_GT(seen, 0);
}
INSTANTIATE_TEST_SUITE_P(Seeds, BackwardOperands, ::testing::Range(0, 40));

}  // namespace
}  // namespace monomoe::sm90
