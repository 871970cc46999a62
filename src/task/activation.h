// SwiGLU with an optional clamp, and its derivative.
#pragma once

#include "base/hd.h"

namespace monomoe {

/// gate is cut above at `limit`, up on both sides. No clamp: limit = +infinity.
struct Clamp {
  float limit;

  // Comparisons are written so that NaN passes through.
  MONOMOE_HD float gate(float g) const { return g > limit ? limit : g; }
  MONOMOE_HD float up(float u) const { return u > limit ? limit : (u < -limit ? -limit : u); }
  MONOMOE_HD bool gate_passes(float g) const { return !(g > limit); }
  MONOMOE_HD bool up_passes(float u) const { return !(u > limit) && !(u < -limit); }
};

/// silu(gate') * up' in fp32; the caller rounds it to bf16.
template <class Sigmoid>
MONOMOE_HD float swiglu(float gate, float up, const Clamp& clamp, const Sigmoid& sigmoid) {
  const float g{clamp.gate(gate)};
  return g * sigmoid(g) * clamp.up(up);
}

struct SwigluGrad {
  float act;    // silu(gate') * up', not rounded
  float dgate;  // d act / d gate
  float dup;    // d act / d up
};

template <class Sigmoid>
MONOMOE_HD SwigluGrad swiglu_grad(float gate, float up, const Clamp& clamp,
                                  const Sigmoid& sigmoid) {
  const float g{clamp.gate(gate)};
  const float u{clamp.up(up)};
  const float s{sigmoid(g)};
  const float silu{g * s};
  return {silu * u, clamp.gate_passes(gate) ? u * (s * (1.0F + g * (1.0F - s))) : 0.0F,
          clamp.up_passes(up) ? silu : 0.0F};
}

}  // namespace monomoe
