// What a task may know of its peers: their heaps and their flags.
#pragma once

#include <cstddef>
#include <cstdint>

namespace monomoe {

/// Written by a launch at entry to every peer: who is where, and in which call.
struct LaunchWord {
  uint32_t epoch;
  uint32_t kind;  // 1 forward, 2 backward
  uint32_t hash;  // of the schedule
  uint32_t dims;  // of H, K, E, save mode
};

/// One rank's part of the symmetric heap.
struct HeapView {
  std::byte* data{nullptr};       // regions of plan/workspace.h
  int32_t* arrivals{nullptr};     // [token blocks]
  int32_t* stage_flags{nullptr};  // [stage chunks] epochs
  LaunchWord* words{nullptr};     // [R] one per peer
  int32_t* abort{nullptr};        // nonzero: leave
};

}  // namespace monomoe
