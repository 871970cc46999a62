// How tasks are executed: by threads, in ticket order, or in an adversarial order.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "arch/cpu/rank.h"
#include "comm/fault.h"

namespace monomoe::cpu {

enum class Order : uint8_t { kThreads, kTicket, kAdversarial };

struct RunOptions {
  Order order{Order::kThreads};
  uint64_t seed{0};
  int32_t threads{1};
  double timeout_s{600};
  int32_t absent_rank{-1};  // never starts
  double absent_s{1e9};     // threads: or starts so late
  int32_t held_rank{-1};    // stops before its task number held_at until nothing else can run
  int64_t held_at{0};
};

struct RunResult {
  std::optional<Fault> fault;
  std::vector<int64_t> tasks_done;  // per rank
};

/// Executes one launch on all ranks. Broken counters throw std::logic_error (a bug of ours).
RunResult run(const std::vector<RankLaunch>& ranks, const RunOptions& options);

/// Executes one task, then raises its counters. All that it waits for must hold.
struct Scratch;
void execute(const RankLaunch& rank, const Task& task, Scratch& scratch);

}  // namespace monomoe::cpu
