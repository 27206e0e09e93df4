// A ring of stages in shared memory that copies fill and a block's warps empty: bulk copies (sm_90 and up), or those of
// 16 bytes by the feeder's lanes (sm_80 and up).
//
// The block: one warp per virtual warp that owns a unit (the consumers; or several such sets, which take passes of rows
// by turns, on from one fill to the next, so that a fill may have fewer passes than there are sets), and after them one
// more (the feeder, ring_feed.cuh). A fill is up to `rows` consecutive rows. Consumer v adds up virtual warp v of each.
//
// Fill i lives in stage i % stages, and it is the stage's phase i / stages. What belongs to it besides its rows lies twice,
// for phases by turns, in its slot: first row and count (0 ends the work), and the warps' sums. Two mbarriers tell of it:
//
//   full   one a stage: who arrives is the job's affair (kArrivals), the feeder's lane 0 at least; a bulk copy's bytes are
//          announced before, and the last of them completes the phase
//   empty  one a slot: the consumers' lanes arrive, after their last read. One a slot, since who takes the sums may be
//          late by a whole phase, and could not tell one of a stage's phases from the next but one
//
// Each lane arrives for itself. One of a warp's would do, after a __syncwarp, and is no faster (measured); but then
// racecheck, which does not follow a lane's accesses through a __syncwarp to another's arrival, would name every other.
// The feeder makes the barriers and goes on to fill every stage: it does not wait for the block, the block for it.
//
// Reads before a consumer's arrival precede the copy that the feeder issues after its wait; nothing but copies ever writes
// a stage, so no proxy fence is needed past the barriers' initialisation.
//
// What a fill holds and what becomes of its rows' sums is the feeder's job's affair. F says how a row of the weight format
// is summed (held.cuh's Q6kRows, q4k_held.cuh's Q4kRows).
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
    float* sums;     // [2][stages][rows][8], by slot
    Barrier* full;   // [stages]
    Barrier* empty;  // [2][stages], by slot
    int32_t *first, *count;  // [2][stages], by slot: the fill's first row and its rows, 0 for the end

    __device__ __forceinline__ Ring(int stages, int rows, int stride, int units)
        : stages(stages), rows(rows), stride(stride), warps(units < kThreads ? (units + 31) / 32 : kVirtualWarps) {
        data = ring_memory();
        sums = reinterpret_cast<float*>(data + stages * rows * stride);
        full = reinterpret_cast<Barrier*>(sums + 2 * stages * rows * kVirtualWarps);
        empty = full + stages;
        first = reinterpret_cast<int32_t*>(empty + 2 * stages);
        count = first + 2 * stages;
    }

    __device__ __forceinline__ int slot(int stage, uint32_t phase) const { return stage + (phase ? stages : 0); }

    __device__ __forceinline__ float* sums_of(int slot) const { return sums + slot * rows * kVirtualWarps; }

    // The feeder, before its first fill. others: the block's warps that do not consume; arrivals: what completes
    // `full` besides the bytes.
    __device__ __forceinline__ void make_barriers(int others, int arrivals) const {
        for (int k = threadIdx.x & 31; k < 2 * stages; k += 32) {
            if (k < stages) barrier_init(full + k, arrivals);
            barrier_init(empty + k, 32 * (ring_warps() - others));
            barriers_ready();
        }
        block_arrive();
        __syncwarp();
    }

    // Every other warp, before it waits for anything.
    __device__ __forceinline__ void await_barriers() const { block_join(); }

    // The feeder's lane 0: no more rows come, stage s says so.
    __device__ __forceinline__ void end(int s, int slot) const {
        count[slot] = 0;
        barrier_arrive(full + s);
    }
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
        const uint8_t* row = ring.data + s * ring.rows * ring.stride + me.turn * skip;
        const int slot = ring.slot(s, parity);
        float* sums = ring.sums_of(slot) + me.turn * pass * kVirtualWarps + me.warp;
        barrier_wait(ring.full + s, parity);
        int left = ring.count[slot];
        if (left == 0) return;
        left -= pass * me.turn;
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
        barrier_arrive(ring.empty + slot);
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
        const int slot = ring.slot(s, parity), rows = ring.count[slot];
        if (rows == 0) return;
        for (int r = me.turn; r < rows; r += me.sets) {
            const uint8_t* row = ring.data + (s * ring.rows + r) * ring.stride;
            float acc[1] = {0.0f};
            for (int u = me.thread(); u < nbe * F::kUnits; u += kThreads) acc[0] = add(acc[0], F::term(row, x8, u, nbe));
            const float total = butterfly<1>(acc, me.lane);
            if (me.lane == 0) ring.sums_of(slot)[r * kVirtualWarps + me.warp] = total;
        }
        __syncwarp();
        barrier_arrive(ring.empty + slot);
        me.go_on(step);
        if (++s == ring.stages) s = 0, parity ^= 1;
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

}  // namespace probes
#endif
