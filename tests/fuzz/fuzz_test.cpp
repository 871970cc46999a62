// Random problems, knobs, splits, executors and orders of calls, each checked bit for bit against
// one rank. A failure prints the command that repeats it.
//
//   MONOMOE_FUZZ_SECONDS  how long; default 20
//   MONOMOE_FUZZ_SEED     the first seed; default 1. Each seed is one scenario.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <sstream>

#include "runtime/testing.h"
#include "support/problem.h"

namespace monomoe::testing {
namespace {

class Dice {
 public:
  explicit Dice(uint64_t seed) : random_{seed} {}
  /// In [lowest, highest].
  int64_t roll(int64_t lowest, int64_t highest) {
    return std::uniform_int_distribution<int64_t>{lowest, highest}(random_);
  }
  bool one_in(int64_t n) { return roll(1, n) == 1; }
  template <class T>
  T one_of(std::initializer_list<T> all) {
    return all.begin()[roll(0, static_cast<int64_t>(all.size()) - 1)];
  }
  template <class T>
  void shuffle(std::vector<T>& all) {
    std::shuffle(all.begin(), all.end(), random_);
  }

 private:
  std::mt19937_64 random_;
};

struct Tile {
  int32_t rows, cols, tokens;  // 0, 0, 0: the default
};

/// What all calls of a scenario share.
struct Setting {
  Tile tile{};
  int64_t ranks{1};
};

Case random_case(Dice& d, const Tile& tile) {
  Case c;
  const bool large{tile.rows == 0 || tile.rows >= 16};
  c.tokens = d.one_in(12) ? 0 : d.roll(1, d.one_in(3) && large ? 300 : 40);
  c.hidden = 8 * d.roll(1, d.one_in(4) ? 20 : 8);
  c.inter = 8 * d.roll(1, d.one_in(4) ? 20 : 8);
  c.experts = d.one_in(8) ? d.roll(13, 70) : d.roll(1, 12);
  c.top_k = d.roll(1, std::min<int64_t>(c.experts, d.one_in(6) ? 8 : 3));
  if (d.one_in(3)) {
    c.shared = 8 * d.roll(1, 10);
    c.score = d.one_in(2);
  }
  if (d.one_in(3)) c.limit = d.one_of({0.25, 1.0, 7.0});
  c.skip = d.one_of({0.0, 0.1, 0.5});
  c.skewed = d.one_in(4);
  c.seed = static_cast<uint64_t>(d.roll(0, 1 << 30));
  return c;
}

/// Routing tables that a router may send but random ones do not reach.
void reroute(Dice& d, Problem& p) {
  const Case& c{p.c};
  const int64_t kind{d.roll(0, 9)};
  const auto last = static_cast<int32_t>(c.experts - 1);
  const auto some = static_cast<int32_t>(d.roll(0, last));
  for (int64_t i{0}; i < p.ids.size(); ++i) {
    const int64_t token{i / c.top_k};
    const auto by_token = static_cast<int32_t>(token * c.experts / std::max<int64_t>(1, c.tokens));
    if (kind == 0) p.ids[i] = -1;
    if (kind == 1) p.ids[i] = some;                          // one expert, in every slot
    if (kind == 2) p.ids[i] = p.ids[i] < 0 ? -1 : by_token;  // blocks of tokens
    if (kind == 3) p.ids[i] = token % 5 == 0 ? last : -1;    // few
    if (kind == 4 && i % c.top_k > 0) p.ids[i] = p.ids[i - 1];
    if (kind == 5 && i != p.ids.size() / 2) p.ids[i] = -1;  // a single row
  }
}

std::vector<int64_t> random_split(Dice& d, int64_t tokens, int64_t ranks) {
  std::vector<int64_t> split(static_cast<size_t>(ranks));
  if (d.one_in(3)) return split_tokens(tokens, ranks);
  for (int64_t left{tokens}; left > 0;) {
    const int64_t piece{d.roll(1, left)};
    split[static_cast<size_t>(d.roll(0, ranks - 1))] += piece;
    left -= piece;
  }
  return split;
}

Config random_config(Dice& d) {
  Config c;
  if (d.one_in(2)) c.ring_rows = d.roll(256, d.one_in(2) ? 700 : 3000);
  if (d.one_in(2)) c.minibatch_rows = d.roll(128, 1024);
  c.save = d.one_of({Save::kAll, Save::kPreact, Save::kNone});
  if (d.one_in(2)) c.save_rows = d.roll(0, d.one_in(2) ? 400 : 4000);
  c.workers = d.roll(1, 5);
  if (d.one_in(4)) c.fwd_comm_sms = d.roll(0, 3);
  if (d.one_in(4)) c.bwd_comm_sms = d.roll(0, 3);
  return c;
}

std::string text(const Config& c) {
  std::ostringstream s;
  const auto option = [&](const char* name, const std::optional<int64_t>& v) {
    if (v) s << " " << name << "=" << *v;
  };
  s << " save=" << static_cast<int>(c.save);
  option("ring_rows", c.ring_rows);
  option("minibatch_rows", c.minibatch_rows);
  option("save_rows", c.save_rows);
  option("workers", c.workers);
  return s.str();
}

std::shared_ptr<Group> make_group(const Setting& s, int64_t ranks) {
  GroupOptions options;
  options.timeout_s = 60;
  auto group = Group::local(ranks, options);
  set_tile(*group, s.tile.rows, s.tile.cols, s.tile.tokens);
  return group;
}

/// One problem, what it must give, and a forward of it that is under way.
struct Run {
  Problem problem;
  std::vector<int64_t> split;
  Config config;
  Results wanted;  // of one rank, and of the shared expert for this split
  Results got;
  Step step{};

  Run(Dice& d, const Setting& s) : problem{random_case(d, s.tile)} {
    reroute(d, problem);
    split = random_split(d, problem.c.tokens, s.ranks);
    config = random_config(d);
    const auto plain = [&](int64_t ranks, const std::vector<int64_t>& tokens) {
      const auto group = make_group(s, ranks);
      set_executor(*group, Order::kTicket, 0);
      return solve(problem, *group, {}, tokens);
    };
    wanted = plain(1, {problem.c.tokens});
    if (problem.c.shared > 0 && s.ranks > 1) {
      Results many{plain(s.ranks, split)};
      EXPECT_TRUE(many.same_routed(wanted)) << "default knobs, " << s.ranks << " ranks";
      wanted = many;
    }
  }
};

void add_to(Buffer<float>& sum, const Buffer<float>& g, const std::vector<bool>& touched) {
  const int64_t per_expert{touched.empty() ? sum.size()
                                           : sum.size() / static_cast<int64_t>(touched.size())};
  for (int64_t i{0}; i < sum.size(); ++i) {
    if (touched.empty() || touched[static_cast<size_t>(i / per_expert)]) sum[i] += g[i];
  }
}

/// Adds a backward to gradients full of `start` and says whether that is one addition a value.
bool accumulates(Run& r, Group& g, float start) {
  std::vector<bool> touched(static_cast<size_t>(r.problem.c.experts));
  for (int64_t i{0}; i < r.problem.ids.size(); ++i) {
    if (r.problem.ids[i] >= 0) touched[static_cast<size_t>(r.problem.ids[i])] = true;
  }
  Results sum{r.wanted};
  Results main{r.wanted};
  struct Pair {
    Buffer<float>*sum, *main;
    const Buffer<float>* g;
    bool routed;
  };
  for (const Pair& p : {Pair{&sum.gate, &main.gate, &r.wanted.gate, true},
                        {&sum.up, &main.up, &r.wanted.up, true},
                        {&sum.down, &main.down, &r.wanted.down, true},
                        {&sum.shared_gate, &main.shared_gate, &r.wanted.shared_gate, false},
                        {&sum.shared_up, &main.shared_up, &r.wanted.shared_up, false},
                        {&sum.shared_down, &main.shared_down, &r.wanted.shared_down, false},
                        {&sum.shared_score, &main.shared_score, &r.wanted.shared_score, false}}) {
    for (int64_t i{0}; i < p.sum->size(); ++i) (*p.sum)[i] = (*p.main)[i] = start;
    add_to(*p.sum, *p.g, p.routed ? touched : std::vector<bool>{});
  }
  finish(r.problem, g, r.step, &main, 0xFF, true);
  return main.same(sum);
}

/// One scenario: all that follows from `seed`.
void play(uint64_t seed) {
  Dice d{seed};
  Setting s;
  s.tile = d.one_of<Tile>({{0, 0, 0}, {2, 8, 2}, {4, 16, 2}, {4, 8, 1}, {8, 16, 4}, {16, 32, 4}});
  s.ranks = d.roll(1, d.one_in(4) ? 8 : 3);
  std::vector<Run> runs;
  for (int64_t n{d.roll(1, 3)}; n > 0; --n) runs.emplace_back(d, s);

  // Every context has its forward, then one or two backwards, in any order between contexts.
  std::vector<size_t> calls;
  for (size_t i{0}; i < runs.size(); ++i) calls.insert(calls.end(), d.one_in(3) ? 3 : 2, i);
  d.shuffle(calls);

  const auto group = make_group(s, s.ranks);
  set_gaps(*group, d.one_of<int64_t>({0, 8, 256}));
  if (d.one_in(3))
    set_epoch(*group, d.one_of({0xFFFFFFFEU, 0xFFFFFFFFU, 0x7FFFFFFFU, 0x3FFFFFFFU}));
  std::vector<bool> begun(runs.size());
  for (const size_t i : calls) {
    Run& r{runs[i]};
    const Case& c{r.problem.c};
    const auto order =
        d.one_of({Order::kThreads, Order::kThreads, Order::kTicket, Order::kAdversarial});
    const auto byte = static_cast<uint8_t>(d.one_of({0xFF, 0x3C, 0x00, 0x7F, 0xA5}));
    SCOPED_TRACE(::testing::Message()
                 << (begun[i] ? "backward" : "forward") << " of context " << i << " of "
                 << runs.size() << ": T " << c.tokens << " H " << c.hidden << " I " << c.inter
                 << " E " << c.experts << " K " << c.top_k << " shared " << c.shared << ", ranks "
                 << s.ranks << ", tile " << s.tile.rows << "x" << s.tile.cols << ", executor "
                 << static_cast<int>(order) << "," << text(r.config));
    set_executor(*group, order, seed);
    poison(*group, byte);
    if (!begun[i]) {
      r.step = start(r.problem, *group, r.config, &r.got.y, r.split, byte);
      begun[i] = true;
      ASSERT_TRUE(r.got.y == r.wanted.y);
    } else if (d.one_in(3)) {
      ASSERT_TRUE(accumulates(r, *group, d.one_of({0.0F, 1.0F, -3.0F})));
    } else {
      finish(r.problem, *group, r.step, &r.got, byte);
      ASSERT_TRUE(r.got.same(r.wanted));
    }
    ASSERT_EQ(stray_write(*group, byte), "");
  }
}

int64_t from_environment(const char* name, int64_t otherwise) {
  const char* const value{std::getenv(name)};
  return value == nullptr ? otherwise : std::strtoll(value, nullptr, 10);
}

TEST(Fuzz, AnyCallsGiveTheBitsOfOneRank) {
  const auto first = static_cast<uint64_t>(from_environment("MONOMOE_FUZZ_SEED", 1));
  const std::chrono::seconds limit{from_environment("MONOMOE_FUZZ_SECONDS", 20)};
  const auto begin = std::chrono::steady_clock::now();
  uint64_t seed{first};
  do {
    play(seed);
    ASSERT_FALSE(HasFailure()) << "repeat it: MONOMOE_FUZZ_SEED=" << seed
                               << " MONOMOE_FUZZ_SECONDS=0 build/cpu/monomoe_fuzz_tests";
    ++seed;
  } while (std::chrono::steady_clock::now() - begin < limit);
  std::cout << seed - first << " scenarios\n";
}

}  // namespace
}  // namespace monomoe::testing
