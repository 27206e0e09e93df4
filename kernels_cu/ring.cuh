// A ring of stages in shared memory: copies fill them (bulk copies, sm_90 and up; or copies of 16 bytes by the producer
// warp's lanes, sm_80 and up), and a block's consumer warps empty them.
//
// The block: a consumer warp per virtual warp that owns a unit, and after them the producer warp (ring_feed.cuh). A tile
// (Fill) is up to `rows` consecutive rows; consumer v adds up virtual warp v of each. Several such consumer groups take
// passes of rows by turns, on from one tile to the next, so that a tile may have fewer passes than there are groups.
//
// Tile i lies in stage i % stages, in its phase i / stages. What belongs to a tile besides its rows lies twice, for phases
// by turns, in slot i % (2 * stages): first row and count (0 ends the work), the warps' sums, and four barriers:
//
//   told    first row and count are there, for who takes the sums where that is not the producer (ring_gated.cuh)
//   full    the rows are there, for the consumers. The job says who arrives (kArrivals), the producer's lane 0 at least;
//           a bulk copy's bytes are announced before, and the last of them completes the phase
//   empty   the rows were read, for the producer: the consumers' lanes arrive, each after its last read, before it adds
//           that up if its activations are register-resident
//   summed  partials are ready, for who takes the sums: the same lanes arrive, after their last store
//
// Who takes the sums may be late by a whole phase, and could not tell one of a stage's phases from the next but one: so
// barriers are a slot's.
//
// Each lane arrives for itself. One of a warp's would do, after a __syncwarp, and is no faster (measured); but then
// racecheck, which does not follow a lane's accesses through a __syncwarp to another's arrival, would name every other.
// The producer warp makes the barriers and goes on to fill every stage: it does not wait for the block, the block for it.
// The consumers first load their activations. (It arrives at the block's barrier before its first bulk copy: the other way
// round takes 1 us longer on an H200, as if that arrival waited for the bytes.)
//
// Reads before a consumer's arrival at `empty` precede the copy that the producer issues after its wait; nothing but copies
// ever writes a stage, so no proxy fence is needed past the barriers' initialisation.
//
// The producer's job says what a tile holds and what becomes of its rows' sums; F, how a row of the weight format is summed
// (held.cuh's Q6kRows, q4k_held.cuh's Q4kRows).
#pragma once

#include "held.cuh"
#include "mbarrier.cuh"

#ifdef __CUDACC__
namespace probes {

// What belongs to a tile besides its rows and sums. kernels_numba/ring_rows.py has the same offsets.
struct Slot {
    Barrier told, full, empty, summed;
    int32_t first, count;  // its first row and its rows, 0 for the end
};

// The ring's pieces in shared memory; probes/device/pipeline.py's stage_bytes counts the same.
struct Ring {
    int stages, rows, stride;
    int warps;      // virtual warps that own a unit: so many of a row's eight sums are written, and read
    uint8_t* data;  // [stages][rows][stride]
    float* sums;    // [2 * stages][rows][8], behind the data
    Slot* slots;    // [2 * stages], behind the sums

    __device__ __forceinline__ Ring(int stages, int rows, int stride, int units)
        : stages(stages), rows(rows), stride(stride), warps(units < kThreads ? (units + 31) / 32 : kVirtualWarps) {
        data = ring_memory();
        sums = reinterpret_cast<float*>(data + stages * rows * stride);
        slots = reinterpret_cast<Slot*>(sums + 2 * stages * rows * kVirtualWarps);
    }

    // The producer, before its first tile. others: the block's warps that do not consume; arrivals: what completes
    // `full` besides the bytes.
    __device__ __forceinline__ void make_barriers(int others, int arrivals) const {
        const int consumers = 32 * (ring_warps() - others);
#pragma unroll 1
        for (int k = threadIdx.x & 31; k < 2 * stages; k += 32) {
            barrier_init(&slots[k].told, 1);
            barrier_init(&slots[k].full, arrivals);
            barrier_init(&slots[k].empty, consumers);
            barrier_init(&slots[k].summed, consumers);
            barriers_ready();
        }
        block_arrive();
        __syncwarp();
    }

    // Every other warp, before it waits for anything.
    __device__ __forceinline__ void await_barriers() const { block_join(); }
};

// A warp's way round the ring: where tile after tile lies.
struct RingPlace {
    uint8_t* data;
    float* sums;
    Slot* slot;
    uint32_t parity = 0;  // of the slot's barriers

    __device__ __forceinline__ explicit RingPlace(const Ring& ring) : data(ring.data), sums(ring.sums), slot(ring.slots) {}

    __device__ __forceinline__ void go_on(const Ring& ring) {
        data += ring.rows * ring.stride, sums += ring.rows * kVirtualWarps, ++slot;
        if (data == reinterpret_cast<uint8_t*>(ring.sums)) data = ring.data;
        if (sums == reinterpret_cast<float*>(ring.slots)) sums = ring.sums, slot = ring.slots, parity ^= 1;
    }

    // The slot of the next tile in the same stage.
    __device__ __forceinline__ Slot* after(const Ring& ring) const {
        return slot + (slot < ring.slots + ring.stages ? ring.stages : -ring.stages);
    }
};

// Rows of a stage by one warp, then their warp sums, row r's to sums[8 * r]: P at once. Where 16 lanes at most own a unit
// (Half), lanes 16 to 31 stand for them again, `P` rows further on (or, where one row alone is left, for the same one).
// last: the warp reads no more of this tile, and arrives at `empty` as soon as it has what it needs.
template <class F, int K, int P, bool Half>
__device__ __forceinline__ void ring_pass(const uint8_t* row, int stride, const typename F::template Steps<K>& steps,
                                          uint32_t lane, float* sums, Slot* slot, bool last, bool alone = false) {
    constexpr int W = Half ? 16 : 32;
    if (Half && !alone && lane >= W) row += P * stride;
    float acc[P];
#pragma unroll
    for (int p = 0; p < P; ++p) {
#pragma unroll
        for (int k = 0; k < K; ++k) {
            const auto piece = steps.piece(row + p * stride, k);
            if (p == P - 1 && k == K - 1) barrier_arrive_if(&slot->empty, last);
            acc[p] = k ? add(acc[p], steps.term(piece, k)) : steps.term(piece, k);
        }
    }
    const float total = butterfly<P, W>(acc, lane);
    if (lane % (W / P) == 0 && !(alone && lane)) sums[lane / (W / P) * kVirtualWarps] = total;
}

// One consumer warp: which virtual warp it adds up, and of which rows: every pass that is its consumer group's.
struct Consumer {
    uint32_t lane, warp;
    int turn, sets;  // consumer groups, and the first pass of a tile that is this warp's group's
    int owned;       // units of the row from the warp's first one on

    // others: the block's warps that do not consume.
    __device__ __forceinline__ Consumer(const Ring& ring, int units, int others) {
        const int me = threadIdx.x >> 5;
        lane = threadIdx.x & 31, turn = me / ring.warps, warp = me - turn * ring.warps;
        sets = (ring_warps() - others) / ring.warps, owned = units - 32 * warp;
        pin(warp), pin(lane);
    }

    __device__ __forceinline__ bool half() const { return owned <= 16; }

    // The virtual thread. Where 16 lanes at most own a unit, lanes 16 to 31 stand for them again.
    __device__ __forceinline__ int thread() const { return warp * 32 + (half() ? lane & 15 : lane); }

    // How far the turns go on with each tile of `passes` passes, and that step.
    __device__ __forceinline__ int step(int passes) const { return passes % sets; }

    __device__ __forceinline__ void go_on(int step) {
        turn -= step;
        if (turn < 0) turn += sets;
    }
};

// A consumer warp whose threads own up to K units, all register-resident; P rows at once where there are, or twice as many
// where half of its lanes own none. Addresses are stepped on from tile to tile: what the compiler works out anew from the
// arguments each time takes as long as half a row.
template <class F, int K, int P, bool Half>
__device__ __forceinline__ void ring_consume(const Ring& ring, const typename F::template Steps<K>& steps, Consumer me) {
    constexpr int pass = Half ? 2 * P : P;
    const int skip = pass * ring.stride, turn = pass * me.sets, step = me.step((ring.rows + pass - 1) / pass);
    const uint32_t fill = ring.rows * ring.stride, fill_sums = ring.rows * 4 * kVirtualWarps;
    const uint32_t first = shared_address(ring.data);
    uint32_t mid = shared_address(ring.sums), end = shared_address(ring.slots);
    pin(mid), pin(end);
    uint32_t data = first, sum = mid, slot = end, parity = 0;
    for (;;) {
        const uint8_t* row = at_shared<const uint8_t>(data + me.turn * skip);
        float* sums = at_shared<float>(sum + 4 * (me.turn * pass * kVirtualWarps + me.warp));
        Slot* const here = at_shared<Slot>(slot);
        barrier_wait(&here->full, parity);
        int left = here->count;
        if (left == 0) return;
        left -= pass * me.turn;
        if (left <= 0) barrier_arrive(&here->empty);
        for (; left >= pass; left -= turn, row += me.sets * skip, sums += turn * kVirtualWarps)
            ring_pass<F, K, P, Half>(row, ring.stride, steps, me.lane, sums, here, left <= turn);
        if constexpr (Half) {
            for (; left > 0; left -= 2, row += 2 * ring.stride, sums += 2 * kVirtualWarps)
                ring_pass<F, K, 1, true>(row, ring.stride, steps, me.lane, sums, here, left <= 2, left == 1);
        } else {
            if constexpr (P == 4) {
                if (left >= 2) {
                    ring_pass<F, K, 2, false>(row, ring.stride, steps, me.lane, sums, here, left == 2);
                    left -= 2, row += 2 * ring.stride, sums += 2 * kVirtualWarps;
                }
            }
            if constexpr (P > 1) {
                if (left > 0) ring_pass<F, K, 1, false>(row, ring.stride, steps, me.lane, sums, here, true);
            }
        }
        barrier_arrive(&here->summed);
        me.go_on(step);
        data += fill, sum += fill_sums, slot += sizeof(Slot);
        if (data == mid) data = first;
        if (sum == end) sum = mid, slot = end, parity ^= 1;
    }
}

// A consumer warp whose threads own more units than registers hold: activations come from memory each time.
template <class F>
__device__ __forceinline__ void ring_consume_any(const Ring& ring, const uint8_t* x8, int nbe, Consumer me) {
    const int step = me.step(ring.rows);
    for (RingPlace at(ring);; at.go_on(ring)) {
        barrier_wait(&at.slot->full, at.parity);
        const int rows = at.slot->count;
        if (rows == 0) return;
        for (int r = me.turn; r < rows; r += me.sets) {
            const uint8_t* row = at.data + r * ring.stride;
            float acc[1] = {0.0f};
            for (int u = me.thread(); u < nbe * F::kUnits; u += kThreads) acc[0] = add(acc[0], F::term(row, x8, u, nbe));
            const float total = butterfly<1>(acc, me.lane);
            if (me.lane == 0) at.sums[r * kVirtualWarps + me.warp] = total;
        }
        barrier_arrive(&at.slot->empty);
        barrier_arrive(&at.slot->summed);
        me.go_on(step);
    }
}

// The part of a consumer warp: as many units in registers as its lanes own, up to F's most. The first ones' activations are
// on their way while the barriers are made. A warp of another part (which then says true) comes here too, since all wait
// for the block in one place: of two, synccheck says that the block diverges.
template <class F, class Part>
__device__ __forceinline__ void ring_sum(const Ring& ring, const uint8_t* x8, int nbe, int others, const Part& other_part) {
    const Consumer me(ring, nbe * F::kUnits, others);
    const int thread = me.thread();
    const auto first = F::activation(x8, unit_of(thread, 0, nbe * F::kUnits, F::kUnits));
    ring.await_barriers();
    if (other_part()) return;
    const int steps = (me.owned + kThreads - 1) / kThreads;
    if (steps > 1) {
        if constexpr (F::kMostHeld == 3) {
            if (steps == 2) return ring_consume<F, 2, 2, false>(ring, {first, x8, thread, nbe}, me);
            if (steps == 3) return ring_consume<F, 3, 1, false>(ring, {first, x8, thread, nbe}, me);
        }
        return ring_consume_any<F>(ring, x8, nbe, me);
    }
    const typename F::template Steps<1> one(first, x8, thread, nbe);
    me.half() ? ring_consume<F, 1, 4, true>(ring, one, me) : ring_consume<F, 1, 4, false>(ring, one, me);
}

}  // namespace probes
#endif
