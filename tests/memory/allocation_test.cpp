// Memory may run out at any allocation of a call. This program has its own operator new, which can
// be told to fail.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <optional>
#include <tuple>
#include <utility>

#include "support/problem.h"

namespace {

/// Allocations until one fails; negative: none does.
std::atomic<int64_t> g_left{-1};

void* allocate(std::size_t size, std::size_t align) {
  if (g_left.load() >= 0 && g_left.fetch_sub(1) == 0) throw std::bad_alloc{};
  const std::size_t rounded{(size + align - 1) / align * align};
  void* const p{std::aligned_alloc(align, rounded == 0 ? align : rounded)};
  if (p == nullptr) throw std::bad_alloc{};
  return p;
}

}  // namespace

void* operator new(std::size_t size) { return allocate(size, alignof(std::max_align_t)); }
void* operator new(std::size_t size, std::align_val_t align) {
  return allocate(size, static_cast<std::size_t>(align));
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t, std::align_val_t) noexcept {
  std::free(p);
}

namespace monomoe::testing {
namespace {

const Case kCase{.tokens = 21, .hidden = 24, .inter = 40, .experts = 3, .shared = 8, .score = true};

bool all_nan(Buffer<Bf16>& b) {
  for (int64_t i{0}; i < b.size(); ++i) {
    if (to_float(b[i]) == to_float(b[i])) return false;
  }
  return true;
}

/// A call whose memory is there: only what the library needs for itself is still to be had.
struct Prepared {
  Problem& p;
  Group& group;
  Config config;
  Results got;
  Step step;
  int64_t fails_at{-1};  // of the library's allocations in the next call

  Prepared(Problem& problem, Group& g, int64_t workers) : p{problem}, group{g} {
    config.workers = workers;
    step = start(p, g, config, &got.y);
    finish(p, g, step, &got);
  }

  void forward_to(Group& g) {
    ForwardArgs a{forward_inputs(p, step)};
    a.y = contiguous(got.y.data(), DType::kBf16, kCase.tokens, kCase.hidden);
    a.saved = contiguous(step.saved.data(), DType::kU8, step.saved.size());
    g_left.store(std::exchange(fails_at, -1));
    forward(g, a);
  }

  void backward_to(Group& g) {
    BackwardArgs a{backward_inputs(p, step)};
    a.dx = contiguous(got.dx.data(), DType::kBf16, kCase.tokens, kCase.hidden);
    g_left.store(std::exchange(fails_at, -1));
    backward(g, a);
  }
};

class Memory : public ::testing::TestWithParam<std::tuple<int64_t, bool>> {};

TEST_P(Memory, MayRunOutAtAnyAllocation) {
  const auto [workers, is_backward] = GetParam();
  Problem p{kCase};
  const auto whole = Group::local(2);
  const Results wanted{solve(p, *whole)};
  const auto made = Group::local(2);
  Prepared call{p, *made, workers};
  Buffer<Bf16>& out{is_backward ? call.got.dx : call.got.y};
  const auto right = [&] { return out == (is_backward ? wanted.dx : wanted.y); };
  int refused{0};
  int faulted{0};
  for (bool all_there{false}; !all_there;) {
    const auto group = Group::local(2, {.timeout_s = 20});  // a new one: it has no memory yet
    const auto run = [&] { is_backward ? call.backward_to(*group) : call.forward_to(*group); };
    std::optional<ErrorCode> error;
    out.fill(0x3C);
    call.fails_at = refused + faulted;
    try {
      run();
    } catch (const Error& e) {
      error = e.code();
    }
    all_there = g_left.exchange(-1) >= 0;
    if (!error) {
      // (Or fewer threads did it.)
      EXPECT_TRUE(right()) << "allocation " << refused + faulted;
      ++refused;
    } else if (*error == ErrorCode::kFault) {
      EXPECT_TRUE(all_nan(out)) << "allocation " << refused + faulted;
      EXPECT_THROW(run(), Error);
      ++faulted;
    } else {
      run();  // the group is as before
      EXPECT_TRUE(right()) << "after a refusal, allocation " << refused + faulted;
      ++refused;
    }
  }
  EXPECT_GT(refused, 10);
  EXPECT_GT(faulted, 0);
}

INSTANTIATE_TEST_SUITE_P(Calls, Memory,
                         ::testing::Combine(::testing::Values(1, 3), ::testing::Bool()),
                         [](const auto& t) {
                           return std::string{std::get<1>(t.param) ? "backward" : "forward"} +
                                  std::to_string(std::get<0>(t.param)) + "_workers";
                         });

}  // namespace
}  // namespace monomoe::testing
