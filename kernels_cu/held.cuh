// q6_K units with register-resident activations: one held unit per lane and step.
//
// A virtual thread's activations are the same for every row, so they are prepared once: 32 int8, the scale as f32, and
// for both halves what -32 * sum(x) contributes. Per unit this leaves 4 (group order) or 6 loads of weights and about 45
// other instructions.
//
// What is rearranged is exact, so the bits are the reference order's:
//
//   * dots: q*x - 32*sum(x) as integers. The bias also carries the bits of 1.5 * 2^23, so that the integer,
//     read as a float, is 12582912 + dot, and one subtraction (exact below 2^22) replaces a conversion.
//   * GGUF order leaves bits where they are: low values come times 1 or 16, high ones times 1, 4, 16 or 64 by
//     the lane's group, each is summed apart, and the lane's two factors make 16 * dot of them. The held scale
//     is d8 / 16; powers of two change no rounding (nothing here is subnormal: the smallest product is 2^-52).
//   * scales: the reference rounds ((d8*sc)*d) once, at the second product, for d8*sc has at most 18 bits. d8*d
//     has 22, so (d8*d)*sc is the same exact product rounded once too, and d8*d serves both halves.
//
// A lane without a unit at some step holds d8 = 0 and reads the unit of its place in the row's first block: the
// term is then +-0, which changes no sum (probes/formats/reduction.py). So no step has a branch.
#pragma once

#include "q6k.cuh"

namespace probes {

constexpr int kVirtualWarps = 8;
constexpr float kMagic = 12582912.0f;          // 1.5 * 2^23
constexpr int32_t kMagicBits = 0x4b400000;     // its bits

// c + the dot product of four unsigned bytes with four signed bytes, exact.
PROBES_FN int32_t dp4a_unsigned(uint32_t a, uint32_t b, int32_t c) {
#if defined(__CUDA_ARCH__)
    int32_t d;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
#else
    for (int k = 0; k < 32; k += 8)
        c += static_cast<int32_t>(a >> k & 255u) * static_cast<int32_t>(static_cast<int8_t>(b >> k));
    return c;
#endif
}

struct Held {
    uint32_t x[8];
    float d8;
    int32_t bias[2];
};

template <class L>
PROBES_FN Held hold(const Activation& a, bool owned) {
    constexpr int scale = L::group ? 1 : 16;
    Held h;
    int32_t sum0 = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) h.x[j] = a.x[j];
#pragma unroll
    for (int j = 0; j < 4; ++j) sum0 = dp4a(0x01010101u, a.x[j], sum0);
    h.bias[0] = kMagicBits - 32 * scale * sum0;
    h.bias[1] = kMagicBits - 32 * scale * (a.sum - sum0);
    h.d8 = owned ? mul(float_of_half(a.scale), 1.0f / scale) : 0.0f;
    return h;
}

// Keep a value in its register: the compiler would rather work it out again in every pass.
PROBES_FN void pin(uint32_t& word) {
#ifdef __CUDA_ARCH__
    asm volatile("" : "+r"(word));
#endif
}

// The second of two int8 as a float. Spelt out, because the compiler shifts a 16-bit word before it converts.
PROBES_FN float second_byte(uint32_t word) {
#ifdef __CUDA_ARCH__
    float f;
    asm("{\n.reg .b32 byte;\nshr.u32 byte, %1, 8;\ncvt.rn.f32.s8 %0, byte;\n}" : "=f"(f) : "r"(word));
    return f;
#else
    return signed_byte(word, 1);
#endif
}

// What depends on the unit's group alone, and so on the lane: `pair` is unit & 7.
struct Lane {
    uint32_t low_mask, high_mask;
    int32_t low_factor, high_factor;
};

PROBES_FN Lane lane_of(int pair) {
    const int g = pair & 3;
    Lane lane;
    lane.low_mask = g < 2 ? 0x0f0f0f0fu : 0xf0f0f0f0u;
    lane.high_mask = 0x03030303u << (2 * g);
    lane.low_factor = g < 2 ? 16 : 1;
    lane.high_factor = 256 >> (2 * g);
    return lane;
}

PROBES_FN uint32_t left(uint32_t w, int bits) { return bits >= 0 ? w << bits : w >> -bits; }

template <class L>
PROBES_FN float held_term(const Piece<L::group>& p, const Held& h, const Lane& lane) {
    int32_t dot[2];
    if constexpr (L::group) {
        dot[0] = h.bias[0], dot[1] = h.bias[1];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const uint32_t a = (p.low.w[j] & 0x0f0f0f0fu) | (left(p.high.w[0], 4 - 2 * j) & 0x30303030u);
            const uint32_t b = ((p.low.w[j] >> 4) & 0x0f0f0f0fu) | (left(p.high.w[1], 4 - 2 * j) & 0x30303030u);
            dot[0] = dp4a(a, h.x[j], dot[0]);
            dot[1] = dp4a(b, h.x[4 + j], dot[1]);
        }
    } else {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            int32_t low = 0, high = 0;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                low = dp4a_unsigned(p.low[half].w[j] & lane.low_mask, h.x[4 * half + j], low);
                high = dp4a_unsigned(p.high[half].w[j] & lane.high_mask, h.x[4 * half + j], high);
            }
            dot[half] = h.bias[half] + low * lane.low_factor + high * lane.high_factor;
        }
    }
    const float both = mul(h.d8, float_of_half(p.d));
    const float f0 = sub(float_of_bits(static_cast<uint32_t>(dot[0])), kMagic);
    const float f1 = sub(float_of_bits(static_cast<uint32_t>(dot[1])), kMagic);
    return add(mul(mul(both, signed_byte(p.scales, 0)), f0), mul(mul(both, second_byte(p.scales)), f1));
}

#ifdef __CUDACC__
// The butterfly of one virtual warp for P rows at once. While there are two rows left to a lane, lanes that
// differ in this offset exchange halves: each keeps one row's sum and hands the other over. Addition commutes,
// so a row's bits are those of its own XOR butterfly. Lane k ends with the sum of row k / (W / P).
// W = 16: both halves of the warp apart, each as a virtual warp whose other lanes own no unit: these would add 0.
template <int P, int W = 32>
__device__ __forceinline__ float butterfly(const float (&acc)[P], uint32_t lane) {
    const uint32_t all = 0xffffffffu;
    constexpr int first = W / 2, second = W / 4;
    if constexpr (P == 1) {
        float v = acc[0];
#pragma unroll
        for (int offset = first; offset; offset >>= 1) v = add(v, __shfl_xor_sync(all, v, offset));
        return v;
    } else if constexpr (P == 2) {
        const bool upper = lane & first;
        float v = add(upper ? acc[1] : acc[0], __shfl_xor_sync(all, upper ? acc[0] : acc[1], first));
#pragma unroll
        for (int offset = second; offset; offset >>= 1) v = add(v, __shfl_xor_sync(all, v, offset));
        return v;
    } else {
        static_assert(P == 4, "one, two or four rows at once");
        const bool upper = lane & first, third = lane & second;
        const float v0 = add(upper ? acc[2] : acc[0], __shfl_xor_sync(all, upper ? acc[0] : acc[2], first));
        const float v1 = add(upper ? acc[3] : acc[1], __shfl_xor_sync(all, upper ? acc[1] : acc[3], first));
        float v = add(third ? v1 : v0, __shfl_xor_sync(all, third ? v0 : v1, second));
#pragma unroll
        for (int offset = W / 8; offset; offset >>= 1) v = add(v, __shfl_xor_sync(all, v, offset));
        return v;
    }
}

// The unit of a thread's k-th step, or the one of its place in the row's first block (of so many) where it owns none.
__device__ __forceinline__ int unit_of(int thread, int k, int units, int block) {
    const int mine = thread + k * kThreads;
    return mine < units ? mine : thread & (block - 1);
}

// A thread's activations and places for its first K units t, t + 256, ..., the first one's activations loaded already, the
// others' by From.
template <class L, int K, class From = ReadOnly>
struct Steps {
    Held held[K];
    Place at[K];
    Lane lane;

    __device__ __forceinline__ Steps(const Activation& first, const uint8_t* x8, int thread, int nbe) {
        lane = lane_of(thread & 7);
#pragma unroll
        for (int k = 0; k < K; ++k) {
            const int unit = unit_of(thread, k, nbe * 8, 8);
            held[k] = hold<L>(k ? load_activation<From>(x8, unit) : first, thread + k * kThreads < nbe * 8);
            at[k] = place_of<L>(unit, nbe);
            pin(at[k].ql), pin(at[k].qh), pin(at[k].sc), pin(at[k].d);
        }
    }

    // Step k of a row in shared memory: its weights, and the term of them.
    __device__ __forceinline__ Piece<L::group> piece(const uint8_t* row, int k) const {
        return load_piece<L, Plain>(row, at[k]);
    }
    __device__ __forceinline__ float term(const Piece<L::group>& p, int k) const { return held_term<L>(p, held[k], lane); }
};

// q6_K for a ring's consumers (ring.cuh).
template <class L, class From>
struct Q6kRows {
    static constexpr int kUnits = 8;     // of a super-block
    static constexpr int kMostHeld = 3;  // units of a thread whose activations stay in registers
    template <int K>
    using Steps = probes::Steps<L, K, From>;

    static __device__ __forceinline__ Activation activation(const uint8_t* x8, int unit) {
        return load_activation<Here>(x8, unit);
    }

    // Unit u of a row in shared memory, its activations loaded for this one use.
    static __device__ __forceinline__ float term(const uint8_t* row, const uint8_t* x8, int u, int nbe) {
        return held_term<L>(load_piece<L, Plain>(row, place_of<L>(u, nbe)), hold<L>(load_activation<From>(x8, u), true),
                            lane_of(u & 7));
    }
};
#endif

}  // namespace probes
