// A ring's job for gate and up: SwiGLU of each pair of rows, and q8 of each group of 32, in one kernel without waves.
//
// A fill is `pairs` gate rows and as many up rows (pairs divides 32). A block does `own` groups of 32 pairs by itself,
// and their values never leave it. All other groups are shared: their fills are drawn one by one, in ascending order,
// once all but `late` of the own fills are asked for. So a block on a slower path to memory draws fewer, and all end
// together.
//
// A shared group's sums meet in memory, a 64-bit word per pair: gate's and up's bits, inverted, so that 0 says that they
// are not there yet (no float operation ends in all ones). Words are stored and loaded whole, past L1, and each speaks
// for itself: no fence, no count of arrivals. Whoever draws a group's last fill waits for its 32 words, sets them back to 0 for
// the next launch, and quantises. That cannot hang: fills are drawn in order, by blocks that run, and a block finishes
// its own in order, so that every wait is for a lower fill than one's own.
//
// The block has two warps more than its consumers: the feeder, and the finisher, which takes the sums. `full` counts
// the finisher's lanes in: a stage is summed again only when they have taken the sums from before.
#pragma once

#include "q8.cuh"
#include "ring.cuh"
#include "swiglu.cuh"

#ifdef __CUDACC__
namespace probes {

constexpr uint32_t kGroupValues = 32, kGroupWords = kPad40 / 4, kNoGroup = 0xffffffffu;

using Word = unsigned long long;

#ifndef PROBES_FIBERS
__device__ __forceinline__ void hand_over(Word* at, Word value) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

__device__ __forceinline__ Word handed_over(const Word* at) {
    Word value;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
}
#endif

struct GatedRows {
    const uint8_t* w;
    uint32_t* q8;
    Word* words;  // of the shared pairs, by pair; behind all pairs' the tickets' counter
    uint32_t nf, pairs, own, late;

    __device__ __forceinline__ uint32_t shared() const { return own * ring_blocks() * kGroupValues; }

    __device__ __forceinline__ uint32_t* counter() const { return reinterpret_cast<uint32_t*>(words + nf); }

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

    // The whole finisher: quantise a shared group whose words are all there. False: they are not, and `wait` was not
    // asked for.
    __device__ __forceinline__ bool complete(uint32_t group, uint32_t lane, bool wait) const {
        Word* mine = words + group * kGroupValues + lane;
        Word value = handed_over(mine);
        while (!__all_sync(0xffffffffu, value != 0)) {
            if (!wait) return false;
            value = handed_over(mine);
        }
        hand_over(mine, 0);
        quantise(group, float_of_bits(~static_cast<uint32_t>(value)), float_of_bits(~static_cast<uint32_t>(value >> 32)));
        return true;
    }
};

// The fills of one block: its own, and before the last of them what it draws. Every block draws until it draws one
// ticket too many, so the number of draws is known, and the last of them wraps the counter to 0.
struct GatedFills {
    const GatedRows& job;
    uint32_t group, part = 0, left, shared, tickets, ticket = 0;
    bool drawing, open = true;

    __device__ __forceinline__ GatedFills(const GatedRows& job, bool mine)
        : job(job), group(blockIdx.x), left(job.own * (kGroupValues / job.pairs)), shared(job.shared()) {
        tickets = (job.nf - shared) / job.pairs;
        drawing = tickets > 0;
        if (mine && drawing && left <= job.late) draw();
    }

    // What is drawn is not used before the next fill.
    __device__ __forceinline__ void draw() { ticket = atomicInc(job.counter(), tickets + ring_blocks() - 1); }

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
    const bool first_lane = (threadIdx.x & 31) == 0;
    GatedFills fills(job, first_lane);
    ring.make_barriers(2, 1 + 32);  // while the first draw is under way
    if (first_lane)
        for (int s = 0; s < ring.stages && fills.open; ++s) fills.fill(ring, s, 0);
    __syncwarp();
    uint32_t parity = 0;
    for (int s = 0; ring.count[ring.slot(s, parity)] != 0;) {
        barrier_wait(ring.empty + s, parity);
        if (first_lane && fills.open) fills.fill(ring, s, parity ^ 1);
        if (++s == ring.stages) s = 0, parity ^= 1;
        __syncwarp();
    }
}

__device__ __forceinline__ void ring_finish_gated(const Ring& ring, const GatedRows& job) {
    const uint32_t lane = threadIdx.x & 31, shared = job.shared();
    for (int s = 0; s < ring.stages; ++s) barrier_arrive(ring.full + s);
    uint32_t parity = 0, due = kNoGroup;  // a shared group whose last fill was this block's, not quantised yet
    float gate = 0.0f, up = 0.0f;         // of the own group that is under way: SwiGLU is taken once, by all lanes
    for (int s = 0;;) {
        barrier_wait(ring.full + s, parity);
        const uint32_t first = ring.first[ring.slot(s, parity)];
        if (ring.count[ring.slot(s, parity)] == 0) break;
        barrier_wait(ring.empty + s, parity);
        const float total = ring_total(ring, s, lane < 2 * job.pairs, lane);
        barrier_arrive(ring.full + s);
        const uint32_t group = first / kGroupValues, at = first % kGroupValues, here = lane - at;
        const float of_gate = __shfl_sync(0xffffffffu, total, here & 31);
        const float of_up = __shfl_sync(0xffffffffu, total, (here + job.pairs) & 31);
        const bool mine = here < job.pairs, last = at + job.pairs == kGroupValues;
        if (first < shared) {
            if (mine) gate = of_gate, up = of_up;
            if (last) job.quantise(group, gate, up);
        } else if (mine) {
            hand_over(job.words + first + here, static_cast<Word>(~bits_of_float(of_up)) << 32 | ~bits_of_float(of_gate));
        }
        const bool full = first >= shared && last;  // one more is due: none may be left then
        if (due != kNoGroup && job.complete(due, lane, full)) due = kNoGroup;
        if (full) due = group;
        if (++s == ring.stages) s = 0, parity ^= 1;
    }
    if (due != kNoGroup) job.complete(due, lane, true);
}

template <class F>
__device__ __forceinline__ void ring_gated_form(const Ring& ring, const uint8_t* x8, int nbe, const GatedRows& job) {
    const int role = ring_warps() - 1 - static_cast<int>(threadIdx.x >> 5);
    if (role == 1) return ring_feed_gated(ring, job);
    ring.await_barriers();  // one place for both roles: synccheck takes two for a divergent block
    if (role == 0) return ring_finish_gated(ring, job);
    ring_sum<F>(ring, x8, nbe, 2);
}

}  // namespace probes
#endif
