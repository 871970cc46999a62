// The counters of all ranks over a sequence of launches, as values and as order. Part of check.h.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "plan/access.h"
#include "plan/check_memory.h"
#include "plan/check_tasks.h"
#include "plan/epoch.h"
#include "plan/workspace.h"

namespace monomoe::check {

inline bool has_chunked_expert(const Plan& p) {
  for (Chunk c{first_chunk(p)}; !is_end(p, c); c = next_chunk(p, c)) {
    if (c.begin < c.end && is_chunked(p, c)) return true;
  }
  return false;
}

/// What a launch's region sizes follow from, as tight as the routing allows.
inline WorkspaceFacts facts_of(const Plan& p) {
  WorkspaceFacts f{};
  f.dims = p.dims;
  f.tile = p.tile;
  f.ring_tiles = p.knobs.ring_tiles;
  f.tile_capacity = p.tables.num_tiles();
  f.backward = p.backward;
  f.recomputes = p.knobs.save_tiles < p.tables.num_tiles() || !p.knobs.save_shared;
  f.spill_tiles = p.backward && has_chunked_expert(p) ? p.wgrad_tiles() : 0;
  f.chain_tiles = p.backward && p.chain_shared ? p.shared_wgrad_tiles() : 0;
  return f;
}

/// All counters of all ranks, living on from launch to launch as epoch.h says.
class CounterBoard {
 public:
  CounterBoard(const std::vector<Launch>& launches, NodeSets& sets, Memory& memory, Violations& out,
               Memory::Describe describe)
      : launches_{launches},
        sets_{sets},
        memory_{memory},
        out_{out},
        describe_{std::move(describe)},
        ranks_(launches.front().plans.size()) {
    for (const Launch& launch : launches) {
      for (size_t r{0}; r < ranks_.size(); ++r) {
        const Plan& p{launch.plans[r]};
        sizes_.push_back(sizes_of(facts_of(p)));
        grow(ranks_[r].arrivals, p.token_blocks(), 0);
        // Never raised flags hold the epoch before the first.
        grow(ranks_[r].flags, p.stage_chunks(), launches.front().plans[r].epoch - 1);
      }
    }
  }

  [[nodiscard]] const WorkspaceFacts& facts(int32_t launch, int32_t rank) const {
    return sizes(launch, rank).facts;
  }

  [[nodiscard]] bool holds(int32_t launch, const CounterRef& c, int32_t target) {
    const Cell* const cell{find(launch, c)};
    if (cell == nullptr) return true;  // reported; go on
    if (c.id == Counter::kStageFlag) return reached(cell->value, static_cast<uint32_t>(target));
    return static_cast<int32_t>(cell->value) >= target;
  }
  [[nodiscard]] int32_t value(int32_t launch, const CounterRef& c) {
    const Cell* const cell{find(launch, c)};
    return cell == nullptr ? 0 : static_cast<int32_t>(cell->value);
  }

  /// `node` has waited: it comes after all that raised the counter.
  void wait(int32_t node, int32_t launch, const CounterRef& c, int32_t target) {
    Cell* const cell{find(launch, c)};
    if (cell == nullptr) return;
    sets_.insert_all(node, cell->raisers);
    if (c.id == Counter::kStageFlag) return;
    if (static_cast<int32_t>(cell->value) != target) {
      out_.add(describe_(node) + " waits for " + describe(c) + ": " + std::to_string(target) +
               " wanted, " + std::to_string(cell->value) + " found");
    }
    cell->ref = c;
    cell->target = std::max(cell->target, target);
    sets_.insert(cell->waiters, node);
    touch(node, launch, c);
  }

  /// Returns the new value.
  int32_t raise(int32_t node, int32_t launch, const CounterRef& c, int32_t step) {
    Cell* const cell{find(launch, c)};
    if (cell == nullptr) return 0;
    touch(node, launch, c);
    const int32_t passed{sets_.missing(cell->waiters, node, node)};
    if (passed >= 0) {
      out_.add(describe_(node) + " raises " + describe(c) + " although " + describe_(passed) +
               " may have waited for a lower value");
    }
    cell->ref = c;
    cell->value += static_cast<uint32_t>(step);
    sets_.insert_all(cell->raisers, node);
    sets_.insert(cell->raisers, node);
    return static_cast<int32_t>(cell->value);
  }

  /// The stage task of `chunk`: zeroes its arrival counters, then sets its flag.
  void stage(int32_t node, int32_t launch, const Plan& p, int32_t chunk) {
    const int32_t blocks{p.tile.stage_tokens / p.tile.sum_tokens};
    const int32_t end{std::min((chunk + 1) * blocks, p.token_blocks())};
    for (int32_t b{chunk * blocks}; b < end; ++b) {
      const CounterRef c{Counter::kArrival, p.dims.rank, b};
      memory_.access(node, {place_of(c), version_of(launch, 0), true});
      clear(*find(launch, c));
    }
    Cell& flag{*find(launch, {Counter::kStageFlag, p.dims.rank, chunk})};
    flag.value = p.epoch;
    sets_.insert_all(flag.raisers, node);
    sets_.insert(flag.raisers, node);
  }

  /// A launch begins: what the launch before used is done with and gets cleared.
  void begin(int32_t node, int32_t launch, int32_t rank) {
    Rank& r{ranks_[static_cast<size_t>(rank)]};
    const size_t mine{half_idx(launch)};
    const size_t other{1 - mine};
    const auto extent = static_cast<size_t>(sizes(launch, rank).layout.words);
    r.extent[mine] = extent;
    grow(r.half[mine], static_cast<int32_t>(extent), 0);
    memory_.access(node, {half_of(rank, other), version_of(launch - 1, 1), true});
    for (size_t i{0}; i < r.extent[other]; ++i) {
      check_final(r.half[other][i]);
      clear(r.half[other][i]);
    }
    r.extent[other] = 0;
  }

  /// The last launch has no next one that looks at its counters.
  void end() {
    for (const Rank& r : ranks_) {
      for (const std::vector<Cell>& half : r.half) {
        for (const Cell& c : half) check_final(c);
      }
    }
  }

 private:
  struct Cell {
    uint32_t value{0};
    int32_t target{-1};  // the largest that was waited for
    int32_t raisers{0};  // sets
    int32_t waiters{0};
    CounterRef ref{};
  };
  struct Rank {
    std::array<std::vector<Cell>, 2> half;
    std::array<size_t, 2> extent{};  // what the half's last launch recorded
    std::vector<Cell> arrivals;
    std::vector<Cell> flags;
  };

  void grow(std::vector<Cell>& cells, int32_t size, uint32_t value) {
    while (cells.size() < static_cast<size_t>(size)) {
      cells.push_back({value, -1, sets_.add(), sets_.add(), {}});
    }
  }

  void clear(Cell& c) {
    c.value = 0;
    c.target = -1;
    sets_.clear(c.raisers);
    sets_.clear(c.waiters);
  }

  /// Where the local counters of one launch on one rank lie, and how many of each there are.
  struct Sizes {
    WorkspaceFacts facts;
    CounterLayout layout;
    std::array<int64_t, kNumCounters> count;
  };
  static Sizes sizes_of(const WorkspaceFacts& f) {
    Sizes s{f, counter_layout(f), {}};
    for (size_t i{0}; i < s.count.size(); ++i)
      s.count[i] = counter_count(f, static_cast<Counter>(i));
    return s;
  }
  [[nodiscard]] const Sizes& sizes(int32_t launch, int32_t rank) const {
    return sizes_[static_cast<size_t>(launch) * ranks_.size() + static_cast<size_t>(rank)];
  }

  Cell* find(int32_t launch, const CounterRef& c) {
    const Sizes& s{sizes(launch, c.rank)};
    const auto id = static_cast<size_t>(c.id);
    if (c.index < 0 || c.index >= s.count[id]) {
      out_.add("launch " + std::to_string(launch) + " has no counter " + describe(c));
      return nullptr;
    }
    Rank& r{ranks_[static_cast<size_t>(c.rank)]};
    const auto index = static_cast<size_t>(c.index);
    if (c.id == Counter::kArrival) return &r.arrivals[index];
    if (c.id == Counter::kStageFlag) return &r.flags[index];
    std::vector<Cell>& half{r.half[half_idx(launch)]};
    grow(half, static_cast<int32_t>(s.layout.words), 0);
    return &half[static_cast<size_t>(s.layout.at[id]) + index];
  }
  /// Which half the local counters of a launch are.
  [[nodiscard]] size_t half_idx(int32_t launch) const {
    const uint32_t epoch{launches_[static_cast<size_t>(launch)].plans.front().epoch};
    return static_cast<size_t>(counter_half(epoch));
  }

  /// A counter is memory too: it must not be used before it was zeroed, nor zeroed too early.
  /// Inside of a rank the order of launches sees to that for the halves.
  void touch(int32_t node, int32_t launch, const CounterRef& c) {
    if (c.id == Counter::kArrival) {
      memory_.access(node, {place_of(c), version_of(launch, 0), false});
    } else if (c.id == Counter::kSharedChain) {
      memory_.access(node, {half_of(c.rank, half_idx(launch)), version_of(launch, 0), true});
    }
  }
  static Place place_of(const CounterRef& arrival) {
    return {arrival.rank, static_cast<int32_t>(Outside::kArrivals), arrival.index};
  }
  static Place half_of(int32_t rank, size_t half) {
    return {rank, static_cast<int32_t>(Outside::kEpochCounters), static_cast<int64_t>(half)};
  }

  /// Steps of these follow each other; the last one is waited for by nobody.
  static bool is_chain(Counter c) { return c == Counter::kSpill || c == Counter::kSharedChain; }

  void check_final(const Cell& c) {
    if (c.target < 0) return;
    const int32_t wanted{c.target + (is_chain(c.ref.id) ? 1 : 0)};
    if (static_cast<int32_t>(c.value) == wanted) return;
    out_.add(describe(c.ref) + " ends at " + std::to_string(c.value) + ", " +
             std::to_string(wanted) + " wanted");
  }

  const std::vector<Launch>& launches_;
  NodeSets& sets_;
  Memory& memory_;
  Violations& out_;
  Memory::Describe describe_;
  std::vector<Rank> ranks_;
  std::vector<Sizes> sizes_;
};

}  // namespace monomoe::check
