// q4_K units (64 values, two sub-blocks) for kernels that meet many rows with the same activations: held.cuh's idea.
//
// Per unit this leaves three loads of weights and about 65 other instructions. What is rearranged is exact:
//
//   * dots: the accumulator starts at the bits of 1.5 * 2^23, so that the sum, read as a float, is 12582912 + dot, and
//     one subtraction (exact below 2^22) replaces a conversion. Scales and minima become floats the same way.
//   * high nibbles stay where they are: their dot comes times 16 and so does the held sum of the activations, and the
//     held scale is d8 / 16. Powers of two change no rounding (nothing here is subnormal: d8 is 2^-24 at least).
//
// A lane without a unit holds d8 = 0 and reads the unit of its place in the row's first block: see held.cuh.
#pragma once

#include "held.cuh"
#include "q4k.cuh"

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

// What depends on the unit's place in its super-block: how to find its two scales and minima.
struct Q4kLane {
    uint32_t shift, own, upper, nibbles;
};

PROBES_FN Q4kLane q4k_lane(int unit) {
    const bool first = (unit & 2) == 0;
    return {16u * (unit & 1), first ? 0x3f3fu : 0u, first ? 0u : 0x3030u, first ? 0u : 0x0f0fu};
}

// The unit's two six-bit values, a byte each; see q4k_sixbit.
PROBES_FN uint32_t q4k_pair(uint32_t own, uint32_t nibbles, const Q4kLane& lane) {
    own >>= lane.shift;
    return (own & lane.own) | ((own >> 2) & lane.upper) | ((nibbles >> lane.shift) & lane.nibbles);
}

// Byte `index` of a word as a float: the byte behind the bits of 2^23, less 2^23.
PROBES_FN float small_byte(uint32_t word, int index) {
#ifdef __CUDA_ARCH__
    return sub(float_of_bits(__byte_perm(word, 0x4b000000u, 0x7440u | index)), 8388608.0f);
#else
    return sub(float_of_bits((word >> (8 * index) & 255u) | 0x4b000000u), 8388608.0f);
#endif
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
    const uint32_t s = q4k_pair(p.head.w[1], p.head.w[3], lane), m = q4k_pair(p.head.w[2], p.head.w[3] >> 4, lane);
    float part[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
        const float value = sub(float_of_bits(static_cast<uint32_t>(dot[k])), kMagic);
        part[k] = sub(mul(mul(small_byte(s, k), d), value), mul(mul(small_byte(m, k), dmin), h.sum[k]));
    }
    return add(mul(h.d8[0], part[0]), mul(h.d8[1], part[1]));
}

#ifdef __CUDACC__
// q4_K for a ring's consumers (ring.cuh): rows as stored, 144 bytes a super-block, in shared memory.
template <class From>
struct Q4kRows {
    static constexpr int kUnits = 4;     // of a super-block
    static constexpr int kMostHeld = 1;  // a second one would take 24 registers more from every block, for id > 16384

    static __device__ __forceinline__ Q4kPiece load(const uint8_t* row, uint32_t head, uint32_t qs) {
        return {Plain::w4(row + head), {Plain::w4(row + qs), Plain::w4(row + qs + 16)}};
    }

    template <int K>
    struct Steps {
        HeldQ4k held[K];
        uint32_t head[K], qs[K];
        Q4kLane lane;

        __device__ __forceinline__ Steps(const uint8_t* x8, int thread, int nbe) {
            lane = q4k_lane(thread);
            pin(lane.shift), pin(lane.own), pin(lane.upper), pin(lane.nibbles);
#pragma unroll
            for (int k = 0; k < K; ++k) {
                const int mine = thread + k * kThreads, unit = mine < nbe * 4 ? mine : thread & 3;
                held[k] = hold_q4k(load_q4k_activations<From>(x8, unit), mine < nbe * 4);
                head[k] = (unit >> 2) * kQ4kBlock, qs[k] = head[k] + 16 + 32 * (unit & 3);
                pin(head[k]), pin(qs[k]);
            }
        }

        __device__ __forceinline__ float term(const uint8_t* row, int k) const {
            return held_q4k_term(load(row, head[k], qs[k]), held[k], lane);
        }
    };

    static __device__ __forceinline__ float term(const uint8_t* row, const uint8_t* x8, int u, int) {
        const uint32_t head = (u >> 2) * kQ4kBlock;
        return held_q4k_term(load(row, head, head + 16 + 32 * (u & 3)), hold_q4k(load_q4k_activations<From>(x8, u), true),
                             q4k_lane(u));
    }
};
#endif

}  // namespace probes
