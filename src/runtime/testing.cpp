#include "runtime/testing.h"

#include "runtime/group_impl.h"

namespace monomoe::testing {

void set_executor(Group& group, Order order, uint64_t seed) {
  const std::lock_guard lock{group.impl().mutex};
  group.impl().hooks.order = static_cast<cpu::Order>(order);
  group.impl().hooks.seed = seed;
}

void set_tile(Group& group, int32_t rows, int32_t cols, int32_t tokens) {
  const std::lock_guard lock{group.impl().mutex};
  group.impl().tile = rows == 0 ? TileShape{} : make_tile(rows, cols, tokens);
}

void poison(Group& group, uint8_t byte) {
  Group::Impl& g{group.impl()};
  const std::lock_guard lock{g.mutex};
  g.hooks.fill = byte;
  g.heaps.fill(byte);
  for (Arena& a : g.local) a.fill(byte);
  for (auto& [index, device] : g.devices) device->poison(byte);
}

void set_gaps(Group& group, int64_t bytes) {
  const std::lock_guard lock{group.impl().mutex};
  group.impl().hooks.gap_bytes = bytes;
}

namespace {

/// The first byte that is not `byte` between the regions [first, last) of `memory`, as text.
std::string stray_byte(const Arena& memory, const Layout& l, int32_t first, int32_t last,
                       uint8_t byte) {
  for (int32_t i{first}; i < last; ++i) {
    const int64_t begin{l.at[i].offset + l.at[i].bytes};
    const int64_t end{i + 1 < last ? l.at[i + 1].offset : memory.bytes()};
    for (int64_t at{begin}; at < end; ++at) {
      if (static_cast<uint8_t>(memory.data()[at]) == byte) continue;
      return std::to_string(at - begin) + " bytes behind " + name_of(static_cast<Region>(i));
    }
  }
  return {};
}

}  // namespace

std::string stray_write(Group& group, uint8_t byte) {
  Group::Impl& g{group.impl()};
  const std::lock_guard lock{g.mutex};
  for (size_t r{0}; r < g.hooks.layouts.size(); ++r) {
    const Layout& l{g.hooks.layouts[r]};
    const auto rank = static_cast<int32_t>(r);
    std::string found{stray_byte(g.heaps.memory(rank), l, 0, kNumHeapRegions, byte)};
    if (found.empty()) found = stray_byte(g.local[r], l, kNumHeapRegions, kNumRegions, byte);
    const CounterMemory& c{g.counters[r]};
    for (int64_t half{0}; half < 2 && found.empty(); ++half) {
      for (int64_t i{c.extent[half]}; i < c.capacity; ++i) {
        if (c.words[static_cast<size_t>(half * c.capacity + i)] == 0) continue;
        found = "counter word " + std::to_string(i) + " of " + std::to_string(c.extent[half]);
        break;
      }
    }
    if (!found.empty()) return "rank " + std::to_string(r) + ": " + found;
  }
  return {};
}

void set_epoch(Group& group, uint32_t epoch, bool renews) {
  Group::Impl& g{group.impl()};
  const std::lock_guard lock{g.mutex};
  g.epoch = epoch - 1;
  if (renews) g.heaps.set_epoch(epoch - 1);
  for (CounterMemory& c : g.counters) c.clear();
  for (auto& [index, device] : g.devices) device->set_epoch(epoch, renews);
}

void never_start(Group& group, int64_t rank) {
  const std::lock_guard lock{group.impl().mutex};
  group.impl().hooks.absent_rank = static_cast<int32_t>(rank);
  group.impl().hooks.absent_s = TestHooks{}.absent_s;
}

void start_late(Group& group, int64_t rank, double seconds) {
  const std::lock_guard lock{group.impl().mutex};
  group.impl().hooks.absent_rank = static_cast<int32_t>(rank);
  group.impl().hooks.absent_s = seconds;
}

void falsify(Group& group, int64_t rank, uint32_t parts) {
  const std::lock_guard lock{group.impl().mutex};
  group.impl().hooks.odd_rank = static_cast<int32_t>(rank);
  group.impl().hooks.odd = parts;
}

void pause(Group& group, int64_t rank, PauseAt at, uint32_t us) {
  Group::Impl& g{group.impl()};
  const std::lock_guard lock{g.mutex};
  g.hooks.pauses.resize(static_cast<size_t>(g.ranks));
  g.hooks.pauses.at(static_cast<size_t>(rank)).at(static_cast<size_t>(at)) = us;
}

void hold(Group& group, int64_t rank, int64_t task_idx) {
  const std::lock_guard lock{group.impl().mutex};
  group.impl().hooks.held_rank = static_cast<int32_t>(rank);
  group.impl().hooks.held_at = task_idx;
}

int64_t tasks_done(Group& group, int64_t rank) {
  const std::lock_guard lock{group.impl().mutex};
  const auto& done = group.impl().hooks.tasks_done;
  const auto i = static_cast<size_t>(rank);
  return i < done.size() ? done[i] : 0;
}

std::vector<uint64_t> role_clocks(Group& group) {
  const std::lock_guard lock{group.impl().mutex};
  std::vector<uint64_t> sum;
  for (auto& [index, device] : group.impl().devices) {
    const std::vector<uint64_t> own{device->take_clocks()};
    sum.resize(own.size());
    for (size_t i{0}; i < own.size(); ++i) sum[i] += own[i];
  }
  return sum;
}

}  // namespace monomoe::testing
