// What a backend does for the runtime, and which ones exist.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/fault.h"
#include "monomoe/layer.h"
#include "plan/policy.h"
#include "runtime/call.h"
#include "runtime/group_impl.h"
#include "runtime/planner.h"

namespace monomoe {

class Backend {
 public:
  virtual ~Backend() = default;
  [[nodiscard]] virtual const char* name() const = 0;
  [[nodiscard]] virtual Arch arch() const = 0;
  [[nodiscard]] virtual bool serves(const Device& device) const = 0;
  [[nodiscard]] virtual PlanTraits traits(Group::Impl& group, const Device& device) = 0;

  /// Validated calls under the group's lock.
  virtual void schedule(Group::Impl& group, const Tensor& topk_ids, const Schedule& out,
                        void* stream) = 0;
  virtual std::optional<Fault> run(Group::Impl& group, const Call& call,
                                   const std::vector<RankPlan>& plans) = 0;

  /// What earlier calls of the group have reported meanwhile, as a sentence.
  virtual std::optional<std::string> poll(Group::Impl& group) = 0;
};

/// All backends of this build that this machine can run, best first.
const std::vector<Backend*>& available_backends();

/// The one for tensors on `device`; MONOMOE_BACKEND=name forces one. Errors: kBackend.
Backend& backend_for(const Device& device);

/// Is there a backend for tensors on `device`?
bool is_served(const Device& device);

/// Why there is none: wanted, found.
std::string why_not_served(const Device& device);

}  // namespace monomoe
