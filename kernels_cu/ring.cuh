// A ring of stages in shared memory that bulk copies fill and a block's warps empty (sm_90 and up).
//
// The block: one warp per virtual warp that owns a unit (the consumers; or several such sets, which take passes of rows
// by turns), and after them one more (the feeder).
// A fill is up to `rows` consecutive rows, one bulk copy. Fill i lives in stage i % stages, and it is the stage's
// phase (i / stages) & 1 of two mbarriers:
//
//   full   the feeder's lanes arrive, one of them announcing the bytes; the copies' last byte completes the phase
//   empty  the consumers' lanes arrive, after their last read
//
// Each lane arrives for itself. One of a warp's would do, after a __syncwarp, and is no faster (measured); but then
// racecheck, which does not follow a lane's accesses through a __syncwarp to another's arrival, would name every other.
// The feeder makes the barriers and goes on to fill every stage: it does not wait for the block, the block for it.
//
// Consumer v adds up virtual warp v of every row. The feeder waits for `empty`, takes the warps' sums of each
// row, hands the stage to the next copy, then adds them one after another and stores the rows' results. A fill
// of no rows ends the work. Reads before a consumer's arrival precede the copy that the feeder issues after its
// wait; nothing but copies ever writes a stage, so no proxy fence is needed past the barriers' initialisation. What a
// fill holds is told by `first` and `count`, in the slot of its stage and phase.
//
// With a finisher, a warp of its own takes the sums: `full` then counts its lanes in place of the feeder's other 31, once
// they hold the sums of the fill before (ring_gated.cuh).
//
// What a ticket names is the job's affair (`Rows`, or ring_gated.cuh): its rows come into one stage, and their sums go
// back to it. F says how a row of the weight format is summed (held.cuh's Q6kRows, q4k_held.cuh's Q4kRows), and the
// hooks what a kernel does before its activations are read and when its last rows were asked for (`NoHooks`).
//
// Tickets are dealt out: block, block + grid, ... ; or, with a counter (one word that is
// 0 before and after every launch), the first `stages` tickets of a block so and all others drawn by atomic adds
// ahead of their use, so that a block on a slower path to memory takes fewer. The last draw of all sets it back.
#pragma once

#include "held.cuh"
#include "mbarrier.cuh"

#ifdef __CUDACC__
namespace probes {

// The ring's pieces in shared memory; probes/core/ring.py's stage_bytes counts the same.
struct Ring {
    int stages, rows, stride;
    int warps;       // virtual warps that own a unit: so many of a row's eight sums are written, and read
    uint8_t* data;   // [stages][rows][stride]
    float* sums;     // [stages][rows][8]
    Barrier *full, *empty;  // [stages]
    int32_t *first, *count;  // [2][stages], by slot: the fill's first row and its rows, 0 for the end

    __device__ __forceinline__ Ring(int stages, int rows, int stride, int units)
        : stages(stages), rows(rows), stride(stride), warps(units < kThreads ? (units + 31) / 32 : kVirtualWarps) {
        data = ring_memory();
        sums = reinterpret_cast<float*>(data + stages * rows * stride);
        full = reinterpret_cast<Barrier*>(sums + stages * rows * kVirtualWarps);
        empty = full + stages;
        first = reinterpret_cast<int32_t*>(empty + stages);
        count = first + 2 * stages;
    }

    __device__ __forceinline__ int slot(int stage, uint32_t phase) const { return stage + (phase ? stages : 0); }

    // The feeder, before its first fill. others: the block's warps that do not consume; arrivals: what completes
    // `full` besides the bytes.
    __device__ __forceinline__ void make_barriers(int others, int arrivals) const {
        for (int k = threadIdx.x & 31; k < stages; k += 32) {
            barrier_init(full + k, arrivals);
            barrier_init(empty + k, 32 * (ring_warps() - others));
            barriers_ready();
        }
        block_arrive();
        __syncwarp();
    }

    // Every other warp, before it waits for anything.
    __device__ __forceinline__ void await_barriers() const { block_join(); }
};

// P rows of a stage, then their warp sums: row r's to sums[8 * r].
template <class F, int K, int P>
__device__ __forceinline__ void ring_pass(const uint8_t* row, int stride, const typename F::template Steps<K>& steps,
                                          uint32_t lane, float* sums) {
    float acc[P];
#pragma unroll
    for (int p = 0; p < P; ++p) {
        acc[p] = steps.term(row + p * stride, 0);
#pragma unroll
        for (int k = 1; k < K; ++k) acc[p] = add(acc[p], steps.term(row + p * stride, k));
    }
    const float total = butterfly<P>(acc, lane);
    if (lane % (32 / P) == 0) sums[lane / (32 / P) * kVirtualWarps] = total;
}

// One consumer warp: which virtual warp it adds up, and of which rows: every sets-th pass from the set-th on.
struct Consumer {
    uint32_t lane, warp;
    int set, sets;

    __device__ __forceinline__ Consumer(const Ring& ring, int others) {
        const int me = threadIdx.x >> 5;
        lane = threadIdx.x & 31, set = me / ring.warps, warp = me - set * ring.warps;
        sets = (ring_warps() - others) / ring.warps;
        pin(warp), pin(lane);
    }

    __device__ __forceinline__ int thread() const { return warp * 32 + lane; }  // the virtual one
};

// A consumer warp whose threads own up to K units, all of them held in registers; P rows at once where there are.
template <class F, int K, int P>
__device__ __forceinline__ void ring_consume(const Ring& ring, const uint8_t* x8, int nbe, const Consumer& me) {
    const typename F::template Steps<K> steps(x8, me.thread(), nbe);
    const int skip = P * ring.stride, turn = P * me.sets;
    uint32_t parity = 0;
    for (int s = 0;;) {
        barrier_wait(ring.full + s, parity);
        int left = ring.count[ring.slot(s, parity)];
        if (left == 0) return;
        left -= P * me.set;
        const uint8_t* row = ring.data + s * ring.rows * ring.stride + me.set * skip;
        float* sums = ring.sums + (s * ring.rows + me.set * P) * kVirtualWarps + me.warp;
        for (; left >= P; left -= turn, row += me.sets * skip, sums += turn * kVirtualWarps)
            ring_pass<F, K, P>(row, ring.stride, steps, me.lane, sums);
        if constexpr (P == 4) {
            if (left >= 2) {
                ring_pass<F, K, 2>(row, ring.stride, steps, me.lane, sums);
                left -= 2, row += 2 * ring.stride, sums += 2 * kVirtualWarps;
            }
        }
        if constexpr (P > 1) {
            if (left > 0) ring_pass<F, K, 1>(row, ring.stride, steps, me.lane, sums);
        }
        __syncwarp();
        barrier_arrive(ring.empty + s);
        if (++s == ring.stages) s = 0, parity ^= 1;
    }
}

// A consumer warp whose threads own more units than registers hold: activations come from memory each time.
template <class F>
__device__ __forceinline__ void ring_consume_any(const Ring& ring, const uint8_t* x8, int nbe, const Consumer& me) {
    uint32_t parity = 0;
    for (int s = 0;;) {
        barrier_wait(ring.full + s, parity);
        const int rows = ring.count[ring.slot(s, parity)];
        if (rows == 0) return;
        for (int r = me.set; r < rows; r += me.sets) {
            const uint8_t* row = ring.data + (s * ring.rows + r) * ring.stride;
            float acc[1] = {0.0f};
            for (int u = me.thread(); u < nbe * F::kUnits; u += kThreads) acc[0] = add(acc[0], F::term(row, x8, u, nbe));
            const float total = butterfly<1>(acc, me.lane);
            if (me.lane == 0) ring.sums[(s * ring.rows + r) * kVirtualWarps + me.warp] = total;
        }
        __syncwarp();
        barrier_arrive(ring.empty + s);
        if (++s == ring.stages) s = 0, parity ^= 1;
    }
}

// The plain job: a ticket is ring.rows rows of `od`, the last one fewer; each sum is stored.
struct Rows {
    const uint8_t* w;
    float* out;
    uint32_t od;

    __device__ __forceinline__ uint32_t tickets(const Ring& ring) const { return (od + ring.rows - 1) / ring.rows; }

    __device__ __forceinline__ int rows_of(const Ring& ring, uint32_t first) const {
        return od - first < static_cast<uint32_t>(ring.rows) ? static_cast<int>(od - first) : ring.rows;
    }

    // Lane 0 of the feeder: the ticket's rows are to land in stage s, and be told of in `slot`.
    __device__ __forceinline__ void fill(const Ring& ring, int s, int slot, uint32_t ticket) const {
        const uint32_t first = ticket * ring.rows;
        const int rows = rows_of(ring, first);
        ring.first[slot] = static_cast<int>(first), ring.count[slot] = rows;
        const uint32_t bytes = static_cast<uint32_t>(rows) * ring.stride;
        barrier_expect(ring.full + s, bytes);
        bulk_copy(ring.data + s * ring.rows * ring.stride, w + static_cast<size_t>(first) * ring.stride, bytes,
                  ring.full + s);
    }

    // Lane 0 of the feeder: the ticket's rows are to come into L2.
    __device__ __forceinline__ void prefetch(const Ring& ring, uint32_t ticket) const {
        const uint32_t first = ticket * ring.rows;
        bulk_prefetch(w + static_cast<size_t>(first) * ring.stride,
                      static_cast<uint32_t>(rows_of(ring, first)) * ring.stride);
    }

    // The whole feeder: row first + lane of the stage sums to `total`, for lane < rows.
    __device__ __forceinline__ void finish(int first, int rows, int lane, float total) const {
        if (lane < rows) out[first + lane] = total;
    }
};

// No predecessor, no successor.
struct NoHooks {
    static constexpr int ahead = 0;                              // tickets past the stages to be brought into L2
    __device__ __forceinline__ void before_activations() const {}  // every consumer thread
    __device__ __forceinline__ void all_asked() const {}           // the feeder's lane 0, of dealt tickets only
};

// Tickets as the feeder's lane 0 takes them: those of the first fills are dealt, the others dealt or drawn.
template <class Job>
struct Tickets {
    const Job& job;
    uint32_t* counter;
    uint32_t all, step, next, base = 0, last = 0;
    bool open = true;

    __device__ __forceinline__ Tickets(const Ring& ring, const Job& job, uint32_t* counter)
        : job(job), counter(counter), all(job.tickets(ring)), step(ring_blocks()), next(blockIdx.x) {}

    // Hand the next ticket to stage s. Once there is none, the fill ends the work.
    __device__ __forceinline__ void fill(const Ring& ring, int s, uint32_t phase) {
        const int slot = ring.slot(s, phase);
        if (base + next < all) {
            job.fill(ring, s, slot, base + next);
        } else {
            ring.count[slot] = 0;
            barrier_arrive(ring.full + s);
            open = false;
        }
    }

    // Every stage for the first time.
    __device__ __forceinline__ void fill_all(const Ring& ring) {
        for (int s = 0; s < ring.stages && open; ++s, next += step) fill(ring, s, 0);
        if (counter && open) {
            // Every block that draws does so until it draws one ticket too many: the number of draws is known,
            // and the last of them wraps the counter to 0. What is drawn is not used before the next fill.
            base = step * ring.stages, last = all + step - base - 1;
            next = atomicInc(counter, last);
        }
    }

    __device__ __forceinline__ void refill(const Ring& ring, int s, uint32_t phase) {
        fill(ring, s, phase);
        if (!counter)
            next += step;
        else if (open)
            next = atomicInc(counter, last);
    }

    // Of dealt tickets only.
    __device__ __forceinline__ bool all_asked() const { return !counter && next >= all; }
};

// Row `lane` of a stage, summed: its warp sums one after another. Lanes without a row get the first one's. A virtual
// warp without a unit would add 0, which changes no sum (probes/core/order.py): what lies in its place is not added.
__device__ __forceinline__ float ring_total(const Ring& ring, int s, bool mine, int lane) {
    const float* from = ring.sums + (s * ring.rows + (mine ? lane : 0)) * kVirtualWarps;
    const Words4 sums[2] = {Plain::w4(reinterpret_cast<const uint8_t*>(from)),
                            Plain::w4(reinterpret_cast<const uint8_t*>(from + 4))};
    float total = 0.0f;
#pragma unroll
    for (int k = 0; k < kVirtualWarps; ++k)
        if (k < ring.warps) total = add(total, float_of_bits(sums[k >> 2].w[k & 3]));
    return total;
}

template <class Job, class Hooks>
__device__ __forceinline__ void ring_feed(const Ring& ring, const Job& job, uint32_t* counter, const Hooks& hooks) {
    const int lane = threadIdx.x & 31;
    Tickets<Job> tickets(ring, job, counter);
    bool told = false;  // that all were asked for
    if (lane == 0) {
        tickets.fill_all(ring);
        for (int k = 0; k < hooks.ahead && tickets.next + k * tickets.step < tickets.all; ++k)
            job.prefetch(ring, tickets.next + k * tickets.step);
        if (tickets.all_asked()) told = true, hooks.all_asked();
    }
    __syncwarp();
    for (int s = 0; s < ring.stages && lane; ++s) barrier_arrive(ring.full + s);
    uint32_t parity = 0;
    for (int s = 0;;) {
        const int rows = ring.count[ring.slot(s, parity)], first = ring.first[ring.slot(s, parity)];
        if (rows == 0) return;
        barrier_wait(ring.empty + s, parity);
        const float total = ring_total(ring, s, lane < rows, lane);
        __syncwarp();
        if (lane == 0 && tickets.open) {
            tickets.refill(ring, s, parity ^ 1);
            if (!told && tickets.all_asked()) told = true, hooks.all_asked();
        }
        if (lane) barrier_arrive(ring.full + s);
        job.finish(first, rows, lane, total);
        if (++s == ring.stages) s = 0, parity ^= 1;
        __syncwarp();
    }
}

// The part of a consumer warp: as many units in registers as its lanes own, up to F's most.
template <class F>
__device__ __forceinline__ void ring_sum(const Ring& ring, const uint8_t* x8, int nbe, int others) {
    const Consumer me(ring, others);
    const int steps = (nbe * F::kUnits - static_cast<int>(me.warp) * 32 + kThreads - 1) / kThreads;  // of its first lane
    if (steps == 1) return ring_consume<F, 1, 4>(ring, x8, nbe, me);
    if constexpr (F::kMostHeld == 3) {
        if (steps == 2) return ring_consume<F, 2, 2>(ring, x8, nbe, me);
        if (steps == 3) return ring_consume<F, 3, 1>(ring, x8, nbe, me);
    }
    ring_consume_any<F>(ring, x8, nbe, me);
}

template <class F, class Job, class Hooks>
__device__ __forceinline__ void ring_form(const Ring& ring, const uint8_t* x8, int nbe, const Job& job, uint32_t* counter,
                                          const Hooks& hooks) {
    if (static_cast<int>(threadIdx.x >> 5) == ring_warps() - 1) {
        ring.make_barriers(1, 32);
        return ring_feed(ring, job, counter, hooks);
    }
    ring.await_barriers();
    hooks.before_activations();
    ring_sum<F>(ring, x8, nbe, 1);
}

}  // namespace probes
#endif
