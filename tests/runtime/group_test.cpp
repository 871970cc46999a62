// Groups: their registry, their end, and calls from several threads.
#include <gtest/gtest.h>

#include <set>
#include <thread>
#include <vector>

#include "support/problem.h"

namespace monomoe::testing {
namespace {

ErrorCode code_of_find(int64_t id) {
  try {
    (void)Group::find(id);
  } catch (const Error& e) {
    return e.code();
  }
  ADD_FAILURE() << "group " << id << " was found";
  return ErrorCode::kValue;
}

TEST(GroupRegistry, FindsALivingGroupByItsId) {
  const auto a = Group::local(2);
  const auto b = Group::local(3);
  EXPECT_NE(a->id(), b->id());
  EXPECT_EQ(Group::find(a->id()), a);
  EXPECT_EQ(Group::find(b->id()), b);
  EXPECT_EQ(Group::find(b->id())->ranks(), 3);
}

TEST(GroupRegistry, NeverUsesAnIdAgain) {
  std::set<int64_t> ids;
  for (int i{0}; i < 100; ++i) {
    auto group = Group::local();
    const int64_t id{group->id()};
    EXPECT_TRUE(ids.insert(id).second);
    if (i % 2 == 0) group->close();
    group.reset();
    EXPECT_EQ(code_of_find(id), ErrorCode::kState);
  }
}

TEST(GroupRegistry, DoesNotKeepAGroupAlive) {
  auto group = Group::local();
  const std::weak_ptr<Group> weak{group};
  auto found = Group::find(group->id());
  group.reset();
  EXPECT_FALSE(weak.expired()) << "what find returned holds it";
  found.reset();
  EXPECT_TRUE(weak.expired());
}

TEST(GroupClose, MayBeCalledTwiceAndLeavesOthersAlone) {
  const auto a = Group::local(2);
  const auto b = Group::local(2);
  a->close();
  a->close();
  EXPECT_TRUE(a->closed());
  EXPECT_FALSE(b->closed());
  EXPECT_NO_THROW(b->check());
  EXPECT_THROW(a->check(), Error);
  Problem p{Case{}};
  EXPECT_NO_THROW((void)solve(p, *b));
}

TEST(GroupClose, EndsContextsToo) {
  Problem p{Case{}};
  const auto group = Group::local(2);
  Results r;
  Step s{start(p, *group, {}, &r.y)};
  group->close();
  try {
    finish(p, *group, s, &r);
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kState);
  }
  for (int64_t i{0}; i < r.dx.size(); ++i) ASSERT_EQ(r.dx[i].bits, 0xFFFF) << "nothing was written";
}

TEST(GroupCalls, FromSeveralThreadsGiveTheSameBits) {
  constexpr int kThreads{4};
  const auto group = Group::local(2);
  std::vector<Problem> problems;
  std::vector<Results> expected;
  for (int i{0}; i < kThreads; ++i) {
    problems.emplace_back(Case{.tokens = 20 + 15 * i, .seed = static_cast<uint64_t>(i + 1)});
    expected.push_back(solve(problems.back(), *group));
  }
  std::vector<char> same(kThreads, 0);
  std::vector<std::thread> threads;
  for (size_t i{0}; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      bool all{true};
      for (int n{0}; n < 5; ++n) all = solve(problems[i], *group).same(expected[i]) && all;
      same[i] = all ? 1 : 0;
    });
  }
  for (std::thread& t : threads) t.join();
  for (size_t i{0}; i < kThreads; ++i) EXPECT_EQ(same[i], 1) << "thread " << i;
}

TEST(GroupCalls, OnSeveralGroupsAtOnceGiveTheSameBits) {
  Problem p{Case{}};
  const auto one = Group::local();
  const Results expected{solve(p, *one)};
  std::vector<char> same(3, 0);
  std::vector<std::thread> threads;
  for (size_t i{0}; i < same.size(); ++i) {
    threads.emplace_back([&, i] {
      Problem mine{p.c};
      const auto group = Group::local(static_cast<int64_t>(i) + 1);
      same[i] = solve(mine, *group).same_routed(expected) ? 1 : 0;
    });
  }
  for (std::thread& t : threads) t.join();
  for (size_t i{0}; i < same.size(); ++i) EXPECT_EQ(same[i], 1) << i + 1 << " ranks";
}

TEST(Backends, TheCpuIsThere) {
  const std::vector<std::string> names{backends()};
  ASSERT_FALSE(names.empty());
  EXPECT_EQ(names.back(), "cpu") << "best first";
}

}  // namespace
}  // namespace monomoe::testing
