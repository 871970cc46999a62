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

namespace monomoe {

class Backend {
 public:
  virtual ~Backend() = default;
  [[nodiscard]] virtual const char* name() const = 0;
  [[nodiscard]] virtual Arch arch() const = 0;
  [[nodiscard]] virtual bool serves(const Device& device) const = 0;

  /// Validated calls under the group's lock.
  virtual void schedule(Group::Impl& group, const Tensor& topk_ids, const Schedule& out) = 0;
  virtual std::optional<Fault> run(Group::Impl& group, const Call& call) = 0;
};

/// All backends of this build that this machine can run, best first.
const std::vector<Backend*>& available_backends();

/// The one for tensors on `device`; MONOMOE_BACKEND=name forces one. Errors: kBackend.
Backend& backend_for(const Device& device);

}  // namespace monomoe
