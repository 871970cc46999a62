#include "runtime/backend.h"

#include <cstdlib>

#include "monomoe/error.h"
#include "runtime/cpu_backend.h"

namespace monomoe {

const std::vector<Backend*>& available_backends() {
  static const std::vector<Backend*> all{&cpu_backend()};
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

}  // namespace monomoe
