"""The warp that feeds a ring and finishes its rows: twin of the feeder in kernels_cu/ring.cuh.

What a block does is put together from three namespaces, as templates do it in C++:

    rows   how a row of the weight format is summed, see ring_rows.py
    job    what a ticket names, `row_job` or ring_gated.py's; its own values travel as the tuple j
             tickets(ring, j)                      how many there are
             fill(ring, s, slot, ticket, j)        lane 0: its rows are to land in stage s, and to be told of
                                                   in `slot`
             join(ring, s, slot, lane, j)          the warp, after fill: the arrivals of the others. False:
                                                   that fill ends the work (who need not know says True)
             prefetch(ring, ticket, j)             lane 0: its rows are to come into L2
             finish(j, first, rows, lane, total)   the warp: row first + lane sums to `total`, for lane < rows
    hooks  what a kernel does besides, `no_hooks` or l2_ring.py's; its own values travel as the tuple h
             ahead(h)                              tickets past the stages to be brought into L2
             before_activations(h)                 every consumer
             all_asked(h)                          lane 0, of dealt tickets only: the last one was asked for

The state of the tickets is a tuple t: whether more may come, the next, what is added to it, the last draw.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from numba import float32, int32, int64, uint32

from kernels_numba import ring, ring_block


def row_job(ops: SimpleNamespace) -> SimpleNamespace:
    """The plain job, j = (weights, out, od): a ticket is ring's rows of `od`, and each sum is stored."""
    asm = ring.statements()
    expect, copy, bulk, store_word = asm.barrier_expect, asm.bulk_copy, asm.bulk_prefetch, asm.store_word
    advance, arrive = ops.advance, asm.barrier_arrive

    @ops.jit
    def tickets(r, j):  # see the module's docstring, here and below
        return uint32((j[2] + r[1] - uint32(1)) // r[1])

    @ops.jit
    def fill(r, s, slot, ticket, j):
        first = uint32(ticket * r[1])
        rows = min(uint32(j[2] - first), r[1])
        store_word(uint32(r[7] + uint32(4) * slot), int32(first))
        store_word(uint32(r[8] + uint32(4) * slot), int32(rows))
        size, full = uint32(rows * r[2]), uint32(r[5] + uint32(8) * s)
        expect(full, size)
        copy(uint32(r[3] + s * r[1] * r[2]), advance(j[0], int64(first) * int64(r[2])), size, full)

    @ops.jit
    def join(r, s, slot, lane, j):
        if lane > 0:
            arrive(uint32(r[5] + uint32(8) * s))
        return True

    @ops.jit
    def prefetch(r, ticket, j):
        first = uint32(ticket * r[1])
        rows = min(uint32(j[2] - first), r[1])
        bulk(advance(j[0], int64(first) * int64(r[2])), uint32(rows * r[2]))

    @ops.jit
    def finish(j, first, rows, lane, total):
        if lane < rows:
            j[1][int32(first + lane)] = total

    return SimpleNamespace(tickets=tickets, fill=fill, join=join, prefetch=prefetch, finish=finish)


def copied_row_job(ops: SimpleNamespace) -> SimpleNamespace:
    """The same by copies of 16 bytes, the lanes of the feeder by turns: twin of ring.cuh's CopiedRows."""
    from numba import cuda

    plain, asm = row_job(ops), ring.statements()
    store_word, load_word, copy16 = asm.store_word, asm.load_word, asm.copy_16
    arrive, arrive_copied, advance = asm.barrier_arrive, asm.barrier_arrive_copied, ops.advance

    @ops.jit
    def fill(r, s, slot, ticket, j):  # see the module's docstring, here and below
        first = uint32(ticket * r[1])
        store_word(uint32(r[7] + uint32(4) * slot), int32(first))
        store_word(uint32(r[8] + uint32(4) * slot), int32(min(uint32(j[2] - first), r[1])))

    @ops.jit
    def join(r, s, slot, lane, j):
        cuda.syncwarp()
        full = uint32(r[5] + uint32(8) * s)
        size = uint32(uint32(load_word(uint32(r[8] + uint32(4) * slot))) * r[2])
        if size == uint32(0):
            if lane > 0:
                arrive(full)
            return False
        at = uint32(uint32(16) * uint32(lane))
        to = uint32(r[3] + s * r[1] * r[2])
        rows = advance(j[0], int64(load_word(uint32(r[7] + uint32(4) * slot))) * int64(r[2]))
        while at < size:
            copy16(uint32(to + at), advance(rows, int64(at)))
            at = uint32(at + uint32(512))
        arrive_copied(full)
        return True

    return SimpleNamespace(**{**vars(plain), "fill": fill, "join": join})


def no_hooks(ops: SimpleNamespace) -> SimpleNamespace:
    """No predecessor, no successor; h is of no use."""

    @ops.jit
    def ahead(h):  # nothing is fetched ahead
        return uint32(0)

    @ops.jit
    def nothing(h):  # nor is anything done
        return

    return SimpleNamespace(ahead=ahead, before_activations=nothing, all_asked=nothing)


def tickets(ops: SimpleNamespace, job: SimpleNamespace) -> SimpleNamespace:
    """fill_all(ring, counter, all, j) -> t; refill(ring, s, phase, counter, all, t, j) -> t; all_asked(...).

    Of the feeder's lane 0. all: how many tickets there are. Without a counter they are dealt.
    """
    from numba import cuda

    asm = ring.statements()
    arrive, draw, is_null, store_word, fill_stage = (
        asm.barrier_arrive, asm.draw, asm.is_null, asm.store_word, job.fill,
    )  # fmt: skip

    @ops.jit
    def fill(r, s, phase, ticket, every, j):  # -> whether there is such a ticket; else the fill ends the work
        slot = uint32(s + phase * r[0])
        if ticket < every:
            fill_stage(r, s, slot, ticket, j)
            return True
        store_word(uint32(r[8] + uint32(4) * slot), int32(0))
        arrive(uint32(r[5] + uint32(8) * s))
        return False

    @ops.jit
    def fill_all(r, counter, every, j):  # every stage for the first time
        step, following = uint32(cuda.gridDim.x), uint32(cuda.blockIdx.x)
        more = True
        s, base, last = uint32(0), uint32(0), uint32(0)
        while s < r[0] and more:
            more = fill(r, s, uint32(0), following, every, j)
            following = uint32(following + step)
            s = uint32(s + uint32(1))
        if not is_null(counter) and more:
            # The number of draws is known, and the last of them wraps the counter to 0: see ring.cuh.
            base = uint32(step * r[0])
            last = uint32(every + step - base - uint32(1))
            following = draw(counter, last)
        return more, following, base, last

    @ops.jit
    def refill(r, s, phase, counter, every, t, j):  # hand the next ticket to stage s
        following = t[1]
        more = fill(r, s, phase, uint32(t[2] + following), every, j)
        if is_null(counter):
            following = uint32(following + uint32(cuda.gridDim.x))
        elif more:
            following = draw(counter, t[3])
        return more, following, t[2], t[3]

    @ops.jit
    def all_asked(counter, every, t):  # of dealt tickets only
        return is_null(counter) and t[1] >= every

    return SimpleNamespace(fill_all=fill_all, refill=refill, all_asked=all_asked)


def totals(ops: SimpleNamespace) -> Any:
    """total(ring, s, mine, lane): row `lane` of a stage, its warp sums one after another.

    Lanes without a row get the first one's. A virtual warp without a unit would add 0, which changes no sum:
    what lies in its place is not added.
    """
    load_floats, add = ring.statements().load_floats, ops.add
    size = ring_block.SUM_BYTES

    @ops.jit
    def some(result, v, warps):  # the first so many of four
        result = add(result, v[0]) if warps > 0 else result
        result = add(result, v[1]) if warps > 1 else result
        result = add(result, v[2]) if warps > 2 else result
        return add(result, v[3]) if warps > 3 else result

    @ops.jit
    def total(r, s, mine, lane):  # see above
        row = uint32(lane) if mine else uint32(0)
        at = uint32(r[4] + (s * r[1] + row) * uint32(size))
        a, b = load_floats(at), load_floats(uint32(at + uint32(16)))
        warps = int32(r[9])
        return some(some(float32(0.0), a, warps), b, int32(warps - 4))

    return total


def feeder(ops: SimpleNamespace, job: SimpleNamespace, hooks: SimpleNamespace) -> Any:
    """feed(ring, counter, j, h): the warp that fills stages, adds warp sums and finishes rows."""
    from numba import cuda

    asm, of = ring.statements(), tickets(ops, job)
    wait, load_word, total_of = asm.barrier_wait, asm.load_word, totals(ops)
    fill_all, refill, all_asked = of.fill_all, of.refill, of.all_asked
    tickets_of, join, prefetch, finish = job.tickets, job.join, job.prefetch, job.finish
    ahead_of, tell = hooks.ahead, hooks.all_asked

    @ops.jit
    def feed(r, counter, j, h):  # see above
        lane = int32(int32(cuda.threadIdx.x) & 31)
        every = tickets_of(r, j)
        t = True, uint32(0), uint32(0), uint32(0)
        told = False
        if lane == 0:
            t = fill_all(r, counter, every, j)
            left, following = ahead_of(h), t[1]
            while left > uint32(0) and following < every:
                prefetch(r, following, j)
                following = uint32(following + uint32(cuda.gridDim.x))
                left = uint32(left - uint32(1))
            if all_asked(counter, every, t):
                told = True
                tell(h)
        cuda.syncwarp()
        s, more = uint32(0), True
        while s < r[0] and more:
            more = join(r, s, s, lane, j)
            s = uint32(s + uint32(1))
        s, parity = uint32(0), uint32(0)
        while True:
            slot = uint32(s + parity * r[0])
            rows = load_word(uint32(r[8] + uint32(4) * slot))
            first = load_word(uint32(r[7] + uint32(4) * slot))
            if rows == 0:
                break
            wait(uint32(r[6] + uint32(8) * s), parity)
            total = total_of(r, s, lane < rows, lane)
            cuda.syncwarp()
            if lane == 0 and t[0]:
                t = refill(r, s, uint32(parity ^ uint32(1)), counter, every, t, j)
                if not told and all_asked(counter, every, t):
                    told = True
                    tell(h)
            if more:
                more = join(r, s, uint32(s + uint32(parity ^ uint32(1)) * r[0]), lane, j)
            finish(j, first, rows, lane, total)
            s = uint32(s + uint32(1))
            if s == r[0]:
                s, parity = uint32(0), uint32(parity ^ uint32(1))
            cuda.syncwarp()

    return feed


def form(ops: SimpleNamespace, rows: SimpleNamespace, job: SimpleNamespace, hooks: SimpleNamespace) -> Any:
    """run(ring, x8, nbe, counter, j, h): all that a block does whose feeder finishes."""
    from numba import cuda

    prepare, consume = ring_block.preparer(ops), ring_block.summer(ops, rows)
    make, await_them = prepare.make, prepare.await_them
    feed, before = feeder(ops, job, hooks), hooks.before_activations

    @ops.jit
    def run(r, x8, nbe, counter, j, h):  # see above
        thread = int32(cuda.threadIdx.x)
        warps = int32(int32(cuda.blockDim.x) >> 5)
        if thread >> 5 == warps - 1:
            make(r, int32(thread & 31), warps, 1, 32)
            feed(r, counter, j, h)
        else:
            await_them(warps)
            before(h)
            consume(r, x8, thread, int32(warps - 1), nbe)

    return run
