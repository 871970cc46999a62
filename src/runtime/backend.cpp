#include "runtime/backend.h"

#include <cstdlib>

#include "monomoe/error.h"
#include "runtime/cpu_backend.h"
#include "runtime/sm90_backend.h"

namespace monomoe {

const std::vector<Backend*>& available_backends() {
  static const std::vector<Backend*> all{[] {
    std::vector<Backend*> found;
    if (Backend* const gpu{sm90_backend()}) found.push_back(gpu);
    found.push_back(&cpu_backend());
    return found;
  }()};
  return all;
}

Backend& backend_for(const Device& device) {
  const char* const variable{std::getenv("MONOMOE_BACKEND")};
  const std::string forced{variable == nullptr ? "" : variable};
  std::string names;
  for (Backend* b : available_backends()) {
    if (!b->serves(device)) continue;
    if (forced.empty() || forced == b->name()) return *b;
    names += (names.empty() ? "" : ", ") + std::string{b->name()};
  }
  throw Error{ErrorCode::kBackend, "MONOMOE_BACKEND: one of {" + names + "} wanted, " +
                                       (forced.empty() ? "nothing" : forced) +
                                       " given; unset it or run `python -m monomoe doctor`"};
}

bool is_served(const Device& device) {
  for (const Backend* b : available_backends()) {
    if (b->serves(device)) return true;
  }
  return false;
}

std::string why_not_served(const Device& device) {
  return device.kind == DeviceKind::kCuda ? sm90_refusal(device.index)
                                          : "no backend serves that device here";
}

}  // namespace monomoe
