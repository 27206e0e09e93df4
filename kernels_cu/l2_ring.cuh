// L2's matrices through a ring: rows of weights do not depend on the predecessor, activations do.
//
//   plain, entry   as any kernel
//   late           the producer warp fills every stage, and asks for `ahead` more tickets to be brought into L2, at
//                  once; the consumers wait, and then read their activations. The producer needs no wait of its own:
//                  it stores what the consumers summed, and their arrival comes after their wait.
//
// With kTail the successor may start when every block's last rows were asked for, so that its first stages are filled
// while this grid sums its last ones: shared memory must have room for both.
//
// next8, where it is not null: the activations rotated by one unit, which makes launches of one matrix depend on each
// other, since the successor reads what all blocks wrote.
#pragma once

#include "bounds.cuh"
#include "layouts.gen.cuh"
#include "pdl.cuh"
#include "q4k_held.cuh"
#include "ring_feed.cuh"

#ifdef __CUDACC__
namespace probes {

// The activations of nbe super-blocks to next8, rotated by one unit: this thread's words of them, from `first` on.
__device__ __forceinline__ void hand_on(const uint8_t* x8, uint32_t* next8, uint32_t nbe, uint32_t first, uint32_t every) {
    if (!next8) return;
    const uint32_t* from = reinterpret_cast<const uint32_t*>(x8);
    const uint32_t words = nbe * 8 * (kPad40 / 4);
    for (uint32_t i = first; i < words; i += every)
        next8[i + kPad40 / 4 < words ? i + kPad40 / 4 : i + kPad40 / 4 - words] = from[i];
}

template <Kind K>
struct PdlHooks {
    int ahead, flags;
    const uint8_t* x8;
    uint32_t* next8;
    uint32_t nbe;

    __device__ __forceinline__ void before_activations() const {
        late_wait<K>();
        const uint32_t consumers = (ring_warps() - 1) * 32;
        hand_on(x8, next8, nbe, blockIdx.x * consumers + threadIdx.x, ring_blocks() * consumers);
    }

    __device__ __forceinline__ void all_asked() const { tail<K>(flags); }
};

template <class F, Kind K>
__device__ __forceinline__ void ring_matmul(const uint8_t* w, const uint8_t* x8, uint32_t* next8, float* out, int nbe,
                                            int row_stride, int od, int rows, int stages, int ahead, int flags,
                                            Stamp* stamps) {
    begin<K>(flags, stamps);
    const PdlHooks<K> hooks{K == kLate ? ahead : 0, flags, x8, next8, static_cast<uint32_t>(nbe)};
    ring_form<F>(Ring(stages, rows, row_stride, nbe * F::kUnits), x8, nbe, Rows{w, out, static_cast<uint32_t>(od), nullptr},
                 hooks);
    end(flags, stamps);
}

template <Kind K, class... Args>
__device__ __forceinline__ void q4k_ring_form(Args... args) {
    PROBES_SM90(ring_matmul<Q4kRows<Plain>, K>(args...);)
}

template <Kind K, class... Args>
__device__ __forceinline__ void q6k_ring_form(Args... args) {
    PROBES_SM90(ring_matmul<Q6kRows<dpl, Plain>, K>(args...);)
}

}  // namespace probes
#endif
