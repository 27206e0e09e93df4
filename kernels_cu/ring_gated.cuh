// A ring's job for gate and up: SwiGLU of each pair of rows, and q8 of each group of 32, in one kernel without waves.
//
// A ticket names `rows` rows (a divisor of 32): first all of gate, in order, then up's, one of a group's 32 / rows parts
// each. Of these, ticket t stands for part t % parts, and for the group whose turn it is there: t / parts, less a share of
// all groups that grows with the part. So a group's parts are asked for far apart, and when the last one is summed the
// others' sums have long been there, whichever blocks they fell to. (What would come before the first turn wraps round: for
// those groups that part comes first, and an earlier one is the last.)
//
// The sums meet in memory, two words per pair: gate's and up's bits, inverted, so that 0 says that one is not there yet (no
// float operation ends in all ones). Words are stored and loaded past L1, and each speaks for itself: no fence, no count
// of arrivals. Whoever has a group's last part asks for the words a tile ahead, has silu(gate) ready before its own rows
// are summed, sets the words back to 0 for the next launch, and quantises. If one is missing it waits, which cannot
// hang as long as all blocks run at once: each finishes its tickets in ascending order, and every wait is for a lower one.
//
// The block has two warps more than its consumers: the producer, and the finisher, which takes the sums. The finisher looks
// a tile ahead. It arrives at the next `full` of a tile's stage once it has seen that tile and done with the one before,
// whose sums would be overwritten else if there is one stage: it may be late by a phase, as it is after it quantised, and
// the consumers need not wait for it.
#pragma once

#include "q8.cuh"
#include "ring_feed.cuh"
#include "swiglu.cuh"

#ifdef __CUDACC__
namespace probes {

constexpr uint32_t kGroupValues = 32, kGroupWords = kPad40 / 4;
constexpr uint32_t kLast = 1u << 30, kUp = 1u << 29, kPair = kUp - 1;  // Fill::first: the first pair, and this of it

// A pair's two words.
struct alignas(8) Words {
    uint32_t gate, up;
};

#ifndef PROBES_FIBERS
__device__ __forceinline__ void hand_over(Words* at, bool up, uint32_t sum) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(up ? &at->up : &at->gate), "r"(sum) : "memory");
}

__device__ __forceinline__ Words handed_over(const Words* at) {
    Words words;
    asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];" : "=r"(words.gate), "=r"(words.up) : "l"(at) : "memory");
    return words;
}

// For the next launch.
__device__ __forceinline__ void take_back(Words* at) {
    asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %1};" ::"l"(at), "r"(0) : "memory");
}
#endif

struct GatedRows {
    static constexpr int kArrivals = 1 + 32;  // the producer's lane 0, and the finisher
    static constexpr bool kSums = false;      // they are the finisher's affair

    const uint8_t* w;
    uint32_t* q8;
    Words* words;       // by pair
    uint32_t* counter;  // or null
    uint32_t nf;

    __device__ __forceinline__ uint32_t tickets(const Ring& ring) const { return 2 * nf / ring.rows; }

    __device__ __forceinline__ Fill fill_of(const Ring& ring, uint32_t ticket) const {
        const uint32_t row = ticket * ring.rows;
        if (row < nf) return {row, ring.rows};
        const uint32_t groups = nf / kGroupValues, turn = (row - nf) / kGroupValues, at = row % kGroupValues;
        const uint32_t back = at * groups / kGroupValues, after = at + ring.rows;
        const bool wrapped = turn < back;
        const uint32_t group = wrapped ? turn + groups - back : turn - back;
        const bool last = !wrapped && (after == kGroupValues || group + after * groups / kGroupValues >= groups);
        return {group * kGroupValues + at | kUp | (last ? kLast : 0), ring.rows};
    }

    __device__ __forceinline__ void copy(const Ring& ring, uint8_t* to, Slot* slot, Fill fill, int lane) const {
        if (lane) return;
        const uint32_t bytes = ring.rows * ring.stride, row = (fill.first & kPair) + (fill.first & kUp ? nf : 0);
        barrier_expect(&slot->full, bytes);
        bulk_copy(to, w + static_cast<size_t>(row) * ring.stride, bytes, &slot->full);
    }

    __device__ __forceinline__ void arrive(Slot* slot, int lane) const {
        if (lane == 0) barrier_arrive(&slot->told), barrier_arrive(&slot->full);
    }

    __device__ __forceinline__ void prefetch(const Ring&, Fill) const {}
};

// What a slot tells of its tile, and what is there by now of the group that it completes.
struct Told {
    uint32_t first;
    int rows;
    Words* at;  // the lane's pair's
    Words words{};

    __device__ __forceinline__ Told(const GatedRows& job, const RingPlace& place, uint32_t lane) {
        barrier_wait(&place.slot->told, place.parity);
        first = place.slot->first, rows = place.slot->count;
        at = job.words + group() * kGroupValues + lane;
        if (rows && last()) words = handed_over(at);
    }

    __device__ __forceinline__ uint32_t group() const { return (first & kPair) / kGroupValues; }
    __device__ __forceinline__ bool last() const { return first & kLast; }
};

__device__ __forceinline__ void ring_finish_gated(const Ring& ring, const GatedRows& job) {
    const uint32_t lane = threadIdx.x & 31, row = lane & (ring.rows - 1), all = 0xffffffffu;
    RingPlace next(ring);
    for (Told coming(job, next, lane); coming.rows;) {
        const RingPlace here = next;
        Told fill = coming;
        barrier_arrive(&here.after(ring)->full);
        next.go_on(ring);
        coming = Told(job, next, lane);
        float gate = 0.0f;
        if (fill.last()) {
            while (!__all_sync(all, fill.words.gate != 0)) fill.words = handed_over(fill.at);
            gate = silu(float_of_bits(~fill.words.gate));
        }
        barrier_wait(&here.slot->summed, here.parity);
        const bool mine = lane - fill.first % kGroupValues < static_cast<uint32_t>(ring.rows);
        const uint32_t sum = ~bits_of_float(ring_total(ring, here.sums, row));
        if (fill.last()) {
            while (!__all_sync(all, mine || fill.words.up != 0)) fill.words = handed_over(fill.at);
            take_back(fill.at);
            q8_store(mul(gate, float_of_bits(~(mine ? sum : fill.words.up))), job.q8 + fill.group() * kGroupWords);
        } else if (mine) {
            hand_over(fill.at, fill.first & kUp, sum);
        }
    }
}

template <class F>
__device__ __forceinline__ void ring_gated_form(const Ring& ring, const uint8_t* x8, int nbe, const GatedRows& job) {
    const int role = ring_warps() - 1 - static_cast<int>(threadIdx.x >> 5);
    if (role == 1) {
        ring.make_barriers(2, GatedRows::kArrivals);
        return ring_feed(ring, job, NoHooks{});
    }
    ring_sum<F>(ring, x8, nbe, 2, [&] {
        if (role == 0) ring_finish_gated(ring, job);
        return role == 0;
    });
}

}  // namespace probes
#endif
