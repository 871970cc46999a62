// dgrad_down: dA' = dy * Wd, then the backward of the activation.
//
// Operands  dy_row [tile rows, H] bf16 (dy ring) | Wd [H, I] bf16, read along I
// Tile      rows x cols of I, k = H
// Epilogue  with gate, up (preact_index) and the row's router weight w:
//           dgate, dup -> grad ring [row, 2, I]; w * a -> act ring [row, I];
//           sum over the tile's columns of dA' * a -> partials [row, column tile] fp32;
//           rows from the expert's end to the next multiple of `align` are written as zero
// Signals   kDdDone[row tile]
#pragma once
