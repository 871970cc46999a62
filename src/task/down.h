// down: y_row = a * Wd^T, pushed to the row's slot at its home.
//
// Operands  a_row [tile rows, I] bf16 (act ring) | Wd [H, I] bf16 of the expert
// Tile      rows x cols, k = I
// Epilogue  bf16 row segments -> slots[token * K + k, H] at the home rank
// Signals   kDownDone[row tile]; the last column tile adds the tile's rows to kArrival at the homes
#pragma once
