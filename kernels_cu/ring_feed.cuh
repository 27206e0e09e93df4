// A ring's feeder (ring.cuh): the warp that fills stages, adds up warp sums, and hands rows' results to its job.
//
// A job says what a ticket names and what becomes of its rows' sums (Rows, CopiedRows, or ring_gated.cuh's GatedRows):
//
//   kArrivals                           what completes `full` besides bulk copies' bytes
//   kSums                               whether the feeder takes the sums, and finishes rows
//   tickets(ring)                       how many there are
//   fill_of(ring, ticket)               which rows one names
//   copy(ring, s, fill, lane)           the whole feeder: they are to land in stage s
//   arrive(ring, s, lane)               the whole feeder, after all else that a fill takes
//   prefetch(ring, fill)                lane 0: they are to come into L2
//   finish(first, rows, lane, total)    the whole feeder: row first + lane of a fill sums to `total`, for lane < rows
//
// Tickets are dealt out: block, block + grid, ... ; or, with a counter (one word that is 0 before and after every
// launch), the first `stages` tickets of a block so and all others drawn by atomic adds, so that a block on a slower path
// to memory takes fewer. While a fill is asked for the next one is known, and the draw for the one after is on its way:
// between the consumers' last read of a stage and the copy of its next fill stands as little as can be.
#pragma once

#include "ring.cuh"

#ifdef __CUDACC__
namespace probes {

// Rows of one fill, by the first of them; no rows: the fill ends the work.
struct Fill {
    uint32_t first;
    int rows;
};

// The plain job: a ticket is ring.rows rows of `od`, the last one fewer; each sum is stored.
struct Rows {
    static constexpr int kArrivals = 32;
    static constexpr bool kSums = true;

    const uint8_t* w;
    float* out;
    uint32_t od;
    uint32_t* counter;  // or null

    __device__ __forceinline__ uint32_t tickets(const Ring& ring) const { return (od + ring.rows - 1) / ring.rows; }

    __device__ __forceinline__ Fill fill_of(const Ring& ring, uint32_t ticket) const {
        const uint32_t first = ticket * ring.rows, left = od - first, rows = ring.rows;
        return {first, static_cast<int>(left < rows ? left : rows)};
    }

    __device__ __forceinline__ void copy(const Ring& ring, int s, Fill fill, int lane) const {
        if (lane) return;
        const uint32_t bytes = static_cast<uint32_t>(fill.rows) * ring.stride;
        barrier_expect(ring.full + s, bytes);
        bulk_copy(ring.data + s * ring.rows * ring.stride, w + static_cast<size_t>(fill.first) * ring.stride, bytes,
                  ring.full + s);
    }

    __device__ __forceinline__ void arrive(const Ring& ring, int s, int) const { barrier_arrive(ring.full + s); }

    // Lane 0: the fill's rows are to come into L2.
    __device__ __forceinline__ void prefetch(const Ring& ring, Fill fill) const {
        bulk_prefetch(w + static_cast<size_t>(fill.first) * ring.stride, static_cast<uint32_t>(fill.rows) * ring.stride);
    }

    __device__ __forceinline__ void finish(uint32_t first, int rows, int lane, float total) const {
        if (lane < rows) out[first + lane] = total;
    }
};

// The same by copies of 16 bytes, the lanes of the feeder by turns. Each arrives twice: once its copies have landed, and
// for what it read and wrote itself, of which the copies' arrival promises nothing.
struct CopiedRows : Rows {
    static constexpr int kArrivals = 64;

    __device__ __forceinline__ void copy(const Ring& ring, int s, Fill fill, int lane) const {
        const uint32_t bytes = static_cast<uint32_t>(fill.rows) * ring.stride;
        uint8_t* to = ring.data + s * ring.rows * ring.stride;
        const uint8_t* from = w + static_cast<size_t>(fill.first) * ring.stride;
#pragma unroll 8
        for (uint32_t at = 16 * lane; at < bytes; at += 16 * 32) copy_16(to + at, from + at);
    }

    __device__ __forceinline__ void arrive(const Ring& ring, int s, int) const {
        barrier_arrive_copied(ring.full + s);
        barrier_arrive(ring.full + s);
    }
};

// No predecessor, no successor.
struct NoHooks {
    static constexpr int ahead = 0;                              // tickets past the stages to be brought into L2
    __device__ __forceinline__ void before_activations() const {}  // every consumer thread
    __device__ __forceinline__ void all_asked() const {}           // the feeder's lane 0, of dealt tickets only
};

// Fills as the feeder asks for them.
template <class Job>
struct Tickets {
    const Job& job;
    uint32_t all, step, next;  // next: a draw's answer is lane 0's
    uint32_t base = 0, last = 0;
    Fill coming{0, 0};

    __device__ __forceinline__ Tickets(const Ring& ring, const Job& job)
        : job(job), all(job.tickets(ring)), step(ring_blocks()), next(blockIdx.x) {}

    __device__ __forceinline__ Fill fill_of(const Ring& ring, uint32_t ticket) const {
        return ticket < all ? job.fill_of(ring, ticket) : Fill{0, 0};
    }

    __device__ __forceinline__ void draw(int lane) {
        if (lane == 0) next = atomicInc(job.counter, last);
    }

    // `coming` is the next one that is dealt.
    __device__ __forceinline__ void deal(const Ring& ring) { coming = fill_of(ring, next), next += step; }

    // After the first fills of a block, all of which had rows. Every block that draws does so until one answer, and so the
    // one after it, is too high: the number of draws is known, and the last of them wraps the counter to 0.
    __device__ __forceinline__ void begin(const Ring& ring, int lane) {
        if (!job.counter) return deal(ring);
        base = step * ring.stages;
        const uint32_t here = all < base ? all + step - base : step;  // blocks that come here
        last = all + step - base + here - 1;
        draw(lane);
        go_on(ring, lane);
    }

    __device__ __forceinline__ void go_on(const Ring& ring, int lane) {
        if (!job.counter) return deal(ring);
        coming = fill_of(ring, base + __shfl_sync(0xffffffffu, next, 0));
        draw(lane);
    }

    // Of dealt tickets only: every fill of rows was asked for.
    __device__ __forceinline__ bool all_asked() const { return !job.counter && coming.rows == 0; }
};

// A row of a slot, summed: its warp sums one after another. A virtual warp without a unit would add 0, which changes no sum
// (probes/core/order.py): what lies in its place is not added.
__device__ __forceinline__ float ring_total(const Ring& ring, int slot, int row) {
    const uint8_t* from = reinterpret_cast<const uint8_t*>(ring.sums_of(slot) + row * kVirtualWarps);
    Words4 sums = Plain::w4(from);
    float total = add(0.0f, float_of_bits(sums.w[0]));
#pragma unroll
    for (int k = 1; k < 4; ++k)
        if (k < ring.warps) total = add(total, float_of_bits(sums.w[k]));
    if (ring.warps > 4) {
        sums = Plain::w4(from + 16);
#pragma unroll
        for (int k = 4; k < kVirtualWarps; ++k)
            if (k < ring.warps) total = add(total, float_of_bits(sums.w[k & 3]));
    }
    return total;
}

// Stage s gets a fill, which is told of in its slot: to nobody before the job has arrived.
template <class Job>
__device__ __forceinline__ void ring_fill(const Ring& ring, const Job& job, int s, uint32_t phase, Fill fill, int lane) {
    if (fill.rows) job.copy(ring, s, fill, lane);
    if (lane == 0) {
        const int slot = ring.slot(s, phase);
        ring.first[slot] = static_cast<int>(fill.first), ring.count[slot] = fill.rows;
    }
}

template <class Job, class Hooks>
__device__ __forceinline__ void ring_feed(const Ring& ring, const Job& job, const Hooks& hooks) {
    const int lane = threadIdx.x & 31;
    Tickets<Job> tickets(ring, job);
    bool open = true, told = false;  // whether there may be more fills; whether it was told that all were asked for
    for (int s = 0; s < ring.stages && open; ++s) {
        tickets.deal(ring);
        ring_fill(ring, job, s, 0, tickets.coming, lane);
        job.arrive(ring, s, lane);
        open = tickets.coming.rows != 0;
    }
    if (open) {
        if (lane == 0)
            for (int k = 0; k < hooks.ahead && tickets.next + k * tickets.step < tickets.all; ++k)
                job.prefetch(ring, tickets.fill_of(ring, tickets.next + k * tickets.step));
        tickets.begin(ring, lane);
    }
    uint32_t phase = 0;
    for (int s = 0;;) {
        if (!told && tickets.all_asked()) {
            told = true;
            if (lane == 0) hooks.all_asked();
        }
        __syncwarp();
        const int slot = ring.slot(s, phase & 1), rows = ring.count[slot];
        const uint32_t first = ring.first[slot];
        if (rows == 0) return;
        barrier_wait(ring.empty + slot, phase >> 1);
        if (open) ring_fill(ring, job, s, ~phase & 1, tickets.coming, lane);
        float total = 0.0f;
        if constexpr (Job::kSums) total = ring_total(ring, slot, lane < rows ? lane : 0);
        if (open) {
            job.arrive(ring, s, lane);
            open = tickets.coming.rows != 0;
            if (open) tickets.go_on(ring, lane);
        }
        if constexpr (Job::kSums) job.finish(first, rows, lane, total);
        if (++s == ring.stages) s = 0, phase = phase + 1 & 3;
    }
}

template <class F, class Job, class Hooks>
__device__ __forceinline__ void ring_form(const Ring& ring, const uint8_t* x8, int nbe, const Job& job,
                                          const Hooks& hooks) {
    if (static_cast<int>(threadIdx.x >> 5) == ring_warps() - 1) {
        ring.make_barriers(1, Job::kArrivals);
        return ring_feed(ring, job, hooks);
    }
    ring.await_barriers();
    hooks.before_activations();
    ring_sum<F>(ring, x8, nbe, 1);
}

}  // namespace probes
#endif
