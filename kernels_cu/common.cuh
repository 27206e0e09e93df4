// What every kernel and every host test shares: exact float32 steps, integer dots, wide loads.
//
// Everything here is __host__ __device__, so that a host build tests the very same arithmetic on a
// machine without a GPU. On the device each step is an explicit _rn intrinsic, which no compiler
// contracts into FMA; a host build needs -ffp-contract=off for the same guarantee.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define PROBES_FN __host__ __device__ __forceinline__
#else
#define PROBES_FN inline
#endif

namespace probes {

struct Words2 {
    uint32_t w[2];
};
struct Words4 {
    uint32_t w[4];
};

PROBES_FN float mul(float a, float b) {
#ifdef __CUDA_ARCH__
    return __fmul_rn(a, b);
#else
    return a * b;
#endif
}

PROBES_FN float add(float a, float b) {
#ifdef __CUDA_ARCH__
    return __fadd_rn(a, b);
#else
    return a + b;
#endif
}

PROBES_FN float sub(float a, float b) {
#ifdef __CUDA_ARCH__
    return __fsub_rn(a, b);
#else
    return a - b;
#endif
}

PROBES_FN float divide(float a, float b) {
#ifdef __CUDA_ARCH__
    return __fdiv_rn(a, b);
#else
    return a / b;
#endif
}

PROBES_FN float float_of_bits(uint32_t bits) {
#ifdef __CUDA_ARCH__
    return __uint_as_float(bits);
#else
    float f;
    std::memcpy(&f, &bits, sizeof f);
    return f;
#endif
}

PROBES_FN uint32_t bits_of_float(float f) {
#ifdef __CUDA_ARCH__
    return __float_as_uint(f);
#else
    uint32_t bits;
    std::memcpy(&bits, &f, sizeof bits);
    return bits;
#endif
}

// f16 bits to float32, exact, subnormals kept.
PROBES_FN float float_of_half(uint32_t h) {
#ifdef __CUDA_ARCH__
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(static_cast<uint16_t>(h)));
    return f;
#else
    const uint32_t sign = (h & 0x8000u) << 16, exponent = (h >> 10) & 31u, mantissa = h & 1023u;
    if (exponent == 31u) return float_of_bits(sign | 0x7f800000u | (mantissa << 13));
    if (exponent != 0u) return float_of_bits(sign | ((exponent + 112u) << 23) | (mantissa << 13));
    const float tiny = static_cast<float>(mantissa) * float_of_bits(0x33800000u);  // mantissa * 2^-24
    return float_of_bits(sign | bits_of_float(tiny));
#endif
}

// c + the dot product of four signed bytes with four signed bytes, exact.
PROBES_FN int32_t dp4a(uint32_t a, uint32_t b, int32_t c) {
#if defined(__CUDA_ARCH__)
    return __dp4a(static_cast<int>(a), static_cast<int>(b), c);
#else
    for (int k = 0; k < 32; k += 8)
        c += static_cast<int32_t>(static_cast<int8_t>(a >> k)) * static_cast<int32_t>(static_cast<int8_t>(b >> k));
    return c;
#endif
}

// Loads of 16, 8 and 2 bytes; the address must be a multiple of the size (the host build does not care).
PROBES_FN Words4 load16(const uint8_t* p) {
    Words4 v;
#ifdef __CUDA_ARCH__
    const uint4 q = __ldg(reinterpret_cast<const uint4*>(p));
    v.w[0] = q.x, v.w[1] = q.y, v.w[2] = q.z, v.w[3] = q.w;
#else
    std::memcpy(&v, p, 16);
#endif
    return v;
}

PROBES_FN Words2 load8(const uint8_t* p) {
    Words2 v;
#ifdef __CUDA_ARCH__
    const uint2 q = __ldg(reinterpret_cast<const uint2*>(p));
    v.w[0] = q.x, v.w[1] = q.y;
#else
    std::memcpy(&v, p, 8);
#endif
    return v;
}

PROBES_FN uint32_t load2(const uint8_t* p) {
#ifdef __CUDA_ARCH__
    return __ldg(reinterpret_cast<const uint16_t*>(p));
#else
    uint16_t v;
    std::memcpy(&v, p, 2);
    return v;
#endif
}

// What a load may count on. ReadOnly: nothing writes there while the kernel runs. Plain: shared memory, or what
// another kernel wrote, which the read-only path could fetch before the wait for that kernel.
struct ReadOnly {
    static PROBES_FN Words4 w4(const uint8_t* p) { return load16(p); }
    static PROBES_FN Words2 w2(const uint8_t* p) { return load8(p); }
    static PROBES_FN uint32_t half(const uint8_t* p) { return load2(p); }
};
struct Plain {
    static PROBES_FN Words4 w4(const uint8_t* p) {
#ifdef __CUDA_ARCH__
        const uint4 q = *reinterpret_cast<const uint4*>(p);
        return {{q.x, q.y, q.z, q.w}};
#else
        return load16(p);
#endif
    }
    static PROBES_FN Words2 w2(const uint8_t* p) {
#ifdef __CUDA_ARCH__
        const uint2 q = *reinterpret_cast<const uint2*>(p);
        return {{q.x, q.y}};
#else
        return load8(p);
#endif
    }
    static PROBES_FN uint32_t half(const uint8_t* p) {
#ifdef __CUDA_ARCH__
        return *reinterpret_cast<const uint16_t*>(p);
#else
        return load2(p);
#endif
    }
};

// From global memory, and where it is written: no barrier passes it, as it may any that the compiler knows to be read only.
struct Here {
    static PROBES_FN Words4 w4(const uint8_t* p) {
#ifdef __CUDA_ARCH__
        Words4 v;
        asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
                     : "l"(p)
                     : "memory");
        return v;
#else
        return load16(p);
#endif
    }
    static PROBES_FN Words2 w2(const uint8_t* p) {
#ifdef __CUDA_ARCH__
        Words2 v;
        asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.w[0]), "=r"(v.w[1]) : "l"(p) : "memory");
        return v;
#else
        return load8(p);
#endif
    }
    static PROBES_FN uint32_t half(const uint8_t* p) {
#ifdef __CUDA_ARCH__
        uint16_t v;
        asm volatile("ld.global.u16 %0, [%1];" : "=h"(v) : "l"(p) : "memory");
        return v;
#else
        return load2(p);
#endif
    }
};

// The same number, of which the compiler knows nothing: it works out every address from it where it loads, and carries no
// part of one, such as 40 * n, in a register from one round of a loop to the next.
PROBES_FN int anew(int n) {
#ifdef __CUDA_ARCH__
    asm volatile("mov.b32 %0, %0;" : "+r"(n));
#endif
    return n;
}

PROBES_FN float signed_byte(uint32_t word, int index) {
    return static_cast<float>(static_cast<int8_t>(word >> (8 * index)));
}

// One pad40 activation unit: f16 scale, 32 int8 in eight words, and their sum.
struct Activation {
    uint32_t scale;
    uint32_t x[8];
    int32_t sum;
};

constexpr int kPad40 = 40;

// 40 bytes as five 8-byte loads: unit 40*u is always a multiple of 8, never of 16.
template <class From = ReadOnly>
PROBES_FN Activation load_activation(const uint8_t* x8, int unit) {
    const uint8_t* p = x8 + static_cast<uint32_t>(unit) * kPad40;
    Activation a;
    const Words2 v0 = From::w2(p), v1 = From::w2(p + 8), v2 = From::w2(p + 16);
    const Words2 v3 = From::w2(p + 24), v4 = From::w2(p + 32);
    a.scale = v0.w[0] & 0xffffu;
    a.x[0] = v0.w[1], a.x[1] = v1.w[0], a.x[2] = v1.w[1], a.x[3] = v2.w[0];
    a.x[4] = v2.w[1], a.x[5] = v3.w[0], a.x[6] = v3.w[1], a.x[7] = v4.w[0];
    a.sum = static_cast<int32_t>(v4.w[1]);
    return a;
}

#ifdef __CUDACC__
constexpr int kThreads = 256;

PROBES_FN uint32_t add(uint32_t a, uint32_t b) { return a + b; }

// The XOR butterfly: the warp's sum, in every lane.
template <class T>
__device__ __forceinline__ T butterfly(T acc) {
#pragma unroll
    for (int offset = 16; offset; offset >>= 1) acc = add(acc, __shfl_xor_sync(0xffffffffu, acc, offset));
    return acc;
}

// The reference reduction: the butterfly of each warp, then the warp sums one after another from 0.
// Only thread 0 returns the total. Integers may be summed in any order, so they come through here too.
// Fewer: a block may be of fewer than eight warps; those that it lacks count as 0, which changes no bit.
template <bool Fewer = false, class T>
__device__ __forceinline__ T reduce_row(T acc) {
    __shared__ T sums[kThreads / 32];
    acc = butterfly(acc);
    if ((threadIdx.x & 31) == 0) sums[threadIdx.x >> 5] = acc;
    if (Fewer && threadIdx.x < kThreads / 32 && threadIdx.x * 32 >= blockDim.x) sums[threadIdx.x] = 0;
    __syncthreads();
    T total = 0;
    if (threadIdx.x == 0) {
#pragma unroll
        for (int k = 0; k < kThreads / 32; ++k) total = add(total, sums[k]);
    }
    return total;
}

// The XOR of a block's words in thread 0, in two steps: each warp's own into `sums`, then the other warps' to thread 0's.
template <int N, int W>
__device__ __forceinline__ uint32_t xor_warps(const Words4 (&v)[N], uint32_t (&sums)[W]) {
    uint32_t x = 0;
#pragma unroll
    for (int k = 0; k < N; ++k) x ^= v[k].w[0] ^ v[k].w[1] ^ v[k].w[2] ^ v[k].w[3];
#pragma unroll
    for (int offset = 16; offset; offset >>= 1) x ^= __shfl_xor_sync(0xffffffffu, x, offset);
    if ((threadIdx.x & 31) == 0) sums[threadIdx.x >> 5] = x;
    __syncthreads();
    return x;
}

template <int W>
__device__ __forceinline__ uint32_t xor_rest(uint32_t x, const uint32_t (&sums)[W]) {
#pragma unroll
    for (int k = 1; k < W; ++k) x ^= sums[k];
    return x;
}
#endif

}  // namespace probes
