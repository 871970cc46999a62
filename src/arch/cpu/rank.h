// One rank of one launch: its plan, the caller's tensors, its memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/sym_heap.h"
#include "plan/graph.h"
#include "plan/workspace.h"
#include "task/operands.h"

namespace monomoe::cpu {

/// Everything a task of this rank touches.
struct RankLaunch : Operands {
  Plan plan;

  std::byte* local{nullptr};
  Layout layout;
  int32_t* counters{nullptr};  // the half of this launch
  CounterLayout counter_layout;
  std::vector<HeapView> heaps;       // of all ranks
  std::vector<Layout> heap_layouts;  // of all ranks
  int32_t* chain_counters{nullptr};  // kSharedChain of rank 0
  float* chain{nullptr};             // Region::kChain of rank 0

  template <class T>
  [[nodiscard]] T* region(Region r) const {
    return reinterpret_cast<T*>(local + layout[r].offset);
  }
  template <class T>
  [[nodiscard]] T* heap_region(int32_t rank, Region r) const {
    const auto i = static_cast<size_t>(rank);
    return reinterpret_cast<T*>(heaps[i].data + heap_layouts[i][r].offset);
  }
  [[nodiscard]] int64_t ring_row(int32_t tile) const {
    return int64_t{plan.ring_slot(tile)} * plan.tile.rows;
  }

  /// The word behind a counter.
  [[nodiscard]] int32_t* word(const CounterRef& c) const {
    const auto rank = static_cast<size_t>(c.rank);
    switch (c.id) {
      case Counter::kArrival:
        return heaps[rank].arrivals + c.index;
      case Counter::kStageFlag:
        return heaps[rank].stage_flags + c.index;
      case Counter::kSharedChain:
        return chain_counters + c.index;
      default:
        return counters + counter_layout.at[static_cast<int32_t>(c.id)] + c.index;
    }
  }

  [[nodiscard]] int32_t load(const CounterRef& c) const {
    return std::atomic_ref<int32_t>{*word(c)}.load(std::memory_order_acquire);
  }

  /// Adds with release; the value afterwards.
  [[nodiscard]] int32_t add(const CounterRef& c, int32_t step) const {
    return std::atomic_ref<int32_t>{*word(c)}.fetch_add(step, std::memory_order_acq_rel) + step;
  }
};

}  // namespace monomoe::cpu
