// A ring's producer warp (ring.cuh): it fills stages, adds up warp sums, and hands rows' results to its job.
//
// A job says what a ticket names and what becomes of its rows' sums (Rows, CopiedRows, or ring_gated.cuh's GatedRows):
//
//   kArrivals                           what completes `full` besides bulk copies' bytes
//   kSums                               whether the producer takes the sums, and finishes rows; who else does arrives at
//                                       a stage's next `full` in its own time
//   tickets(ring)                       how many there are
//   fill_of(ring, ticket)               the tile that one names
//   copy(ring, to, slot, fill, lane)    the whole warp: the tile is to land in a stage
//   arrive(slot, lane)                  the whole warp, after all else that a tile takes
//   prefetch(ring, fill)                lane 0: the tile is to come into L2
//   finish(first, rows, lane, total)    the whole warp: row first + lane of a tile sums to `total`, for lane < rows
//
// A static persistent scheduler deals the tickets: block, block + grid, ... With a counter (one word that is 0 before and
// after every launch) the scheduler is dynamic past a block's first `stages` tickets: the others are drawn by atomic adds,
// so that a block on a slower path to memory takes fewer. A draw is on its way while the sums of the tile before are taken,
// and its tile is known before the consumers have left the stage: between their last read and the copy stands as little as
// can be. (Two draws ahead gain nothing, and bind a block to more: with few tiles a block that unbalances the grid.)
#pragma once

#include "ring.cuh"

#ifdef __CUDACC__
namespace probes {

// A tile: its rows, by the first of them; no rows end the work.
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

    __device__ __forceinline__ void copy(const Ring& ring, uint8_t* to, Slot* slot, Fill fill, int lane) const {
        if (lane) return;
        const uint32_t bytes = static_cast<uint32_t>(fill.rows) * ring.stride;
        barrier_expect(&slot->full, bytes);
        bulk_copy(to, w + static_cast<size_t>(fill.first) * ring.stride, bytes, &slot->full);
    }

    __device__ __forceinline__ void arrive(Slot* slot, int) const { barrier_arrive(&slot->full); }

    // Lane 0: the tile is to come into L2.
    __device__ __forceinline__ void prefetch(const Ring& ring, Fill fill) const {
        bulk_prefetch(w + static_cast<size_t>(fill.first) * ring.stride, static_cast<uint32_t>(fill.rows) * ring.stride);
    }

    __device__ __forceinline__ void finish(uint32_t first, int rows, int lane, float total) const {
        if (lane < rows) out[first + lane] = total;
    }
};

// The same by copies of 16 bytes, the producer warp's lanes by turns. Each arrives twice: once its copies have landed, and
// for what it read and wrote itself, of which the copies' arrival promises nothing.
struct CopiedRows : Rows {
    static constexpr int kArrivals = 64;

    __device__ __forceinline__ void copy(const Ring& ring, uint8_t* to, Slot*, Fill fill, int lane) const {
        const uint32_t bytes = static_cast<uint32_t>(fill.rows) * ring.stride;
        const uint8_t* from = w + static_cast<size_t>(fill.first) * ring.stride;
#pragma unroll 8
        for (uint32_t at = 16 * lane; at < bytes; at += 16 * 32) copy_16(to + at, from + at);
    }

    __device__ __forceinline__ void arrive(Slot* slot, int) const {
        barrier_arrive_copied(&slot->full);
        barrier_arrive(&slot->full);
    }
};

// No predecessor, no successor.
struct NoHooks {
    static constexpr int ahead = 0;                              // tickets past the stages to be brought into L2
    __device__ __forceinline__ void before_activations() const {}  // every consumer thread
    __device__ __forceinline__ void all_asked() const {}           // the producer's lane 0, of a static schedule only
};

// Tiles as the producer asks for them.
template <class Job>
struct Tickets {
    const Job& job;
    uint32_t all, step, next;  // next: the static schedule's next; or the last draw's answer, lane 0's
    uint32_t base = 0, last = 0;
    Fill coming{0, 0};

    __device__ __forceinline__ Tickets(const Ring& ring, const Job& job)
        : job(job), all(job.tickets(ring)), step(ring_blocks()), next(blockIdx.x) {}

    __device__ __forceinline__ Fill fill_of(const Ring& ring, uint32_t ticket) const {
        return ticket < all ? job.fill_of(ring, ticket) : Fill{0, 0};
    }

    // `coming` is the static schedule's next one.
    __device__ __forceinline__ void deal(const Ring& ring) { coming = fill_of(ring, next), next += step; }

    // After the first tiles of a block, all of which had rows: from here on a dynamic schedule draws tickets. Every block
    // draws until one answer is too high: the number of draws is known, and the last of them wraps the counter to 0.
    __device__ __forceinline__ void begin(const Ring& ring, int lane) {
        base = step * ring.stages, last = all + step - base - 1;
        draw(lane);
    }

    __device__ __forceinline__ void draw(int lane) {
        if (job.counter && lane == 0) next = atomicInc(job.counter, last);
    }

    __device__ __forceinline__ void go_on(const Ring& ring) {
        if (!job.counter) return deal(ring);
        coming = fill_of(ring, base + __shfl_sync(0xffffffffu, next, 0));
    }

    // Of a static schedule only: every tile was asked for.
    __device__ __forceinline__ bool all_asked() const { return !job.counter && coming.rows == 0; }
};

// A row of a tile, summed: its warp sums one after another. A virtual warp without a unit would add 0, which changes no sum
// (probes/formats/reduction.py): what lies in its place is not added.
__device__ __forceinline__ float ring_total(const Ring& ring, const float* of, int row) {
    const uint8_t* from = reinterpret_cast<const uint8_t*>(of + row * kVirtualWarps);
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

// A stage gets a tile, and its slot tells of it: to nobody before the job has arrived.
template <class Job>
__device__ __forceinline__ void ring_fill(const Ring& ring, const Job& job, uint8_t* to, Slot* slot, Fill fill, int lane) {
    if (fill.rows) job.copy(ring, to, slot, fill, lane);
    if (lane == 0) slot->first = static_cast<int>(fill.first), slot->count = fill.rows;
    job.arrive(slot, lane);
}

template <class Job, class Hooks>
__device__ __forceinline__ void ring_feed(const Ring& ring, const Job& job, const Hooks& hooks) {
    const int lane = threadIdx.x & 31;
    Tickets<Job> tickets(ring, job);
    bool open = true, told = false;  // whether there may be more tiles; whether it was told that all were asked for
    for (int s = 0; s < ring.stages && open; ++s) {
        tickets.deal(ring);
        ring_fill(ring, job, ring.data + s * ring.rows * ring.stride, ring.slots + s, tickets.coming, lane);
        if constexpr (!Job::kSums) barrier_arrive(&ring.slots[s].full);  // for the finisher, which has seen no tile yet
        open = tickets.coming.rows != 0;
    }
    if (open) {
        if (lane == 0)
            for (int k = 0; k < hooks.ahead && tickets.next + k * tickets.step < tickets.all; ++k)
                job.prefetch(ring, tickets.fill_of(ring, tickets.next + k * tickets.step));
        tickets.begin(ring, lane);
    }
    for (RingPlace at(ring);; at.go_on(ring)) {
        if (open) tickets.go_on(ring);
        if (!told && tickets.all_asked()) {
            told = true;
            if (lane == 0) hooks.all_asked();
        }
        __syncwarp();
        const int rows = at.slot->count;
        const uint32_t first = at.slot->first;
        if (rows == 0) return;
        if (open) {
            Slot* next = at.after(ring);
            barrier_wait(&at.slot->empty, at.parity);
            ring_fill(ring, job, at.data, next, tickets.coming, lane);
            open = tickets.coming.rows != 0;
            if (open) tickets.draw(lane);
        }
        if constexpr (Job::kSums) {
            barrier_wait(&at.slot->summed, at.parity);
            job.finish(first, rows, lane, ring_total(ring, at.sums, lane < rows ? lane : 0));
        }
    }
}

template <class F, class Job, class Hooks>
__device__ __forceinline__ void ring_form(const Ring& ring, const uint8_t* x8, int nbe, const Job& job,
                                          const Hooks& hooks) {
    if (static_cast<int>(threadIdx.x >> 5) == ring_warps() - 1) {
        ring.make_barriers(1, Job::kArrivals);
        return ring_feed(ring, job, hooks);
    }
    hooks.before_activations();
    ring_sum<F>(ring, x8, nbe, 1, [] { return false; });
}

}  // namespace probes
#endif
