// A tile of bytes, read by one block: the plain reads that kernels are held against, and the chains of them.
//
//   LoadedTile  16-byte loads, all of a thread's in flight at once
//   CopiedTile  one bulk copy into shared memory (sm_90 and up): no register holds a byte on its way, so that an SM has as
//               many bytes in flight as blocks fit beside their tiles
//
// `fetch` gives each thread its vectors (16 bytes each), zeros past the tile's own.
#pragma once

#include "mbarrier.cuh"

#ifdef __CUDACC__
namespace probes {

template <int Bytes, int Threads>
struct Tile {
    static constexpr int kBytes = Bytes, kBlock = Threads, kWarps = Threads / 32, kVectors = Bytes / 16;
    static constexpr int kLoads = kVectors / Threads;
};

template <int Bytes, int Threads>
struct LoadedTile : Tile<Bytes, Threads> {
    // A whole tile apart: with a condition to each load the compiler asks for 3 of 8, uses them, and asks for the others.
    static __device__ __forceinline__ void fetch(Words4 (&v)[Bytes / 16 / Threads], const uint8_t* tile, int vectors) {
        const uint8_t* mine = tile + threadIdx.x * 16;
        if (vectors == Bytes / 16) {
#pragma unroll
            for (int k = 0; k < Bytes / 16 / Threads; ++k) v[k] = load16(mine + k * (Threads * 16));
            return;
        }
#pragma unroll
        for (int k = 0; k < Bytes / 16 / Threads; ++k) {
            if (static_cast<int>(threadIdx.x) + k * Threads < vectors)
                v[k] = load16(mine + k * (Threads * 16));
            else
                v[k].w[0] = v[k].w[1] = v[k].w[2] = v[k].w[3] = 0;
        }
    }
};

// Dynamic shared memory: the tile, then its barrier (kShared bytes).
template <int Bytes, int Threads>
struct CopiedTile : Tile<Bytes, Threads> {
    static constexpr int kShared = Bytes + 16;

    static __device__ __forceinline__ void fetch(Words4 (&v)[Bytes / 16 / Threads], const uint8_t* tile, int vectors) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
        uint8_t* data = ring_memory();
        Barrier* full = reinterpret_cast<Barrier*>(data + Bytes);
        const uint32_t bytes = static_cast<uint32_t>(vectors) * 16;
        if (threadIdx.x == 0) {
            barrier_init(full, 1);
            barriers_ready();
            barrier_expect(full, bytes);
            bulk_copy(data, tile, bytes, full);
            barrier_arrive(full);
        }
        __syncthreads();
        barrier_wait(full, 0);
        if (vectors == Bytes / 16) {
#pragma unroll
            for (int k = 0; k < Bytes / 16 / Threads; ++k) v[k] = Plain::w4(data + (threadIdx.x + k * Threads) * 16);
            return;
        }
#pragma unroll
        for (int k = 0; k < Bytes / 16 / Threads; ++k) {
            const int i = threadIdx.x + k * Threads;
            if (i < vectors)
                v[k] = Plain::w4(data + i * 16);
            else
                v[k].w[0] = v[k].w[1] = v[k].w[2] = v[k].w[3] = 0;
        }
#endif
    }
};

}  // namespace probes
#endif
