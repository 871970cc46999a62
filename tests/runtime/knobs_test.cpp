// Every knob alone, and running again: the same bits.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "support/problem.h"

namespace monomoe::testing {
namespace {

struct Knob {
  std::string name;
  std::function<void(Config&)> set;
};

std::vector<Knob> knobs() {
  std::vector<Knob> all{{"as_chosen_again", [](Config&) {}}};
  const auto add = [&all](const char* name, std::optional<int64_t> Config::*member,
                          const std::vector<int64_t>& values) {
    for (const int64_t v : values) {
      all.push_back(
          {std::string{name} + " " + std::to_string(v), [member, v](Config& c) { c.*member = v; }});
    }
  };
  add("workers", &Config::workers, {1, 2, 5});
  add("fwd_comm_sms", &Config::fwd_comm_sms, {0, 1, 100});
  add("bwd_comm_sms", &Config::bwd_comm_sms, {0, 1, 100});
  add("minibatch_rows", &Config::minibatch_rows, {128, 255, 100000});
  add("ring_rows", &Config::ring_rows, {256, 300, 384, 100000});
  add("save_rows", &Config::save_rows, {0, 127, 128, 384, 100000});
  return all;
}

class Knobs : public ::testing::TestWithParam<int64_t> {};

TEST_P(Knobs, NeverChangeABit) {
  Problem p{Case{.tokens = 330, .experts = 2, .shared = 40, .score = true, .skewed = true}};
  const auto group = Group::local(GetParam());
  Config base;
  base.workers = 2;
  const Results expected{solve(p, *group, base)};
  for (const Save save : {Save::kAll, Save::kPreact, Save::kNone}) {
    for (const Knob& k : knobs()) {
      Config c{base};
      c.save = save;
      k.set(c);
      EXPECT_TRUE(solve(p, *group, c).same(expected))
          << k.name << ", save " << static_cast<int>(save);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Knobs, ::testing::Values(1, 3),
                         [](const auto& p) { return "R" + std::to_string(p.param); });

}  // namespace
}  // namespace monomoe::testing
