// L1: one q6_K row per block, in every layout of probes/formats/layouts.py and four forms.
//
// A block has a warp for each virtual warp that owns a unit: all eight from 225 units on, five for 160. An idle warp would
// hold its registers all the same: on an H200 lm_head's rows of 160 and 112 units take 0.76 to 0.82 and 0.61 to 0.65 of the
// time that blocks of 256 threads take, and attn_v's 1024 blocks of 160 units are one wave in place of 1.3.
//
//   loop    every thread its units in turn, u += 256
//   pf      both units' loads issued before either is accumulated; right only for 256 < units <= 512
//   pf3     the same of three units; right only for 512 < units <= 768
//   stream  the loop form's loads and nothing else; the result is the sum of all words it read
//
// Arguments of all: weights, pad40 activations, one result per row, super-blocks per row, row stride.
#include "bounds.cuh"
#include "exports.cuh"
#include "layouts.gen.cuh"
#include "q6k.cuh"

namespace probes {

// One unit's loads. In this order, and from a unit number of its own, ptxas (CUDA 13.0, sm_90) asks for all of its weights
// before it waits for any, in the 40 registers of six blocks of 256 threads; at most three loads of activations, which lie
// in L1, come after. As load_q6k has it, five to seven did, dpl's d among them: a second trip to DRAM.
template <class L>
__device__ __forceinline__ Q6kUnit<L> load_one(const uint8_t* row, const uint8_t* x8, int u, int nbe) {
    const int v = anew(u);
    const Activation act = load_activation(x8, v);
    return {load_piece<L, ReadOnly>(row, place_of<L>(v, nbe)), act, v & 7};
}

template <class L>
__device__ __forceinline__ void loop_form(const uint8_t* w, const uint8_t* x8, float* out, int nbe, int row_stride) {
    const uint8_t* row = w + static_cast<ptrdiff_t>(blockIdx.x) * row_stride;
    float acc = 0.0f;
#pragma unroll 1
    for (int u = threadIdx.x; u < nbe * 8; u += kThreads) acc = add(acc, q6k_term(load_one<L>(row, x8, u, nbe)));
    const float total = reduce_row<true>(acc);
    if (threadIdx.x == 0) out[blockIdx.x] = total;
}

// The sum of a thread's first N units, every one loaded before the first term. Whole warps come here, so nothing is
// behind a branch: a lane that does not own the last unit loads its first again, out of L1, and drops the term.
template <class L, int N, class... Units>
__device__ __forceinline__ float ahead(const uint8_t* row, const uint8_t* x8, int nbe, bool owns_last, const Units&... loaded) {
    constexpr int k = sizeof...(loaded);
    if constexpr (k < N) {
        const int first = threadIdx.x, u = k < N - 1 || owns_last ? first + k * kThreads : first;
        return ahead<L, N>(row, x8, nbe, owns_last, loaded..., load_q6k<L>(row, x8, u, nbe));
    } else {
        float before = 0.0f, acc = 0.0f;
        ((before = acc, acc = add(acc, q6k_term(loaded))), ...);
        return owns_last ? acc : before;
    }
}

// A row of N - 1 units in every thread, and an N-th in the first threads.
template <class L, int N>
__device__ __forceinline__ void ahead_form(const uint8_t* w, const uint8_t* x8, float* out, int nbe, int row_stride) {
    const uint8_t* row = w + static_cast<ptrdiff_t>(blockIdx.x) * row_stride;
    const int first = threadIdx.x, last = first + (N - 1) * kThreads, units = nbe * 8;
    float acc;
    if ((last & ~31) < units)
        acc = ahead<L, N>(row, x8, nbe, last < units);
    else
        acc = ahead<L, N - 1>(row, x8, nbe, true);
    const float total = reduce_row(acc);
    if (threadIdx.x == 0) out[blockIdx.x] = total;
}

template <class L>
__device__ __forceinline__ void pf_form(const uint8_t* w, const uint8_t* x8, float* out, int nbe, int row_stride) {
    ahead_form<L, 2>(w, x8, out, nbe, row_stride);
}

template <class L>
__device__ __forceinline__ void pf3_form(const uint8_t* w, const uint8_t* x8, float* out, int nbe, int row_stride) {
    ahead_form<L, 3>(w, x8, out, nbe, row_stride);
}

template <class L>
__device__ __forceinline__ void stream_form(const uint8_t* w, const uint8_t* x8, uint32_t* out, int nbe, int row_stride) {
    const uint8_t* row = w + static_cast<ptrdiff_t>(blockIdx.x) * row_stride;
    uint32_t acc = 0;
    // Unrolled by two, as nvcc would, it waits four times in 40 registers: 1.1 of the loop form's time on ffn_down.
#pragma unroll 1
    for (int u = threadIdx.x; u < nbe * 8; u += kThreads) acc += q6k_checksum(load_one<L>(row, x8, u, nbe));
    const uint32_t total = reduce_row<true>(acc);
    if (threadIdx.x == 0) out[blockIdx.x] = total;
}

}  // namespace probes

#define PROBES_FORM(layout, form, type)                                                                             \
    extern "C" __global__ void PROBES_BOUNDS(form) l1_##layout##_##form(         \
        const uint8_t* __restrict__ w, const uint8_t* __restrict__ x8, type* __restrict__ out, int nbe,             \
        int row_stride) {                                                                                           \
        probes::form##_form<probes::layout>(w, x8, out, nbe, row_stride);                                           \
    }
#define PROBES_FORMS(layout)           \
    PROBES_FORM(layout, loop, float)   \
    PROBES_FORM(layout, pf, float)     \
    PROBES_FORM(layout, pf3, float)    \
    PROBES_FORM(layout, stream, uint32_t)
PROBES_LAYOUTS(PROBES_FORMS)

#define PROBES_ROWS(layout)                                                                 \
    {"l1_" #layout "_loop", reinterpret_cast<const void*>(l1_##layout##_loop)},             \
        {"l1_" #layout "_pf", reinterpret_cast<const void*>(l1_##layout##_pf)},             \
        {"l1_" #layout "_pf3", reinterpret_cast<const void*>(l1_##layout##_pf3)},           \
        {"l1_" #layout "_stream", reinterpret_cast<const void*>(l1_##layout##_stream)},
static const probes::Export kExports[] = {PROBES_LAYOUTS(PROBES_ROWS)};
PROBES_EXPORT(kExports)
