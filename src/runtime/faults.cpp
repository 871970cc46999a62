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

const char* name_of(CallKind kind) {
  if (kind == CallKind::kNone) return "nothing";
  return kind == CallKind::kForward ? "forward" : "backward";
}

/// What differs between two calls, once it is known that something does.
std::string describe_calls(const Fault& f) {
  std::ostringstream s;
  s << "group: the same call on all ranks wanted, ";
  if (f.own.kind() != f.other.kind()) {
    s << name_of(f.own.kind()) << " on rank " << f.rank << " and " << name_of(f.other.kind())
      << " on rank " << f.peer;
  } else {
    s << name_of(f.own.kind()) << " on ranks " << f.rank << " and " << f.peer << " with "
      << (f.own.dims != f.other.dims ? "different hidden, top_k, experts or save mode"
                                     : "different schedules");
  }
  s << " given as call " << f.epoch
    << "; the outputs hold NaN: close the group, make the same calls in the same order on every "
       "rank";
  return s.str();
}

}  // namespace

std::string describe(const Fault& f, int32_t ranks) {
  if (f.reason == FaultReason::kCalls) return describe_calls(f);
  std::ostringstream s;
  if (f.reason == FaultReason::kIds || f.reason == FaultReason::kBlocks) {
    s << "group: " << ranks << (ranks == 1 ? " rank" : " ranks") << " in schedule call " << f.epoch
      << " wanted, ";
    if (f.reason == FaultReason::kIds) {
      s << list_ranks(f.missing) << " missing; rank " << f.rank << " waited " << f.waited_s
        << " s for its expert ids; no later call runs: close the group, find out why the rank did "
           "not come";
    } else {
      s << "blocks of rank " << f.rank << " missing for " << f.waited_s
        << " s; no later call runs: close the group, let no other kernel occupy the GPU for so "
           "long";
    }
    return s.str();
  }
  const char* const pass{f.backward ? "backward" : "forward"};
  s << "group: " << ranks << " ranks in " << pass << " call " << f.epoch << " wanted, ";
  if (f.missing.empty()) {
    s << "no progress on any rank";
  } else {
    s << list_ranks(f.missing) << " missing";
  }
  if (f.reason == FaultReason::kIdle) {
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
