// dgrad_gate_up: dx_row = dgate * Wg + dup * Wu, pushed to the row's slot at its home.
//
// Operands  dgate, dup [tile rows, 2, I] bf16 (grad ring) | Wg, Wu [I, H] bf16, read along H
// Tile      rows x cols of H, k = I of gate, then I of up, one accumulation
// Epilogue  bf16 row segments -> slots[token * K + k, H] at the home rank
// Signals   kDgDone[row tile]; the last column tile sums the router partials in tile order, stores
//           them to slot_scalars at the homes, adds to kArrival there and sets kRowsPushed
#pragma once
