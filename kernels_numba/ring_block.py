"""The two roles of a ring's block, consumer warps and the feeder: twin of kernels_cu/ring.cuh's second part.

A ring travels as a tuple of uint32: stages, rows, stride, then the addresses of data, sums, full, empty,
first and count.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from numba import float32, int32, int64, uint32

from kernels_numba import ring

THREADS, VIRTUAL_WARPS, SUM_BYTES = 256, 8, 32


def preparer(ops: SimpleNamespace) -> Any:
    """prepare(ring, thread, warps): barriers and sums, by every thread; the kernel's barrier comes after."""
    asm = ring.statements()
    init, ready, store = asm.barrier_init, asm.barriers_ready, asm.store_float

    @ops.jit
    def prepare(r, thread, warps):  # see above
        threads = uint32(uint32(warps) * uint32(32))
        k = uint32(thread)
        while k < r[0]:
            init(uint32(r[5] + uint32(8) * k), uint32(1))
            init(uint32(r[6] + uint32(8) * k), uint32(uint32(warps) - uint32(1)))
            ready()
            k = uint32(k + threads)
        k = uint32(thread)
        while k < uint32(r[0] * r[1] * uint32(VIRTUAL_WARPS)):
            store(uint32(r[4] + uint32(4) * k), float32(0.0))
            k = uint32(k + threads)

    return prepare


def _stage(ops: SimpleNamespace) -> SimpleNamespace:
    """start(ring, s, parity) -> rows of the fill, and done(ring, s, lane): a consumer's stage."""
    from numba import cuda

    asm = ring.statements()
    wait, arrive, load_word = asm.barrier_wait, asm.barrier_arrive, asm.load_word

    @ops.jit
    def start(r, s, parity):  # see above
        wait(uint32(r[5] + uint32(8) * s), parity)
        return load_word(uint32(r[8] + uint32(4) * s))

    @ops.jit
    def done(r, s, lane):  # see above
        cuda.syncwarp()
        if lane == 0:
            arrive(uint32(r[6] + uint32(8) * s))

    return SimpleNamespace(start=start, done=done)


def consumer(
    ops: SimpleNamespace, unit: SimpleNamespace, steps: Any, passes: dict[int, Any], most: int
) -> Any:
    """consume(ring, x8, thread, nbe): a warp whose activations are held, `most` (4, 2, 1) rows at once."""
    stage, pinned = _stage(ops), ring.statements().pinned
    start, done, group_of = stage.start, stage.done, unit.group_of
    pass1, pass2, pass4 = passes[1], passes[2], passes[4]

    @ops.jit
    def fours(r, row, left, s, group, lane, sums):  # a stage's rows, four at once
        while left >= 4:
            pass4(row, r[2], s, group, lane, sums)
            row = uint32(row + uint32(4) * r[2])
            sums = uint32(sums + uint32(4 * SUM_BYTES))
            left = int32(left - 4)
        if left >= 2:
            pass2(row, r[2], s, group, lane, sums)
            row = uint32(row + uint32(2) * r[2])
            sums = uint32(sums + uint32(2 * SUM_BYTES))
            left = int32(left - 2)
        if left > 0:
            pass1(row, r[2], s, group, lane, sums)

    @ops.jit
    def twos(r, row, left, s, group, lane, sums):  # two at once
        while left >= 2:
            pass2(row, r[2], s, group, lane, sums)
            row = uint32(row + uint32(2) * r[2])
            sums = uint32(sums + uint32(2 * SUM_BYTES))
            left = int32(left - 2)
        if left > 0:
            pass1(row, r[2], s, group, lane, sums)

    @ops.jit
    def ones(r, row, left, s, group, lane, sums):  # one by one
        while left > 0:
            pass1(row, r[2], s, group, lane, sums)
            row = uint32(row + r[2])
            sums = uint32(sums + uint32(SUM_BYTES))
            left = int32(left - 1)

    rows = {4: fours, 2: twos, 1: ones}[most]

    @ops.jit
    def consume(r, x8, thread, nbe):  # see above
        held = steps(x8, thread, nbe)
        group = group_of(thread & 7)
        lane = int32(pinned(uint32(thread & 31)))
        mine = pinned(uint32(uint32(thread >> 5) * uint32(4)))
        s, parity = uint32(0), uint32(0)
        while True:
            left = start(r, s, parity)
            if left == 0:
                break
            row = uint32(r[3] + s * r[1] * r[2])
            sums = uint32(r[4] + s * r[1] * uint32(SUM_BYTES) + mine)
            rows(r, row, left, held, group, lane, sums)
            done(r, s, lane)
            s = uint32(s + uint32(1))
            if s == r[0]:
                s, parity = uint32(0), uint32(parity ^ uint32(1))

    return consume


def any_consumer(ops: SimpleNamespace, unit: SimpleNamespace, piece: Any, butterfly: Any) -> Any:
    """consume(ring, x8, thread, nbe): a warp with more units than registers hold, activations from memory."""
    stage, store = _stage(ops), ring.statements().store_float
    start, done, group_of = stage.start, stage.done, unit.group_of
    term, hold, place, activation, add = unit.term, unit.hold, unit.place, unit.activation, ops.add

    @ops.jit
    def consume(r, x8, thread, nbe):  # see above
        group = group_of(thread & 7)
        lane = int32(thread & 31)
        mine = uint32(uint32(thread >> 5) * uint32(4))
        s, parity = uint32(0), uint32(0)
        while True:
            left = start(r, s, parity)
            if left == 0:
                break
            row = uint32(r[3] + s * r[1] * r[2])
            sums = uint32(r[4] + s * r[1] * uint32(SUM_BYTES) + mine)
            while left > 0:
                acc = float32(0.0)
                u = thread
                while u < int32(nbe * 8):
                    acc = add(acc, term(piece(row, place(u, nbe)), hold(activation(x8, u), True), group))
                    u = int32(u + THREADS)
                total = butterfly(acc, lane)
                if lane == 0:
                    store(sums, total)
                row = uint32(row + r[2])
                sums = uint32(sums + uint32(SUM_BYTES))
                left = int32(left - 1)
            done(r, s, lane)
            s = uint32(s + uint32(1))
            if s == r[0]:
                s, parity = uint32(0), uint32(parity ^ uint32(1))

    return consume


def feeder(ops: SimpleNamespace) -> Any:
    """feed(ring, weights, out, counter, od): the warp that fills stages, adds warp sums and stores rows."""
    from numba import cuda

    asm = ring.statements()
    arrive, expect, wait, copy = asm.barrier_arrive, asm.barrier_expect, asm.barrier_wait, asm.bulk_copy
    store_word, load_word, load_floats, draw, is_null = (
        asm.store_word, asm.load_word, asm.load_floats, asm.draw, asm.is_null,
    )  # fmt: skip
    advance, add = ops.advance, ops.add

    @ops.jit
    def fill(r, s, ticket, w, od):  # lane 0 -> whether there was such a ticket
        full = uint32(r[5] + uint32(8) * s)
        count = uint32(r[8] + uint32(4) * s)
        first = uint32(ticket * r[1])
        if first >= uint32(od):
            store_word(count, int32(0))
            arrive(full)
            return False
        rows = min(uint32(uint32(od) - first), r[1])
        store_word(uint32(r[7] + uint32(4) * s), int32(first))
        store_word(count, int32(rows))
        size = uint32(rows * r[2])
        expect(full, size)
        copy(uint32(r[3] + s * r[1] * r[2]), advance(w, int64(first) * int64(r[2])), size, full)
        return True

    @ops.jit
    def feed(r, w, out, counter, od):  # see above
        lane = int32(int32(cuda.threadIdx.x) & 31)
        step = uint32(cuda.gridDim.x)
        dealt = uint32(step * r[0])
        ticket = uint32(cuda.blockIdx.x)
        dynamic = not is_null(counter)
        more = True
        s, parity, last, base = uint32(0), uint32(0), uint32(0), uint32(0)
        if lane == 0:
            while s < r[0] and more:
                more = fill(r, s, ticket, w, od)
                ticket = uint32(ticket + step)
                s = uint32(s + uint32(1))
            if dynamic and more:
                # The number of draws is known, and the last of them wraps the counter to 0: see ring.cuh.
                tickets = uint32((uint32(od) + r[1] - uint32(1)) // r[1])
                last = uint32(tickets + step - dealt - uint32(1))
                base, ticket = dealt, draw(counter, last)
        cuda.syncwarp()
        s = uint32(0)
        while True:
            rows = load_word(uint32(r[8] + uint32(4) * s))
            first = load_word(uint32(r[7] + uint32(4) * s))
            if rows == 0:
                break
            wait(uint32(r[6] + uint32(8) * s), parity)
            mine = lane < rows
            row = uint32(lane) if mine else uint32(0)
            at = uint32(r[4] + (s * r[1] + row) * uint32(SUM_BYTES))
            a, b = load_floats(at), load_floats(uint32(at + uint32(16)))
            cuda.syncwarp()
            if lane == 0 and more:
                more = fill(r, s, uint32(base + ticket), w, od)
                if dynamic:
                    if more:
                        ticket = draw(counter, last)
                else:
                    ticket = uint32(ticket + step)
            total = add(add(add(add(float32(0.0), a[0]), a[1]), a[2]), a[3])
            total = add(add(add(add(total, b[0]), b[1]), b[2]), b[3])
            if mine:
                out[int32(first + lane)] = total
            s = uint32(s + uint32(1))
            if s == r[0]:
                s, parity = uint32(0), uint32(parity ^ uint32(1))
            cuda.syncwarp()

    return feed
