// The kernels, as addresses that host code launches.
#pragma once

namespace monomoe::sm90 {

/// Forward or backward. Argument: cuda::Launch. Block: kThreads. Dynamic shared memory: kSmemBytes.
const void* pass_kernel_address(bool backward);

/// Argument: cuda::ScheduleLaunch.
const void* schedule_kernel_address();

/// Argument: cuda::MeetLaunch. Block: one thread.
const void* meet_kernel_address();

}  // namespace monomoe::sm90
