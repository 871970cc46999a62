// Every plan of small shapes, proved by plan/check.h.

#include "plan/check.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "plan/builder.h"

namespace monomoe::plan_tests {
namespace {

/// Calls f(ids) for all (E + 1)^(T * K) routing tables.
template <class F>
void for_each_routing(int32_t tokens, int32_t experts, int32_t top_k, const F& f) {
  std::vector<int32_t> ids(static_cast<size_t>(tokens * top_k), -1);
  for (;;) {
    f(ids);
    size_t i{0};
    while (i < ids.size() && ++ids[i] == experts) ids[i++] = -1;
    if (i == ids.size()) return;
  }
}

/// Calls f(tokens) for all ways to give `total` tokens to `ranks` ranks.
template <class F>
void for_each_split(int32_t total, int32_t ranks, std::vector<int32_t>& tokens, const F& f) {
  if (static_cast<int32_t>(tokens.size()) == ranks - 1) {
    tokens.push_back(total);
    f(tokens);
    tokens.pop_back();
    return;
  }
  for (int32_t t{0}; t <= total; ++t) {
    tokens.push_back(t);
    for_each_split(total - t, ranks, tokens, f);
    tokens.pop_back();
  }
}

uint32_t random_epoch(Dice& dice) {
  return static_cast<uint32_t>(dice.one_of({1, -4, -3, -2, -1}));
}

/// Forward and backward, now and then with other knobs or twice.
void expect_sound(const Layer& l, Dice& dice) {
  Sequence s{random_epoch(dice)};
  const int32_t context{s.forward(l)};
  s.backward(l, context);
  if (dice.roll(0, 4) == 0) s.backward(l, context, dice.roll(1, 9), dice.roll(2, 5));
  const std::vector<std::string> found{check_launches(s.launches(), start_of(l))};
  ASSERT_TRUE(found.empty()) << describe(l) << " epoch " << s.launches()[0].plans[0].epoch
                             << join(found);
}

/// Tiles of one test: the smallest, and some that reach zero rows, several token tiles a combine
/// task, several stage chunks a rank, parts that don't divide a tile.
constexpr TileShape kTiles[]{make_tile(2, 2, 1), make_tile(4, 4, 1), make_tile(4, 2, 2),
                             make_tile(8, 4, 2), make_tile(2, 4, 4), make_tile(16, 4, 1),
                             {4, 2, 2, 2, 2, 1}, {2, 2, 1, 1, 1, 1}, {4, 2, 2, 3, 4, 2}};

// Sanitizers slow this down a lot and look for other faults: every 16th case will do for them.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kStride{16};
#else
constexpr uint64_t kStride{1};
#endif

/// (ranks, part): the cases are dealt out to parts, so that each test is short.
class CheckEveryTable : public ::testing::TestWithParam<std::tuple<int32_t, int32_t>> {
 protected:
  static constexpr uint64_t kParts{4};
  [[nodiscard]] int32_t ranks() const { return std::get<0>(GetParam()); }
  /// Counts the cases: is this one of the part?
  bool is_mine() {
    const uint64_t part{seed_ % kParts};
    const uint64_t turn{seed_++ / kParts};
    return part == static_cast<uint64_t>(std::get<1>(GetParam())) && turn % kStride == 0;
  }
  [[nodiscard]] Dice dice() const { return Dice{seed_ * 8 + static_cast<uint64_t>(ranks())}; }

 private:
  uint64_t seed_{0};
};

// T = 4, K = 2, E = 3: each table once, its other parameters drawn.
TEST_P(CheckEveryTable, T4_E3_K2) {
  for_each_routing(4, 3, 2, [&](const std::vector<int32_t>& ids) {
    if (!is_mine() || HasFatalFailure()) return;
    Dice d{dice()};
    Layer l{random_layer(d)};
    l.routing = {random_split(4, ranks(), d), 3, 2, ids};
    l.chain_shared = ranks() > 1 && d.coin();
    expect_sound(l, d);
  });
}

// All smaller T, E and K: each table with every split of its tokens.
TEST_P(CheckEveryTable, SmallerWithEverySplit) {
  const auto check_table = [&](int32_t experts, int32_t top_k, const std::vector<int32_t>& ids) {
    const auto tokens = static_cast<int32_t>(ids.size()) / top_k;
    std::vector<int32_t> split;
    for_each_split(tokens, ranks(), split, [&](const std::vector<int32_t>& per_rank) {
      if (!is_mine() || HasFatalFailure()) return;
      Dice d{dice()};
      Layer l{random_layer(d)};
      l.routing = {per_rank, experts, top_k, ids};
      l.chain_shared = ranks() > 1 && d.coin();
      expect_sound(l, d);
    });
  };
  for (int32_t experts{1}; experts <= 3; ++experts) {
    for (int32_t top_k{1}; top_k <= 2; ++top_k) {
      for (int32_t tokens{0}; tokens <= (top_k == 1 ? 4 : 3); ++tokens) {
        for_each_routing(tokens, experts, top_k, [&](const std::vector<int32_t>& ids) {
          check_table(experts, top_k, ids);
        });
      }
    }
  }
}

// Every combination of knobs and wanted gradients, for tables that fill several rings.
TEST_P(CheckEveryTable, EveryKnob) {
  const std::vector<std::vector<int32_t>> tables{
      {0, 0, 0, 0, 0, 0, 0, 0}, {0, 1, 0, 1, 0, 1, 0, 1}, {0, 0, 2, 2, 0, -1, 2, 2},
      {1, 1, 1, 1, 1, 1, 1, 0}, {2, 0, 1, 2, 0, 1, 2, 0}, {-1, -1, -1, -1, 1, 1, 1, 1}};
  const auto check_knobs = [&](const Knobs& k) {
    for (const std::vector<int32_t>& ids : tables) {
      for (int32_t wanted{0}; wanted < 8; ++wanted) {
        if (!is_mine() || HasFatalFailure()) continue;
        Dice d{dice()};
        Layer l{random_layer(d)};
        l.routing = {random_split(4, ranks(), d), 3, 2, ids};
        const int32_t workers{l.knobs.workers};
        l.knobs = k;
        l.knobs.workers = workers;
        l.wanted.gate_up = (wanted & 1) != 0;
        l.wanted.down = (wanted & 2) != 0;
        l.wanted.empty_experts = (wanted & 4) != 0;
        expect_sound(l, d);
      }
    }
  };
  for (const int32_t ring : {2, 3, 4}) {
    for (int32_t piece{1}; piece <= ring / 2; ++piece) {
      for (const int32_t save_tiles : {0, 1, 2, 3, 100}) {
        for (int32_t flags{0}; flags < 4; ++flags) {
          check_knobs({1, ring, piece, save_tiles, (flags & 1) != 0, (flags & 2) != 0});
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, CheckEveryTable,
                         ::testing::Combine(::testing::Values(1, 2, 3),
                                            ::testing::Values(0, 1, 2, 3)),
                         [](const auto& info) {
                           return "R" + std::to_string(std::get<0>(info.param)) + "_part" +
                                  std::to_string(std::get<1>(info.param));
                         });

/// Two layers and one without tokens, of the same group: different H, I, E, K, T and knobs.
class Layers {
 public:
  explicit Layers(Dice& dice) : dice_{dice}, ranks_{dice.roll(1, 5)}, chain_{dice.coin()} {
    tile_ = kTiles[static_cast<size_t>(dice.roll(0, static_cast<int32_t>(std::size(kTiles))))];
    const int32_t most{dice.one_of({4, 10, 20})};
    for (const int32_t tokens : {dice.roll(1, most), dice.roll(1, most), 0}) add(tokens);
  }
  [[nodiscard]] const Layer& operator[](size_t i) const { return layers_[i]; }
  [[nodiscard]] Start start() const { return start_of(layers_.front()); }

 private:
  void add(int32_t tokens) {
    Layer l{random_layer(dice_)};
    l.tile = tile_;
    l.chain_shared = chain_ && ranks_ > 1;
    l.knobs.ring_tiles = dice_.roll(2, 9);
    l.knobs.piece_tiles = dice_.roll(1, l.knobs.ring_tiles / 2 + 1);
    l.knobs.workers = dice_.one_of({1, 2, 5, 30, 1000});
    l.routing = {random_split(tokens, ranks_, dice_), dice_.roll(1, 6), dice_.roll(1, 4), {}};
    const int32_t hot{dice_.roll(0, l.routing.experts)};
    const int32_t heat{dice_.roll(0, 5)};  // 0: no favourite expert .. 4: nearly all rows
    for (int32_t i{0}; i < tokens * l.routing.top_k; ++i) {
      l.routing.ids.push_back(dice_.roll(0, 5) < heat ? hot : dice_.roll(-1, l.routing.experts));
    }
    layers_.push_back(l);
  }

  Dice& dice_;
  int32_t ranks_;
  bool chain_;
  TileShape tile_;
  std::vector<Layer> layers_;
};

void expect_sound(const Sequence& s, const Layers& layers, uint64_t seed) {
  const std::vector<std::string> found{check_launches(s.launches(), layers.start())};
  ASSERT_TRUE(found.empty()) << "seed " << seed << "\n A " << describe(layers[0]) << "\n B "
                             << describe(layers[1]) << join(found);
}

// Upper case: forward, lower case: backward, of layer A, B or the one without tokens, O.
class CheckSequence : public ::testing::TestWithParam<const char*> {};

TEST_P(CheckSequence, IsSound) {
  const std::string calls{GetParam()};
  for (uint64_t seed{0}; seed < 700 && !HasFatalFailure(); ++seed) {
    Dice dice{seed};
    const Layers layers{dice};
    Sequence s{random_epoch(dice)};
    std::vector<int32_t> context(3, -1);
    for (const char call : calls) {
      const size_t i{std::string{"AaBbOo"}.find(call) / 2};
      if (call == 'A' || call == 'B' || call == 'O') {
        context[i] = s.forward(layers[i]);
      } else {
        s.backward(layers[i], context[i]);
      }
    }
    expect_sound(s, layers, seed);
  }
}

INSTANTIATE_TEST_SUITE_P(Calls, CheckSequence,
                         ::testing::Values("AaAa", "ABba", "ABab", "BAab", "Aaa", "AOoa", "AaOoAa",
                                           "AABba", "AOBaob", "OOAoAa"),
                         [](const auto& info) { return std::string{info.param}; });

TEST(CheckSequences, AnyOrderOfCalls) {
  for (uint64_t seed{0}; seed < 3000 && !HasFatalFailure(); ++seed) {
    Dice dice{seed + 1000000};
    const Layers layers{dice};
    Sequence s{random_epoch(dice)};
    std::vector<std::pair<size_t, int32_t>> contexts;
    const int32_t calls{dice.roll(2, 9)};
    for (int32_t i{0}; i < calls; ++i) {
      if (contexts.empty() || dice.coin()) {
        const auto layer = static_cast<size_t>(dice.roll(0, 3));
        contexts.emplace_back(layer, s.forward(layers[layer]));
        continue;
      }
      const auto [layer, context] =
          contexts[static_cast<size_t>(dice.roll(0, static_cast<int32_t>(contexts.size())))];
      if (dice.coin()) {
        s.backward(layers[layer], context);
      } else {
        s.backward(layers[layer], context, dice.roll(1, 20), dice.roll(2, 6));
      }
    }
    expect_sound(s, layers, seed);
  }
}

// The real tile: 128 x 128, many experts, thousands of rows.
TEST(CheckTile128, T2000_H512_I384_E8_K2_R2) {
  Dice dice{1};
  Layer l{};
  l.tile = TileShape{};
  l.hidden = 512;
  l.inter = 384;
  l.shared = 256;
  l.score = true;
  l.routing = {{1100, 900}, 8, 2, {}};
  for (int32_t i{0}; i < 4000; ++i) {
    l.routing.ids.push_back(dice.coin() ? 3 : dice.roll(-1, 8));  // expert 3 has 2,000 rows
  }
  l.knobs = {16, 6, 3, 10, true, false};
  Sequence s{0xFFFFFFFFU};
  s.backward(l, s.forward(l));
  const std::vector<std::string> found{check_launches(s.launches())};
  EXPECT_TRUE(found.empty()) << join(found);
}

}  // namespace
}  // namespace monomoe::plan_tests
