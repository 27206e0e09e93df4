// A ring of stages in shared memory that copies fill and a block's warps empty: bulk copies (sm_90 and up), or those of
// 16 bytes by the feeder's lanes (`CopiedRows`; sm_80 and up).
//
// The block: one warp per virtual warp that owns a unit (the consumers; or several such sets, which take passes of rows
// by turns, on from one fill to the next, so that a fill may have fewer passes than there are sets), and after them one
// more (the feeder).
// A fill is up to `rows` consecutive rows. Fill i lives in stage i % stages, and it is the stage's
// phase (i / stages) & 1 of two mbarriers:
//
//   full   the feeder's lanes arrive, one of them announcing a bulk copy's bytes, whose last completes the phase; or each
//          once the bytes that it copied itself are there
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

// Rows of a stage by one warp, then their warp sums, row r's to sums[8 * r]: P at once. Where 16 lanes at most own a unit
// (Half), lanes 16 to 31 stand for them again, `P` rows further on (or, for the only row of a fill, for the same one).
template <class F, int K, int P, bool Half>
__device__ __forceinline__ void ring_pass(const uint8_t* row, int stride, const typename F::template Steps<K>& steps,
                                          uint32_t lane, float* sums, bool alone = false) {
    constexpr int W = Half ? 16 : 32;
    if (Half && !alone && lane >= W) row += P * stride;
    float acc[P];
#pragma unroll
    for (int p = 0; p < P; ++p) {
        acc[p] = steps.term(row + p * stride, 0);
#pragma unroll
        for (int k = 1; k < K; ++k) acc[p] = add(acc[p], steps.term(row + p * stride, k));
    }
    const float total = butterfly<P, W>(acc, lane);
    if (lane % (W / P) == 0 && !(alone && lane)) sums[lane / (W / P) * kVirtualWarps] = total;
}

// One consumer warp: which virtual warp it adds up, and of which rows: every sets-th pass.
struct Consumer {
    uint32_t lane, warp;
    int turn, sets;  // turn: the first pass of a fill that is this warp's set's

    __device__ __forceinline__ Consumer(const Ring& ring, int others) {
        const int me = threadIdx.x >> 5;
        lane = threadIdx.x & 31, turn = me / ring.warps, warp = me - turn * ring.warps;
        sets = (ring_warps() - others) / ring.warps;
        pin(warp), pin(lane);
    }

    __device__ __forceinline__ int thread() const { return warp * 32 + lane; }  // the virtual one

    // How far the turns go on with each fill of `passes` passes, and that step.
    __device__ __forceinline__ int step(int passes) const { return passes % sets; }

    __device__ __forceinline__ void go_on(int step) {
        turn -= step;
        if (turn < 0) turn += sets;
    }
};

// A consumer warp whose threads own up to K units, all of them held in registers; P rows at once where there are, or twice
// as many where half of its lanes own none.
template <class F, int K, int P, bool Half>
__device__ __forceinline__ void ring_consume(const Ring& ring, const uint8_t* x8, int nbe, Consumer me) {
    constexpr int pass = Half ? 2 * P : P;
    const typename F::template Steps<K> steps(x8, Half ? me.thread() & ~16 : me.thread(), nbe);
    const int skip = pass * ring.stride, turn = pass * me.sets, step = me.step((ring.rows + pass - 1) / pass);
    uint32_t parity = 0;
    for (int s = 0;;) {
        barrier_wait(ring.full + s, parity);
        int left = ring.count[ring.slot(s, parity)];
        if (left == 0) return;
        left -= pass * me.turn;
        const uint8_t* row = ring.data + s * ring.rows * ring.stride + me.turn * skip;
        float* sums = ring.sums + (s * ring.rows + me.turn * pass) * kVirtualWarps + me.warp;
        for (; left >= pass; left -= turn, row += me.sets * skip, sums += turn * kVirtualWarps)
            ring_pass<F, K, P, Half>(row, ring.stride, steps, me.lane, sums);
        if constexpr (Half) {
            for (; left > 0; left -= 2, row += 2 * ring.stride, sums += 2 * kVirtualWarps)
                ring_pass<F, K, 1, true>(row, ring.stride, steps, me.lane, sums, left == 1);
        } else {
            if constexpr (P == 4) {
                if (left >= 2) {
                    ring_pass<F, K, 2, false>(row, ring.stride, steps, me.lane, sums);
                    left -= 2, row += 2 * ring.stride, sums += 2 * kVirtualWarps;
                }
            }
            if constexpr (P > 1) {
                if (left > 0) ring_pass<F, K, 1, false>(row, ring.stride, steps, me.lane, sums);
            }
        }
        __syncwarp();
        barrier_arrive(ring.empty + s);
        me.go_on(step);
        if (++s == ring.stages) s = 0, parity ^= 1;
    }
}

// A consumer warp whose threads own more units than registers hold: activations come from memory each time.
template <class F>
__device__ __forceinline__ void ring_consume_any(const Ring& ring, const uint8_t* x8, int nbe, Consumer me) {
    const int step = me.step(ring.rows);
    uint32_t parity = 0;
    for (int s = 0;;) {
        barrier_wait(ring.full + s, parity);
        const int rows = ring.count[ring.slot(s, parity)];
        if (rows == 0) return;
        for (int r = me.turn; r < rows; r += me.sets) {
            const uint8_t* row = ring.data + (s * ring.rows + r) * ring.stride;
            float acc[1] = {0.0f};
            for (int u = me.thread(); u < nbe * F::kUnits; u += kThreads) acc[0] = add(acc[0], F::term(row, x8, u, nbe));
            const float total = butterfly<1>(acc, me.lane);
            if (me.lane == 0) ring.sums[(s * ring.rows + r) * kVirtualWarps + me.warp] = total;
        }
        __syncwarp();
        barrier_arrive(ring.empty + s);
        me.go_on(step);
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

    // The whole feeder, after lane 0's fill of stage s: the arrivals of the others. False: that fill ends the work (a job
    // that need not know says true).
    __device__ __forceinline__ bool join(const Ring& ring, int s, int, int lane) const {
        if (lane) barrier_arrive(ring.full + s);
        return true;
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

// The same by copies of 16 bytes, the lanes of the feeder by turns.
struct CopiedRows : Rows {
    __device__ __forceinline__ void fill(const Ring& ring, int, int slot, uint32_t ticket) const {
        const uint32_t first = ticket * ring.rows;
        ring.first[slot] = static_cast<int>(first), ring.count[slot] = rows_of(ring, first);
    }

    __device__ __forceinline__ bool join(const Ring& ring, int s, int slot, int lane) const {
        __syncwarp();
        const uint32_t bytes = static_cast<uint32_t>(ring.count[slot]) * ring.stride;
        if (bytes == 0) {
            if (lane) barrier_arrive(ring.full + s);
            return false;
        }
        uint8_t* to = ring.data + s * ring.rows * ring.stride;
        const uint8_t* from = w + static_cast<size_t>(ring.first[slot]) * ring.stride;
#pragma unroll 8
        for (uint32_t at = 16 * lane; at < bytes; at += 16 * 32) copy_16(to + at, from + at);
        barrier_arrive_copied(ring.full + s);
        return true;
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
    bool more = true;
    for (int s = 0; s < ring.stages && more; ++s) more = job.join(ring, s, s, lane);
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
        if (more) more = job.join(ring, s, ring.slot(s, parity ^ 1), lane);
        job.finish(first, rows, lane, total);
        if (++s == ring.stages) s = 0, parity ^= 1;
        __syncwarp();
    }
}

// The part of a consumer warp: as many units in registers as its lanes own, up to F's most.
template <class F>
__device__ __forceinline__ void ring_sum(const Ring& ring, const uint8_t* x8, int nbe, int others) {
    const Consumer me(ring, others);
    const int owned = nbe * F::kUnits - static_cast<int>(me.warp) * 32;  // by its first lane and all after that
    if (owned <= 16) return ring_consume<F, 1, 4, true>(ring, x8, nbe, me);
    const int steps = (owned + kThreads - 1) / kThreads;
    if (steps == 1) return ring_consume<F, 1, 4, false>(ring, x8, nbe, me);
    if constexpr (F::kMostHeld == 3) {
        if (steps == 2) return ring_consume<F, 2, 2, false>(ring, x8, nbe, me);
        if (steps == 3) return ring_consume<F, 3, 1, false>(ring, x8, nbe, me);
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
