#include "plan/order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "plan/builder.h"

namespace monomoe::plan_tests {
namespace {

/// A layer where every token chooses experts `ids`, K = size of `ids`.
Layer same_for_all(std::vector<int32_t> tokens, int32_t experts, const std::vector<int32_t>& ids) {
  Layer l{};
  l.routing.tokens = std::move(tokens);
  l.routing.experts = experts;
  l.routing.top_k = static_cast<int32_t>(ids.size());
  for (int32_t t{0}; t < l.routing.group_tokens(); ++t) {
    l.routing.ids.insert(l.routing.ids.end(), ids.begin(), ids.end());
  }
  return l;
}

/// Row tiles in the order in which tasks of `kind` first come to them.
std::vector<int32_t> tile_order(const Plan& p, Line line, Kind kind) {
  std::vector<int32_t> tiles;
  for (const Task& t : PlanRules::line(p, line)) {
    if (t.kind != kind) continue;
    if (std::find(tiles.begin(), tiles.end(), t.row) == tiles.end()) tiles.push_back(t.row);
  }
  return tiles;
}

TEST(Order, OwnersStartWithRowsOfTheNextRank) {
  // 3 ranks x 4 tokens, tiles of 2 rows: tiles 0, 1 come from rank 0, 2, 3 from rank 1, ...
  Layer l{same_for_all({4, 4, 4}, 3, {0, 1, 2})};
  l.knobs.ring_tiles = 12;
  l.knobs.piece_tiles = 6;
  Sequence s{1};
  s.forward(l);
  const std::vector<std::vector<int32_t>> wanted{
      {2, 3, 4, 5, 0, 1}, {4, 5, 0, 1, 2, 3}, {0, 1, 2, 3, 4, 5}};
  for (size_t rank{0}; rank < 3; ++rank) {
    const Plan& p{s.launches().front().plans[rank]};
    EXPECT_EQ(tile_order(p, Line::kMove, Kind::kDispatch), wanted[rank]) << "rank " << rank;
    EXPECT_EQ(tile_order(p, Line::kMain, Kind::kGateUp), wanted[rank]) << "rank " << rank;
  }
}

TEST(Order, RotationStaysInsideOfTheChunk) {
  Layer l{same_for_all({4, 4, 4}, 1, {0})};  // rank 0 owns all: 6 tiles, rank 1's begin at 2
  l.knobs.ring_tiles = 6;
  l.knobs.piece_tiles = 3;
  Sequence s{1};
  s.forward(l);
  const Plan& p{s.launches().front().plans[0]};
  EXPECT_EQ(tile_order(p, Line::kMove, Kind::kDispatch), (std::vector<int32_t>{2, 0, 1, 3, 4, 5}));
}

TEST(Order, DispatchFollowsTheFirstReader) {
  for (uint64_t seed{0}; seed < 500; ++seed) {
    Dice dice{seed};
    Layer l{random_layer(dice)};
    l.knobs.save_tiles = 0;
    l.routing.tokens = random_split(12, dice.roll(1, 4), dice);
    l.routing.experts = 2;
    for (int32_t i{0}; i < 12; ++i) l.routing.ids.push_back(dice.roll(-1, 2));
    Sequence s{1};
    s.backward(l, s.forward(l));
    for (const Launch& launch : s.launches()) {
      for (const Plan& p : launch.plans) {
        ASSERT_EQ(tile_order(p, Line::kMove, Kind::kDispatch),
                  tile_order(p, Line::kMain, Kind::kGateUp))
            << "seed " << seed << " " << describe(l);
      }
    }
  }
}

TEST(Order, DownFollowsGateUpByAboutOneWave) {
  Layer l{same_for_all({40}, 1, {0})};  // 20 row tiles, 2 gate_up tiles each
  l.knobs.ring_tiles = 20;
  l.knobs.piece_tiles = 1;
  for (const int32_t workers : {1, 2, 8, 16}) {
    l.knobs.workers = workers;
    Sequence s{1};
    s.forward(l);
    int32_t before{0};  // gate_up tickets in front of the first down
    for (const Task& t : PlanRules::line(s.launches().front().plans[0], Line::kMain)) {
      if (t.kind == Kind::kDown) break;
      ++before;
    }
    const int32_t own{s.launches().front().plans[0].gu_tiles()};
    const int32_t lag{workers * kLagWaves};
    EXPECT_GE(before - own, std::min(lag, 38) - own) << "workers " << workers;
    EXPECT_LE(before - own, lag + own) << "workers " << workers;
  }
}

/// Row tiles of gate_up in front of the first down, with chunks of 4 of 20 row tiles.
int32_t gate_up_rows_before_down(int32_t workers, int32_t ring_tiles) {
  Layer l{same_for_all({40}, 1, {0})};  // 20 row tiles, 2 gate_up tiles each
  l.knobs.ring_tiles = ring_tiles;
  l.knobs.piece_tiles = 4;
  l.knobs.workers = workers;
  Sequence s{1};
  s.forward(l);
  const Plan& p{s.launches().front().plans[0]};
  int32_t before{0};
  for (const Task& t : PlanRules::line(p, Line::kMain)) {
    if (t.kind == Kind::kDown) break;
    ++before;
  }
  return before / p.gu_tiles();
}

TEST(Order, ALagEndsAtTheNextChunkBorder) {
  EXPECT_EQ(gate_up_rows_before_down(1, 20), 8) << "a lag of 2 tiles: one more chunk";
  EXPECT_EQ(gate_up_rows_before_down(2, 20), 8) << "4 tiles: just that chunk";
  EXPECT_EQ(gate_up_rows_before_down(3, 20), 12) << "6 tiles: another chunk";
  EXPECT_EQ(gate_up_rows_before_down(1000, 20), 20) << "no further than the end";
}

TEST(Order, ALagIsClampedToTheLastChunkBorderInTheRing) {
  EXPECT_EQ(gate_up_rows_before_down(1000, 8), 8);
  EXPECT_EQ(gate_up_rows_before_down(1000, 15), 12);
  EXPECT_EQ(gate_up_rows_before_down(1000, 16), 16);
}

TEST(Order, ChunksCoverAnExpertAndStopAtItsEnd) {
  Layer l{same_for_all({5}, 3, {0, 2})};  // 3 row tiles for expert 0, none for 1, 3 for 2
  l.knobs.ring_tiles = 4;
  l.knobs.piece_tiles = 2;
  Sequence s{1};
  s.forward(l);
  const Plan& p{s.launches().front().plans[0]};
  std::vector<std::vector<int32_t>> chunks;
  for (Chunk c{first_chunk(p)}; !is_end(p, c); c = next_chunk(p, c)) {
    chunks.push_back({c.expert, c.begin, c.end});
    for (int32_t n{c.begin}; n < c.end; ++n) EXPECT_EQ(chunk_of_tile(p, n).begin, c.begin);
  }
  EXPECT_EQ(chunks, (std::vector<std::vector<int32_t>>{
                        {0, 0, 2}, {0, 2, 3}, {1, 3, 3}, {2, 3, 5}, {2, 5, 6}}));
}

/// Of few tokens, experts and ranks, with any routing.
Layer small_layer(Dice& dice) {
  Layer l{random_layer(dice)};
  l.routing.tokens = random_split(dice.roll(0, 10), dice.roll(1, 4), dice);
  l.routing.experts = dice.roll(1, 4);
  for (int32_t i{0}; i < l.routing.group_tokens(); ++i) {
    l.routing.ids.push_back(dice.roll(-1, l.routing.experts));
  }
  return l;
}

/// check(dice, plan) for the plans of many small layers.
template <class Check>
void for_small_plans(const Check& check) {
  for (uint64_t seed{0}; seed < 1000 && !testing::Test::HasFatalFailure(); ++seed) {
    Dice dice{seed};
    const Layer l{small_layer(dice)};
    SCOPED_TRACE("seed " + std::to_string(seed) + " " + describe(l));
    Sequence s{1};
    s.backward(l, s.forward(l));
    for (const Launch& launch : s.launches()) {
      for (const Plan& p : launch.plans) check(dice, p);
    }
  }
}

// A worker sees some of the tickets only: those that others did not take.
TEST(OrderCursor, GivesTheSameTasksWhenTicketsAreSkipped) {
  for_small_plans([](Dice& dice, const Plan& p) {
    for (const Line line : {Line::kMain, Line::kMove, Line::kCombine}) {
      const std::vector<Task> all{PlanRules::line(p, line)};
      Cursor cursor{p};
      Task t{};
      int32_t ticket{dice.roll(0, 4)};
      for (; ticket < static_cast<int32_t>(all.size()); ticket += dice.roll(0, 6)) {
        ASSERT_TRUE(cursor.seek(p, line, ticket, &t));
        ASSERT_EQ(check::key_of(t), check::key_of(all[static_cast<size_t>(ticket)]))
            << "ticket " << ticket;
      }
      ASSERT_FALSE(cursor.seek(p, line, ticket + dice.roll(0, 9), &t));
    }
  });
}

/// Tickets of two tiles, in batches as a kernel's picker takes them: how many of `n` tickets from
/// `first` on there are, and their tasks.
std::vector<std::vector<Task>> decode_batch(const Plan& p, int32_t first, int32_t n,
                                            MainCursor* cursor) {
  while (!cursor->knows(first) || cursor->count(first, n) == 0) {
    if (!cursor->knows(first) && cursor->is_behind_end()) return {};
    cursor->look_ahead(p);
  }
  std::vector<std::vector<Task>> tickets(static_cast<size_t>(cursor->count(first, n)));
  for (size_t i{0}; i < tickets.size(); ++i) {
    const int32_t ticket{first + static_cast<int32_t>(i)};
    const Segment& segment{cursor->segment_of(ticket)};
    tickets[i].resize(static_cast<size_t>(segment.tasks_of(ticket)));
    for (size_t m{0}; m < tickets[i].size(); ++m) {
      segment.decode(p, ticket, static_cast<int32_t>(m), &tickets[i][m]);
    }
  }
  return tickets;
}

// Whatever lies in a batch: the end of a segment, several segments, the end of the line.
TEST(OrderCursor, DecodesBatchesOfPairs) {
  for_small_plans([](Dice& dice, const Plan& p) {
    const std::vector<Task> all{PlanRules::line(p, Line::kMain)};
    std::vector<size_t> begins;  // of tickets among all tasks
    MainCursor cursor;
    cursor.start(p, 2);
    for (size_t at{0}; at < all.size();) {
      const auto tickets = decode_batch(p, static_cast<int32_t>(begins.size()), 1, &cursor);
      ASSERT_EQ(tickets.size(), 1U);
      begins.push_back(at);
      at += tickets[0].size();
    }
    cursor.start(p, 2);
    const auto end = static_cast<int32_t>(begins.size());
    int32_t first{dice.roll(0, 4)};
    while (first < end) {
      const int32_t n{dice.roll(1, MainCursor::kAhead + 1)};
      const auto tickets = decode_batch(p, first, n, &cursor);
      ASSERT_EQ(static_cast<int32_t>(tickets.size()), std::min(n, end - first));
      for (size_t i{0}; i < tickets.size(); ++i) {
        for (size_t m{0}; m < tickets[i].size(); ++m) {
          ASSERT_EQ(check::key_of(tickets[i][m]),
                    check::key_of(all[begins[static_cast<size_t>(first) + i] + m]))
              << "ticket " << first << " + " << i;
        }
      }
      first += n + dice.roll(0, 6);
    }
    ASSERT_TRUE(decode_batch(p, first, 1, &cursor).empty());
  });
}

}  // namespace
}  // namespace monomoe::plan_tests
