"""How consumers sum a ring's rows: held.rows(ops, layout), q4k_held.rows(ops).

units                            of a super-block, a power of two
most_held                        units of a thread with register-resident activations, 1 or 3
most_threads                     of a block: its register bound
activation(x8, unit)             from global memory; hold(activation, owned) prepares it
place(unit, nbe), pin(place)     where its weights lie in a row; the same, register-resident
group_of(unit), lane_of(thread)  by its place in the super-block
piece(row address, place)        its weights, from shared memory
term(piece, held, group)         its reference-order term
"""

from types import SimpleNamespace
from typing import Any

from numba import int32, uint32

from kernels_numba import ring
from kernels_numba.ops import once

THREADS = 256
TOLD, FULL, EMPTY, SUMMED, FIRST, COUNT, SLOT = 0, 8, 16, 24, 32, 36, 40
"""A slot's four barriers and two words by offset, and its size in bytes. SUMMED: partials are ready."""


@once
def butterflies(ops: SimpleNamespace, width: int = 32) -> SimpleNamespace:
    """one(a, lane), two(a, b, lane), four(a, b, c, d, lane): a virtual warp's sums of so many rows at once.

    Lane k ends with the sum of row k // (width // rows): see held.cuh's butterfly.
    """
    from numba import cuda

    add, first, second = ops.add, width // 2, width // 4

    @ops.jit
    def step(v, offset):  # one of the XOR butterfly
        return add(v, cuda.shfl_xor_sync(0xFFFFFFFF, v, offset))

    @ops.jit
    def from2(v):  # offsets 2, 1
        return step(step(v, 2), 1)

    @ops.jit
    def from4(v):  # offsets 4, 2, 1
        return from2(step(v, 4))

    from_third = from4 if width == 32 else from2

    @ops.jit
    def halve(a, b, lane, offset):  # keep one sum, hand the other over
        upper = (lane & offset) != 0
        keep, give = (b, a) if upper else (a, b)
        return add(keep, cuda.shfl_xor_sync(0xFFFFFFFF, give, offset))

    @ops.jit
    def one(a, lane):  # float32, int32 -> float32
        return from_third(step(step(a, first), second))

    @ops.jit
    def two(a, b, lane):  # the same
        return from_third(step(halve(a, b, lane, first), second))

    @ops.jit
    def four(a, b, c, d, lane):  # the same
        return from_third(halve(halve(a, c, lane, first), halve(b, d, lane, first), lane, second))

    return SimpleNamespace(one=one, two=two, four=four)


@once
def units_of(ops: SimpleNamespace, rows: SimpleNamespace) -> Any:
    """unit(thread, k, nbe): a thread's k-th, or the one of its place in the first block if it owns none."""
    units = rows.units

    @ops.jit
    def unit(thread, k, nbe):  # three int32
        mine = int32(thread + int32(k * THREADS))
        return mine if mine < int32(nbe * units) else int32(thread & (units - 1))

    return unit


@once
def held_steps(ops: SimpleNamespace, rows: SimpleNamespace) -> dict[int, Any]:
    """K -> function (first one's activations, x8, thread, nbe) -> (held, place) * K of a thread's units."""
    hold, activation, place, pin, units = rows.hold, rows.activation, rows.place, rows.pin, rows.units
    unit_of = units_of(ops, rows)

    @ops.jit
    def step(a, thread, k, nbe):  # -> held, place
        owned = int32(thread + int32(k * THREADS)) < int32(nbe * units)
        return hold(a, owned), pin(place(unit_of(thread, k, nbe), nbe))

    @ops.jit
    def later(x8, thread, k, nbe):  # the same, loaded now
        return step(activation(x8, unit_of(thread, k, nbe)), thread, k, nbe)

    @ops.jit
    def one(first, x8, thread, nbe):  # K = 1
        return step(first, thread, 0, nbe)

    @ops.jit
    def two(first, x8, thread, nbe):  # K = 2
        a, b = step(first, thread, 0, nbe), later(x8, thread, 1, nbe)
        return a[0], a[1], b[0], b[1]

    @ops.jit
    def three(first, x8, thread, nbe):  # K = 3
        a, b, c = step(first, thread, 0, nbe), later(x8, thread, 1, nbe), later(x8, thread, 2, nbe)
        return a[0], a[1], b[0], b[1], c[0], c[1]

    return {1: one, 2: two, 3: three}


@once
def row_sums(ops: SimpleNamespace, rows: SimpleNamespace) -> dict[int, SimpleNamespace]:
    """K -> of(row, steps, group), a thread's K terms of one row, and last_of(row, steps, group, slot, last).

    last_of: of a pass's last row; if its tile's last too, the warp arrives at `empty` once it has the pieces.
    """
    add, term, piece, leave = ops.add, rows.term, rows.piece, ring.statements().barrier_arrive_if

    @ops.jit
    def one(row, s, group):  # K = 1
        return term(piece(row, s[1]), s[0], group)

    @ops.jit
    def two(row, s, group):  # K = 2
        a, b = piece(row, s[1]), piece(row, s[3])
        return add(term(a, s[0], group), term(b, s[2], group))

    @ops.jit
    def three(row, s, group):  # K = 3
        a, b, c = piece(row, s[1]), piece(row, s[3]), piece(row, s[5])
        return add(add(term(a, s[0], group), term(b, s[2], group)), term(c, s[4], group))

    @ops.jit
    def leaving(p, held, group, slot, last):  # the term of piece p, which is all that is needed any more
        leave(uint32(slot + uint32(EMPTY)), uint32(1) if last else uint32(0))
        return term(p, held, group)

    @ops.jit
    def last1(row, s, group, slot, last):  # K = 1
        return leaving(piece(row, s[1]), s[0], group, slot, last)

    @ops.jit
    def last2(row, s, group, slot, last):  # K = 2
        a = term(piece(row, s[1]), s[0], group)
        return add(a, leaving(piece(row, s[3]), s[2], group, slot, last))

    @ops.jit
    def last3(row, s, group, slot, last):  # K = 3
        a = add(term(piece(row, s[1]), s[0], group), term(piece(row, s[3]), s[2], group))
        return add(a, leaving(piece(row, s[5]), s[4], group, slot, last))

    return {
        1: SimpleNamespace(of=one, last_of=last1),
        2: SimpleNamespace(of=two, last_of=last2),
        3: SimpleNamespace(of=three, last_of=last3),
    }


@once
def passes(ops: SimpleNamespace, row_sum: SimpleNamespace) -> dict[int, Any]:
    """P -> function (row, stride, steps, group, lane, sums, slot, last): P rows of a stage.

    Row r's sum goes to sums[8 r]. last: the warp reads no more of the tile in this slot.
    """
    store, of, last_of = ring.statements().store_float, row_sum.of, row_sum.last_of
    reduce = butterflies(ops)
    sum1, sum2, sum4 = reduce.one, reduce.two, reduce.four

    @ops.jit
    def one(row, stride, s, group, lane, sums, slot, last):  # P = 1
        total = sum1(last_of(row, s, group, slot, last), lane)
        if lane == 0:
            store(sums, total)

    @ops.jit
    def two(row, stride, s, group, lane, sums, slot, last):  # P = 2
        a = of(row, s, group)
        total = sum2(a, last_of(uint32(row + stride), s, group, slot, last), lane)
        if lane & 15 == 0:
            store(uint32(sums + uint32(lane) * uint32(2)), total)

    @ops.jit
    def four(row, stride, s, group, lane, sums, slot, last):  # P = 4
        r1, r2 = uint32(row + stride), uint32(row + uint32(2) * stride)
        a, b, c = of(row, s, group), of(r1, s, group), of(r2, s, group)
        d = last_of(uint32(r2 + stride), s, group, slot, last)
        total = sum4(a, b, c, d, lane)
        if lane & 7 == 0:
            store(uint32(sums + uint32(lane) * uint32(4)), total)

    return {1: one, 2: two, 4: four}


@once
def half_passes(ops: SimpleNamespace, row_sum: SimpleNamespace) -> dict[int, Any]:
    """The same of 2 P rows, where 16 lanes at most own a unit: lanes 16 to 31 sum P rows further on.

    P is 4, or 1 with an argument more: whether the row is the only one, and both halves' own.
    """
    store, of, last_of = ring.statements().store_float, row_sum.of, row_sum.last_of
    reduce = butterflies(ops, 16)
    sum1, sum4 = reduce.one, reduce.four

    @ops.jit
    def one(row, stride, s, group, lane, sums, slot, last, alone):  # P = 1
        mine = row if alone or lane < 16 else uint32(row + stride)
        total = sum1(last_of(mine, s, group, slot, last), lane)
        if lane == 0 or (lane == 16 and not alone):
            store(uint32(sums + uint32(lane) * uint32(2)), total)

    @ops.jit
    def four(row, stride, s, group, lane, sums, slot, last):  # P = 4
        mine = row if lane < 16 else uint32(row + uint32(4) * stride)
        r1, r2 = uint32(mine + stride), uint32(mine + uint32(2) * stride)
        a, b, c = of(mine, s, group), of(r1, s, group), of(r2, s, group)
        d = last_of(uint32(r2 + stride), s, group, slot, last)
        total = sum4(a, b, c, d, lane)
        if lane & 3 == 0:
            store(uint32(sums + uint32(lane) * uint32(8)), total)

    return {1: one, 4: four}
