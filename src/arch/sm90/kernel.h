// The kernels, as addresses that host code launches.
#pragma once

namespace monomoe::sm90 {

/// Argument: cuda::Launch. Block: kThreads. Dynamic shared memory: kSmemBytes.
const void* forward_kernel_address();

/// Argument: cuda::ScheduleLaunch.
const void* schedule_kernel_address();

}  // namespace monomoe::sm90
