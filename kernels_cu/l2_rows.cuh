// L2's matrices by a row per block, what a chain can do without a ring.
//
//   one  256 units at most, one to a thread
//   two  257 to 512 units, two to a thread, both loaded before either is summed, as L1's pf
//
//   plain  weights and activations by read-only loads, as L1's
//   late   the weights of a thread's first units are asked for, then the block waits, and then reads its activations
//
// A read-only load sinks below the wait (see pdl.cuh). One that is made where it is written stays above it: in the machine
// code all loads of a thread's first units stand before the wait.
#pragma once

#include "l2_ring.cuh"
#include "q6k.cuh"

#ifdef __CUDACC__
namespace probes {

// Weights by a kind's loads, and activations.
template <Kind K>
struct Loads {
    using Weights = ReadOnly;
    using Activations = ReadOnly;
};
template <>
struct Loads<kLate> {
    using Weights = Here;
    using Activations = Here;
};

template <Kind K, class L>
__device__ __forceinline__ Piece<L::group> row_piece(const uint8_t* row, int unit, int nbe) {
    return load_piece<L, typename Loads<K>::Weights>(row, place_of<L>(unit, nbe));
}

template <Kind K, class L>
__device__ __forceinline__ Q6kUnit<L> with_activation(const Piece<L::group>& piece, const uint8_t* x8, int unit) {
    return {piece, load_activation<typename Loads<K>::Activations>(x8, unit), unit & 7};
}

// Between the weights asked for first and the activations.
template <Kind K>
__device__ __forceinline__ void row_gate(const uint8_t* x8, uint32_t* next8, int nbe, int flags) {
    tail<K>(flags);
    late_wait<K>();
    hand_on(x8, next8, static_cast<uint32_t>(nbe), blockIdx.x * kThreads + threadIdx.x, gridDim.x * kThreads);
}

// At most 256 units, one to a thread. No loop stands behind it: with one it takes 39 registers in the place of 31, so that 6
// blocks share an SM and not 8, and the 1024 rows of a 14B attn_v are two waves: 3.1 us a launch as dependents, not 2.3 (H200).
template <Kind K, class L>
__device__ __forceinline__ float one_row(const uint8_t* row, const uint8_t* x8, uint32_t* next8, int nbe, int flags) {
    const int t = threadIdx.x;
    const bool owns = t < nbe * 8;
    Piece<L::group> piece;
    if (owns) piece = row_piece<K, L>(row, t, nbe);
    row_gate<K>(x8, next8, nbe, flags);
    return owns ? add(0.0f, q6k_term(with_activation<K, L>(piece, x8, t))) : 0.0f;
}

// 256 < units <= 512: both ahead of the wait. A lane that does not own a second unit loads its first again, out of L1, and
// drops the term. All warps do: a copy of the first in the place of those loads would wait for it before the second is asked for.
template <Kind K, class L>
__device__ __forceinline__ float two_row(const uint8_t* row, const uint8_t* x8, uint32_t* next8, int nbe, int flags) {
    const int t = threadIdx.x, units = nbe * 8;
    const bool owns = t + kThreads < units, two = ((t + kThreads) & ~31) < units;
    const int last = owns ? t + kThreads : t;
    const Piece<L::group> a = row_piece<K, L>(row, t, nbe), b = row_piece<K, L>(row, last, nbe);
    row_gate<K>(x8, next8, nbe, flags);
    if (two) {
        const Q6kUnit<L> first = with_activation<K, L>(a, x8, t), second = with_activation<K, L>(b, x8, last);
        const float one = add(0.0f, q6k_term(first)), both = add(one, q6k_term(second));
        return owns ? both : one;
    }
    return add(0.0f, q6k_term(with_activation<K, L>(a, x8, t)));
}

#define PROBES_ROW_FORM(form)                                                                                            \
    template <Kind K, class L>                                                                                           \
    __device__ __forceinline__ void form##_rows(const uint8_t* w, const uint8_t* x8, uint32_t* next8, float* out,        \
                                                int nbe, int row_stride, int flags, Stamp* stamps) {                     \
        begin<K>(flags, stamps);                                                                                         \
        const uint8_t* row = w + static_cast<ptrdiff_t>(blockIdx.x) * row_stride;                                        \
        const float total = reduce_row(form##_row<K, L>(row, x8, next8, nbe, flags));                                    \
        if (threadIdx.x == 0) out[blockIdx.x] = total;                                                                   \
        end(flags, stamps);                                                                                              \
    }
PROBES_ROW_FORM(one)
PROBES_ROW_FORM(two)
#undef PROBES_ROW_FORM

}  // namespace probes
#endif
