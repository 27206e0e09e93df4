// A ring of stages in shared memory that bulk copies fill and a block's warps empty (sm_90 and up).
//
// The block: one warp per virtual warp that owns a unit (the consumers), and after them one more (the feeder).
// A fill is up to `rows` consecutive rows, one bulk copy. Fill i lives in stage i % stages, and it is the stage's
// phase (i / stages) & 1 of two mbarriers:
//
//   full   the feeder arrives once and announces the bytes; the copy's last byte completes the phase
//   empty  every consumer warp arrives once, after its last read of the stage and its sums are written
//
// Consumer v adds up virtual warp v of every row. The feeder waits for `empty`, takes the eight sums of each
// row, hands the stage to the next copy, then adds them one after another and stores the rows' results. A fill
// of no rows ends the work. Reads before a consumer's arrival precede the copy that the feeder issues after its
// wait; nothing but copies ever writes a stage, so no proxy fence is needed past the barriers' initialisation.
//
// Rows are dealt out as tickets of `rows` rows: block, block + grid, ... ; or, with a counter (one word that is
// 0 before and after every launch), the first `stages` tickets of a block so and all others drawn by atomic adds
// ahead of their use, so that a block on a slower path to memory takes fewer. The last draw of all sets it back.
#pragma once

#include "held.cuh"

#ifdef __CUDACC__
namespace probes {

#ifndef PROBES_FIBERS  // the tests' host build brings its own of all these
using Barrier = unsigned long long;

__device__ __forceinline__ uint32_t shared_address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ uint8_t* ring_memory() {
    extern __shared__ __align__(128) uint8_t memory[];
    return memory;
}

__device__ __forceinline__ int ring_blocks() { return gridDim.x; }
__device__ __forceinline__ int ring_warps() { return blockDim.x >> 5; }

__device__ __forceinline__ void barrier_init(Barrier* b, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals) : "memory");
}

// After its own barrier_init, each initialising thread; then the block's barrier.
__device__ __forceinline__ void barriers_ready() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(Barrier* b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}

__device__ __forceinline__ void barrier_expect(Barrier* b, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void barrier_wait(Barrier* b, uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "AGAIN:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
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
#endif

// The ring's pieces in shared memory; probes/l1_ring.py's smem_bytes counts the same.
struct Ring {
    int stages, rows, stride;
    uint8_t* data;    // [stages][rows][stride]
    float* sums;      // [stages][rows][8]
    Barrier *full, *empty;  // [stages]
    int32_t *first, *count;  // [stages]: the fill's first row and its rows, 0 for the end

    __device__ __forceinline__ Ring(int stages, int rows, int stride) : stages(stages), rows(rows), stride(stride) {
        data = ring_memory();
        sums = reinterpret_cast<float*>(data + stages * rows * stride);
        full = reinterpret_cast<Barrier*>(sums + stages * rows * kVirtualWarps);
        empty = full + stages;
        first = reinterpret_cast<int32_t*>(empty + stages);
        count = first + stages;
    }

    // Every thread; the caller's __syncthreads comes after.
    __device__ __forceinline__ void prepare() const {
        const int threads = ring_warps() * 32;
        for (int k = threadIdx.x; k < stages; k += threads) {
            barrier_init(full + k, 1);
            barrier_init(empty + k, ring_warps() - 1);
            barriers_ready();
        }
        for (int k = threadIdx.x; k < stages * rows * kVirtualWarps; k += threads) sums[k] = 0.0f;
    }
};

// P rows of a stage, then their warp sums: row r's to sums[8 * r].
template <class L, int K, int P>
__device__ __forceinline__ void ring_pass(const uint8_t* row, int stride, const Steps<L, K>& steps, uint32_t lane,
                                          float* sums) {
    float acc[P];
#pragma unroll
    for (int p = 0; p < P; ++p) {
        acc[p] = held_term<L>(load_piece<L, Shared>(row + p * stride, steps.at[0]), steps.held[0], steps.lane);
#pragma unroll
        for (int k = 1; k < K; ++k)
            acc[p] = add(acc[p], held_term<L>(load_piece<L, Shared>(row + p * stride, steps.at[k]), steps.held[k],
                                              steps.lane));
    }
    const float total = butterfly<P>(acc, lane);
    if (lane % (32 / P) == 0) sums[lane / (32 / P) * kVirtualWarps] = total;
}

// A consumer warp whose threads own up to K units, all of them held in registers; P rows at once where there are.
template <class L, int K, int P>
__device__ __forceinline__ void ring_consume(const Ring& ring, const uint8_t* x8, int nbe) {
    const Steps<L, K> steps(x8, threadIdx.x, nbe);
    uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, parity = 0;
    pin(warp), pin(lane);
    for (int s = 0;;) {
        barrier_wait(ring.full + s, parity);
        int left = ring.count[s];
        if (left == 0) return;
        const uint8_t* row = ring.data + s * ring.rows * ring.stride;
        float* sums = ring.sums + s * ring.rows * kVirtualWarps + warp;
        for (; left >= P; left -= P, row += P * ring.stride, sums += P * kVirtualWarps)
            ring_pass<L, K, P>(row, ring.stride, steps, lane, sums);
        if constexpr (P == 4) {
            if (left >= 2) {
                ring_pass<L, K, 2>(row, ring.stride, steps, lane, sums);
                left -= 2, row += 2 * ring.stride, sums += 2 * kVirtualWarps;
            }
        }
        if constexpr (P > 1) {
            if (left) ring_pass<L, K, 1>(row, ring.stride, steps, lane, sums);
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(ring.empty + s);
        if (++s == ring.stages) s = 0, parity ^= 1;
    }
}

// A consumer warp whose threads own more units than registers hold: activations come from memory each time.
template <class L>
__device__ __forceinline__ void ring_consume_any(const Ring& ring, const uint8_t* x8, int nbe) {
    const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const Lane group = lane_of(threadIdx.x & 7);
    uint32_t parity = 0;
    for (int s = 0;;) {
        barrier_wait(ring.full + s, parity);
        const int rows = ring.count[s];
        if (rows == 0) return;
        const uint8_t* row = ring.data + s * ring.rows * ring.stride;
        float* sums = ring.sums + s * ring.rows * kVirtualWarps + warp;
        for (int r = 0; r < rows; ++r, row += ring.stride, sums += kVirtualWarps) {
            float acc[1] = {0.0f};
            for (int u = threadIdx.x; u < nbe * 8; u += kThreads)
                acc[0] = add(acc[0], held_term<L>(load_piece<L, Shared>(row, place_of<L>(u, nbe)),
                                                  hold<L>(load_activation(x8, u), true), group));
            const float total = butterfly<1>(acc, lane);
            if (lane == 0) *sums = total;
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(ring.empty + s);
        if (++s == ring.stages) s = 0, parity ^= 1;
    }
}

// The feeder's lane 0: hand ticket `ticket` to stage s. False: there is no such ticket, and the fill ends the work.
__device__ __forceinline__ bool ring_fill(const Ring& ring, int s, uint32_t ticket, const uint8_t* w, int od) {
    const uint32_t first = ticket * ring.rows, all = static_cast<uint32_t>(od);
    if (first >= all) {
        ring.count[s] = 0;
        barrier_arrive(ring.full + s);
        return false;
    }
    const int rows = all - first < static_cast<uint32_t>(ring.rows) ? static_cast<int>(all - first) : ring.rows;
    ring.first[s] = static_cast<int>(first), ring.count[s] = rows;
    const uint32_t bytes = static_cast<uint32_t>(rows) * ring.stride;
    barrier_expect(ring.full + s, bytes);
    bulk_copy(ring.data + s * ring.rows * ring.stride, w + static_cast<size_t>(first) * ring.stride, bytes,
              ring.full + s);
    return true;
}

__device__ __forceinline__ void ring_feed(const Ring& ring, const uint8_t* w, float* out, uint32_t* counter, int od) {
    const int lane = threadIdx.x & 31;
    const uint32_t step = ring_blocks(), dealt = step * ring.stages;
    uint32_t ticket = blockIdx.x, base = 0, parity = 0, last = 0;
    bool open = true;  // more tickets may come; lane 0's own
    if (lane == 0) {
        for (int s = 0; s < ring.stages && open; ++s, ticket += step) open = ring_fill(ring, s, ticket, w, od);
        if (counter && open) {
            // Every block that draws does so until it draws one ticket too many: the number of draws is known,
            // and the last of them wraps the counter to 0. What is drawn is not used before the next fill.
            last = (static_cast<uint32_t>(od) + ring.rows - 1) / ring.rows + step - dealt - 1;
            base = dealt, ticket = atomicInc(counter, last);
        }
    }
    __syncwarp();
    for (int s = 0;;) {
        const int rows = ring.count[s], first = ring.first[s];
        if (rows == 0) return;
        barrier_wait(ring.empty + s, parity);
        const bool mine = lane < rows;
        const float* from = ring.sums + (s * ring.rows + (mine ? lane : 0)) * kVirtualWarps;
        const Words4 sums[2] = {Shared::w4(reinterpret_cast<const uint8_t*>(from)),
                                Shared::w4(reinterpret_cast<const uint8_t*>(from + 4))};
        __syncwarp();
        if (lane == 0 && open) {
            open = ring_fill(ring, s, base + ticket, w, od);
            if (counter) {
                if (open) ticket = atomicInc(counter, last);
            } else {
                ticket += step;
            }
        }
        float total = 0.0f;
#pragma unroll
        for (int k = 0; k < kVirtualWarps; ++k) total = add(total, float_of_bits(sums[k >> 2].w[k & 3]));
        if (mine) out[first + lane] = total;
        if (++s == ring.stages) s = 0, parity ^= 1;
        __syncwarp();
    }
}

template <class L>
__device__ __forceinline__ void ring_form(const uint8_t* w, const uint8_t* x8, float* out, uint32_t* counter, int nbe,
                                          int row_stride, int od, int rows, int stages) {
    const Ring ring(stages, rows, row_stride);
    ring.prepare();
    __syncthreads();
    const int warp = threadIdx.x >> 5;
    if (warp == ring_warps() - 1) return ring_feed(ring, w, out, counter, od);
    const int steps = (nbe * 8 - warp * 32 + kThreads - 1) / kThreads;  // of this warp's first lane
    if (steps == 1)
        ring_consume<L, 1, 4>(ring, x8, nbe);
    else if (steps == 2)
        ring_consume<L, 2, 2>(ring, x8, nbe);
    else if (steps == 3)
        ring_consume<L, 3, 1>(ring, x8, nbe);
    else
        ring_consume_any<L>(ring, x8, nbe);
}

}  // namespace probes
#endif
