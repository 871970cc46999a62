// Host side of the Hopper backend: memory of a group on one GPU, tensor maps, launches.
// Free of CUDA headers, so that runtime/ compiles without them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "arch/cuda/launch.h"
#include "arch/sm90/caps.h"
#include "comm/fault.h"
#include "plan/plan.h"
#include "plan/workspace.h"
#include "task/operands.h"

namespace monomoe::sm90 {

/// What the caller or the machine must change: a whole sentence.
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

Caps query(int32_t device);
int32_t device_count();

/// Versions and GPUs, as name and value, for `doctor`.
std::vector<std::pair<std::string, std::string>> environment();

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

/// Circumstances that only tests choose.
using Pauses = std::array<uint32_t, cuda::kNumPauses>;  // us, by cuda::PauseAt
struct Circumstances {
  int32_t absent_rank{-1};     // is not launched
  int32_t odd_rank{-1};        // says that it makes another call
  uint32_t odd{0};             // in which respect: OddCall
  std::vector<Pauses> pauses;  // of each rank, or empty
};

/// A bad id that a schedule found.
struct BadId {
  int32_t rank, token, slot, value, experts;
};

/// A group's memory and streams on one device.
class DeviceGroup {
 public:
  static std::unique_ptr<DeviceGroup> make(int32_t device, int32_t ranks, double timeout_s,
                                           const Circumstances& tests);
  virtual ~DeviceGroup() = default;

  [[nodiscard]] virtual int32_t workers_per_rank() const = 0;
  /// Errors, here and below: Refused, std::bad_alloc, std::runtime_error (CUDA's).
  virtual void schedule(const std::vector<ScheduleInput>& ranks, const TileShape& tile,
                        const IdsInfo& ids, const Circumstances& tests, void* stream) = 0;
  virtual void run(const std::vector<RankInput>& ranks, int32_t comm_workers,
                   const Circumstances& tests, void* stream) = 0;

  /// What an earlier launch reported, if anything. Never waits.
  virtual std::optional<Fault> take_fault() = 0;
  virtual std::optional<BadId> take_bad_id() = 0;

  // For tests and measurements.
  /// Cycles of all workers per cuda::RoleTime since the last call; empty without
  /// MONOMOE_ROLE_CLOCKS.
  virtual std::vector<uint64_t> take_clocks() = 0;
  virtual void poison(uint8_t byte) = 0;
  /// `renews`: as if nothing had run before; else as if many small calls had.
  virtual void set_epoch(uint32_t epoch, bool renews) = 0;
};

}  // namespace monomoe::sm90
