// A GPU made of fibers: every thread of every block of concurrent launches is one, all in one host
// thread, in an order that follows from a seed. Threads lose the processor where they wait, poll or
// synchronise; asynchronous copies arrive at any later time. A state in which nobody can go on is
// reported with who waits for what.
//
// What it does not show: the order of memory accesses of different threads (they are sequentially
// consistent here), and time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace emulator {

struct Index {
  uint32_t x;
};

/// A block's shared memory and its place.
struct Block {
  uint8_t* shared;
  uint32_t index;         // blockIdx.x
  uint32_t blocks;        // gridDim.x
  uint32_t threads;       // blockDim.x
  uint32_t cluster_rank;  // in its cluster
  std::vector<Block*> cluster;
};

/// A kernel to be run: `body` is called by each thread.
struct Launch {
  std::function<void()> body;
  uint32_t blocks;
  uint32_t threads;
  uint32_t cluster;  // blocks of a cluster
  size_t shared_bytes;
};

/// Runs launches side by side until all have ended. Throws std::runtime_error if they can't end.
void run(const std::vector<Launch>& launches, uint64_t seed);

// For the running thread.
Block& block();
Index thread_index();
/// Lets others run until `ready()`; `what` appears in reports.
void wait_until(const char* what, const std::function<bool()>& ready);
void yield();
/// Exchanges a value with the other lanes of the warp, all of which must come here.
const std::vector<uint64_t>& exchange(uint64_t value);
/// Waits for `count` threads at barrier `id` of the block (or of the cluster).
void meet(int32_t id, uint32_t count, bool cluster);
/// Does something later: now and then, in any order.
void later(std::function<void()> what);
/// Stores of this thread that have not been done yet.
int32_t& pending_stores();

}  // namespace emulator
