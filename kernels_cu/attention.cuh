// Decode attention over an f16 KV cache in two kernels, in the order that probes/core/decode.py states.
//
// The cache holds all keys, then all values, each [KV head][position][head]. Queries are f32, rotated.
#pragma once

#include "decode.cuh"
#include "pdl.cuh"

#ifdef __CUDACC__
namespace probes {

__device__ __forceinline__ float butterfly(float acc) {
#pragma unroll
    for (int offset = 16; offset; offset >>= 1) acc = add(acc, __shfl_xor_sync(0xffffffffu, acc, offset));
    return acc;
}

// 256 values of q, k and v a block. Rotates q and k; stores q as f32, k and v as f16 at `position` of the cache.
template <Kind K>
__device__ __forceinline__ void rope_store_form(const float* qkv, const float* table, float* q, uint16_t* cache, int heads,
                                                int kv_heads, int kv, int flags, Stamp* stamps) {
    begin<K>(flags, stamps);
    const int e = blockIdx.x * kThreads + threadIdx.x, head = e / kDecode_head, i = e % kDecode_head;
    prefetch<K>(reinterpret_cast<const uint8_t*>(table), kDecode_head * 4);
    late_wait<K>();
    const int pair = i & (kDecode_head / 2 - 1);
    const float c = __ldg(table + pair), s = __ldg(table + kDecode_head / 2 + pair);
    const float* x = qkv + static_cast<ptrdiff_t>(head) * kDecode_head;
    if (head < heads) {
        q[e] = rotated(x, c, s, i);
    } else {
        const int row = head - heads;  // KV heads of the keys, then of the values
        const float v = row < kv_heads ? rotated(x, c, s, i) : x[i];
        cache[(static_cast<ptrdiff_t>(row) * kv + kv - 1) * kDecode_head + i] = static_cast<uint16_t>(half_of_float(v));
    }
    end(flags, stamps);
}

// Block (KV head, split): scores of 64 positions for five query heads, their softmax pieces, the weighted values.
template <Kind K>
__device__ __forceinline__ void attention_split_form(const float* q, const uint8_t* cache, float* parts, int kv_heads, int kv,
                                                     int splits, float scale, int flags, Stamp* stamps) {
    begin<K>(flags, stamps);
    constexpr int kRow = kDecode_head * 2, kWarps = kThreads / 32;
    const int t = threadIdx.x, lane = t & 31, warp = t >> 5;
    const int kv_head = blockIdx.x / splits, split = blockIdx.x % splits, first = split * kDecode_chunk;
    const int count = min(kDecode_chunk, kv - first);
    const uint8_t* keys = cache + (static_cast<ptrdiff_t>(kv_head) * kv + first) * kRow;
    const uint8_t* values = keys + static_cast<ptrdiff_t>(kv_heads) * kv * kRow;
    prefetch<K>(keys, count * kRow);  // into L2 only: the row that the predecessor writes is read after the wait
    prefetch<K>(values, count * kRow);
    late_wait<K>();

    __shared__ float query[kDecode_group * kDecode_head], weight[kDecode_group][kDecode_chunk];
    for (int k = t; k < kDecode_group * kDecode_head; k += kThreads) query[k] = q[kv_head * kDecode_group * kDecode_head + k];
    __syncthreads();
    constexpr int kAhead = 4;  // keys in flight per warp
    for (int base = warp; base < kDecode_chunk; base += kAhead * kWarps) {
        Words2 key[kAhead];
#pragma unroll
        for (int j = 0; j < kAhead; ++j) key[j] = Plain::w2(keys + min(base + j * kWarps, count - 1) * kRow + lane * 8);
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
            const int p = base + j * kWarps;
            if (p >= count) continue;
#pragma unroll
            for (int g = 0; g < kDecode_group; ++g) {
                const float s = butterfly(dot4(query + g * kDecode_head + lane * 4, key[j]));
                if (lane == 0) weight[g][p] = mul(s, scale);
            }
        }
    }
    __syncthreads();

    float* part = parts + (static_cast<ptrdiff_t>(kv_head) * kDecode_group * splits + split) * kDecode_part;
    if (warp < kDecode_group) {
        const bool one = lane < count, two = lane + 32 < count;
        const float low = float_of_bits(0xff800000u);  // -inf
        const float a = one ? weight[warp][lane] : low, b = two ? weight[warp][lane + 32] : low;
        float top = fmaxf(a, b);
#pragma unroll
        for (int offset = 16; offset; offset >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, offset));
        const float pa = one ? softmax_weight(a, top) : 0.0f, pb = two ? softmax_weight(b, top) : 0.0f;
        weight[warp][lane] = pa;
        weight[warp][lane + 32] = pb;
        const float sum = butterfly(add(pa, pb));
        if (lane == 0) {
            float* tail = part + static_cast<ptrdiff_t>(warp) * splits * kDecode_part + kDecode_head;
            tail[0] = top, tail[1] = sum, tail[2] = 0.0f, tail[3] = 0.0f;
        }
    }
    __syncthreads();

    const int dim = t % kDecode_head, odd = t / kDecode_head;
    float acc[kDecode_group] = {};
#pragma unroll 8
    for (int p = odd; p < count; p += 2) {
        const float v = float_of_half(*reinterpret_cast<const uint16_t*>(values + p * kRow + dim * 2));
#pragma unroll
        for (int g = 0; g < kDecode_group; ++g) acc[g] = add(acc[g], mul(weight[g][p], v));
    }
    __shared__ float other[kDecode_group][kDecode_head];
    if (odd) {
#pragma unroll
        for (int g = 0; g < kDecode_group; ++g) other[g][dim] = acc[g];
    }
    __syncthreads();
    if (!odd) {
#pragma unroll
        for (int g = 0; g < kDecode_group; ++g)
            part[static_cast<ptrdiff_t>(g) * splits * kDecode_part + dim] = add(acc[g], other[g][dim]);
    }
    end(flags, stamps);
}

constexpr int kMostSplits = 256;

// One query head per block of kDecode_head threads: the splits' results under one maximum.
template <Kind K>
__device__ __forceinline__ void attention_combine_form(const float* parts, float* out, int splits, int flags, Stamp* stamps) {
    begin<K>(flags, stamps);
    const int t = threadIdx.x;
    const float* part = parts + static_cast<ptrdiff_t>(blockIdx.x) * splits * kDecode_part;
    float top = part[kDecode_head];
    for (int s = 1; s < splits; ++s) top = fmaxf(top, part[s * kDecode_part + kDecode_head]);
    __shared__ float weight[kMostSplits];
    for (int s = t; s < splits; s += kDecode_head) weight[s] = softmax_weight(part[s * kDecode_part + kDecode_head], top);
    __syncthreads();
    float total = 0.0f, acc = 0.0f;
#pragma unroll 8
    for (int s = 0; s < splits; ++s) {
        total = add(total, mul(part[s * kDecode_part + kDecode_head + 1], weight[s]));
        acc = add(acc, mul(part[s * kDecode_part + t], weight[s]));
    }
    out[blockIdx.x * kDecode_head + t] = divide(acc, total);
    end(flags, stamps);
}

}  // namespace probes
#endif
