// mbarriers, copies from memory that they count in, and a block's dynamic shared memory: inline PTX. sm_80 and up; bulk
// copies and prefetches sm_90.
#pragma once

#include "common.cuh"

#ifdef __CUDACC__
namespace probes {

#ifndef PROBES_FIBERS  // the tests' host build brings its own of all these
using Barrier = unsigned long long;

__device__ __forceinline__ uint32_t shared_address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

template <class T>
__device__ __forceinline__ T* at_shared(uint32_t address) {
    return static_cast<T*>(__cvta_shared_to_generic(address));
}

__device__ __forceinline__ uint8_t* ring_memory() {
    extern __shared__ __align__(128) uint8_t memory[];
    return memory;
}

__device__ __forceinline__ int ring_blocks() { return gridDim.x; }
__device__ __forceinline__ int ring_warps() { return blockDim.x >> 5; }

// Of the whole block, once: to be counted in, and to wait until every thread was.
__device__ __forceinline__ void block_arrive() { asm volatile("bar.arrive 1, %0;" ::"r"(blockDim.x) : "memory"); }
__device__ __forceinline__ void block_join() { asm volatile("bar.sync 1, %0;" ::"r"(blockDim.x) : "memory"); }

__device__ __forceinline__ void barrier_init(Barrier* b, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals) : "memory");
}

// After its own barrier_init, each initialising thread; then the block's barrier.
__device__ __forceinline__ void barriers_ready() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900  // before, nothing but the block's own threads arrives
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

__device__ __forceinline__ void barrier_arrive(Barrier* b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}

// The same or nothing, without a branch.
__device__ __forceinline__ void barrier_arrive_if(Barrier* b, bool arrive) {
    asm volatile(
        "{\n"
        ".reg .pred arrive;\n"
        "setp.ne.u32 arrive, %1, 0;\n"
        "@arrive mbarrier.arrive.shared::cta.b64 _, [%0];\n"
        "}" ::"r"(shared_address(b)),
        "r"(static_cast<uint32_t>(arrive))
        : "memory");
}

// Bytes of copies to come; no arrival.
__device__ __forceinline__ void barrier_expect(Barrier* b, uint32_t bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(bytes)
                 : "memory");
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define PROBES_TRY_WAIT "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
#else
#define PROBES_TRY_WAIT "mbarrier.test_wait.parity.shared::cta.b64 done, [%0], %1;\n"
#endif

__device__ __forceinline__ void barrier_wait(Barrier* b, uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "AGAIN:\n"
        PROBES_TRY_WAIT
        "@!done bra AGAIN;\n"
        "}" ::"r"(shared_address(b)),
        "r"(parity)
        : "memory");
}

// All three of source, destination and size are multiples of 16.
__device__ __forceinline__ void bulk_copy(uint8_t* to, const uint8_t* from, uint32_t bytes, Barrier* b) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(b))
                 : "memory");
}

// 16 bytes, by one thread, past L1. All three are multiples of 16.
__device__ __forceinline__ void copy_16(uint8_t* to, const uint8_t* from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}

// The thread's arrival, once all that it copied by copy_16 before has landed.
__device__ __forceinline__ void barrier_arrive_copied(Barrier* b) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(b)) : "memory");
}

// Ask for bytes (a multiple of 16, from a multiple of 16) to be brought into L2.
__device__ __forceinline__ void bulk_prefetch(const uint8_t* from, uint32_t bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
#endif

}  // namespace probes
#endif
