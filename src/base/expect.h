// How a broken contract inside the library is reported on the host.
#pragma once

#include <stdexcept>
#include <string>

namespace monomoe {

/// Throws std::logic_error if `holds` is false: a bug of ours, never a mistake of the caller.
inline void expect(bool holds, const char* what) {
  if (!holds) throw std::logic_error{std::string{"monomoe: broken contract: "} + what};
}

}  // namespace monomoe
