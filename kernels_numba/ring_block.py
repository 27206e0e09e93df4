"""A ring in shared memory, and the warps that sum its rows: twin of the consumers in kernels_cu/ring.cuh.

A ring travels as a tuple of uint32: stages, rows, stride, then the addresses of data, sums, full, empty,
first and count, and the virtual warps that own a unit. Sums, empty, first and count there are for each slot:
a stage in one of its two phases.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from numba import float32, int32, uint32

from kernels_numba import ring, ring_rows

THREADS, VIRTUAL_WARPS, SUM_BYTES = 256, 8, 32


def kernel(function: Any, rows: SimpleNamespace) -> Any:
    """The same function, marked for compile.py with the threads of its largest block."""
    function.max_threads = rows.most_threads
    return function


def ring_of(ops: SimpleNamespace) -> Any:
    """ring_of(stages, rows, stride, units) -> the ring; probes/core/ring.py's stage_bytes counts the same."""
    memory = ring.statements().memory

    @ops.jit
    def of(stages, rows, stride, units):  # four int32
        n, data = uint32(stages), memory()
        sums = uint32(data + n * uint32(rows) * uint32(stride))
        full = uint32(sums + n * uint32(rows) * uint32(2 * SUM_BYTES))
        empty = uint32(full + uint32(8) * n)
        first = uint32(empty + uint32(16) * n)
        count = uint32(first + uint32(8) * n)
        warps = uint32(min(uint32(uint32(units + 31) >> uint32(5)), uint32(VIRTUAL_WARPS)))
        return n, uint32(rows), uint32(stride), data, sums, full, empty, first, count, warps

    return of


def preparer(ops: SimpleNamespace) -> SimpleNamespace:
    """make(ring, lane, warps, others, arrivals) by the feeder, await_them(warps) by every other warp.

    others: how many of the block's warps do not sum. arrivals: what completes `full` besides the bytes.
    """
    from numba import cuda

    asm = ring.statements()
    init, ready, arrive, join = asm.barrier_init, asm.barriers_ready, asm.block_arrive, asm.block_join

    @ops.jit
    def make(r, lane, warps, others, arrivals):  # before the first fill; nobody is waited for
        k = uint32(lane)
        while k < uint32(2) * r[0]:
            if k < r[0]:
                init(uint32(r[5] + uint32(8) * k), uint32(arrivals))
            init(uint32(r[6] + uint32(8) * k), uint32(32 * (warps - others)))
            ready()
            k = uint32(k + uint32(32))
        arrive(uint32(warps * 32))
        cuda.syncwarp()

    @ops.jit
    def await_them(warps):  # before it waits for anything
        join(uint32(warps * 32))

    return SimpleNamespace(make=make, await_them=await_them)


def _stage(ops: SimpleNamespace) -> SimpleNamespace:
    """start(ring, s, slot, parity) -> rows of the fill, and done(ring, slot): a consumer's stage."""
    from numba import cuda

    asm = ring.statements()
    wait, arrive, load_word = asm.barrier_wait, asm.barrier_arrive, asm.load_word

    @ops.jit
    def start(r, s, slot, parity):  # see above
        wait(uint32(r[5] + uint32(8) * s), parity)
        return load_word(uint32(r[8] + uint32(4) * slot))

    @ops.jit
    def done(r, slot):  # every lane, see ring.cuh
        cuda.syncwarp()
        arrive(uint32(r[6] + uint32(8) * slot))

    return SimpleNamespace(start=start, done=done)


def _turns(ops: SimpleNamespace) -> Any:
    """go_on(turn, step, sets) -> the first pass that is this set's in the next fill."""

    @ops.jit
    def go_on(turn, step, sets):  # see ring.cuh's Consumer
        turn = int32(turn - step)
        return int32(turn + sets) if turn < 0 else turn

    return go_on


def _rests(r_passes: dict[int, Any], ops: SimpleNamespace, most: int, half: bool) -> Any:
    """rest(ring, row, left, held, group, lane, sums): the rows of a fill that make no whole pass."""
    pass1 = r_passes[1]
    if half:

        @ops.jit
        def rest_half(r, row, left, held, group, lane, sums):  # two rows at once, the last one alone
            while left > 0:
                pass1(row, r[2], held, group, lane, sums, left == 1)
                row = uint32(row + uint32(2) * r[2])
                sums = uint32(sums + uint32(2 * SUM_BYTES))
                left = int32(left - 2)

        return rest_half
    pass2 = r_passes[2]

    @ops.jit
    def rest4(r, row, left, held, group, lane, sums):  # up to three rows
        if left >= 2:
            pass2(row, r[2], held, group, lane, sums)
            row = uint32(row + uint32(2) * r[2])
            sums = uint32(sums + uint32(2 * SUM_BYTES))
            left = int32(left - 2)
        if left > 0:
            pass1(row, r[2], held, group, lane, sums)

    @ops.jit
    def rest2(r, row, left, held, group, lane, sums):  # one row at most
        if left > 0:
            pass1(row, r[2], held, group, lane, sums)

    @ops.jit
    def rest1(r, row, left, held, group, lane, sums):  # none
        return

    return {4: rest4, 2: rest2, 1: rest1}[most]


def consumer(
    ops: SimpleNamespace, rows: SimpleNamespace, steps: Any, passes: dict[int, Any], most: int,
    half: bool = False,
) -> Any:  # fmt: skip
    """consume(ring, x8, me, nbe): a warp whose activations are held, `most` (4, 2, 1) rows at once.

    half: twice as many, by a warp of which 16 lanes at most own a unit.
    """
    stage, pinned = _stage(ops), ring.statements().pinned
    start, done, lane_of, whole = stage.start, stage.done, rows.lane_of, passes[most]
    rest, go_on = _rests(passes, ops, most, half), _turns(ops)
    count, mask = (2 * most, ~16) if half else (most, ~0)

    @ops.jit
    def consume(r, x8, me, nbe):  # see above
        thread = int32((me[1] * 32 + me[0]) & mask)
        held = steps(x8, thread, nbe)
        group = lane_of(thread)
        lane, mine = int32(pinned(uint32(me[0]))), pinned(uint32(uint32(me[1]) * uint32(4)))
        turn, first = uint32(me[3] * count), int32(me[2])  # first: its set's first pass of a fill
        step = int32(uint32((r[1] + uint32(count - 1)) // uint32(count)) % uint32(me[3]))
        s, parity = uint32(0), uint32(0)
        while True:
            slot, ahead = uint32(s + parity * r[0]), uint32(uint32(first) * uint32(count))
            row = uint32(r[3] + (s * r[1] + ahead) * r[2])
            sums = uint32(r[4] + (slot * r[1] + ahead) * uint32(SUM_BYTES) + mine)
            left = start(r, s, slot, parity)
            if left == 0:
                break
            left = int32(left - int32(ahead))
            while left >= count:
                whole(row, r[2], held, group, lane, sums)
                row = uint32(row + turn * r[2])
                sums = uint32(sums + turn * uint32(SUM_BYTES))
                left = int32(left - int32(turn))
            rest(r, row, left, held, group, lane, sums)
            done(r, slot)
            first = go_on(first, step, me[3])
            s = uint32(s + uint32(1))
            if s == r[0]:
                s, parity = uint32(0), uint32(parity ^ uint32(1))

    return consume


def any_consumer(ops: SimpleNamespace, rows: SimpleNamespace) -> Any:
    """consume(ring, x8, me, nbe): a warp with more units than registers hold, activations from memory."""
    stage, store, butterfly = _stage(ops), ring.statements().store_float, ring_rows.butterflies(ops).one
    start, done, add, go_on = stage.start, stage.done, ops.add, _turns(ops)
    term, hold, place, activation = rows.term, rows.hold, rows.place, rows.activation
    units, group_of, piece = rows.units, rows.group_of, rows.piece

    @ops.jit
    def consume(r, x8, me, nbe):  # see above
        lane, thread = int32(me[0]), int32(me[1] * 32 + me[0])
        group, mine = group_of(thread & (units - 1)), uint32(uint32(me[1]) * uint32(4))
        turn, first, step = uint32(me[3]), int32(me[2]), int32(r[1] % uint32(me[3]))
        s, parity = uint32(0), uint32(0)
        while True:
            slot, ahead = uint32(s + parity * r[0]), uint32(first)
            row = uint32(r[3] + (s * r[1] + ahead) * r[2])
            sums = uint32(r[4] + (slot * r[1] + ahead) * uint32(SUM_BYTES) + mine)
            left = start(r, s, slot, parity)
            if left == 0:
                break
            left = int32(left - int32(ahead))
            while left > 0:
                acc = float32(0.0)
                u = thread
                while u < int32(nbe * units):
                    acc = add(acc, term(piece(row, place(u, nbe)), hold(activation(x8, u), True), group))
                    u = int32(u + THREADS)
                total = butterfly(acc, lane)
                if lane == 0:
                    store(sums, total)
                row = uint32(row + turn * r[2])
                sums = uint32(sums + turn * uint32(SUM_BYTES))
                left = int32(left - int32(turn))
            done(r, slot)
            first = go_on(first, step, me[3])
            s = uint32(s + uint32(1))
            if s == r[0]:
                s, parity = uint32(0), uint32(parity ^ uint32(1))

    return consume


def summer(ops: SimpleNamespace, rows: SimpleNamespace) -> Any:
    """consume(ring, x8, thread, consumers, nbe): a consumer warp's part.

    Which virtual warp it adds up, and of which rows: where the block has several sets of consumers, they take
    passes by turns, on from fill to fill. As many units are held in registers as the warp's lanes own.
    `me` is lane, virtual warp, set, sets.
    """
    steps, sums = ring_rows.held_steps(ops, rows), ring_rows.row_sums(ops, rows)
    consume1 = consumer(ops, rows, steps[1], ring_rows.passes(ops, sums[1]), 4)
    consume_half = consumer(ops, rows, steps[1], ring_rows.half_passes(ops, sums[1]), 4, half=True)
    consume_any, units = any_consumer(ops, rows), rows.units
    consume2 = consume3 = consume_any
    if rows.most_held == 3:
        consume2 = consumer(ops, rows, steps[2], ring_rows.passes(ops, sums[2]), 2)
        consume3 = consumer(ops, rows, steps[3], ring_rows.passes(ops, sums[3]), 1)
    several = rows.most_held == 3

    @ops.jit
    def consume(r, x8, thread, consumers, nbe):  # see above
        here = uint32(thread >> 5)
        nth = uint32(here // r[9])
        warp = int32(here - nth * r[9])
        me = int32(thread & 31), warp, int32(nth), int32(uint32(consumers) // r[9])
        owned = int32(nbe * units) - warp * 32  # by this warp's first lane and all after that
        count = (owned + THREADS - 1) >> 8
        if owned <= 16:
            consume_half(r, x8, me, nbe)
        elif count == 1:
            consume1(r, x8, me, nbe)
        elif several and count == 2:
            consume2(r, x8, me, nbe)
        elif several and count == 3:
            consume3(r, x8, me, nbe)
        else:
            consume_any(r, x8, me, nbe)

    return consume
