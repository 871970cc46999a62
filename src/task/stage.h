// stage: a home makes one chunk of its tokens readable for its peers.
//
// Reads     x (forward; backward unless every rank saved all x), dy and router weights (backward)
// Writes    x_stage, dy_stage, weight_stage; nothing with R = 1, where dispatch reads the caller
// Then      zeroes kArrival of its token blocks, then sets kStageFlag[chunk] = epoch
#pragma once
