// L1: one q6_K row per block, in every layout of probes/core/layouts.py and three forms.
//
//   loop    256 threads, u += 256
//   pf      both units' loads issued before either is accumulated; right only for 256 < units <= 512
//   stream  the loop form's loads and nothing else; the result is the sum of all words it read
//
// Arguments of all: weights, pad40 activations, one result per row, super-blocks per row, row stride.
#include "bounds.cuh"
#include "exports.cuh"
#include "layouts.gen.cuh"
#include "q6k.cuh"

namespace probes {

template <class L>
__device__ __forceinline__ void loop_form(const uint8_t* w, const uint8_t* x8, float* out, int nbe, int row_stride) {
    const uint8_t* row = w + static_cast<ptrdiff_t>(blockIdx.x) * row_stride;
    float acc = 0.0f;
    for (int u = threadIdx.x; u < nbe * 8; u += kThreads) acc = add(acc, q6k_term(load_q6k<L>(row, x8, u, nbe)));
    const float total = reduce_row(acc);
    if (threadIdx.x == 0) out[blockIdx.x] = total;
}

template <class L>
__device__ __forceinline__ void pf_form(const uint8_t* w, const uint8_t* x8, float* out, int nbe, int row_stride) {
    const uint8_t* row = w + static_cast<ptrdiff_t>(blockIdx.x) * row_stride;
    const int first = threadIdx.x, second = first + kThreads, units = nbe * 8;
    float acc;
    if ((second & ~31) < units) {
        // A whole warp comes here, so nothing below is behind a branch and both loads stay ahead of both
        // terms. A lane without a second unit loads its first again, out of L1, and drops the term.
        const bool two = second < units;
        const Q6kUnit<L> a = load_q6k<L>(row, x8, first, nbe), b = load_q6k<L>(row, x8, two ? second : first, nbe);
        const float one = add(0.0f, q6k_term(a)), both = add(one, q6k_term(b));
        acc = two ? both : one;
    } else {
        acc = add(0.0f, q6k_term(load_q6k<L>(row, x8, first, nbe)));
    }
    const float total = reduce_row(acc);
    if (threadIdx.x == 0) out[blockIdx.x] = total;
}

template <class L>
__device__ __forceinline__ void stream_form(const uint8_t* w, const uint8_t* x8, uint32_t* out, int nbe, int row_stride) {
    const uint8_t* row = w + static_cast<ptrdiff_t>(blockIdx.x) * row_stride;
    uint32_t acc = 0;
    for (int u = threadIdx.x; u < nbe * 8; u += kThreads) acc += q6k_checksum(load_q6k<L>(row, x8, u, nbe));
    const uint32_t total = reduce_row(acc);
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
    PROBES_FORM(layout, stream, uint32_t)
PROBES_LAYOUTS(PROBES_FORMS)

#define PROBES_ROWS(layout)                                                                 \
    {"l1_" #layout "_loop", reinterpret_cast<const void*>(l1_##layout##_loop)},             \
        {"l1_" #layout "_pf", reinterpret_cast<const void*>(l1_##layout##_pf)},             \
        {"l1_" #layout "_stream", reinterpret_cast<const void*>(l1_##layout##_stream)},
static const probes::Export kExports[] = {PROBES_LAYOUTS(PROBES_ROWS)};
PROBES_EXPORT(kExports)
