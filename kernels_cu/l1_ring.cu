// L1 past the record: a persistent grid, each virtual thread's activations held in registers (held.cuh).
//
//   ring    rows stream through shared memory by bulk copies, see ring.cuh; sm_90 and up, compiled to nothing before
//   async   rows come by plain wide loads into registers, those of the next pass before the current one is summed
//
// Arguments of ring: weights, pad40 activations, one result per row, the ticket counter or null, super-blocks per
// row, row stride, rows, rows per fill, stages. Of async: the same without the last two and the counter.
// Geometry: one warp per virtual warp that owns a unit, for ring one more; ring's dynamic shared memory is
// probes/l1_ring.py's smem_bytes.
#include "bounds.cuh"
#include "exports.cuh"
#include "layouts.gen.cuh"
#include "ring.cuh"

namespace probes {

// The rows of a pass, summed by one warp: P rows at once, their weights loaded before the pass before is summed.
template <class L, int K, int P>
__device__ __forceinline__ void load_pass(const uint8_t* w, int stride, int od, int first, const Steps<L, K>& steps,
                                          Piece<L::group> (&pieces)[P][K]) {
#pragma unroll
    for (int p = 0; p < P; ++p) {
        const int r = first + p < od ? first + p : od - 1;
#pragma unroll
        for (int k = 0; k < K; ++k)
            pieces[p][k] = load_piece<L, ReadOnly>(w + static_cast<ptrdiff_t>(r) * stride, steps.at[k]);
    }
}

// What a pass ends in: the warps' sums meet in shared memory, and a warp of its own for each pass adds them up.
// Two sets of sums in turn: a warp a pass ahead does not touch what is still read.
template <int P>
__device__ __forceinline__ void finish_pass(float total, float (&sums)[2][4][kVirtualWarps], int pass, int first, int od,
                                            float* out) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, warps = ring_warps();
    if (lane % (32 / P) == 0) sums[pass & 1][lane / (32 / P)][warp] = total;
    __syncthreads();
    if (warp == pass % warps && lane < P && first + lane < od) {
        float all = 0.0f;
#pragma unroll
        for (int k = 0; k < kVirtualWarps; ++k)
            if (k < warps) all = add(all, sums[pass & 1][lane][k]);
        out[first + lane] = all;
    }
}

template <class L, int K, int P>
__device__ __forceinline__ void async_rows(const uint8_t* w, const uint8_t* x8, float* out, int nbe, int stride, int od,
                                           float (&sums)[2][4][kVirtualWarps]) {
    const Steps<L, K> steps(x8, threadIdx.x, nbe);
    const int step = ring_blocks() * P;
    int first = blockIdx.x * P;
    Piece<L::group> next[P][K];
    if (first < od) load_pass<L, K, P>(w, stride, od, first, steps, next);
    for (int pass = 0; first < od; ++pass, first += step) {
        Piece<L::group> now[P][K];
#pragma unroll
        for (int p = 0; p < P; ++p)
#pragma unroll
            for (int k = 0; k < K; ++k) now[p][k] = next[p][k];
        if (first + step < od) load_pass<L, K, P>(w, stride, od, first + step, steps, next);
        float acc[P];
#pragma unroll
        for (int p = 0; p < P; ++p) {
            acc[p] = held_term<L>(now[p][0], steps.held[0], steps.lane);
#pragma unroll
            for (int k = 1; k < K; ++k) acc[p] = add(acc[p], held_term<L>(now[p][k], steps.held[k], steps.lane));
        }
        finish_pass<P>(butterfly<P>(acc, threadIdx.x & 31), sums, pass, first, od, out);
    }
}

// More units than registers hold: one row per pass, activations from memory each time.
template <class L>
__device__ __forceinline__ void async_any(const uint8_t* w, const uint8_t* x8, float* out, int nbe, int stride, int od,
                                          float (&sums)[2][4][kVirtualWarps]) {
    const Lane lane = lane_of(threadIdx.x & 7);
    int pass = 0;
    for (int r = blockIdx.x; r < od; r += ring_blocks(), ++pass) {
        const uint8_t* row = w + static_cast<ptrdiff_t>(r) * stride;
        float acc[1] = {0.0f};
        for (int u = threadIdx.x; u < nbe * 8; u += kThreads)
            acc[0] = add(acc[0], held_term<L>(load_piece<L, ReadOnly>(row, place_of<L>(u, nbe)),
                                              hold<L>(load_activation(x8, u), true), lane));
        finish_pass<1>(butterfly<1>(acc, threadIdx.x & 31), sums, pass, r, od, out);
    }
}

template <class L>
__device__ __forceinline__ void async_form(const uint8_t* w, const uint8_t* x8, float* out, int nbe, int row_stride, int od) {
    __shared__ float sums[2][4][kVirtualWarps];
    const int units = nbe * 8;  // the same path for the whole block: its passes end in a common barrier
    constexpr int rows = L::group ? 4 : 2;  // 28 bytes a unit against 68: what two passes of 128 registers hold
    if (units <= kThreads)
        async_rows<L, 1, rows>(w, x8, out, nbe, row_stride, od, sums);
    else if (units <= 2 * kThreads)
        async_rows<L, 2, rows / 2>(w, x8, out, nbe, row_stride, od, sums);
    else if (L::group && units <= 3 * kThreads)
        async_rows<L, 3, 1>(w, x8, out, nbe, row_stride, od, sums);
    else
        async_any<L>(w, x8, out, nbe, row_stride, od, sums);
}

}  // namespace probes

#define PROBES_RING(layout)                                                                                          \
    extern "C" __global__ void PROBES_RING_BOUNDS                                                                    \
        l1_##layout##_ring(const uint8_t* __restrict__ w, const uint8_t* __restrict__ x8, float* __restrict__ out,   \
                           uint32_t* counter, int nbe, int row_stride, int od, int rows, int stages) {               \
        PROBES_SM90(probes::ring_form<probes::Q6kRows<probes::layout, probes::ReadOnly>>(                            \
                        probes::Ring(stages, rows, row_stride, nbe * 8), x8, nbe,                                    \
                        probes::Rows{w, out, static_cast<uint32_t>(od)}, counter, probes::NoHooks{});)               \
    }                                                                                                                \
    extern "C" __global__ void PROBES_BOUNDS(async)                                                                  \
        l1_##layout##_async(const uint8_t* __restrict__ w, const uint8_t* __restrict__ x8, float* __restrict__ out,  \
                            int nbe, int row_stride, int od) {                                                       \
        probes::async_form<probes::layout>(w, x8, out, nbe, row_stride, od);                                         \
    }
PROBES_LAYOUTS(PROBES_RING)

#define PROBES_ROWS(layout)                                                     \
    {"l1_" #layout "_ring", reinterpret_cast<const void*>(l1_##layout##_ring)}, \
        {"l1_" #layout "_async", reinterpret_cast<const void*>(l1_##layout##_async)},
static const probes::Export kExports[] = {PROBES_LAYOUTS(PROBES_ROWS)};
PROBES_EXPORT(kExports)
