// dispatch: an owner pulls `move_rows` rows of a row tile from their homes.
//
// Reads     row_src; x_stage (forward), dy_stage, weight_stage and x_stage if x was not saved
//           (backward) of the homes; with R = 1 the caller's tensors
// Writes    x ring or saved x; dy ring, weight ring; rows from the expert's end to the next
//           multiple of `align` are written as zero
// Signals   kRowsReady[row tile]
#pragma once
