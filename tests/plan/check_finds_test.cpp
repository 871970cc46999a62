// The checker itself: it must find whatever is broken. Each test breaks one rule of a sound plan.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "plan/builder.h"
#include "plan/check.h"

namespace monomoe::plan_tests {
namespace {

/// Where a rule is broken: at tasks of one kind, in one direction, for one counter.
struct Spot {
  Kind kind;
  bool backward;
  Counter counter;
  bool operator<(const Spot& o) const {
    return std::tie(kind, backward, counter) < std::tie(o.kind, o.backward, o.counter);
  }
  bool operator==(const Spot& o) const = default;
  [[nodiscard]] std::string name() const {
    return std::string{name_of(kind)} + (backward ? " (backward) " : " (forward) ") +
           name_of(counter);
  }
};

/// Sees which spots there are, and breaks one of them.
struct Broken : PlanRules {
  enum class How { kNot, kDropWait, kWaitForLess, kDropSignal, kDropArrival };
  static inline How how{How::kNot};
  static inline Spot where{};
  static inline std::set<Spot> waits_seen;
  static inline std::set<Spot> signals_seen;
  static inline std::set<Spot> arrivals_seen;

  static bool hits(How h, const Spot& s) { return how == h && where == s; }

  template <class F>
  static void waits(const Plan& p, const Task& t, const F& wait) {
    PlanRules::waits(p, t, [&](const CounterRef& c, int32_t target) {
      const Spot s{t.kind, p.backward, c.id};
      waits_seen.insert(s);
      if (hits(How::kDropWait, s)) return;
      wait(c, hits(How::kWaitForLess, s) ? target - 1 : target);
    });
  }
  template <class F>
  static void signals(const Plan& p, const Task& t, const F& raise) {
    PlanRules::signals(p, t, [&](const CounterRef& c, int32_t step) {
      const Spot s{t.kind, p.backward, c.id};
      signals_seen.insert(s);
      if (!hits(How::kDropSignal, s)) raise(c, step);
    });
  }
  template <class F>
  static void arrivals(const Plan& p, const Task& t, const F& raise) {
    PlanRules::arrivals(p, t, [&](const CounterRef& c, int32_t step) {
      const Spot s{t.kind, p.backward, c.id};
      arrivals_seen.insert(s);
      if (!hits(How::kDropArrival, s)) raise(c, step);
    });
  }
};

struct Sample {
  Sequence sequence;
  Start start;
};

/// Two layers of one group: forward, forward, backward, backward.
Sample sample(uint64_t seed) {
  constexpr TileShape kTiles[]{make_tile(2, 2, 1), make_tile(4, 4, 1), make_tile(4, 2, 2),
                               make_tile(2, 4, 4), {4, 2, 2, 2, 2, 1}, {2, 2, 1, 1, 1, 1}};
  Dice dice{seed};
  const TileShape tile{kTiles[dice.roll(0, 6)]};
  const int32_t ranks{dice.roll(1, 4)};
  const bool chain{ranks > 1 && dice.coin()};
  std::vector<Layer> layers;
  for (int32_t i{0}; i < 2; ++i) {
    Layer l{random_layer(dice)};
    l.tile = tile;
    l.chain_shared = chain;
    l.routing = {random_split(dice.roll(0, 9), ranks, dice), dice.roll(1, 4), dice.roll(1, 3), {}};
    for (int32_t k{0}; k < l.routing.group_tokens() * l.routing.top_k; ++k) {
      l.routing.ids.push_back(dice.roll(-1, l.routing.experts));
    }
    layers.push_back(std::move(l));
  }
  Sequence s{0xFFFFFFFEU};
  const int32_t a{s.forward(layers[0])};
  const int32_t b{s.forward(layers[1])};
  s.backward(layers[1], b);
  s.backward(layers[0], a);
  return {std::move(s), start_of(layers.front())};
}

constexpr uint64_t kSamples{400};

bool any_contains(const std::vector<std::string>& list, const std::string& part) {
  return std::any_of(list.begin(), list.end(),
                     [&](const std::string& s) { return s.find(part) != std::string::npos; });
}

/// Does any sample show that the plan is broken, by a sentence with `part` in it?
template <class Rules>
bool is_found(const std::string& part = "") {
  for (uint64_t seed{0}; seed < kSamples; ++seed) {
    const Sample s{sample(seed)};
    if (any_contains(check_launches<Rules>(s.sequence.launches(), s.start), part)) return true;
  }
  return false;
}

class CheckFinds : public ::testing::Test {
 protected:
  void SetUp() override {
    Broken::how = Broken::How::kNot;
    ASSERT_FALSE(is_found<Broken>()) << "sound plans are sound";  // and collects the spots
  }
  static void expect_found(Broken::How how, const std::set<Spot>& spots) {
    EXPECT_FALSE(spots.empty());
    for (const Spot& spot : std::set<Spot>{spots}) {
      Broken::how = how;
      Broken::where = spot;
      EXPECT_TRUE(is_found<Broken>()) << spot.name();
    }
  }
};

// So no wait is superfluous either.
TEST_F(CheckFinds, EveryDroppedWait) {
  EXPECT_EQ(Broken::waits_seen.size(), 35U);
  expect_found(Broken::How::kDropWait, Broken::waits_seen);
}

TEST_F(CheckFinds, EveryWaitForLess) {
  expect_found(Broken::How::kWaitForLess, Broken::waits_seen);
}

TEST_F(CheckFinds, EveryDroppedSignal) {
  expect_found(Broken::How::kDropSignal, Broken::signals_seen);
}

TEST_F(CheckFinds, EveryDroppedArrival) {
  expect_found(Broken::How::kDropArrival, Broken::arrivals_seen);
}

/// The waits believe in a ring that is one tile larger than it is.
struct RingTooSmall : PlanRules {
  template <class F>
  static void waits(const Plan& p, const Task& t, const F& wait) {
    Plan larger{p};
    ++larger.knobs.ring_tiles;
    PlanRules::waits(larger, t, wait);
  }
};

/// The order believes so.
struct OrderTooEager : PlanRules {
  static std::vector<Task> line(const Plan& p, Line l) {
    Plan larger{p};
    ++larger.knobs.ring_tiles;
    larger.knobs.workers = 100;
    return PlanRules::line(larger, l);
  }
};

/// Rows are sent off before the last column tile is done.
struct EarlyPush : PlanRules {
  static int32_t completion(const Plan& p, Kind k) {
    return std::min(1, PlanRules::completion(p, k));
  }
};

struct LastMainTaskMissing : PlanRules {
  static std::vector<Task> line(const Plan& p, Line l) {
    std::vector<Task> tasks{PlanRules::line(p, l)};
    if (l == Line::kMain && !tasks.empty()) tasks.pop_back();
    return tasks;
  }
};

struct FirstMoveTwice : PlanRules {
  static std::vector<Task> line(const Plan& p, Line l) {
    std::vector<Task> tasks{PlanRules::line(p, l)};
    if (l == Line::kMove && !tasks.empty()) tasks.push_back(tasks.front());
    return tasks;
  }
};

/// Tickets in falling order: legal for a graph, deadly for one worker.
struct Backwards : PlanRules {
  static std::vector<Task> line(const Plan& p, Line l) {
    std::vector<Task> tasks{PlanRules::line(p, l)};
    if (l == Line::kMain) std::reverse(tasks.begin(), tasks.end());
    return tasks;
  }
};

/// A rank counts its rows at a neighbour's block.
struct WrongBlock : PlanRules {
  template <class F>
  static void arrivals(const Plan& p, const Task& t, const F& raise) {
    PlanRules::arrivals(p, t, [&](CounterRef c, int32_t step) {
      if (c.id == Counter::kArrival && c.index > 0) --c.index;
      raise(c, step);
    });
  }
};

TEST(CheckFindsBroken, RingOneTileTooSmall) {
  EXPECT_TRUE(is_found<RingTooSmall>("writes x_ring"));
  EXPECT_TRUE(is_found<RingTooSmall>("writes act_ring"));
  EXPECT_TRUE(is_found<RingTooSmall>("writes grad_ring"));
}
TEST(CheckFindsBroken, OrderThatOutrunsTheRing) {
  EXPECT_TRUE(is_found<OrderTooEager>("the order outruns the ring"));
  EXPECT_TRUE(is_found<OrderTooEager>("stuck"));
}
TEST(CheckFindsBroken, PushBeforeTheRowsAreComplete) {
  EXPECT_TRUE(is_found<EarlyPush>("writes slots"));
}
TEST(CheckFindsBroken, MissingTask) { EXPECT_TRUE(is_found<LastMainTaskMissing>("missing: ")); }
TEST(CheckFindsBroken, TaskTwice) {
  EXPECT_TRUE(is_found<FirstMoveTwice>("not wanted, or twice: "));
}
TEST(CheckFindsBroken, TicketsInTheWrongOrder) { EXPECT_TRUE(is_found<Backwards>("stuck")); }
TEST(CheckFindsBroken, ArrivalAtTheWrongBlock) {
  EXPECT_TRUE(is_found<WrongBlock>("waits for arrival"));
}

/// A layer with all rows at one expert: 4 row tiles and a ring of 2.
Layer narrow_layer() {
  Layer l{};
  l.routing = {{8}, 1, 1, std::vector<int32_t>(8, 0)};
  return l;
}

TEST(CheckFindsBroken, ChunkLargerThanHalfOfTheRing) {
  Layer l{narrow_layer()};
  l.knobs.ring_tiles = 2;
  l.knobs.piece_tiles = 3;
  Sequence s{1};
  s.backward(l, s.forward(l));
  const std::vector<std::string> found{check_launches(s.launches())};
  EXPECT_TRUE(any_contains(found, "chunks of 1 to half the ring wanted, 3 of 2 found"))
      << join(found);
  EXPECT_TRUE(any_contains(found, "stuck: launch 0, rank 0, main line: gate_up")) << join(found);
}

// Rank 0's launch must not clear the chain while another rank still counts in it.
TEST(CheckFindsBroken, ChainWithoutJoinedCalls) {
  Layer l{};
  l.routing = {{4, 4, 4}, 3, 1, {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2}};  // all rows stay at home
  l.shared = 2;
  l.wanted.score = false;
  l.chain_shared = true;
  Sequence s{1};
  s.backward(l, s.forward(l));
  s.backward(l, s.forward(l));
  EXPECT_TRUE(check_launches(s.launches(), Start::kJoined).empty());
  const std::vector<std::string> found{check_launches(s.launches(), Start::kAlone)};
  EXPECT_TRUE(any_contains(found, "local_counters_whole")) << join(found);
}

// Whether x is staged is decided by the home, whether it is pulled by the owner.
TEST(CheckFindsBroken, RanksThatSaveDifferentRows) {
  Layer l{};
  l.routing = {{4, 4}, 2, 1, {0, 1, 0, 1, 0, 1, 0, 1}};
  l.knobs.save_x = true;
  l.knobs.save_tiles = 100;
  Sequence s{1};
  s.backward(l, s.forward(l));
  for (Launch& launch : s.launches()) launch.plans[1].knobs.save_tiles = 1;
  const std::vector<std::string> found{check_launches(s.launches())};
  EXPECT_TRUE(any_contains(found, "whether x is staged")) << join(found);
}

TEST(CheckFindsBroken, BackwardWithOtherSavedRows) {
  Layer l{narrow_layer()};
  l.knobs.save_tiles = 1;
  Sequence s{1};
  s.backward(l, s.forward(l));
  s.launches().back().plans[0].knobs.save_tiles = 2;
  const std::vector<std::string> found{check_launches(s.launches())};
  EXPECT_TRUE(any_contains(found, "saved_preact")) << join(found);
}

TEST(CheckFindsBroken, TwoLaunchesOfOneEpoch) {
  const Layer l{narrow_layer()};
  Sequence s{1};
  s.backward(l, s.forward(l));
  --s.launches().back().plans[0].epoch;
  EXPECT_FALSE(check_launches(s.launches()).empty());
}

/// A task that nobody releases is named with its rank, line, counter and values.
struct SilentGateUp : PlanRules {
  template <class F>
  static void signals(const Plan& p, const Task& t, const F& raise) {
    if (t.kind != Kind::kGateUp) PlanRules::signals(p, t, raise);
  }
};

TEST(CheckFindsBroken, NamesWhatARankWaitsFor) {
  const Layer l{narrow_layer()};
  Sequence s{1};
  s.forward(l);
  const std::vector<std::string> found{check_launches<SilentGateUp>(s.launches())};
  EXPECT_TRUE(any_contains(found,
                           "stuck: launch 0, rank 0, main line: down(expert 0, row 0, col 0) waits "
                           "for gate_up_done[0] of rank 0, 0 seen, 2 wanted"))
      << join(found);
}

}  // namespace
}  // namespace monomoe::plan_tests
