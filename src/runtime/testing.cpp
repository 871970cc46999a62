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

void set_epoch(Group& group, uint32_t epoch) {
  Group::Impl& g{group.impl()};
  const std::lock_guard lock{g.mutex};
  g.epoch = epoch - 1;
  g.heaps.set_epoch(epoch - 1);
  for (CounterMemory& c : g.counters) c.clear();
  for (auto& [index, device] : g.devices) device->set_epoch(epoch);
}

void never_start(Group& group, int64_t rank) {
  const std::lock_guard lock{group.impl().mutex};
  group.impl().hooks.absent_rank = static_cast<int32_t>(rank);
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
