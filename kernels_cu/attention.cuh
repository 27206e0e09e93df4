// Decode attention over an f16 KV cache in two kernels, in the order that probes/formats/layer.py states.
//
// The cache holds all keys, then all values, each [KV head][position][head]. Queries are f32, rotated.
#pragma once

#include "decode.cuh"
#include "pdl.cuh"

#ifdef __CUDACC__
namespace probes {

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

// Position p's place in its head's row of weights: even positions, then odd ones, as the values are summed.
__device__ __forceinline__ int place_of_weight(int p) { return (p & 1) * (kDecode_chunk / 2) + (p >> 1); }

__device__ __forceinline__ float largest(float v) {
#pragma unroll
    for (int offset = 16; offset; offset >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, offset));
    return v;
}

constexpr int kKeys = 2;  // of a lane, four positions apart

// A lane's part of a key: what the reference order's lanes first, first + 8, first + 16 and first + 24 take.
struct KeyPart {
    Words2 w[4];
};

// From the first one's words on; zeros where there is no key.
__device__ __forceinline__ KeyPart key_part(const uint8_t* at, bool there) {
    KeyPart k;
#pragma unroll
    for (int j = 0; j < 4; ++j) k.w[j] = there ? Plain::w2(at + j * 64) : Words2{};
    return k;
}

struct Scores {
    float of[kDecode_group][kKeys];
};

// What the reference order's lane first + 8 j brings to its butterfly.
__device__ __forceinline__ Scores lane_scores(const float* query, const KeyPart (&key)[kKeys], int first, int j) {
    Scores s;
#pragma unroll
    for (int g = 0; g < kDecode_group; ++g)
#pragma unroll
        for (int k = 0; k < kKeys; ++k) s.of[g][k] = dot4(query + g * kDecode_head + (first + 8 * j) * 4, key[k].w[j]);
    return s;
}

__device__ __forceinline__ Scores add(const Scores& a, const Scores& b) {
    Scores s;
#pragma unroll
    for (int g = 0; g < kDecode_group; ++g)
#pragma unroll
        for (int k = 0; k < kKeys; ++k) s.of[g][k] = add(a.of[g][k], b.of[g][k]);
    return s;
}

// The butterfly's offsets 16 and 8, a lane's own sums. One lane of the four after another: that needs 64 registers
// where a key after another would need more.
__device__ __forceinline__ Scores scores(const float* query, const KeyPart (&key)[kKeys], int first) {
    const Scores even = add(lane_scores(query, key, first, 0), lane_scores(query, key, first, 2));
    return add(even, add(lane_scores(query, key, first, 1), lane_scores(query, key, first, 3)));
}

// Block (KV head, split): scores of 64 positions for five query heads, their softmax pieces, the weighted values.
template <Kind K>
__device__ __forceinline__ void attention_split_form(const float* q, const uint8_t* cache, float* parts, int kv_heads, int kv,
                                                     int splits, float scale, int flags, Stamp* stamps) {
    begin<K>(flags, stamps);
    constexpr int kRow = kDecode_head * 2, kQuery = kDecode_group * kDecode_head;
    constexpr int kPieces = kDecode_chunk * kRow / 16 / kThreads;  // of 16 bytes, a thread's of the values
    const int t = threadIdx.x, lane = t & 31, warp = t >> 5;
    const int kv_head = blockIdx.x / splits, split = blockIdx.x % splits, first = split * kDecode_chunk;
    const int count = min(kDecode_chunk, kv - first);
    const uint8_t* keys = cache + (static_cast<ptrdiff_t>(kv_head) * kv + first) * kRow;
    const uint8_t* values = keys + static_cast<ptrdiff_t>(kv_heads) * kv * kRow;
    prefetch<K>(keys, count * kRow);  // into L2 only: the row that the predecessor writes is read after the wait
    prefetch<K>(values, count * kRow);
    late_wait<K>();

    // Everything that the block reads is asked for at once, before the first barrier, which no load crosses. Four
    // lanes side by side have the same part of four keys, so that a query's part is one address for them.
    alignas(16) __shared__ float query[kQuery], weight[kDecode_group][kDecode_chunk];
    alignas(16) __shared__ uint8_t value[kDecode_chunk * kRow];
    const int key_lane = lane >> 2, position = warp * 8 + (lane & 3);
    const float* queries = q + kv_head * kQuery;
    const bool brings = t < kQuery / 4;
    Words4 four{}, piece[kPieces];
    if (brings) four = Plain::w4(reinterpret_cast<const uint8_t*>(queries + t * 4));
    KeyPart key[kKeys];
    const uint8_t *my_keys = keys + position * kRow + key_lane * 8, *my_values = values + t * 16;
#pragma unroll
    for (int k = 0; k < kKeys; ++k) key[k] = key_part(my_keys + 4 * k * kRow, position + 4 * k < count);
#pragma unroll
    for (int k = 0; k < kPieces; ++k)  // past the end zeros, under a weight of zero
        piece[k] = t / 16 + k * 16 < count ? Plain::w4(my_values + k * kThreads * 16) : Words4{};
    if (brings) *reinterpret_cast<Words4*>(query + t * 4) = four;
    __syncthreads();

    const Scores sums = scores(query, key, key_lane);
    const bool upper = lane & 16, writes = (lane & 12) == 0;
    float* to = weight[0] + place_of_weight(position + (upper ? 4 : 0));
#pragma unroll
    for (int g = 0; g < kDecode_group; ++g) {  // the butterfly's 4, 2 and 1; the halves exchange keys as in held.cuh
        const float x = sums.of[g][0], y = sums.of[g][1];
        float s = add(upper ? y : x, __shfl_xor_sync(0xffffffffu, upper ? x : y, 16));
        s = add(s, __shfl_xor_sync(0xffffffffu, s, 8));
        s = mul(add(s, __shfl_xor_sync(0xffffffffu, s, 4)), scale);
        if (writes) to[g * kDecode_chunk] = s;
    }
#pragma unroll
    for (int k = 0; k < kPieces; ++k) *reinterpret_cast<Words4*>(value + (t + k * kThreads) * 16) = piece[k];
    __syncthreads();

    float* part = parts + (static_cast<ptrdiff_t>(kv_head) * kDecode_group * splits + split) * kDecode_part;
    if (warp < kDecode_group) {
        const bool one = lane < count, two = lane + 32 < count;
        float *wa = weight[warp] + place_of_weight(lane), *wb = weight[warp] + place_of_weight(lane + 32);
        const float low = float_of_bits(0xff800000u);  // -inf
        const float sa = one ? *wa : low, sb = two ? *wb : low;
        const float top = largest(fmaxf(sa, sb));
        const float pa = one ? softmax_weight(sa, top) : 0.0f, pb = two ? softmax_weight(sb, top) : 0.0f;
        *wa = pa, *wb = pb;
        const float sum = butterfly(add(pa, pb));
        if (lane == 0) {
            float* tail = part + static_cast<ptrdiff_t>(warp) * splits * kDecode_part + kDecode_head;
            tail[0] = top, tail[1] = sum, tail[2] = 0.0f, tail[3] = 0.0f;
        }
    }
    __syncthreads();

    const int dim = t % kDecode_head, odd = t / kDecode_head;
    float acc[kDecode_group] = {};
#pragma unroll 2
    for (int p = 0; p < kDecode_chunk / 2; p += 4) {  // of one parity; those past the end add +0
        float v[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) v[k] = float_of_half(Plain::half(value + (2 * (p + k) + odd) * kRow + dim * 2));
#pragma unroll
        for (int g = 0; g < kDecode_group; ++g) {
            const Words4 w = Plain::w4(reinterpret_cast<const uint8_t*>(weight[g] + odd * (kDecode_chunk / 2) + p));
#pragma unroll
            for (int k = 0; k < 4; ++k) acc[g] = add(acc[g], mul(float_of_bits(w.w[k]), v[k]));
        }
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
constexpr int kBatch = 64;  // splits that a thread of attention_combine has in flight

// A value of each of kBatch splits, zeros from the count-th on.
__device__ __forceinline__ void load_batch(float (&v)[kBatch], const float* part, int count) {
#pragma unroll
    for (int k = 0; k < kBatch; ++k) v[k] = k < count ? part[k * kDecode_part] : 0.0f;
}

// One query head per block of kDecode_head threads: the splits' results under one maximum.
template <Kind K>
__device__ __forceinline__ void attention_combine_form(const float* parts, float* out, int splits, int flags, Stamp* stamps) {
    begin<K>(flags, stamps);
    constexpr int kWarps = kDecode_head / 32, kStep = 16;
    static_assert(kMostSplits == 2 * kDecode_head, "a thread weighs two splits");
    const int t = threadIdx.x, u = t + kDecode_head;
    const float* part = parts + static_cast<ptrdiff_t>(blockIdx.x) * splits * kDecode_part;
    const float *one = part + t * kDecode_part + kDecode_head, *two = one + kDecode_head * kDecode_part;
    const float low = float_of_bits(0xff800000u);  // -inf
    const float ma = t < splits ? one[0] : low, la = t < splits ? one[1] : 0.0f;
    const float mb = u < splits ? two[0] : low, lb = u < splits ? two[1] : 0.0f;
    float v[kBatch];
    load_batch(v, part + t, splits);  // asked for before the maximum is known

    __shared__ float tops[kWarps];
    alignas(16) __shared__ float weight[kMostSplits], mass[kMostSplits];
    float top = largest(fmaxf(ma, mb));
    if (t % 32 == 0) tops[t / 32] = top;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kWarps; ++k) top = fmaxf(top, tops[k]);
    const float wa = t < splits ? softmax_weight(ma, top) : 0.0f, wb = u < splits ? softmax_weight(mb, top) : 0.0f;
    weight[t] = wa, mass[t] = mul(la, wa);
    weight[u] = wb, mass[u] = mul(lb, wb);
    __syncthreads();

    float total = 0.0f, acc = 0.0f;
#pragma unroll 1
    for (int first = 0; first < splits; first += kBatch) {
        if (first) load_batch(v, part + first * kDecode_part + t, splits - first);
#pragma unroll
        for (int step = 0; step < kBatch; step += kStep) {
            if (first + step >= splits) continue;
#pragma unroll
            for (int k = step; k < step + kStep; ++k) {  // splits past the end add +0
                total = add(total, mass[first + k]);
                acc = add(acc, mul(v[k], weight[first + k]));
            }
        }
    }
    out[blockIdx.x * kDecode_head + t] = divide(acc, total);
    end(flags, stamps);
}

}  // namespace probes
#endif
