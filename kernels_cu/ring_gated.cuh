// A ring's job for gate and up: SwiGLU of each pair of rows, and q8 of each group of 32, in one kernel without waves.
//
// A fill is `pairs` gate rows and as many up rows (pairs divides 32). A block does `own` groups of 32 pairs by itself,
// and their values never leave it. The groups left over are drawn fill by fill when all but `late` of the own fills
// are asked for, so that a block on a slower path to memory draws fewer and all of them end together. Such a group's
// values meet in memory: a block stores its rows' sums, fences, counts them in at the group's counter (one word, 0
// before and after every launch: who counts the 32nd sets it back), and quantises what it was the last of. Those are
// round trips to L2, of a microsecond each and more under load, made once per block and behind its last own fills.
// Nobody waits for another block.
//
// The block has two warps more than its consumers: the feeder, and the finisher, which takes the sums. `full` counts
// the finisher's lanes in: a stage is summed again only when they have taken the sums from before.
#pragma once

#include "q8.cuh"
#include "ring.cuh"
#include "swiglu.cuh"

#ifdef __CUDACC__
namespace probes {

constexpr int kGroupValues = 32, kGroupWords = kPad40 / 4;

#ifndef PROBES_FIBERS
__device__ __forceinline__ float load_from_l2(const float* p) {
    float v;
    asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(v) : "l"(p) : "memory");
    return v;
}

// Release what this thread wrote or saw, acquire what others released.
__device__ __forceinline__ void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
#endif

struct GatedRows {
    const uint8_t* w;
    float* sums;              // gate's, then up's: of the groups that blocks share
    uint32_t *q8, *counters;  // a word per group, then the tickets'
    uint32_t nf, pairs, own, late;

    __device__ __forceinline__ uint32_t shared() const { return own * ring_blocks() * kGroupValues; }

    // Lane 0 of the feeder: `pairs` pairs from `first` on are to land in stage s.
    __device__ __forceinline__ void fill(const Ring& ring, int s, int slot, uint32_t first) const {
        const uint32_t bytes = pairs * ring.stride;
        ring.first[slot] = static_cast<int>(first), ring.count[slot] = static_cast<int>(2 * pairs);
        uint8_t* to = ring.data + s * ring.rows * ring.stride;
        barrier_expect(ring.full + s, 2 * bytes);
        bulk_copy(to, w + static_cast<size_t>(first) * ring.stride, bytes, ring.full + s);
        bulk_copy(to + bytes, w + static_cast<size_t>(nf + first) * ring.stride, bytes, ring.full + s);
    }

    // The whole finisher: lane k has the sums of the group's pair k.
    __device__ __forceinline__ void quantise(uint32_t group, float gate, float up) const {
        q8_store(swiglu(gate, up), q8 + group * kGroupWords);
    }
};

// The fills of one block: its own, and before the last of them what it draws. Every block draws until it draws one
// ticket too many, so the number of draws is known, and the last of them wraps the counter to 0.
struct GatedFills {
    const GatedRows& job;
    uint32_t group, part = 0, left, shared, tickets, ticket = 0;
    bool drawing, open = true;

    __device__ __forceinline__ explicit GatedFills(const GatedRows& job)
        : job(job), group(blockIdx.x), left(job.own * (kGroupValues / job.pairs)), shared(job.shared()) {
        tickets = (job.nf - shared) / job.pairs;
        drawing = tickets > 0;
        if (drawing && left <= job.late) draw();
    }

    // What is drawn is not used before the next fill.
    __device__ __forceinline__ void draw() {
        ticket = atomicInc(job.counters + job.nf / kGroupValues, tickets + ring_blocks() - 1);
    }

    __device__ __forceinline__ void own_fill(const Ring& ring, int s, int slot) {
        job.fill(ring, s, slot, group * kGroupValues + part);
        --left, part += job.pairs;
        if (part == kGroupValues) part = 0, group += ring_blocks();
    }

    __device__ __forceinline__ void fill(const Ring& ring, int s, uint32_t phase) {
        const int slot = ring.slot(s, phase);
        if (left > job.late) {
            own_fill(ring, s, slot);
            if (drawing && left == job.late) draw();
            return;
        }
        drawing = drawing && ticket < tickets;
        if (drawing) {
            job.fill(ring, s, slot, shared + ticket * job.pairs);
            draw();
        } else if (left) {
            own_fill(ring, s, slot);
        } else {
            ring.count[slot] = 0;
            barrier_arrive(ring.full + s);
            open = false;
        }
    }
};

__device__ __forceinline__ void ring_feed_gated(const Ring& ring, const GatedRows& job) {
    if (threadIdx.x & 31) return;
    GatedFills fills(job);
    for (int s = 0; s < ring.stages && fills.open; ++s) fills.fill(ring, s, 0);
    uint32_t parity = 0;
    for (int s = 0; fills.open;) {
        barrier_wait(ring.empty + s, parity);
        fills.fill(ring, s, parity ^ 1);
        if (++s == ring.stages) s = 0, parity ^= 1;
    }
}

// What a block stored of groups that it shares: `noted` fills, the k-th of them in lane k's group. Counted in, and then
// quantised where that made a group complete. All of it by the whole finisher.
struct Shared {
    uint32_t group = 0, noted = 0, sum = 0;
    bool counted = false;

    __device__ __forceinline__ void note(uint32_t of, uint32_t lane) {
        if (lane == noted++) group = of;
    }

    __device__ __forceinline__ void step(const GatedRows& job, uint32_t lane) {
        if (noted == 0) return;
        if (!counted) {
            __syncwarp();
            if (lane < noted) fence_gpu(), sum = atomicAdd(job.counters + group, job.pairs) + job.pairs;
            counted = true;
            return;
        }
        // All lanes read what lane k's atomic vouches for. They do so after the shuffle that carries its result, which
        // the hardware keeps in order; a __syncwarp here would put it in the memory model's words as well.
        fence_gpu();
        for (uint32_t k = 0; k < noted; ++k) {
            if (__shfl_sync(0xffffffffu, sum, k) != kGroupValues) continue;
            const uint32_t which = __shfl_sync(0xffffffffu, group, k);
            const float* gate = job.sums + which * kGroupValues + lane;
            job.quantise(which, load_from_l2(gate), load_from_l2(gate + job.nf));
            if (lane == 0) job.counters[which] = 0;
        }
        noted = 0, counted = false;
    }

    __device__ __forceinline__ void settle(const GatedRows& job, uint32_t lane) {
        while (noted) step(job, lane);
    }
};

__device__ __forceinline__ void ring_finish_gated(const Ring& ring, const GatedRows& job) {
    const uint32_t lane = threadIdx.x & 31, shared = job.shared();
    Shared stored;
    ring.await_barriers();
    for (int s = 0; s < ring.stages; ++s) barrier_arrive(ring.full + s);
    uint32_t parity = 0;
    float gate = 0.0f, up = 0.0f;  // of the own group that is under way: SwiGLU is taken once, by all lanes
    for (int s = 0;;) {
        barrier_wait(ring.full + s, parity);
        const uint32_t first = ring.first[ring.slot(s, parity)];
        if (ring.count[ring.slot(s, parity)] == 0) break;
        barrier_wait(ring.empty + s, parity);
        const float total = ring_total(ring, s, lane < 2 * job.pairs, lane);
        barrier_arrive(ring.full + s);
        if (first >= shared) {
            if (stored.noted == 32) stored.settle(job, lane);
            if (lane < 2 * job.pairs) job.sums[first + lane + (lane < job.pairs ? 0 : job.nf - job.pairs)] = total;
            stored.note(first / kGroupValues, lane);
        } else {
            const uint32_t at = first % kGroupValues;
            const float of_gate = __shfl_sync(0xffffffffu, total, (lane - at) & 31);
            const float of_up = __shfl_sync(0xffffffffu, total, (lane - at + job.pairs) & 31);
            if (lane >= at && lane < at + job.pairs) gate = of_gate, up = of_up;
            if (at + job.pairs == kGroupValues) job.quantise(first / kGroupValues, gate, up);
            stored.step(job, lane);
        }
        if (++s == ring.stages) s = 0, parity ^= 1;
    }
    stored.settle(job, lane);
}

template <class F>
__device__ __forceinline__ void ring_gated_form(const Ring& ring, const uint8_t* x8, int nbe, const GatedRows& job) {
    const int role = ring_warps() - 1 - static_cast<int>(threadIdx.x >> 5);
    if (role == 0) return ring_finish_gated(ring, job);
    if (role == 1) {
        ring.make_barriers(2, 1 + 32);
        return ring_feed_gated(ring, job);
    }
    ring.clear_sums(2);
    ring_sum<F>(ring, x8, nbe, 2);
}

}  // namespace probes
#endif
