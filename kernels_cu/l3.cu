// L3: gate and up rows in q4_K, SwiGLU and q8 quantising, as a pair of kernels and fused in four forms.
//
//   matmul         one row per block: gate rows 0..nf-1, then up rows nf..2nf-1; f32 out
//   swiglu_quant   SwiGLU of the two halves, quantised to pad40, one block of 32 values per warp
//   form_b         one q8 block per thread block: 32 gate rows and 32 up rows one after another, then all the rest
//   form_b_staged  the same, the next row's weights loaded before this row is reduced
//   form_a         a gate row and its up row per block, SwiGLU of the two sums; f32 out
//   quant          f32 to pad40
//   matmul_ring    the matmul through a ring, see ring.cuh; sm_90 and up, as is
//   form_c         the whole fusion row by row through a ring, see ring_gated.cuh
//
// Every row is summed by 256 threads in the reference order; a thread without a unit adds nothing. A twin with
// the ending _traced also stores the SM of each block: what load balance is counted from. It is never timed.
//
// Arguments: matmul(w, x8, gu, nbe), form_a(w, x8, h, nf, nbe), form_b(w, x8, q8, nf, nbe),
// swiglu_quant(gu, q8, nf), quant(h, q8, nf); traced twins take the SM ids' array last.
// matmul_ring(w, x8, gu, ticket counter or null, nbe, rows of the matrix, rows per ticket, stages)
// form_c(w, x8, q8, words, ticket counter or null, nbe, nf, rows per ticket, stages): words are 64 bits per row pair, all
// 0 before and after.
#include "bounds.cuh"
#include "exports.cuh"
#include "q4k_held.cuh"
#include "ring_gated.cuh"

namespace probes {

constexpr int kWarps = kThreads / 32, kGroup = 32, kPadWords = kPad40 / 4;

__device__ __forceinline__ void trace(uint32_t* sm) {
    uint32_t id = 0;
#ifdef __CUDA_ARCH__
    asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
#endif
    if (threadIdx.x == 0) sm[blockIdx.x] = id;
}

__device__ __forceinline__ float add_warps(const float* sums) {
    float total = 0.0f;
#pragma unroll
    for (int k = 0; k < kWarps; ++k) total = add(total, sums[k]);
    return total;
}

__device__ __forceinline__ float row_sum(const uint8_t* row, const uint8_t* x8, int first, int units, float acc) {
#pragma unroll 1
    for (int u = first; u < units; u += kThreads) {
        const Q4kWeights w = load_q4k_weights(row, u);
        const Q4kActivations a = load_q4k_activations(x8, u);
        acc = add(acc, q4k_term(w, a));
    }
    return acc;
}

__device__ __forceinline__ void matmul_form(const uint8_t* w, const uint8_t* x8, float* gu, int nbe) {
    const uint8_t* row = w + static_cast<ptrdiff_t>(blockIdx.x) * (nbe * kQ4kBlock);
    const float total = reduce_row(row_sum(row, x8, threadIdx.x, nbe * 4, 0.0f));
    if (threadIdx.x == 0) gu[blockIdx.x] = total;
}

__device__ __forceinline__ void form_a_form(const uint8_t* w, const uint8_t* x8, float* h, int nf, int nbe) {
    const int row_bytes = nbe * kQ4kBlock, units = nbe * 4;
    const uint8_t* gate = w + static_cast<ptrdiff_t>(blockIdx.x) * row_bytes;
    const uint8_t* up = gate + static_cast<ptrdiff_t>(nf) * row_bytes;
    float g = 0.0f, v = 0.0f;
#pragma unroll 1
    for (int u = threadIdx.x; u < units; u += kThreads) {
        const Q4kWeights a = load_q4k_weights(gate, u), b = load_q4k_weights(up, u);
        const Q4kActivations x = load_q4k_activations(x8, u);
        g = add(g, q4k_term(a, x));
        v = add(v, q4k_term(b, x));
    }
    __shared__ float sums[2][kWarps];
    g = butterfly(g), v = butterfly(v);
    if ((threadIdx.x & 31) == 0) sums[0][threadIdx.x >> 5] = g, sums[1][threadIdx.x >> 5] = v;
    __syncthreads();
    if (threadIdx.x == 0) h[blockIdx.x] = swiglu(add_warps(sums[0]), add_warps(sums[1]));
}

// Row j of a q8 block's 64: gate rows first, then the up rows nf further down.
template <bool Staged>
__device__ __forceinline__ void form_b_form(const uint8_t* w, const uint8_t* x8, uint32_t* q8, int nf, int nbe) {
    __shared__ float sums[2][kWarps], totals[2 * kGroup];
    const int t = threadIdx.x, row_bytes = nbe * kQ4kBlock, units = nbe * 4;
    const uint8_t* row = w + static_cast<ptrdiff_t>(blockIdx.x) * kGroup * row_bytes;
    const ptrdiff_t to_up = static_cast<ptrdiff_t>(nf - kGroup) * row_bytes;
    Q4kWeights next;
    if (Staged && t < units) next = load_q4k_weights(row, t);
#pragma unroll 1
    for (int j = 0; j < 2 * kGroup; ++j) {
        const uint8_t* after = row + row_bytes + (j == kGroup - 1 ? to_up : 0);
        float acc = 0.0f;
        if constexpr (Staged) {
            if (t < units) {
                const Q4kWeights now = next;
                if (j + 1 < 2 * kGroup) next = load_q4k_weights(after, t);
                acc = add(acc, q4k_term(now, load_q4k_activations(x8, t)));
            }
            acc = row_sum(row, x8, t + kThreads, units, acc);
        } else {
            acc = row_sum(row, x8, t, units, acc);
        }
        acc = butterfly(acc);
        // Two sets of warp sums, used in turn: a warp that is a row ahead does not touch what thread 0 still reads.
        float* mine = sums[j & 1];
        if ((t & 31) == 0) mine[t >> 5] = acc;
        __syncthreads();
        if (t == 0) totals[j] = add_warps(mine);
        row = after;
    }
    __syncthreads();
    if (t < kGroup) q8_store(swiglu(totals[t], totals[kGroup + t]), q8 + static_cast<ptrdiff_t>(blockIdx.x) * kPadWords);
}

}  // namespace probes

#define PROBES_TRACE_ARG(traced) PROBES_TRACE_ARG_##traced
#define PROBES_TRACE_ARG_0
#define PROBES_TRACE_ARG_1 , uint32_t* __restrict__ sm
#define PROBES_TRACE(traced) PROBES_TRACE_##traced
#define PROBES_TRACE_0
#define PROBES_TRACE_1 probes::trace(sm);

// Every kernel that reads weights, plain and traced, under the launch bounds of its form.
#define PROBES_L3(suffix, traced)                                                                                    \
    extern "C" __global__ void PROBES_BOUNDS(matmul)                                                                 \
        l3_matmul##suffix(const uint8_t* __restrict__ w, const uint8_t* __restrict__ x8, float* __restrict__ gu,     \
                          int nbe PROBES_TRACE_ARG(traced)) {                                                        \
        PROBES_TRACE(traced) probes::matmul_form(w, x8, gu, nbe);                                                    \
    }                                                                                                                \
    extern "C" __global__ void PROBES_BOUNDS(form_a)                                                                 \
        l3_form_a##suffix(const uint8_t* __restrict__ w, const uint8_t* __restrict__ x8, float* __restrict__ h,      \
                          int nf, int nbe PROBES_TRACE_ARG(traced)) {                                                \
        PROBES_TRACE(traced) probes::form_a_form(w, x8, h, nf, nbe);                                                 \
    }                                                                                                                \
    extern "C" __global__ void PROBES_BOUNDS(form_b)                                                                 \
        l3_form_b##suffix(const uint8_t* __restrict__ w, const uint8_t* __restrict__ x8, uint32_t* __restrict__ q8,  \
                          int nf, int nbe PROBES_TRACE_ARG(traced)) {                                                \
        PROBES_TRACE(traced) probes::form_b_form<false>(w, x8, q8, nf, nbe);                                         \
    }                                                                                                                \
    extern "C" __global__ void PROBES_BOUNDS(form_b_staged)                                                          \
        l3_form_b_staged##suffix(const uint8_t* __restrict__ w, const uint8_t* __restrict__ x8,                      \
                                 uint32_t* __restrict__ q8, int nf, int nbe PROBES_TRACE_ARG(traced)) {              \
        PROBES_TRACE(traced) probes::form_b_form<true>(w, x8, q8, nf, nbe);                                          \
    }
PROBES_L3(, 0)
PROBES_L3(_traced, 1)

extern "C" __global__ void __launch_bounds__(probes::kThreads)
    l3_swiglu_quant(const float* __restrict__ gu, uint32_t* __restrict__ q8, int nf) {
    const int i = blockIdx.x * probes::kThreads + threadIdx.x;  // nf is a multiple of 32: a warp is in or out as one
    if (i < nf) probes::q8_store(probes::swiglu(gu[i], gu[nf + i]), q8 + (i >> 5) * probes::kPadWords);
}

extern "C" __global__ void __launch_bounds__(probes::kThreads)
    l3_quant(const float* __restrict__ h, uint32_t* __restrict__ q8, int nf) {
    const int i = blockIdx.x * probes::kThreads + threadIdx.x;
    if (i < nf) probes::q8_store(h[i], q8 + (i >> 5) * probes::kPadWords);
}

extern "C" __global__ void PROBES_RING_Q4K_BOUNDS
    l3_matmul_ring(const uint8_t* __restrict__ w, const uint8_t* __restrict__ x8, float* __restrict__ gu,
                   uint32_t* counter, int nbe, int od, int rows, int stages) {
    PROBES_SM90(probes::ring_form<probes::Q4kRows<probes::ReadOnly>>(
                    probes::Ring(stages, rows, nbe * probes::kQ4kBlock, nbe * 4), x8, nbe,
                    probes::Rows{w, gu, static_cast<uint32_t>(od), counter}, probes::NoHooks{});)
}

extern "C" __global__ void PROBES_RING_Q4K_BOUNDS
    l3_form_c(const uint8_t* __restrict__ w, const uint8_t* __restrict__ x8, uint32_t* __restrict__ q8, probes::Words* words,
              uint32_t* counter, int nbe, int nf, int rows, int stages) {
    PROBES_SM90(probes::ring_gated_form<probes::Q4kRows<probes::ReadOnly>>(
                    probes::Ring(stages, rows, nbe * probes::kQ4kBlock, nbe * 4), x8, nbe,
                    probes::GatedRows{w, q8, words, counter, static_cast<uint32_t>(nf)});)
}

#define PROBES_ROW(name) {#name, reinterpret_cast<const void*>(name)}
static const probes::Export kExports[] = {
    PROBES_ROW(l3_matmul),        PROBES_ROW(l3_form_a),        PROBES_ROW(l3_form_b),
    PROBES_ROW(l3_form_b_staged), PROBES_ROW(l3_swiglu_quant),  PROBES_ROW(l3_quant),
    PROBES_ROW(l3_matmul_traced), PROBES_ROW(l3_form_a_traced), PROBES_ROW(l3_form_b_traced),
    PROBES_ROW(l3_form_b_staged_traced), PROBES_ROW(l3_matmul_ring), PROBES_ROW(l3_form_c),
};
PROBES_EXPORT(kExports)
