// The fixed float32 exp and SwiGLU, step for step as probes/formats/swiglu.py states them.
#pragma once

#include "common.cuh"
#include "constants.gen.cuh"

namespace probes {

PROBES_FN float exp_fixed(float x) {
    if (x > kExp_high) x = kExp_high;
    if (x < kExp_low) x = kExp_low;
    const float t = add(mul(x, kExp_log2e), kExp_magic);
    const int32_t n = static_cast<int32_t>(bits_of_float(t) - kExp_magic_bits);
    const float f = sub(t, kExp_magic);
    float r = sub(x, mul(f, kExp_ln2_hi));
    r = sub(r, mul(f, kExp_ln2_lo));
    float p = add(mul(kExp_c6, r), kExp_c5);
    p = add(mul(p, r), kExp_c4);
    p = add(mul(p, r), kExp_c3);
    p = add(mul(p, r), kExp_c2);
    p = add(add(mul(p, mul(r, r)), r), 1.0f);
    const int32_t h = n >> 1;
    const float s = float_of_bits((static_cast<uint32_t>(h) + 127u) << 23);
    const float q = float_of_bits((static_cast<uint32_t>(n - h) + 127u) << 23);
    return mul(mul(p, s), q);
}

PROBES_FN float silu(float g) { return divide(g, add(1.0f, exp_fixed(-g))); }
PROBES_FN float swiglu(float g, float u) { return mul(silu(g), u); }

}  // namespace probes
