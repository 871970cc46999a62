// The one exception type. Its text reads: subject: wanted, given; remedy.
#pragma once

#include <stdexcept>
#include <string>

namespace monomoe {

enum class ErrorCode : unsigned char {
  kValue,    // a shape, stride, id or number is not legal; pass another (Python: ValueError)
  kType,     // a dtype or device is not legal; convert the tensor (Python: TypeError)
  kState,    // closed group, foreign schedule; make a new one (Python: RuntimeError)
  kFault,    // a wait expired or a rank is missing; close the group (Python: RuntimeError)
  kBackend,  // this machine can't run what was asked; `doctor` says why (Python: RuntimeError)
};

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& text) : std::runtime_error{text}, code_{code} {}
  [[nodiscard]] ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace monomoe
