// Host side of the Hopper backend: memory of a group on one GPU, tensor maps, launches.
// Free of CUDA headers, so that runtime/ compiles without them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/fault.h"
#include "plan/plan.h"
#include "plan/workspace.h"
#include "task/operands.h"

namespace monomoe::sm90 {

/// What a device offers, or why it can't be used.
struct Caps {
  bool usable{false};
  std::string reason;  // if not usable
  std::string name;
  int32_t multiprocessors{0};
};
Caps query(int32_t device);
int32_t device_count();

/// One rank of a pass.
struct RankInput {
  Plan plan;
  WorkspaceFacts facts;
  Operands operands;
};

/// One rank of a schedule.
struct ScheduleInput {
  Dims dims;
  const void* ids{nullptr};  // the rank's first id
  int32_t* words{nullptr};
};
struct IdsInfo {
  bool wide{false};
  int64_t row{0};
  int64_t col{0};
};

/// A bad id that a schedule found.
struct BadId {
  int32_t rank, token, slot, value, experts;
};

/// A group's memory and streams on one device.
class DeviceGroup {
 public:
  static std::unique_ptr<DeviceGroup> make(int32_t device, int32_t ranks, double timeout_s);
  virtual ~DeviceGroup() = default;

  [[nodiscard]] virtual int32_t workers_per_rank() const = 0;
  virtual void schedule(const std::vector<ScheduleInput>& ranks, const TileShape& tile,
                        const IdsInfo& ids, void* stream) = 0;
  /// `absent_rank` is not launched (for tests; -1: all are).
  virtual void run(const std::vector<RankInput>& ranks, int32_t comm_workers, int32_t absent_rank,
                   void* stream) = 0;

  /// What an earlier launch reported, if anything. Never waits.
  virtual std::optional<Fault> take_fault() = 0;
  virtual std::optional<BadId> take_bad_id() = 0;

  // For tests and measurements.
  /// Cycles of all workers per cuda::RoleTime since the last call; empty without
  /// MONOMOE_ROLE_CLOCKS.
  virtual std::vector<uint64_t> take_clocks() = 0;
  virtual void poison(uint8_t byte) = 0;
  virtual void set_epoch(uint32_t epoch) = 0;
};

}  // namespace monomoe::sm90
