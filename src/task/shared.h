// The shared expert: the same GEMMs over the rank's own tokens, without dispatch and without slots.
//
// shared_gate_up        rows = tokens of x            -> shared_act [T, Is], saved pre-activations
// shared_score          score[t] = x[t] . w_score     -> saved score [T] fp32
// shared_down           shared_act * Wd^T             -> shared_out [T, H] bf16, weighted by
// combine shared_dgrad_down     as dgrad_down with w = sigma  -> shared_grad, shared_act,
// shared_partials shared_dscore         sigma (1 - sigma) * partials  -> dscore [T] fp32
// shared_dgrad_gate_up  as dgrad_gate_up              -> shared_out [T, H] bf16
// shared_wgrad_*        k = tokens ascending
// shared_wgrad_score    sum over t ascending of dscore[t] * x[t]
// In a local group with R > 1 each rank adds its fp32 sum to the chain, in rank order; the last
// rank rounds. Alone, or with one process a rank, the own sum is the gradient.
#pragma once
