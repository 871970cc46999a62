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
  const char* const forced{std::getenv("MONOMOE_BACKEND")};
  std::string names;
  for (Backend* b : available_backends()) {
    if (forced != nullptr && *forced != '\0' ? b->name() == std::string{forced}
                                             : b->serves(device)) {
      return *b;
    }
    names += (names.empty() ? "" : ", ") + std::string{b->name()};
  }
  throw Error{ErrorCode::kBackend, std::string{"MONOMOE_BACKEND: one of {"} + names + "} wanted, " +
                                       (forced != nullptr ? forced : "nothing") +
                                       " given; unset it or run `python -m monomoe doctor`"};
}

bool is_served(const Device& device) {
  for (const Backend* b : available_backends()) {
    if (b->serves(device)) return true;
  }
  return false;
}

}  // namespace monomoe
