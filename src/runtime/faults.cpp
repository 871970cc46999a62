#include "runtime/faults.h"

#include <sstream>

namespace monomoe {
namespace {

constexpr const char* kRemedy{
    "; the outputs hold NaN: close the group, find out why the rank did not come"};

std::string list_ranks(const std::vector<int32_t>& ranks) {
  std::string s{ranks.size() == 1 ? "rank " : "ranks "};
  for (size_t i{0}; i < ranks.size(); ++i) s += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  return s;
}

}  // namespace

std::string describe(const Fault& f, int32_t ranks) {
  std::ostringstream s;
  const char* const pass{f.backward ? "backward" : "forward"};
  s << "group: " << ranks << " ranks in " << pass << " call " << f.epoch << " wanted, ";
  if (f.missing.empty()) {
    s << "no progress on any rank";
  } else {
    s << list_ranks(f.missing) << " missing";
  }
  if (!f.waited) {
    s << "; the other ranks are done and waited " << f.waited_s << " s" << kRemedy;
    return s.str();
  }
  s << "; rank " << f.rank << " (" << name_of(f.line) << " line, " << name_of(f.task.kind)
    << ", row " << f.task.row << ", column " << f.task.col << ") waited " << f.waited_s << " s for "
    << name_of(f.counter.id) << "[" << f.counter.index << "] of rank " << f.counter.rank << ": "
    << static_cast<uint32_t>(f.seen) << " seen, " << static_cast<uint32_t>(f.wanted) << " wanted"
    << kRemedy;
  return s.str();
}

}  // namespace monomoe
