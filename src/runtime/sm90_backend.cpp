#include "runtime/sm90_backend.h"

#ifdef MONOMOE_CUDA

#include <algorithm>
#include <new>
#include <stdexcept>
#include <utility>

#include "arch/sm90/backend.h"
#include "base/expect.h"
#include "monomoe/error.h"
#include "runtime/faults.h"
#include "runtime/operands.h"

namespace monomoe {
namespace {

/// What the device part throws, as errors for the caller. (std::bad_alloc is for step.cpp.)
template <class F>
auto translated(const F& call) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::runtime_error& e) {  // sm90::Refused or an error of CUDA: sentences both
    throw Error{ErrorCode::kBackend, e.what()};
  }
}

sm90::Circumstances circumstances(const TestHooks& h) {
  return {h.absent_rank, h.odd_rank, h.odd, h.pauses};
}

sm90::DeviceGroup& device_group(Group::Impl& g, const Device& device) {
  const auto at = g.devices.find(device.index);
  if (at != g.devices.end()) return *at->second;
  auto made = translated([&] {
    return sm90::DeviceGroup::make(device.index, g.ranks, g.timeout_s, circumstances(g.hooks));
  });
  return *(g.devices[device.index] = std::move(made));
}

class Sm90Backend final : public Backend {
 public:
  [[nodiscard]] const char* name() const override { return "sm90"; }
  [[nodiscard]] Arch arch() const override { return Arch::kSm90; }
  [[nodiscard]] bool serves(const Device& device) const override {
    return device.kind == DeviceKind::kCuda && sm90::query(device.index).usable;
  }
  [[nodiscard]] PlanTraits traits(Group::Impl& g, const Device& device) override {
    return {Arch::kSm90, device_group(g, device).workers_per_rank(), false};
  }

  void schedule(Group::Impl& g, const Tensor& ids, const Schedule& out, void* stream) override {
    const bool wide{ids.dtype == DType::kI64};
    std::vector<sm90::ScheduleInput> ranks;
    for (const RankTables& t : rank_tables(g, out)) {
      const int64_t first{t.first_token * ids.stride[0] * (wide ? 8 : 4)};
      ranks.push_back({t.dims, static_cast<const std::byte*>(ids.data) + first, t.words});
    }
    sm90::DeviceGroup& device{device_group(g, ids.device)};
    translated([&] {
      device.schedule(ranks, g.tile, {wide, ids.stride[0], ids.stride[1]}, circumstances(g.hooks),
                      stream);
    });
  }

  std::optional<Fault> run(Group::Impl& g, const Call& call,
                           const std::vector<RankPlan>& plans) override {
    std::vector<sm90::RankInput> ranks;
    for (const RankPlan& p : plans) ranks.push_back({p.plan, p.facts, bind_operands(call, p)});
    const auto comm = call.backward ? call.config.bwd_comm_sms : call.config.fwd_comm_sms;
    sm90::DeviceGroup& device{device_group(g, call.x.device)};
    translated([&] {
      device.run(ranks, static_cast<int32_t>(comm.value_or(0)), circumstances(g.hooks),
                 call.stream);
    });
    return std::nullopt;
  }

  std::optional<std::string> poll(Group::Impl& g) override {
    for (auto& [index, group] : g.devices) {
      if (const auto bad = group->take_bad_id()) {
        throw Error{ErrorCode::kValue,
                    "topk_ids: values in [-1, " + std::to_string(bad->experts) + ") wanted, " +
                        std::to_string(bad->value) + " found at [" + std::to_string(bad->token) +
                        ", " + std::to_string(bad->slot) + "] of rank " +
                        std::to_string(bad->rank) +
                        "; an earlier call counted it as not routed: fix the router"};
      }
      if (const auto fault = group->take_fault()) return describe(*fault, g.ranks);
    }
    return std::nullopt;
  }
};

}  // namespace

Backend* sm90_backend() {
  static Sm90Backend backend;
  static const bool usable{[] {
    const int32_t n{sm90::device_count()};
    for (int32_t i{0}; i < n; ++i) {
      if (sm90::query(i).usable) return true;
    }
    return false;
  }()};
  return usable ? &backend : nullptr;
}

std::string sm90_refusal(int32_t device) { return sm90::query(device).reason; }

std::vector<std::pair<std::string, std::string>> sm90_environment() { return sm90::environment(); }

}  // namespace monomoe

#else

namespace monomoe {

Backend* sm90_backend() { return nullptr; }

std::string sm90_refusal(int32_t /*device*/) {
  return "a build with CUDA 13 wanted, one without it found";
}

std::vector<std::pair<std::string, std::string>> sm90_environment() {
  return {{"kernels", "none: built without CUDA"}};
}

}  // namespace monomoe

#endif
