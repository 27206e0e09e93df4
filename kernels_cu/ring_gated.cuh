// A ring's job for gate and up: SwiGLU of each pair of rows, and q8 of each group of 32, in one kernel without waves.
//
// A ticket names `rows` rows (a divisor of 32) of a group's 32 of gate and 32 of up: one of its 64 / rows parts. Ticket t
// stands for part t % parts, and for the group whose turn it is there: t / parts, less a share of all groups that grows
// with the part. So a group's parts are asked for far apart, and when the last one is summed the others' sums have
// long been there, whichever blocks they fell to; and all along the launch groups become ready. (What would come before
// the first turn wraps round: for those groups that part comes first, and an earlier one is the last.)
//
// The sums meet in memory, two words per pair: gate's and up's bits, inverted, so that 0 says that one is not there yet (no
// float operation ends in all ones). Words are stored and loaded past L1, and each speaks for itself: no fence, no count
// of arrivals. Whoever has a group's last part asks for the others' words while its own rows are summed, sets them
// back to 0 for the next launch, and quantises. If one is missing it waits, which cannot hang as long as all blocks run at
// once: each finishes its tickets in ascending order, and every wait is for a lower one.
//
// The block has two warps more than its consumers: the feeder, and the finisher, which takes the sums. The finisher
// arrives at a stage's next `full` as soon as it has looked at the fill in it, whose sums lie in a slot of their own: it may
// be late by a phase, as it is after it quantised, and the consumers need not wait for it.
#pragma once

#include "q8.cuh"
#include "ring_feed.cuh"
#include "swiglu.cuh"

#ifdef __CUDACC__
namespace probes {

constexpr uint32_t kGroupValues = 32, kGroupRows = 64, kGroupWords = kPad40 / 4;
constexpr uint32_t kLast = 1u << 30, kUp = 1u << 29, kPair = kUp - 1;  // Fill::first: the first pair, and this of it

using Word = unsigned long long;

#ifndef PROBES_FIBERS
__device__ __forceinline__ void hand_over(Word* at, bool up, uint32_t sum) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(reinterpret_cast<uint32_t*>(at) + up), "r"(sum) : "memory");
}

__device__ __forceinline__ Word handed_over(const Word* at) {
    Word value;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
}

// For the next launch.
__device__ __forceinline__ void take_back(Word* at) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(Word(0)) : "memory");
}
#endif

struct GatedRows {
    static constexpr int kArrivals = 1 + 32;  // the feeder's lane 0, and the finisher
    static constexpr bool kSums = false;      // they are the finisher's affair

    const uint8_t* w;
    uint32_t* q8;
    Word* words;        // by pair
    uint32_t* counter;  // or null
    uint32_t nf;

    __device__ __forceinline__ uint32_t tickets(const Ring& ring) const { return 2 * nf / ring.rows; }

    __device__ __forceinline__ Fill fill_of(const Ring& ring, uint32_t ticket) const {
        const uint32_t groups = nf / kGroupValues, turn = ticket * ring.rows / kGroupRows, at = ticket * ring.rows % kGroupRows;
        const uint32_t back = at * groups / kGroupRows, after = at + ring.rows;
        const bool wrapped = turn < back;
        const uint32_t group = wrapped ? turn + groups - back : turn - back;
        const bool last = !wrapped && (after == kGroupRows || group + after * groups / kGroupRows >= groups);
        return {group * kGroupValues + at % kGroupValues | (at < kGroupValues ? 0 : kUp) | (last ? kLast : 0), ring.rows};
    }

    __device__ __forceinline__ void copy(const Ring& ring, int s, Fill fill, int lane) const {
        if (lane) return;
        const uint32_t bytes = ring.rows * ring.stride, row = (fill.first & kPair) + (fill.first & kUp ? nf : 0);
        barrier_expect(ring.full + s, bytes);
        bulk_copy(ring.data + s * bytes, w + static_cast<size_t>(row) * ring.stride, bytes, ring.full + s);
    }

    __device__ __forceinline__ void arrive(const Ring& ring, int s, int lane) const {
        if (lane == 0) barrier_arrive(ring.full + s);
    }

    __device__ __forceinline__ void prefetch(const Ring&, Fill) const {}
};

__device__ __forceinline__ void ring_finish_gated(const Ring& ring, const GatedRows& job) {
    const uint32_t lane = threadIdx.x & 31, row = lane & (ring.rows - 1);
    for (int s = 0; s < ring.stages; ++s) barrier_arrive(ring.full + s);
    uint32_t phase = 0;
    for (int s = 0;;) {
        barrier_wait(ring.full + s, phase & 1);
        const int slot = ring.slot(s, phase & 1);
        if (ring.count[slot] == 0) return;
        const uint32_t told = ring.first[slot], group = (told & kPair) / kGroupValues;
        barrier_arrive(ring.full + s);
        const bool mine = lane - told % kGroupValues < static_cast<uint32_t>(ring.rows), up = told & kUp;
        Word* words = job.words + group * kGroupValues + lane;  // the lane's pair's
        Word both = told & kLast ? handed_over(words) : 0;
        barrier_wait(ring.empty + slot, phase >> 1);
        const uint32_t sum = ~bits_of_float(ring_total(ring, slot, row));
        if (told & kLast) {
            const Word own = mine ? up ? Word(sum) << 32 : Word(sum) : 0;
            both |= own;
            while (!__all_sync(0xffffffffu, static_cast<uint32_t>(both) && both >> 32)) both = handed_over(words) | own;
            take_back(words);
            const float gate = float_of_bits(~static_cast<uint32_t>(both));
            q8_store(swiglu(gate, float_of_bits(~static_cast<uint32_t>(both >> 32))), job.q8 + group * kGroupWords);
        } else if (mine) {
            hand_over(words, up, sum);
        }
        if (++s == ring.stages) s = 0, phase = phase + 1 & 3;
    }
}

template <class F>
__device__ __forceinline__ void ring_gated_form(const Ring& ring, const uint8_t* x8, int nbe, const GatedRows& job) {
    const int role = ring_warps() - 1 - static_cast<int>(threadIdx.x >> 5);
    if (role == 1) {
        ring.make_barriers(2, GatedRows::kArrivals);
        return ring_feed(ring, job, NoHooks{});
    }
    ring.await_barriers();  // one place for both roles: synccheck takes two for a divergent block
    if (role == 0) return ring_finish_gated(ring, job);
    ring_sum<F>(ring, x8, nbe, 2);
}

}  // namespace probes
#endif
