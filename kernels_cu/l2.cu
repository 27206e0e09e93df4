// L2: the kernels of four chains, each in the kinds of pdl.cuh.
//
//   stream          XOR of a 16 KiB tile per block, mixed with a word of the predecessor's result; _8k, _bulk: the same in the
//                   forms of harness.cu's reads
//   compute, wide   multiply-adds on 4 or 48 words a thread, half of them before the predecessor is needed
//   empty           nothing
//   rms_quantise … add   a decode layer, see probes/formats/layer.py
//   q4k_ring, q6k_ring   its matrices through a ring, see l2_ring.cuh; sm_90 and up
//   gpl_two ... dpl_one   a q6_K matrix by a row per block, see l2_rows.cuh
//   sleeper         lets its successor start, sleeps, then writes: what a missing wait is caught with
//
// Every kernel ends its arguments with flags (kTrigger, kStamp, kTail) and stamps (two words, read where kStamp is set).
// Pointers to what a predecessor writes carry no __restrict__: see pdl.cuh.
#include "attention.cuh"
#include "bounds.cuh"
#include "decode.cuh"
#include "exports.cuh"
#include "l2_rows.cuh"
#include "layouts.gen.cuh"
#include "q6k.cuh"
#include "reads.cuh"

namespace probes {

constexpr int kWarps = kThreads / 32, kPadWords = kPad40 / 4;

template <Kind K, class T>
__device__ __forceinline__ void stream_of(const uint8_t* w, const uint32_t* prev, uint32_t* out, int flags, Stamp* stamps) {
    begin<K>(flags, stamps);
    Words4 v[T::kLoads];
    T::fetch(v, w + static_cast<ptrdiff_t>(blockIdx.x) * T::kBytes, T::kVectors);
    __shared__ uint32_t sums[T::kWarps];
    const uint32_t x = xor_warps(v, sums);
    tail<K>(flags);
    late_wait<K>();  // not before the loads are used: ptxas would sink them below it
    if (threadIdx.x == 0) out[blockIdx.x] = (xor_rest(x, sums) ^ prev[gridDim.x - 1 - blockIdx.x]) * kChain_mix + 1u;
    end(flags, stamps);
}

template <Kind K, class... Args>
__device__ __forceinline__ void stream_form(Args... args) {
    stream_of<K, LoadedTile<kChain_tile, kThreads>>(args...);
}

template <Kind K, class... Args>
__device__ __forceinline__ void stream_8k_form(Args... args) {
    stream_of<K, LoadedTile<8192, 64>>(args...);
}

template <Kind K, class... Args>
__device__ __forceinline__ void stream_bulk_form(Args... args) {
    stream_of<K, CopiedTile<kChain_tile, 128>>(args...);
}

template <int S>
__device__ __forceinline__ void steps(uint32_t (&x)[S], uint32_t factor, uint32_t step, int count) {
#pragma unroll 1
    for (int k = 0; k < count; ++k)
#pragma unroll
        for (int s = 0; s < S; ++s) x[s] = x[s] * factor + step;
}

// S words a thread: iters / 2 steps x * m + c from the thread's own number, then the predecessor's word is
// mixed in, then the other steps. m and c come from the host, so that no compiler folds the steps.
template <Kind K, int S>
__device__ __forceinline__ void chain(const uint32_t* prev, uint32_t* out, int m, int c, int iters, int flags,
                                        Stamp* stamps) {
    begin<K>(flags, stamps);
    const uint32_t i = blockIdx.x * kThreads + threadIdx.x, last = gridDim.x * kThreads - 1;
    const uint32_t factor = static_cast<uint32_t>(m), step = static_cast<uint32_t>(c);
    uint32_t x[S];
#pragma unroll
    for (int s = 0; s < S; ++s) x[s] = i * S + s;
    steps(x, factor, step, iters / 2);
    late_wait<K>();
    const uint32_t carry = prev[last - i];
#pragma unroll
    for (int s = 0; s < S; ++s) x[s] ^= carry;
    steps(x, factor, step, iters - iters / 2);
    tail<K>(flags);
    uint32_t sum = 0;
#pragma unroll
    for (int s = 0; s < S; ++s) sum += x[s];
    out[i] = sum;
    end(flags, stamps);
}

template <Kind K>
__device__ __forceinline__ void compute_form(const uint32_t* prev, uint32_t* out, int m, int c, int iters, int flags,
                                             Stamp* stamps) {
    chain<K, kChain_narrow>(prev, out, m, c, iters, flags, stamps);
}

template <Kind K>
__device__ __forceinline__ void wide_form(const uint32_t* prev, uint32_t* out, int m, int c, int iters, int flags,
                                          Stamp* stamps) {
    chain<K, kChain_wide>(prev, out, m, c, iters, flags, stamps);
}

template <Kind K>
__device__ __forceinline__ void rms_quantise_form(const float* h, const float* gamma, uint32_t* x8, int n, float eps, int flags,
                                             Stamp* stamps) {
    begin<K>(flags, stamps);
    const int t = threadIdx.x, i = blockIdx.x * kThreads + t;
    prefetch<K>(reinterpret_cast<const uint8_t*>(gamma + blockIdx.x * kThreads), kThreads * 4);
    late_wait<K>();
    float acc = 0.0f;
    for (int k = t; k < n; k += kThreads) acc = add(acc, mul(h[k], h[k]));
    const float total = reduce_row(acc);  // every block sums all squares, so that each can go on alone
    __shared__ float scale;
    if (t == 0) scale = rms_scale(total, n, eps);
    __syncthreads();
    q8_store(rms_value(h[i], scale, __ldg(gamma + i)), x8 + (i >> 5) * kPadWords);
    end(flags, stamps);
}

// One row per warp, eight per block. A row has at most 256 chunks, so each virtual thread of the reference order
// has one or none, and a warp walks the row's eight virtual warps one after another.
template <Kind K>
__device__ __forceinline__ void q4k_form(const uint8_t* w, const uint8_t* x8, float* out, int nbe, int flags, Stamp* stamps) {
    begin<K>(flags, stamps);
    const uint32_t row_bytes = static_cast<uint32_t>(nbe) * kQ4kBlock;
    prefetch<K>(w + static_cast<ptrdiff_t>(blockIdx.x) * kWarps * row_bytes, kWarps * row_bytes);
    const int lane = threadIdx.x & 31, r = blockIdx.x * kWarps + (threadIdx.x >> 5), units = nbe * 4;
    const uint8_t* row = w + static_cast<ptrdiff_t>(r) * row_bytes;
    late_wait<K>();
    float total = 0.0f;
#pragma unroll 1
    for (int first = 0; first < units; first += 32) {
        const int unit = first + lane;
        float acc = 0.0f;
        if (unit < units) {
            const Q4kWeights weights = load_q4k_weights(row, unit);
            acc = add(acc, q4k_term(weights, load_q4k_activations<Plain>(x8, unit)));
        }
        total = add(total, butterfly(acc));
    }
    tail<K>(flags);
    if (lane == 0) out[r] = total;
    end(flags, stamps);
}

// One row per block in the dpl layout, as L1's loop form.
template <Kind K>
__device__ __forceinline__ void q6k_form(const uint8_t* w, const uint8_t* x8, float* out, int nbe, int row_stride, int flags,
                                    Stamp* stamps) {
    begin<K>(flags, stamps);
    const uint8_t* row = w + static_cast<ptrdiff_t>(blockIdx.x) * row_stride;
    prefetch<K>(row, row_stride);
    late_wait<K>();
    float acc = 0.0f;
#pragma unroll 1
    for (int u = threadIdx.x; u < nbe * 8; u += kThreads) {
        Q6kUnit<dpl> unit = load_q6k<dpl>(row, x8, u, nbe);
        unit.act = load_activation<Plain>(x8, u);  // in place of load_q6k's own, read-only loads
        acc = add(acc, q6k_term(unit));
    }
    tail<K>(flags);
    const float total = reduce_row(acc);
    if (threadIdx.x == 0) out[blockIdx.x] = total;
    end(flags, stamps);
}

#define PROBES_ROWS_OF(layout, form)                                       \
    template <Kind K, class... Args>                                       \
    __device__ __forceinline__ void layout##_##form##_form(Args... args) { \
        form##_rows<K, layout>(args...);                                   \
    }
PROBES_ROWS_OF(gpl, two) PROBES_ROWS_OF(gpl, one) PROBES_ROWS_OF(gs, one) PROBES_ROWS_OF(dpl, one)

template <Kind K>
__device__ __forceinline__ void quantise_form(const float* x, uint32_t* x8, int flags, Stamp* stamps) {
    begin<K>(flags, stamps);
    const int i = blockIdx.x * kThreads + threadIdx.x;
    q8_store(x[i], x8 + (i >> 5) * kPadWords);
    end(flags, stamps);
}

template <Kind K>
__device__ __forceinline__ void swiglu_quantise_form(const float* gu, uint32_t* x8, int nf, int flags, Stamp* stamps) {
    begin<K>(flags, stamps);
    const int i = blockIdx.x * kThreads + threadIdx.x;
    q8_store(swiglu(gu[i], gu[nf + i]), x8 + (i >> 5) * kPadWords);
    end(flags, stamps);
}

template <Kind K>
__device__ __forceinline__ void add_form(const float* a, const float* b, float* out, int flags, Stamp* stamps) {
    begin<K>(flags, stamps);
    const int i = blockIdx.x * kThreads + threadIdx.x;
    out[i] = add(a[i], b[i]);
    end(flags, stamps);
}

// Stores src after `sleep_ns`; its successor may have started long before. One block.
__device__ __forceinline__ void sleeper_form(const uint32_t* src, uint32_t* dst, int n, int sleep_ns) {
    grid_trigger();
    const Stamp start = now_ns();
    while (now_ns() - start < static_cast<Stamp>(sleep_ns)) {
    }
    for (int i = threadIdx.x; i < n; i += kThreads) dst[i] = src[i];
}

template <Kind K>
__device__ __forceinline__ void empty_form(int flags, Stamp* stamps) {
    begin<K>(flags, stamps);
    end(flags, stamps);
}

}  // namespace probes

#define PROBES_KERNEL(name, kind, Kind, bounds, params, ...)                   \
    extern "C" __global__ void bounds l2_##name##_##kind params {              \
        probes::name##_form<probes::Kind>(__VA_ARGS__, flags, stamps);         \
    }
#define PROBES_TWO(name, bounds, params, ...)                       \
    PROBES_KERNEL(name, plain, kPlain, bounds, params, __VA_ARGS__) \
    PROBES_KERNEL(name, entry, kEntry, bounds, params, __VA_ARGS__)
#define PROBES_ENDS(name, bounds, params, ...)                      \
    PROBES_KERNEL(name, plain, kPlain, bounds, params, __VA_ARGS__) \
    PROBES_KERNEL(name, late, kLate, bounds, params, __VA_ARGS__)
#define PROBES_THREE(name, bounds, params, ...)   \
    PROBES_TWO(name, bounds, params, __VA_ARGS__) \
    PROBES_KERNEL(name, late, kLate, bounds, params, __VA_ARGS__)
#define PROBES_FREE __launch_bounds__(probes::kThreads, PROBES_MIN_BLOCKS)  // 0: no bound but the block's size
#define PROBES_END int flags, probes::Stamp *stamps

PROBES_THREE(stream, PROBES_BOUNDS(stream), (const uint8_t* w, const uint32_t* prev, uint32_t* out, PROBES_END), w, prev, out)
PROBES_ENDS(stream_8k, __launch_bounds__(64), (const uint8_t* w, const uint32_t* prev, uint32_t* out, PROBES_END), w, prev, out)
PROBES_ENDS(stream_bulk, __launch_bounds__(128), (const uint8_t* w, const uint32_t* prev, uint32_t* out, PROBES_END), w, prev, out)
PROBES_THREE(compute, PROBES_FREE, (const uint32_t* prev, uint32_t* out, int m, int c, int iters, PROBES_END), prev, out, m, c, iters)
PROBES_THREE(wide, PROBES_FREE, (const uint32_t* prev, uint32_t* out, int m, int c, int iters, PROBES_END), prev, out, m, c, iters)
PROBES_THREE(rms_quantise, PROBES_FREE, (const float* h, const float* gamma, uint32_t* x8, int n, float eps, PROBES_END), h, gamma, x8, n,
             eps)
PROBES_THREE(q4k, PROBES_BOUNDS(q4k), (const uint8_t* w, const uint8_t* x8, float* out, int nbe, PROBES_END), w, x8, out, nbe)
PROBES_THREE(q6k, PROBES_BOUNDS(q6k), (const uint8_t* w, const uint8_t* x8, float* out, int nbe, int row_stride, PROBES_END), w, x8, out, nbe,
             row_stride)
#define PROBES_L2_RING                                                                                                  \
    (const uint8_t* w, const uint8_t* x8, uint32_t* next8, float* out, int nbe, int row_stride, int od, int rows,      \
     int stages, int ahead, PROBES_END)
PROBES_THREE(q4k_ring, PROBES_RING_Q4K_BOUNDS, PROBES_L2_RING, w, x8, next8, out, nbe, row_stride, od, rows, stages, ahead)
PROBES_THREE(q6k_ring, PROBES_RING_BOUNDS, PROBES_L2_RING, w, x8, next8, out, nbe, row_stride, od, rows, stages, ahead)
#define PROBES_L2_ROWS \
    (const uint8_t* w, const uint8_t* x8, uint32_t* next8, float* out, int nbe, int row_stride, PROBES_END)
PROBES_ENDS(gpl_two, PROBES_BOUNDS(two), PROBES_L2_ROWS, w, x8, next8, out, nbe, row_stride)
PROBES_ENDS(gpl_one, PROBES_BOUNDS(one), PROBES_L2_ROWS, w, x8, next8, out, nbe, row_stride)
PROBES_ENDS(gs_one, PROBES_BOUNDS(one), PROBES_L2_ROWS, w, x8, next8, out, nbe, row_stride)
PROBES_ENDS(dpl_one, PROBES_BOUNDS(one), PROBES_L2_ROWS, w, x8, next8, out, nbe, row_stride)
PROBES_THREE(rope_store, PROBES_FREE,
             (const float* qkv, const float* table, float* q, uint16_t* cache, int heads, int kv_heads, int kv, PROBES_END), qkv,
             table, q, cache, heads, kv_heads, kv)
PROBES_THREE(attention_split, PROBES_BOUNDS(attention_split),
             (const float* q, const uint8_t* cache, float* parts, int kv_heads, int kv, int splits, float scale, PROBES_END), q,
             cache, parts, kv_heads, kv, splits, scale)
PROBES_TWO(attention_combine, PROBES_FREE, (const float* parts, float* out, int splits, PROBES_END), parts, out, splits)
PROBES_TWO(quantise, PROBES_FREE, (const float* x, uint32_t* x8, PROBES_END), x, x8)
PROBES_TWO(swiglu_quantise, PROBES_FREE, (const float* gu, uint32_t* x8, int nf, PROBES_END), gu, x8, nf)
PROBES_TWO(add, PROBES_FREE, (const float* a, const float* b, float* out, PROBES_END), a, b, out)

extern "C" __global__ void l2_empty_plain(PROBES_END) { probes::empty_form<probes::kPlain>(flags, stamps); }
extern "C" __global__ void l2_empty_entry(PROBES_END) { probes::empty_form<probes::kEntry>(flags, stamps); }
extern "C" __global__ void __launch_bounds__(probes::kThreads)
    l2_sleeper(const uint32_t* src, uint32_t* dst, int n, int sleep_ns) {
    probes::sleeper_form(src, dst, n, sleep_ns);
}

#define PROBES_ROW(name) {"l2_" #name, reinterpret_cast<const void*>(l2_##name)}
#define PROBES_ROWS2(name) PROBES_ROW(name##_plain), PROBES_ROW(name##_entry)
#define PROBES_ROWS3(name) PROBES_ROWS2(name), PROBES_ROW(name##_late)
#define PROBES_ROWSE(name) PROBES_ROW(name##_plain), PROBES_ROW(name##_late)
static const probes::Export kExports[] = {
    PROBES_ROWS3(stream), PROBES_ROWS3(compute),    PROBES_ROWS3(wide),            PROBES_ROWS3(rms_quantise),
    PROBES_ROWS3(q4k),    PROBES_ROWS3(q6k),        PROBES_ROWS3(rope_store),      PROBES_ROWS3(attention_split),
    PROBES_ROWS2(quantise), PROBES_ROWS2(add),      PROBES_ROWS2(swiglu_quantise), PROBES_ROWS2(attention_combine),
    PROBES_ROWS2(empty),  PROBES_ROW(sleeper),  PROBES_ROWS3(q4k_ring),            PROBES_ROWS3(q6k_ring),
    PROBES_ROWSE(gpl_two), PROBES_ROWSE(gpl_one),   PROBES_ROWSE(gs_one),         PROBES_ROWSE(dpl_one),
    PROBES_ROWSE(stream_8k), PROBES_ROWSE(stream_bulk),
};
PROBES_EXPORT(kExports)
