// q4_K units (64 values, two sub-blocks) with register-resident activations: held.cuh's idea.
//
// Per unit this leaves three loads of weights and about 65 other instructions. What is rearranged is exact:
//
//   * dots: the accumulator starts at the bits of 1.5 * 2^23, so that the sum, read as a float, is 12582912 + dot, and
//     one subtraction (exact below 2^22) replaces a conversion.
//   * scales and minima: one word holds the unit's four. A byte v of it, put behind the bits of 2^23, is the float
//     2^23 + v, and fma(2^23 + v, d, -2^23 * d) is v * d: 17 bits, so exact, as the reference's product is. (It is +0 where
//     that is -0; no sum tells, see probes/formats/reduction.py.)
//   * high nibbles stay where they are: their dot comes times 16 and so does the held sum of the activations, and the
//     held scale is d8 / 16. Powers of two change no rounding (nothing here is subnormal: d8 is 2^-24 at least).
//
// A lane without a unit holds d8 = 0 and reads the unit of its place in the row's first block: see held.cuh.
#pragma once

#include "held.cuh"
#include "q4k.cuh"

#ifndef __CUDA_ARCH__
#include <cmath>
#endif

namespace probes {

struct HeldQ4k {
    uint32_t x[16];  // of the low nibbles' sub-block, then of the high ones'
    float d8[2], sum[2];
};

PROBES_FN HeldQ4k hold_q4k(const Q4kActivations& a, bool owned) {
    HeldQ4k h;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        h.x[j] = a.w[(1 + j) >> 2].w[(1 + j) & 3];
        h.x[8 + j] = a.w[(11 + j) >> 2].w[(11 + j) & 3];
    }
    h.d8[0] = owned ? float_of_half(a.w[0].w[0] & 0xffffu) : 0.0f;
    h.d8[1] = owned ? mul(float_of_half(a.w[2].w[2] & 0xffffu), 0.0625f) : 0.0f;
    h.sum[0] = static_cast<float>(static_cast<int32_t>(a.w[2].w[1]));
    h.sum[1] = static_cast<float>(16 * static_cast<int32_t>(a.w[4].w[3]));
    return h;
}

// What depends on the unit's place in its super-block: how to find its two scales and two minima.
struct Q4kLane {
    uint32_t bytes, own, upper, nibbles;
};

PROBES_FN Q4kLane q4k_lane(int unit) {
    const bool first = (unit & 2) == 0;
    return {unit & 1 ? 0x7632u : 0x5410u, first ? 0x3f3f3f3fu : 0u, first ? 0u : 0x30303030u, first ? 0u : 0x0f0f0f0fu};
}

// Four bytes of two words, by prmt's selector.
PROBES_FN uint32_t permuted(uint32_t a, uint32_t b, uint32_t selector) {
#ifdef __CUDA_ARCH__
    return __byte_perm(a, b, selector);
#else
    uint32_t out = 0;
    for (int k = 0; k < 4; ++k) {
        const uint32_t from = selector >> (4 * k) & 7u;
        out |= ((from < 4 ? a : b) >> (8 * (from & 3u)) & 255u) << (8 * k);
    }
    return out;
#endif
}

PROBES_FN float fused(float a, float b, float c) {
#ifdef __CUDA_ARCH__
    return __fmaf_rn(a, b, c);
#else
    return std::fma(a, b, c);
#endif
}

// The unit's two scales, then its two minima, a byte each: six bits, see q4k_sixbit. head: words 1 to 3 of the block's.
PROBES_FN uint32_t q4k_sixbits(const Words4& head, const Q4kLane& lane) {
    const uint32_t own = permuted(head.w[1], head.w[2], lane.bytes);
    const uint32_t nibbles = permuted(head.w[3], head.w[3] >> 4, lane.bytes);
    return (own & lane.own) | ((own >> 2) & lane.upper) | (nibbles & lane.nibbles);
}

// Byte `index` of a word times d; shifted: -2^23 * d.
PROBES_FN float byte_times(uint32_t word, int index, float d, float shifted) {
    return fused(float_of_bits(permuted(word, 0x4b000000u, 0x7440u | index)), d, shifted);
}

struct Q4kPiece {
    Words4 head, qs[2];
};

PROBES_FN float held_q4k_term(const Q4kPiece& p, const HeldQ4k& h, const Q4kLane& lane) {
    int32_t dot[2] = {kMagicBits, kMagicBits};
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        const uint32_t q = p.qs[j >> 2].w[j & 3];
        dot[0] = dp4a_unsigned(q & 0x0f0f0f0fu, h.x[j], dot[0]);
        dot[1] = dp4a_unsigned(q & 0xf0f0f0f0u, h.x[8 + j], dot[1]);
    }
    const float d = float_of_half(p.head.w[0] & 0xffffu), dmin = float_of_half(p.head.w[0] >> 16);
    const float d23 = mul(d, -8388608.0f), dmin23 = mul(dmin, -8388608.0f);
    const uint32_t six = q4k_sixbits(p.head, lane);
    float part[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
        const float value = sub(float_of_bits(static_cast<uint32_t>(dot[k])), kMagic);
        part[k] = sub(mul(byte_times(six, k, d, d23), value), mul(byte_times(six, 2 + k, dmin, dmin23), h.sum[k]));
    }
    return add(mul(h.d8[0], part[0]), mul(h.d8[1], part[1]));
}

#ifdef __CUDACC__
// q4_K for a ring's consumers (ring.cuh): rows as stored, 144 bytes a super-block, in shared memory.
template <class From>
struct Q4kRows {
    static constexpr int kUnits = 4;     // of a super-block
    static constexpr int kMostHeld = 1;  // a second one would take 24 registers more from every block, for id > 16384

    static __device__ __forceinline__ Q4kActivations activation(const uint8_t* x8, int unit) {
        return load_q4k_activations<Here>(x8, unit);
    }

    static __device__ __forceinline__ Q4kPiece load(const uint8_t* row, uint32_t head, uint32_t qs) {
        return {Plain::w4(row + head), {Plain::w4(row + qs), Plain::w4(row + qs + 16)}};
    }

    template <int K>
    struct Steps {
        HeldQ4k held[K];
        uint32_t head[K], qs[K];
        Q4kLane lane;

        __device__ __forceinline__ Steps(const Q4kActivations& first, const uint8_t* x8, int thread, int nbe) {
            lane = q4k_lane(thread);
            pin(lane.bytes), pin(lane.own), pin(lane.upper), pin(lane.nibbles);
#pragma unroll
            for (int k = 0; k < K; ++k) {
                const int unit = unit_of(thread, k, nbe * 4, 4);
                held[k] = hold_q4k(k ? load_q4k_activations<From>(x8, unit) : first, thread + k * kThreads < nbe * 4);
                head[k] = (unit >> 2) * kQ4kBlock, qs[k] = head[k] + 16 + 32 * (unit & 3);
                pin(head[k]), pin(qs[k]);
            }
        }

        __device__ __forceinline__ Q4kPiece piece(const uint8_t* row, int k) const { return load(row, head[k], qs[k]); }
        __device__ __forceinline__ float term(const Q4kPiece& p, int k) const { return held_q4k_term(p, held[k], lane); }
    };

    static __device__ __forceinline__ float term(const uint8_t* row, const uint8_t* x8, int u, int) {
        const uint32_t head = (u >> 2) * kQ4kBlock;
        return held_q4k_term(load(row, head, head + 16 + 32 * (u & 3)), hold_q4k(load_q4k_activations<From>(x8, u), true),
                             q4k_lane(u));
    }
};
#endif

}  // namespace probes
