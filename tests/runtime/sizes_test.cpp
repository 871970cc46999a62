// Sizes that a caller asks for: they hold for every split of the tokens. And explain's text.
#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "support/guarded.h"
#include "support/problem.h"

namespace monomoe::testing {
namespace {

std::vector<int64_t> random_split(int64_t tokens, int64_t ranks, std::mt19937& random) {
  std::vector<int64_t> cuts{0, tokens};
  std::uniform_int_distribution<int64_t> cut{0, tokens};
  for (int64_t r{1}; r < ranks; ++r) cuts.push_back(cut(random));
  std::sort(cuts.begin(), cuts.end());
  std::vector<int64_t> split;
  for (size_t i{1}; i < cuts.size(); ++i) split.push_back(cuts[i] - cuts[i - 1]);
  return split;
}

TEST(SplitTokens, IsEvenAndGivesTheRestToTheFirst) {
  EXPECT_EQ(split_tokens(10, 4), (std::vector<int64_t>{3, 3, 2, 2}));
  EXPECT_EQ(split_tokens(2, 4), (std::vector<int64_t>{1, 1, 0, 0}));
  EXPECT_EQ(split_tokens(0, 3), (std::vector<int64_t>{0, 0, 0}));
  EXPECT_EQ(split_tokens(7, 1), (std::vector<int64_t>{7}));
}

/// A forward into exactly `saved_bytes` bytes and tables of `schedule_words` words: neither is too
/// small, and not a byte behind them is written.
void expect_fits(Problem& p, Group& g, const Config& config, const std::vector<int64_t>& split) {
  const Case& c{p.c};
  Guarded tables{DType::kI32, {schedule_words(g, c.tokens, c.experts, c.top_k)}};
  ForwardArgs a;
  a.schedule = {tables.tensor(), c.experts, c.top_k, split};
  ASSERT_NO_THROW(
      schedule(g, contiguous(p.ids.data(), DType::kI32, c.tokens, c.top_k), a.schedule));
  EXPECT_TRUE(tables.intact());
  Guarded saved{
      DType::kU8,
      {saved_bytes(g, {c.tokens, c.hidden, c.inter, c.experts, c.top_k, c.shared, g.ranks()},
                   config)}};
  Guarded y{DType::kBf16, {c.tokens, c.hidden}};
  a.x = p.x_tensor();
  a.topk_weights = p.weight_tensor();
  a.weights = p.weights();
  a.config = config;
  a.y = y.tensor();
  a.saved = saved.tensor();
  ASSERT_NO_THROW(forward(g, a));
  EXPECT_TRUE(saved.intact() && y.intact());
}

TEST(Sizes, HoldForEverySplitOfTheTokens) {
  std::mt19937 random{5};
  for (const int64_t ranks : {2, 3, 5}) {
    const auto group = Group::local(ranks);
    for (const int64_t tokens : {0, 1, 63, 65, 130}) {
      Problem p{Case{
          .tokens = tokens, .hidden = 8, .inter = 8, .experts = 4, .shared = 8, .score = true}};
      for (const Save save : {Save::kAll, Save::kPreact, Save::kNone}) {
        Config config;
        config.save = save;
        config.workers = 1;
        for (int i{0}; i < 6; ++i) {
          const std::vector<int64_t> split{random_split(tokens, ranks, random)};
          SCOPED_TRACE(::testing::PrintToString(split));
          expect_fits(p, *group, config, split);
        }
      }
    }
  }
}

TEST(SavedBytes, FollowWhatIsKept) {
  const auto group = Group::local();
  const Shape shape{300, 64, 40, 5, 2, 24, 1};
  const auto bytes = [&](Save save, int64_t rows) {
    Config c;
    c.save = save;
    if (rows >= 0) c.save_rows = rows;
    return saved_bytes(*group, shape, c);
  };
  EXPECT_LT(bytes(Save::kNone, -1), bytes(Save::kPreact, -1));
  EXPECT_LT(bytes(Save::kPreact, -1), bytes(Save::kAll, -1));
  EXPECT_LT(bytes(Save::kPreact, 0), bytes(Save::kPreact, 128));
  EXPECT_LT(bytes(Save::kPreact, 128), bytes(Save::kPreact, 256));
  EXPECT_EQ(bytes(Save::kPreact, 128), bytes(Save::kPreact, 255)) << "whole tiles are kept";
  EXPECT_EQ(bytes(Save::kPreact, int64_t{1} << 30), bytes(Save::kPreact, -1))
      << "alone, the default keeps everything";
  // gate and up of every row in bf16, 64 columns for 40, and the same for the shared expert.
  EXPECT_GE(bytes(Save::kPreact, 256), 256 * 2 * 64 * 2 + 300 * 2 * 64 * 2);
}

// ------------------------------------------------------------------------------------- explain

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Explain, SaysWhatWouldBeDone) {
  const Shape shape{16384, 2048, 768, 128, 8, 512, 4};
  Config config;
  config.workers = 7;
  config.ring_rows = 1000;
  config.minibatch_rows = 300;
  const std::string text{explain(shape, config)};
  for (const char* part :
       {"T 16384, H 2048, I 768, E 128, K 8, shared 512, ranks 4", "backend: cpu, 7 threads",
        "tiles: 128 rows x 128 columns", "12 gate_up, 16 down, 6 dgrad_down and 16 dgrad_gate_up",
        "192 + 96 wgrad tiles", "ring: 1024 rows", "chunks of at most 256 rows in forward, 512",
        "forward order: shared gate_up", "backward order: shared dgrads", "then shared wgrads",
        "kept between forward and backward:", "rows of row space"}) {
    EXPECT_TRUE(says(text, part)) << part << "\nin:\n" << text;
  }
}

TEST(Explain, CountsTheFlopsOfTheLayer) {
  const double rows{16384.0 * 8};
  const double flops{6 * 2048.0 * (rows * 768 + 16384.0 * 512)};
  const std::string text{explain({16384, 2048, 768, 128, 8, 512, 1})};
  EXPECT_TRUE(says(text, "forward: " + std::to_string(std::llround(flops * 1e-9)))) << text;
  EXPECT_TRUE(says(text, "backward: " + std::to_string(std::llround(2 * flops * 1e-9)))) << text;
}

TEST(Explain, NamesTheMemoryRegionsThatExist) {
  const std::string plain{explain({100, 64, 40, 4, 2, 0, 1})};
  const std::string shared{explain({100, 64, 40, 4, 2, 24, 3})};
  for (const char* region :
       {"slots", "slot_scalars", "x_ring", "dy_ring", "act_ring", "grad_ring"}) {
    EXPECT_TRUE(says(plain, region)) << region;
  }
  for (const char* region : {"x_stage", "dy_stage", "weight_stage", "shared_act", "shared_out"}) {
    EXPECT_FALSE(says(plain, region)) << region << ": R = 1 and no shared expert";
    EXPECT_TRUE(says(shared, region)) << region;
  }
  EXPECT_FALSE(says(plain, "then shared"));
}

TEST(Explain, HasNoTimesYetAndSaysSo) {
  EXPECT_TRUE(says(explain({0, 8, 8, 1, 1}), "times: come with measured records"));
}

}  // namespace
}  // namespace monomoe::testing
