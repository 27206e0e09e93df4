// Quantising float32 values to one pad40 block: the steps, and the warp that makes a whole block.
#pragma once

#include "common.cuh"

#ifndef __CUDA_ARCH__
#include <cmath>
#endif

namespace probes {

// float32 to the bits of the nearest f16, ties to even, subnormals kept; 65520 and up give infinity.
PROBES_FN uint32_t half_of_float(float f) {
#ifdef __CUDA_ARCH__
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
#else
    const uint32_t bits = bits_of_float(f), sign = (bits >> 16) & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return sign | 0x7fffu;
    if (size >= 0x477ff000u) return sign | 0x7c00u;                            // 65520 rounds up to infinity
    const uint32_t exponent = size >> 23, shift = exponent > 112u ? 13u : 126u - exponent;
    if (shift > 25u) return sign;                                              // below half of the smallest subnormal
    const uint32_t whole = exponent > 112u ? size - 0x38000000u : (size & 0x7fffffu) | 0x800000u;
    const uint32_t kept = whole >> shift, rest = whole & ((1u << shift) - 1u), half = 1u << (shift - 1u);
    return sign | (kept + ((rest > half || (rest == half && (kept & 1u))) ? 1u : 0u));
#endif
}

// d and 1/d of a block whose largest |value| has these bits (as integers, |float| bits are in order).
PROBES_FN float q8_scale(uint32_t top) { return divide(float_of_bits(top), 127.0f); }
PROBES_FN float q8_inverse(float d) { return d == 0.0f ? 0.0f : divide(1.0f, d); }

PROBES_FN int32_t q8_value(float x, float inverse) {
#ifdef __CUDA_ARCH__
    const int32_t q = __float2int_rn(mul(x, inverse));
#else
    const int32_t q = static_cast<int32_t>(nearbyintf(mul(x, inverse)));
#endif
    return q < -128 ? -128 : q > 127 ? 127 : q;
}

#ifdef __CUDACC__
// A warp's largest word, and the sum of its words: one instruction each from sm_80 on.
__device__ __forceinline__ uint32_t warp_largest(uint32_t word) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    return __reduce_max_sync(0xffffffffu, word);
#else
#pragma unroll
    for (int offset = 16; offset; offset >>= 1) {
        const uint32_t other = __shfl_xor_sync(0xffffffffu, word, offset);
        word = other > word ? other : word;
    }
    return word;
#endif
}

__device__ __forceinline__ int32_t warp_sum(int32_t word) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    return __reduce_add_sync(0xffffffffu, word);
#else
#pragma unroll
    for (int offset = 16; offset; offset >>= 1) word += __shfl_xor_sync(0xffffffffu, word, offset);
    return word;
#endif
}

// One warp, one block: lane k holds value k. Ten words, whole 4-byte stores.
__device__ __forceinline__ void q8_store(float x, uint32_t* block) {
    const uint32_t all = 0xffffffffu, lane = threadIdx.x & 31;
    const float d = q8_scale(warp_largest(bits_of_float(x) & 0x7fffffffu));
    const int32_t q = q8_value(x, q8_inverse(d)), sum = warp_sum(q);
    uint32_t word = static_cast<uint32_t>(q) & 255u;  // bytes of lanes 4j..4j+3 meet in lane 4j
    word |= __shfl_down_sync(all, word, 1) << 8;
    word |= __shfl_down_sync(all, word, 2) << 16;
    if ((lane & 3) == 0) block[1 + (lane >> 2)] = word;
    if (lane == 0) {
        block[0] = half_of_float(d);
        block[9] = static_cast<uint32_t>(sum);
    }
}
#endif

}  // namespace probes
