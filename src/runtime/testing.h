// Hooks for tests: what a user never needs. Same group, same calls, other circumstances.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "monomoe/group.h"

namespace monomoe::testing {

enum class Order : uint8_t {
  kThreads,      // the pool; what users get
  kTicket,       // one thread, one blocking worker a rank, tasks in ticket order
  kAdversarial,  // one thread, a seeded random order among all the counters allow
};

/// Chooses how the CPU backend executes the tasks of this group's calls.
void set_executor(Group& group, Order order, uint64_t seed);

/// Tile rows and columns, rows of a mover task and tokens of a combine task: small ones reach ring
/// reuse with few tokens. Ring and save sizes are then counted in tiles of that many rows. 0, 0, 0
/// restores the default. Chunk sizes scale with them.
void set_tile(Group& group, int32_t rows, int32_t cols, int32_t tokens);

/// Fills every data region of the group (workspace, rings, slots, staging; grown later too, at
/// growth) with `byte`; counters, flags and epochs keep their values.
void poison(Group& group, uint8_t byte);

/// Keeps that many bytes free behind each memory region in later calls.
void set_gaps(Group& group, int64_t bytes);

/// After a CPU call: where something was written that belongs to no region and no counter of that
/// call; empty: nowhere. Wants `poison` with `byte` before the call.
std::string stray_write(Group& group, uint8_t byte);

/// The epoch the next call uses; to start just below 2^32. `renews`: as in a new group; else flags
/// keep their values, as if the calls in between had been too small to use them.
void set_epoch(Group& group, uint32_t epoch, bool renews = true);

/// Rank `rank` never starts in later calls (-1: all start).
void never_start(Group& group, int64_t rank);

/// Threads: rank `rank` starts that late in later calls (-1: none does).
void start_late(Group& group, int64_t rank, double seconds);

/// Parts of a call, to be added up.
enum CallPart : uint32_t { kSchedule = 1, kKind = 2, kSizes = 4 };

/// In later calls rank `rank` tells its peers that it makes another call than they, different in
/// `parts` (rank -1: all tell the truth).
void falsify(Group& group, int64_t rank, uint32_t parts);

enum class PauseAt : uint8_t { kLaunch, kStage, kDispatch, kPush };

/// GPUs: in later calls every launch, or every task of that kind, of `rank` sleeps for `us`.
void pause(Group& group, int64_t rank, PauseAt at, uint32_t us);

/// Sequential executors: rank `rank` stops before its n-th task until nothing else can run
/// (rank -1: nobody stops).
void hold(Group& group, int64_t rank, int64_t task_idx);

/// Tasks that the last call executed on `rank`.
int64_t tasks_done(Group& group, int64_t rank);

/// Cycles that the roles of GPU workers spent since the last call, in the order of cuda::RoleTime;
/// empty in builds without MONOMOE_ROLE_CLOCKS.
std::vector<uint64_t> role_clocks(Group& group);

}  // namespace monomoe::testing
