"""A ring of stages in shared memory, and its consumer warps: see kernels_cu/ring.cuh.

A ring is a tuple of uint32: stages, rows, stride, addresses of data, sums and slots, virtual warps that own a
unit. A place is a tile's data, sums and slot, and its barriers' parity.
"""

from types import SimpleNamespace
from typing import Any

from numba import float32, int32, uint32

from kernels_numba import ring, ring_rows
from kernels_numba.ops import once
from kernels_numba.ring_rows import COUNT, EMPTY, FULL, SLOT, SUMMED, TOLD

THREADS, VIRTUAL_WARPS, SUM_BYTES = 256, 8, 32


def kernel(function: Any, rows: SimpleNamespace) -> Any:  # marked for compile.py
    function.max_threads = rows.most_threads
    return function


@once
def ring_of(ops: SimpleNamespace) -> Any:
    """ring_of(stages, rows, stride, units) -> the ring; as probes/device/pipeline.py's stage_bytes counts."""
    memory = ring.statements().memory

    @ops.jit
    def of(stages, rows, stride, units):  # four int32
        n, data = uint32(stages), memory()
        sums = uint32(data + n * uint32(rows) * uint32(stride))
        slots = uint32(sums + n * uint32(rows) * uint32(2 * SUM_BYTES))
        warps = uint32(min(uint32(uint32(units + 31) >> uint32(5)), uint32(VIRTUAL_WARPS)))
        return n, uint32(rows), uint32(stride), data, sums, slots, warps

    return of


@once
def places(ops: SimpleNamespace) -> SimpleNamespace:
    """start(ring) -> the first place; go_on(ring, place) -> the next; after(ring, slot): see ring.cuh."""

    @ops.jit
    def start(r):  # see above, here and below
        return r[3], r[4], r[5], uint32(0)

    @ops.jit
    def go_on(r, at):
        data, sums = uint32(at[0] + r[1] * r[2]), uint32(at[1] + r[1] * uint32(SUM_BYTES))
        slot, parity = uint32(at[2] + uint32(SLOT)), at[3]
        if data == r[4]:
            data = r[3]
        if sums == r[5]:
            sums, slot, parity = r[4], r[5], uint32(parity ^ uint32(1))
        return data, sums, slot, parity

    @ops.jit
    def after(r, slot):
        half = uint32(r[0] * uint32(SLOT))
        return uint32(slot + half) if slot < r[5] + half else uint32(slot - half)

    return SimpleNamespace(start=start, go_on=go_on, after=after)


@once
def preparer(ops: SimpleNamespace) -> SimpleNamespace:
    """make(ring, lane, warps, others, arrivals) by the producer warp, await_them(warps) by every other warp.

    others: the block's warps that do not sum. arrivals: what completes a full barrier besides the bytes.
    """
    from numba import cuda

    asm = ring.statements()
    init, ready, arrive, join = asm.barrier_init, asm.barriers_ready, asm.block_arrive, asm.block_join

    @ops.jit
    def make(r, lane, warps, others, arrivals):  # before the first tile; nobody is waited for
        k = uint32(lane)
        while k < uint32(2) * r[0]:
            slot = uint32(r[5] + uint32(SLOT) * k)
            init(uint32(slot + uint32(FULL)), uint32(arrivals))
            init(uint32(slot + uint32(EMPTY)), uint32(32 * (warps - others)))
            init(uint32(slot + uint32(SUMMED)), uint32(32 * (warps - others)))
            init(uint32(slot + uint32(TOLD)), uint32(1))
            ready()
            k = uint32(k + uint32(32))
        arrive(uint32(warps * 32))
        cuda.syncwarp()

    @ops.jit
    def await_them(warps):  # before it waits for anything
        join(uint32(warps * 32))

    return SimpleNamespace(make=make, await_them=await_them)


@once
def _turns(ops: SimpleNamespace) -> Any:
    @ops.jit
    def go_on(turn, step, sets):  # this consumer group's first pass of the next tile: see ring.cuh's Consumer
        turn = int32(turn - step)
        return int32(turn + sets) if turn < 0 else turn

    return go_on


def _rests(r_passes: dict[int, Any], ops: SimpleNamespace, most: int, half: bool) -> Any:  # of a tile's rows
    pass1 = r_passes[1]
    if half:

        @ops.jit
        def rest_half(r, row, left, held, group, lane, sums, slot):  # two rows at once, the last one alone
            while left > 0:
                pass1(row, r[2], held, group, lane, sums, slot, left <= 2, left == 1)
                row = uint32(row + uint32(2) * r[2])
                sums = uint32(sums + uint32(2 * SUM_BYTES))
                left = int32(left - 2)

        return rest_half
    pass2 = r_passes[2]

    @ops.jit
    def rest4(r, row, left, held, group, lane, sums, slot):  # up to three rows
        if left >= 2:
            pass2(row, r[2], held, group, lane, sums, slot, left == 2)
            row = uint32(row + uint32(2) * r[2])
            sums = uint32(sums + uint32(2 * SUM_BYTES))
            left = int32(left - 2)
        if left > 0:
            pass1(row, r[2], held, group, lane, sums, slot, True)

    @ops.jit
    def rest2(r, row, left, held, group, lane, sums, slot):  # one row at most
        if left > 0:
            pass1(row, r[2], held, group, lane, sums, slot, True)

    @ops.jit
    def rest1(r, row, left, held, group, lane, sums, slot):  # none
        return

    return {4: rest4, 2: rest2, 1: rest1}[most]


@once
def consumer(
    ops: SimpleNamespace, rows: SimpleNamespace, steps: Any, passes: dict[int, Any], most: int,
    half: bool = False,
) -> Any:  # fmt: skip
    """consume(ring, given, x8, me, nbe): a warp with register-resident activations.

    given: its threads' first units' activations. most: rows of a pass, 4, 2 or 1. half: twice as many, where
    16 lanes at most own a unit.
    """
    asm, place = ring.statements(), places(ops)
    pinned, wait, arrive, load_word = asm.pinned, asm.barrier_wait, asm.barrier_arrive, asm.load_word
    lane_of, whole, start, step_on = rows.lane_of, passes[most], place.start, place.go_on
    rest, go_on = _rests(passes, ops, most, half), _turns(ops)
    count = 2 * most if half else most

    @ops.jit
    def consume(r, given, x8, me, nbe):  # see above
        held, group = steps(given, x8, me[4], nbe), lane_of(me[4])
        lane, mine = me[0], pinned(uint32(uint32(me[1]) * uint32(4)))
        turn, first = uint32(me[3] * count), int32(me[2])  # first: its group's first pass of a tile
        step = int32(uint32((r[1] + uint32(count - 1)) // uint32(count)) % uint32(me[3]))
        kept = r[0], r[1], r[2], r[3], pinned(r[4]), pinned(r[5]), r[6]
        at = start(kept)
        while True:
            slot, ahead = at[2], uint32(uint32(first) * uint32(count))
            row = uint32(at[0] + ahead * r[2])
            sums = uint32(at[1] + ahead * uint32(SUM_BYTES) + mine)
            wait(uint32(slot + uint32(FULL)), at[3])
            left = load_word(uint32(slot + uint32(COUNT)))
            if left == 0:
                break
            left = int32(left - int32(ahead))
            if left <= 0:
                arrive(uint32(slot + uint32(EMPTY)))
            while left >= count:
                whole(row, r[2], held, group, lane, sums, slot, left <= int32(turn))
                row = uint32(row + turn * r[2])
                sums = uint32(sums + turn * uint32(SUM_BYTES))
                left = int32(left - int32(turn))
            rest(r, row, left, held, group, lane, sums, slot)
            arrive(uint32(slot + uint32(SUMMED)))
            first = go_on(first, step, me[3])
            at = step_on(kept, at)

    return consume


@once
def any_consumer(ops: SimpleNamespace, rows: SimpleNamespace) -> Any:
    """consume(ring, given, x8, me, nbe): a warp that loads activations anew: registers hold too few units."""
    asm, place = ring.statements(), places(ops)
    store, wait, arrive, load_word = asm.store_float, asm.barrier_wait, asm.barrier_arrive, asm.load_word
    butterfly, add, go_on = ring_rows.butterflies(ops).one, ops.add, _turns(ops)
    term, hold, place_of, activation = rows.term, rows.hold, rows.place, rows.activation
    units, group_of, piece, start, step_on = rows.units, rows.group_of, rows.piece, place.start, place.go_on

    @ops.jit
    def consume(r, given, x8, me, nbe):  # see above
        lane, thread = int32(me[0]), int32(me[4])
        group, mine = group_of(thread & (units - 1)), uint32(uint32(me[1]) * uint32(4))
        turn, first, step = uint32(me[3]), int32(me[2]), int32(r[1] % uint32(me[3]))
        at = start(r)
        while True:
            slot, ahead = at[2], uint32(first)
            row = uint32(at[0] + ahead * r[2])
            sums = uint32(at[1] + ahead * uint32(SUM_BYTES) + mine)
            wait(uint32(slot + uint32(FULL)), at[3])
            left = load_word(uint32(slot + uint32(COUNT)))
            if left == 0:
                break
            left = int32(left - int32(ahead))
            while left > 0:
                acc = float32(0.0)
                u = thread
                while u < int32(nbe * units):
                    acc = add(acc, term(piece(row, place_of(u, nbe)), hold(activation(x8, u), True), group))
                    u = int32(u + THREADS)
                total = butterfly(acc, lane)
                if lane == 0:
                    store(sums, total)
                row = uint32(row + turn * r[2])
                sums = uint32(sums + turn * uint32(SUM_BYTES))
                left = int32(left - int32(turn))
            arrive(uint32(slot + uint32(EMPTY)))
            arrive(uint32(slot + uint32(SUMMED)))
            first = go_on(first, step, me[3])
            at = step_on(r, at)

    return consume


@once
def summer(ops: SimpleNamespace, rows: SimpleNamespace) -> SimpleNamespace:
    """me_of(ring, thread, warps, others, nbe), first_of(x8, me, nbe) and consume(ring, first, x8, me, nbe).

    A consumer warp sums one virtual warp of its rows; consumer groups take passes by turns, on from tile to
    tile. `me`: lane, virtual warp, group, groups, virtual thread, units from the warp's first on. Where 16
    lanes at most own a unit, lanes 16 to 31 stand for them again. others: warps that do not consume.
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
    activation, unit_of = rows.activation, ring_rows.units_of(ops, rows)

    @ops.jit
    def me_of(r, thread, warps, others, nbe):  # see above, here and below
        here = uint32(thread >> 5)
        nth = uint32(here // r[6])
        warp, lane = int32(here - nth * r[6]), int32(thread & 31)
        owned = int32(int32(nbe * units) - warp * 32)
        virtual = int32(warp * 32 + int32(lane & (15 if owned <= 16 else 31)))
        return lane, warp, int32(nth), int32(uint32(warps - others) // r[6]), virtual, owned

    @ops.jit
    def first_of(x8, me, nbe):
        return activation(x8, unit_of(me[4], 0, nbe))

    @ops.jit
    def consume(r, first, x8, me, nbe):
        count = (me[5] + THREADS - 1) >> 8
        if me[5] <= 16:
            consume_half(r, first, x8, me, nbe)
        elif count == 1:
            consume1(r, first, x8, me, nbe)
        elif several and count == 2:
            consume2(r, first, x8, me, nbe)
        elif several and count == 3:
            consume3(r, first, x8, me, nbe)
        else:
            consume_any(r, first, x8, me, nbe)

    return SimpleNamespace(me_of=me_of, first_of=first_of, consume=consume)
