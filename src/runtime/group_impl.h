// What a group owns.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "arch/cpu/worker.h"
#include "arch/sm90/backend.h"
#include "comm/local.h"
#include "monomoe/group.h"
#include "plan/shape.h"
#include "plan/workspace.h"

namespace monomoe {

/// Local counters of one rank: two halves of `capacity` words (plan/epoch.h).
struct CounterMemory {
  std::vector<int32_t> words;
  int64_t capacity{0};
  int64_t extent[2]{0, 0};

  /// Room for `count` words in each half. May run out of memory, and then changes nothing.
  void reserve(int64_t count);
  /// The half of launch `epoch`, zeroed; clears the other half. `count` words are reserved.
  int32_t* begin_launch(uint32_t epoch, int64_t count);
  void clear();
};

/// Circumstances that only tests choose (runtime/testing.h).
struct TestHooks {
  cpu::Order order{cpu::Order::kThreads};
  uint64_t seed{0};
  int32_t absent_rank{-1};
  double absent_s{1e9};
  int32_t held_rank{-1};
  int64_t held_at{0};
  int32_t odd_rank{-1};              // says that it makes another call
  uint32_t odd{0};                   // in which respect: OddCall
  std::vector<sm90::Pauses> pauses;  // [ranks] us, GPUs only
  uint8_t fill{0};                   // byte of new memory
  int64_t gap_bytes{0};
  std::vector<int64_t> tasks_done;
  std::vector<Layout> layouts;  // of the last call on the CPU
};

struct Group::Impl {
  Impl(int32_t num_ranks, double timeout);

  int64_t id{0};
  int32_t ranks{1};
  double timeout_s{600};
  TileShape tile{};
  TestHooks hooks;

  std::mutex mutex;  // serialises calls
  bool closed{false};
  std::optional<std::string> fault;  // what ended an earlier call
  uint32_t epoch{0};                 // of the last launch
  LocalHeaps heaps;
  std::vector<Arena> local;
  std::vector<CounterMemory> counters;

  std::map<int32_t, std::unique_ptr<sm90::DeviceGroup>> devices;  // by CUDA device

  /// Refuses a closed group and reports what an earlier call left behind.
  void require_usable();
};

}  // namespace monomoe
