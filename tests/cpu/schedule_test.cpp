// The tables that users get, against the oracle that the plan's own tests are built on.
#include "arch/cpu/schedule.h"

#include <gtest/gtest.h>

#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "plan/tables.h"

namespace monomoe::cpu {
namespace {

using plan_tests::Routing;

constexpr int32_t kUntouched{-77};

/// Tables of all ranks, in memory that was filled beforehand.
struct Built {
  std::vector<Dims> dims;
  std::vector<TableLayout> layouts;
  std::vector<std::vector<int32_t>> words;

  Built(const Routing& r, const TileShape& tile, const IdsView& ids) {
    std::vector<int32_t*> pointers;
    for (int32_t rank{0}; rank < r.ranks(); ++rank) {
      dims.push_back(plan_tests::dims_of(r, rank));
      layouts.push_back(table_layout(dims.back(), tile, r.group_tokens()));
      words.emplace_back(static_cast<size_t>(layouts.back().words), kUntouched);
    }
    for (std::vector<int32_t>& w : words) pointers.push_back(w.data());
    build_tables(dims, tile, ids, pointers);
  }
  [[nodiscard]] TableHeader& header(size_t rank) {
    return *reinterpret_cast<TableHeader*>(words[rank].data());
  }
};

IdsView ids_of(const Routing& r) { return {r.ids.data(), false, r.top_k, 1}; }

Routing make_routing(std::vector<int32_t> tokens, int32_t experts, int32_t top_k, uint32_t seed) {
  Routing r{std::move(tokens), experts, top_k, {}};
  std::mt19937 random{seed};
  std::uniform_int_distribution<int32_t> id{-1, experts - 1};
  for (int32_t i{0}; i < r.group_tokens() * top_k; ++i) r.ids.push_back(id(random));
  return r;
}

struct Setting {
  std::string name;
  Routing routing;
  TileShape tile;
};

void PrintTo(const Setting& s, std::ostream* out) { *out << s.name; }

std::vector<Setting> settings() {
  const TileShape small{make_tile(4, 4, 2)};
  Routing same{{5, 6}, 3, 2, {}};
  same.ids.assign(22, 1);
  Routing none{{4, 3}, 3, 2, {}};
  none.ids.assign(14, -1);
  Routing twice{{3}, 4, 2, {2, 2, 0, 0, 3, 3}};
  return {{"one_rank", make_routing({33}, 5, 2, 1), small},
          {"default_tile", make_routing({300, 211}, 3, 3, 2), TileShape{}},
          {"three_ranks", make_routing({9, 14, 2}, 8, 3, 3), small},
          {"more_ranks_than_experts", make_routing({4, 4, 4, 4, 4}, 3, 1, 4), small},
          {"empty_ranks", make_routing({0, 7, 0}, 4, 2, 5), small},
          {"no_tokens", make_routing({0, 0}, 4, 2, 6), small},
          {"all_to_one_expert", same, small},
          {"nothing_routed", none, small},
          {"expert_twice_in_a_token", twice, small}};
}

class ScheduleTables : public ::testing::TestWithParam<Setting> {};

TEST_P(ScheduleTables, AreThoseOfTheOracle) {
  const Setting& s{GetParam()};
  Built got{s.routing, s.tile, ids_of(s.routing)};
  const std::vector<std::vector<int32_t>> expected{plan_tests::make_tables(s.routing, s.tile)};
  const uint32_t hash{got.header(0).hash};
  for (size_t rank{0}; rank < got.words.size(); ++rank) {
    TableHeader& header{got.header(rank)};
    EXPECT_EQ(header.hash, hash) << "every rank knows the same hash";
    header.hash = 0;  // the oracle has none
    const TableLayout& l{got.layouts[rank]};
    const auto same = [&](int64_t begin, int64_t end, const char* part) {
      for (int64_t i{begin}; i < end; ++i) {
        const auto at = static_cast<size_t>(i);
        ASSERT_EQ(got.words[rank][at], expected[rank][at])
            << part << "[" << i - begin << "] of rank " << rank;
      }
    };
    same(0, static_cast<int64_t>(sizeof(TableHeader) / 4), "header");
    same(l.home_start, l.tile_start, "home_start");
    same(l.tile_start, l.routes, "tile_start");
    same(l.routes, l.ids, "routes");
    same(l.ids, l.ids + int64_t{got.dims[rank].tokens} * got.dims[rank].top_k, "ids");
    const int64_t end{l.row_src + int64_t{2} * header.num_tiles * s.tile.rows};
    same(l.row_src, end, "row_src");
    for (size_t i{static_cast<size_t>(end)}; i < got.words[rank].size(); ++i) {
      ASSERT_EQ(got.words[rank][i], kUntouched) << "rows that do not exist are not written";
    }
  }
}

TEST_P(ScheduleTables, AreTheSameForInt64AndAnyStrides) {
  const Setting& s{GetParam()};
  const Routing& r{s.routing};
  const Built expected{r, s.tile, ids_of(r)};
  const int64_t tokens{r.group_tokens()};
  std::vector<int64_t> wide(r.ids.begin(), r.ids.end());
  EXPECT_EQ((Built{r, s.tile, {wide.data(), true, r.top_k, 1}}.words), expected.words);
  // Transposed, every second column of a wider matrix, junk between.
  std::vector<int32_t> columns(static_cast<size_t>(2 * tokens * r.top_k + 1), 1000);
  for (int64_t t{0}; t < tokens; ++t) {
    for (int64_t k{0}; k < r.top_k; ++k) {
      columns[static_cast<size_t>(2 * (k * tokens + t))] =
          r.ids[static_cast<size_t>(t * r.top_k + k)];
    }
  }
  EXPECT_EQ((Built{r, s.tile, {columns.data(), false, 2, 2 * tokens}}.words), expected.words);
}

INSTANTIATE_TEST_SUITE_P(Cpu, ScheduleTables, ::testing::ValuesIn(settings()),
                         [](const auto& p) { return p.param.name; });

TEST(ScheduleHash, TellsRoutingsApart) {
  const TileShape tile{make_tile(4, 4, 2)};
  const Routing a{make_routing({9, 9}, 6, 2, 1)};
  Routing b{a};
  b.ids[3] = b.ids[3] == 0 ? 1 : 0;
  EXPECT_NE((Built{a, tile, ids_of(a)}.header(0).hash), (Built{b, tile, ids_of(b)}.header(0).hash));
}

}  // namespace
}  // namespace monomoe::cpu
