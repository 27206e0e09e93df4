// Programmatic dependent launch: where a kernel waits for its predecessor, when it lets its successor start,
// what it may fetch before, and the time stamps that prove an overlap.
//
// A kernel is compiled in up to three kinds:
//
//   plain  no wait at all: right only when launched without the attribute
//   entry  waits first
//   late   waits after what does not depend on the predecessor: its weights asked for, or read and summed
//
// A load alone does not stay above the wait: ptxas sinks it to where it is used. A prefetch stays, and so does a
// load whose value has been used up.
//
// Everything a predecessor wrote is read by plain ld.global after the wait (common.cuh's `Plain` and `Here`, or
// through a pointer without __restrict__): a read-only load (ld.global.nc, __ldg) could be moved above it. Before sm_90 the
// instructions do not exist and nothing is compiled for them.
#pragma once

#include "common.cuh"

#ifdef __CUDACC__
namespace probes {

enum Kind { kPlain, kEntry, kLate };

constexpr int kTrigger = 1;  // flags: let the successor start as soon as every block has started
constexpr int kStamp = 2;    // flags: record the first block's start and the last block's end
constexpr int kTail = 4;     // flags: let it start when every block has asked for its last weights

using Stamp = unsigned long long;

__device__ __forceinline__ Stamp now_ns() {
    Stamp ns = 0;
#ifdef __CUDA_ARCH__
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");
#endif
    return ns;
}

__device__ __forceinline__ void grid_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void grid_trigger() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// The first thing in every kernel.
template <Kind K>
__device__ __forceinline__ void begin(int flags, Stamp* stamps) {
    if ((flags & kStamp) && threadIdx.x == 0) atomicMin(stamps, now_ns());
    if constexpr (K != kPlain) {
        if (flags & kTrigger) grid_trigger();
    }
    if constexpr (K == kEntry) grid_wait();
}

// Where a block has asked for the last of its weights, or has nothing left but to store.
template <Kind K>
__device__ __forceinline__ void tail(int flags) {
    if constexpr (K != kPlain) {
        if (flags & kTail) grid_trigger();
    }
}

// After whatever does not depend on the predecessor.
template <Kind K>
__device__ __forceinline__ void late_wait() {
    if constexpr (K == kLate) grid_wait();
}

// The last thing in every kernel.
__device__ __forceinline__ void end(int flags, Stamp* stamps) {
    if (flags & kStamp) {
        __syncthreads();
        if (threadIdx.x == 0) atomicMax(stamps + 1, now_ns());
    }
}

// Ask for `bytes` (a multiple of 16, from a multiple of 16) to be brought into L2; one thread does it for a block.
template <Kind K>
__device__ __forceinline__ void prefetch(const uint8_t* p, uint32_t bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if constexpr (K == kLate) {
        if (threadIdx.x == 0) asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
    }
#endif
}

}  // namespace probes
#endif
