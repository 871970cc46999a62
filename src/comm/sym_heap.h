// What a task may know of its peers: their heaps, their flags, and the call they are in.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/hd.h"

namespace monomoe {

enum class CallKind : uint32_t { kNone, kForward, kBackward };

/// Written by a launch at entry to every peer: who is where, and in which call. Two words of one
/// epoch must be equal.
struct LaunchWord {
  uint64_t stamp{
      0};            // epoch, kind of call, hash of all the rest: one value, read and written whole
  uint32_t hash{0};  // of the schedule   } read only
  uint32_t dims{0};  // see launch_word   } for a sentence

  MONOMOE_HD constexpr uint32_t epoch() const { return static_cast<uint32_t>(stamp >> 32U); }
  MONOMOE_HD constexpr CallKind kind() const {
    return static_cast<CallKind>(static_cast<uint32_t>(stamp) >> 30U);
  }
  /// Of a rank that has made no call in `epoch`.
  MONOMOE_HD static constexpr LaunchWord idle(uint32_t epoch) {
    return {uint64_t{epoch} << 32U, 0, 0};
  }
};

namespace detail {
MONOMOE_HD constexpr uint32_t mix(uint32_t hash, uint32_t value) {
  uint32_t h{(hash ^ value) * 0x9E3779B1U};
  h ^= h >> 15U;
  return h * 0x85EBCA77U;
}
}  // namespace detail

/// Parts of a call that a test may falsify: bits of `odd` below.
enum OddCall : uint32_t { kOddSchedule = 1, kOddKind = 2, kOddDims = 4 };

/// The word of a launch with plan `p`: kind, schedule, H, K, E, dtype, save mode.
template <class P>
MONOMOE_HD LaunchWord launch_word(const P& p, uint32_t odd = 0) {
  constexpr uint32_t kBf16Operands{1};
  uint32_t dims{detail::mix(kBf16Operands, static_cast<uint32_t>(p.dims.hidden))};
  dims = detail::mix(dims, static_cast<uint32_t>(p.dims.top_k));
  dims = detail::mix(dims, static_cast<uint32_t>(p.dims.experts));
  dims = detail::mix(dims, static_cast<uint32_t>(p.knobs.save_tiles));
  dims = detail::mix(dims, (p.knobs.save_x ? 1U : 0U) | (p.knobs.save_shared ? 2U : 0U));
  if ((odd & kOddDims) != 0) dims ^= 1U;
  const uint32_t hash{p.tables.header->hash ^ ((odd & kOddSchedule) != 0 ? 1U : 0U)};
  const bool backward{p.backward != ((odd & kOddKind) != 0)};
  const auto kind = static_cast<uint32_t>(backward ? CallKind::kBackward : CallKind::kForward);
  const uint32_t rest{detail::mix(dims, hash) >> 2U};
  return {uint64_t{p.epoch} << 32U | uint64_t{kind << 30U | rest}, hash, dims};
}

/// One rank's part of the symmetric heap.
struct HeapView {
  std::byte* data{nullptr};       // regions of plan/workspace.h
  int32_t* arrivals{nullptr};     // [token blocks]
  int32_t* stage_flags{nullptr};  // [stage chunks] epochs
  LaunchWord* words{nullptr};     // [R] one per peer
  int32_t* abort{nullptr};        // nonzero: leave
};

}  // namespace monomoe
