#include "plan/routing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "plan/builder.h"
#include "plan/tables.h"

namespace monomoe::plan_tests {
namespace {

/// All ranks of a group: their tables and views of them.
struct Group {
  Routing routing;
  TileShape tile;
  std::vector<std::vector<int32_t>> words;
  std::vector<Tables> tables;

  Group(Routing r, const TileShape& t)
      : routing{std::move(r)}, tile{t}, words{make_tables(routing, t)} {
    for (int32_t rank{0}; rank < routing.ranks(); ++rank) {
      const Dims d{dims_of(routing, rank)};
      tables.push_back(view_tables(words[static_cast<size_t>(rank)].data(),
                                   table_layout(d, tile, routing.group_tokens()), d));
    }
  }

  /// (expert, token of the group, k) of all rows of all ranks, gaps left out.
  [[nodiscard]] std::vector<Route> rows() const {
    std::vector<Route> all;
    for (int32_t rank{0}; rank < routing.ranks(); ++rank) {
      const Dims d{dims_of(routing, rank)};
      const Tables& t{tables[static_cast<size_t>(rank)]};
      for (int32_t n{0}; n < t.num_tiles(); ++n) {
        const int32_t e{expert_of_tile(t, d.local_experts(), n)};
        const int32_t begin{n * tile.rows};
        for (int32_t row{begin}; row < begin + rows_in_tile(t, tile, e, n); ++row) {
          const RowSource src{t.row_src[row]};
          const int32_t first{
              std::accumulate(routing.tokens.begin(), routing.tokens.begin() + src.home, 0)};
          all.push_back({d.first_expert() + e, 0, first * routing.top_k + src.slot});
        }
      }
    }
    return all;
  }
};

Routing random_routing(int32_t tokens, int32_t experts, int32_t top_k, Dice& dice) {
  Routing r{{tokens}, experts, top_k, {}};
  for (int32_t i{0}; i < tokens * top_k; ++i) r.ids.push_back(dice.roll(-1, experts));
  return r;
}

TEST(RoutingRows, SameForEveryRankCount) {
  for (uint64_t seed{0}; seed < 200; ++seed) {
    Dice dice{seed};
    Routing r{random_routing(dice.roll(0, 40), dice.roll(1, 9), dice.roll(1, 5), dice)};
    const int32_t tokens{r.group_tokens()};
    const std::vector<Route> alone{Group{r, make_tile(4, 4, 2)}.rows()};
    for (int32_t ranks{2}; ranks <= 10; ++ranks) {
      r.tokens = random_split(tokens, ranks, dice);
      ASSERT_EQ((Group{r, make_tile(4, 4, 2)}.rows()), alone) << "seed " << seed << " R " << ranks;
    }
  }
}

TEST(RoutingRows, AreSortedByExpertTokenAndSlot) {
  for (uint64_t seed{0}; seed < 50; ++seed) {
    Dice dice{seed};
    const Group g{random_routing(30, 5, 3, dice), make_tile(2, 2, 1)};
    const std::vector<Route> rows{g.rows()};
    ASSERT_TRUE(std::is_sorted(rows.begin(), rows.end())) << "seed " << seed;
    const auto routed = std::count_if(g.routing.ids.begin(), g.routing.ids.end(),
                                      [](int32_t id) { return id >= 0; });
    ASSERT_EQ(static_cast<std::ptrdiff_t>(rows.size()), routed) << "seed " << seed;
  }
}

TEST(RoutingTiles, BelongToTheExpertThatHasRows) {
  // Experts 0, 2, 3 and 6 have no rows; 1 has one tile, 4 three, 5 one.
  const Routing r{{7}, 7, 1, {4, 4, 1, 4, 5, 4, 4}};
  const Group g{r, make_tile(2, 2, 1)};
  const Tables& t{g.tables.front()};
  ASSERT_EQ(t.num_tiles(), 5);
  const std::vector<int32_t> expert{1, 4, 4, 4, 5};
  const std::vector<int32_t> rows{1, 2, 2, 1, 1};
  for (int32_t n{0}; n < 5; ++n) {
    const auto i = static_cast<size_t>(n);
    EXPECT_EQ(expert_of_tile(t, 7, n), expert[i]) << "tile " << n;
    EXPECT_EQ(rows_in_tile(t, g.tile, expert[i], n), rows[i]) << "tile " << n;
  }
}

TEST(RoutingTiles, ZeroRowsEndAtTheAlignmentOrTheTile) {
  const TileShape t{make_tile(128, 128, 16)};
  EXPECT_EQ(padded_rows(1, t), 64);
  EXPECT_EQ(padded_rows(64, t), 64);
  EXPECT_EQ(padded_rows(65, t), 128);
  EXPECT_EQ(padded_rows(128, t), 128);
}

TEST(RoutingTables, RoutesCountTheRowsPushedToEachBlock) {
  for (uint64_t seed{0}; seed < 50; ++seed) {
    Dice dice{seed};
    Routing r{random_routing(20, 4, 2, dice)};
    r.tokens = random_split(20, 3, dice);
    const Group g{r, make_tile(2, 2, 4)};
    std::vector<std::vector<int32_t>> pushed(3, std::vector<int32_t>(20, 0));
    for (const Tables& t : g.tables) {
      for (int32_t row{0}; row < t.num_tiles() * g.tile.rows; ++row) {
        const RowSource src{t.row_src[row]};
        if (src.home == RowSource::kGap) continue;
        ++pushed[static_cast<size_t>(src.home)]
                [static_cast<size_t>(src.slot / r.top_k / g.tile.sum_tokens)];
      }
    }
    for (int32_t rank{0}; rank < 3; ++rank) {
      const auto i = static_cast<size_t>(rank);
      for (int32_t b{0}; b < num_token_blocks(r.tokens[i], g.tile); ++b) {
        EXPECT_EQ(g.tables[i].routes[b], pushed[i][static_cast<size_t>(b)])
            << "seed " << seed << " rank " << rank << " block " << b;
      }
    }
  }
}

TEST(RoutingTables, PartsDoNotOverlapAndHoldEveryRouting) {
  for (uint64_t seed{0}; seed < 300; ++seed) {
    Dice dice{seed};
    const int32_t group_tokens{dice.roll(0, 50)};
    Dims d{};
    d.ranks = dice.roll(1, 6);
    d.rank = dice.roll(0, d.ranks);
    d.tokens = dice.roll(0, group_tokens + 1);
    d.experts = dice.roll(1, 9);
    d.top_k = dice.roll(1, 4);
    const TileShape t{make_tile(4, 4, 2)};
    const TableLayout l{table_layout(d, t, group_tokens)};
    const int64_t local{d.local_experts()};
    EXPECT_GE(l.home_start * 4, static_cast<int64_t>(sizeof(TableHeader)));
    EXPECT_GE(l.tile_start, l.home_start + local * (d.ranks + 1));
    EXPECT_GE(l.routes, l.tile_start + local + 1);
    EXPECT_GE(l.ids, l.routes + num_token_blocks(d.tokens, t));
    EXPECT_GE(l.row_src, l.ids + int64_t{d.tokens} * d.top_k);
    EXPECT_EQ(l.row_src % 2, 0);
    EXPECT_EQ(l.words % 4, 0);
    // The worst: each local expert but one has a single row.
    const int64_t routes{int64_t{group_tokens} * d.top_k};
    const int64_t others{local > 0 ? std::min<int64_t>(routes, local - 1) : 0};
    const int64_t rows{others * t.rows +
                       (local > 0 ? round_up<int64_t>(routes - others, t.rows) : 0)};
    EXPECT_GE(l.words, l.row_src + 2 * rows) << "seed " << seed;
  }
}

}  // namespace
}  // namespace monomoe::plan_tests
