// combine: the sum over the slots of a block of tokens.
//
// Forward   y[t]  = bf16(sum over k ascending of w[t,k] * slots[t,k] [+ sigma[t] * shared_out[t]])
// Backward  dx[t] = bf16(sum over k ascending of slots[t,k] [+ shared_out[t]]
//                        [+ dscore[t] * w_score]);  dw[t,k] = slot_scalars[t,k]
// A slot that is not routed is never read; its router gradient is 0.
#pragma once
