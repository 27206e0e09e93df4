// One q4_K chunk (64 values, two sub-blocks): its loads, and its term of the reference order.
#pragma once

#include "common.cuh"

namespace probes {

constexpr int kQ4kBlock = 144;

struct Q4kWeights {
    Words4 head;   // d, dmin (f16 each), then 12 bytes of packed scales and minima
    Words4 qs[2];  // low nibbles: sub-block 2c; high nibbles: sub-block 2c+1
    int chunk;     // 0..3 in its block
};

struct Q4kActivations {
    Words4 w[5];  // two pad40 units: 80 * chunk is always a multiple of 16
};

PROBES_FN Q4kWeights load_q4k_weights(const uint8_t* row, int unit) {
    const uint8_t* block = row + static_cast<uint32_t>(unit >> 2) * kQ4kBlock;
    Q4kWeights c;
    c.chunk = unit & 3;
    c.head = load16(block);
    c.qs[0] = load16(block + 16 + 32 * c.chunk);
    c.qs[1] = load16(block + 32 + 32 * c.chunk);
    return c;
}

template <class From = ReadOnly>
PROBES_FN Q4kActivations load_q4k_activations(const uint8_t* x8, int unit) {
    const uint8_t* act = x8 + static_cast<uint32_t>(unit) * (2 * kPad40);
    Q4kActivations a;
#pragma unroll
    for (int k = 0; k < 5; ++k) a.w[k] = From::w4(act + 16 * k);
    return a;
}

// Scales (or minima) of the chunk's two sub-blocks, in the low two bytes. `own` is the word that
// holds the six-bit values of sub-blocks 0..3; `nibbles` those of 4..7, already shifted down.
PROBES_FN uint32_t q4k_sixbit(uint32_t own, uint32_t nibbles, int chunk) {
    const uint32_t all = chunk < 2 ? own & 0x3f3f3f3fu : (nibbles & 0x0f0f0f0fu) | ((own >> 2) & 0x30303030u);
    return all >> (16 * (chunk & 1));
}

PROBES_FN float q4k_term(const Q4kWeights& c, const Q4kActivations& act) {
    // Words of the two pad40 units: scale, 8 words of int8, sum; twice.
    int32_t dot_a = 0, dot_b = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        const uint32_t q = c.qs[j >> 2].w[j & 3];
        dot_a = dp4a(q & 0x0f0f0f0fu, act.w[(1 + j) >> 2].w[(1 + j) & 3], dot_a);
        dot_b = dp4a((q >> 4) & 0x0f0f0f0fu, act.w[(11 + j) >> 2].w[(11 + j) & 3], dot_b);
    }
    const float sum_a = static_cast<float>(static_cast<int32_t>(act.w[2].w[1]));
    const float sum_b = static_cast<float>(static_cast<int32_t>(act.w[4].w[3]));
    const float d = float_of_half(c.head.w[0] & 0xffffu), dmin = float_of_half(c.head.w[0] >> 16);
    const uint32_t s = q4k_sixbit(c.head.w[1], c.head.w[3], c.chunk);
    const uint32_t m = q4k_sixbit(c.head.w[2], c.head.w[3] >> 4, c.chunk);
    const float a = sub(mul(mul(signed_byte(s, 0), d), static_cast<float>(dot_a)), mul(mul(signed_byte(m, 0), dmin), sum_a));
    const float b = sub(mul(mul(signed_byte(s, 1), d), static_cast<float>(dot_b)), mul(mul(signed_byte(m, 1), dmin), sum_b));
    return add(mul(float_of_half(act.w[0].w[0] & 0xffffu), a), mul(float_of_half(act.w[2].w[2] & 0xffffu), b));
}

}  // namespace probes
