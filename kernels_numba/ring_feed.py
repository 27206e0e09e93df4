"""The warp that feeds a ring and finishes its rows: twin of kernels_cu/ring_feed.cuh, which says how and why.

What a block does is put together from three namespaces, as templates do it in C++. A fill travels as its
first row and how many rows it has, none where it ends the work:

    rows   how a row of the weight format is summed, see ring_rows.py
    job    what a ticket names, `row_job`, `copied_row_job` or ring_gated.py's; its values travel as tuple j
             arrivals                              what completes `full` besides bulk copies' bytes
             tickets(ring, j)                      how many there are
             fill_of(ring, ticket, j)              first row and rows
             copy(ring, s, first, rows, lane, j)   the warp: the rows are to land in stage s
             arrive(ring, s, lane)                 the warp, after all else that a fill takes
             prefetch(ring, first, rows, j)        lane 0: the rows are to come into L2
             total(ring, slot, rows, lane)         the warp: its row's sum, where the feeder takes them
             finish(j, first, rows, lane, total)   the warp: row first + lane sums to `total`, for lane < rows
    hooks  what a kernel does besides, `no_hooks` or l2_ring.py's; its values travel as tuple h
             ahead(h)                              tickets past the stages to be brought into L2
             before_activations(h)                 every consumer
             all_asked(h)                          lane 0, of dealt tickets only: the last one was asked for
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from numba import float32, int32, int64, uint32

from kernels_numba import ring, ring_block


def row_job(ops: SimpleNamespace) -> SimpleNamespace:
    """The plain job, j = (weights, out, od): a ticket is ring's rows of `od`, and each sum is stored."""
    asm, total_of = ring.statements(), totals(ops)
    expect, copy_bulk, bulk, arrive_at = (
        asm.barrier_expect, asm.bulk_copy, asm.bulk_prefetch, asm.barrier_arrive,
    )  # fmt: skip
    advance = ops.advance

    @ops.jit
    def tickets(r, j):  # see the module's docstring, here and below
        return uint32((j[2] + r[1] - uint32(1)) // r[1])

    @ops.jit
    def fill_of(r, ticket, j):
        first = uint32(ticket * r[1])
        return first, uint32(min(uint32(j[2] - first), r[1]))

    @ops.jit
    def copy(r, s, first, rows, lane, j):
        if lane == 0:
            size, full = uint32(rows * r[2]), uint32(r[5] + uint32(8) * s)
            expect(full, size)
            copy_bulk(uint32(r[3] + s * r[1] * r[2]), advance(j[0], int64(first) * int64(r[2])), size, full)

    @ops.jit
    def arrive(r, s, lane):
        arrive_at(uint32(r[5] + uint32(8) * s))

    @ops.jit
    def prefetch(r, first, rows, j):
        bulk(advance(j[0], int64(first) * int64(r[2])), uint32(rows * r[2]))

    @ops.jit
    def total(r, slot, rows, lane):
        return total_of(r, slot, uint32(lane) if lane < rows else uint32(0))

    @ops.jit
    def finish(j, first, rows, lane, total):
        if lane < rows:
            j[1][int32(first + lane)] = total

    return SimpleNamespace(
        arrivals=32, tickets=tickets, fill_of=fill_of, copy=copy, arrive=arrive, prefetch=prefetch,
        total=total, finish=finish,
    )  # fmt: skip


def copied_row_job(ops: SimpleNamespace) -> SimpleNamespace:
    """The same by copies of 16 bytes, the lanes of the feeder by turns: ring_feed.cuh's CopiedRows."""
    plain, asm = row_job(ops), ring.statements()
    copy16, arrive_at, arrive_copied, advance = (
        asm.copy_16, asm.barrier_arrive, asm.barrier_arrive_copied, ops.advance,
    )  # fmt: skip

    @ops.jit
    def copy(r, s, first, rows, lane, j):  # see the module's docstring, here and below
        size, at = uint32(rows * r[2]), uint32(uint32(16) * uint32(lane))
        to, source = uint32(r[3] + s * r[1] * r[2]), advance(j[0], int64(first) * int64(r[2]))
        while at < size:
            copy16(uint32(to + at), advance(source, int64(at)))
            at = uint32(at + uint32(512))

    @ops.jit
    def arrive(r, s, lane):
        full = uint32(r[5] + uint32(8) * s)
        arrive_copied(full)
        arrive_at(full)

    return SimpleNamespace(**{**vars(plain), "arrivals": 64, "copy": copy, "arrive": arrive})


def no_hooks(ops: SimpleNamespace) -> SimpleNamespace:
    """No predecessor, no successor; h is of no use."""

    @ops.jit
    def ahead(h):  # nothing is fetched ahead
        return uint32(0)

    @ops.jit
    def nothing(h):  # nor is anything done
        return

    return SimpleNamespace(ahead=ahead, before_activations=nothing, all_asked=nothing)


def totals(ops: SimpleNamespace) -> Any:
    """total(ring, slot, row): a row of a slot, its warp sums one after another.

    A virtual warp without a unit would add 0, which changes no sum: what lies in its place is not added.
    """
    load_floats, add = ring.statements().load_floats, ops.add
    size = ring_block.SUM_BYTES

    @ops.jit
    def some(result, v, warps):  # the first so many of four, one at least
        result = add(result, v[0])
        result = add(result, v[1]) if warps > 1 else result
        result = add(result, v[2]) if warps > 2 else result
        return add(result, v[3]) if warps > 3 else result

    @ops.jit
    def total(r, slot, row):  # see above
        at, warps = uint32(r[4] + (slot * r[1] + row) * uint32(size)), int32(r[9])
        result = some(float32(0.0), load_floats(at), warps)
        if warps > 4:
            result = some(result, load_floats(uint32(at + uint32(16))), int32(warps - 4))
        return result

    return total


def tickets(ops: SimpleNamespace, job: SimpleNamespace) -> SimpleNamespace:
    """fill_of(ring, ticket, every, j); drawn(ring, base, next, every, j); draw(counter, last, lane, next).

    every: how many tickets there are. next: a ticket; of a draw, lane 0's answer.
    """
    from numba import cuda

    asm, job_fill_of = ring.statements(), job.fill_of
    count_up = asm.draw

    @ops.jit
    def fill_of(r, ticket, every, j):  # no rows if there is no such ticket
        if ticket < every:
            return job_fill_of(r, ticket, j)
        return uint32(0), uint32(0)

    @ops.jit
    def drawn(r, base, following, every, j):  # what lane 0 drew, for all lanes
        return fill_of(r, uint32(base + uint32(cuda.shfl_sync(0xFFFFFFFF, int32(following), 0))), every, j)

    @ops.jit
    def draw(counter, last, lane, following):
        return count_up(counter, last) if lane == 0 else following

    return SimpleNamespace(fill_of=fill_of, drawn=drawn, draw=draw)


def feeder(ops: SimpleNamespace, job: SimpleNamespace, hooks: SimpleNamespace) -> Any:
    """feed(ring, counter, j, h): the warp that fills stages, adds warp sums and finishes rows."""
    from numba import cuda

    asm, of = ring.statements(), tickets(ops, job)
    wait, load_word, store_word, is_null = asm.barrier_wait, asm.load_word, asm.store_word, asm.is_null
    fill_of, drawn, draw = of.fill_of, of.drawn, of.draw
    tickets_of, copy, arrive, prefetch = job.tickets, job.copy, job.arrive, job.prefetch
    total_of, finish, ahead_of, tell = job.total, job.finish, hooks.ahead, hooks.all_asked

    @ops.jit
    def fill(r, s, slot, first, rows, lane, j):  # stage s gets a fill, which is told of in its slot
        if rows > uint32(0):
            copy(r, s, first, rows, lane, j)
        if lane == 0:
            store_word(uint32(r[7] + uint32(4) * slot), int32(first))
            store_word(uint32(r[8] + uint32(4) * slot), int32(rows))

    @ops.jit
    def feed(r, counter, j, h):  # see above
        lane, step = int32(int32(cuda.threadIdx.x) & 31), uint32(cuda.gridDim.x)
        every, following, dealt = tickets_of(r, j), uint32(cuda.blockIdx.x), is_null(counter)
        first, rows = uint32(0), uint32(0)  # of the fill that comes next
        base, last, s = uint32(0), uint32(0), uint32(0)
        more, told = True, False  # whether there may be more fills; whether `all_asked` was told
        while s < r[0] and more:
            first, rows = fill_of(r, following, every, j)
            fill(r, s, s, first, rows, lane, j)
            arrive(r, s, lane)
            more = rows > uint32(0)
            following = uint32(following + step)
            s = uint32(s + uint32(1))
        if more:
            left, ticket = ahead_of(h), following
            while lane == 0 and left > uint32(0) and ticket < every:
                brought = fill_of(r, ticket, every, j)
                prefetch(r, brought[0], brought[1], j)
                ticket = uint32(ticket + step)
                left = uint32(left - uint32(1))
            if dealt:
                first, rows = fill_of(r, following, every, j)
                following = uint32(following + step)
            else:  # the number of draws is known, and the last of them wraps the counter to 0
                base = uint32(step * r[0])
                here = uint32(every + step - base) if every < base else step  # blocks that come here
                last = uint32(every + step - base + here - uint32(1))
                following = draw(counter, last, lane, following)
                first, rows = drawn(r, base, following, every, j)
                following = draw(counter, last, lane, following)
        s, phase = uint32(0), uint32(0)
        while True:
            if dealt and rows == uint32(0) and not told:
                told = True
                if lane == 0:
                    tell(h)
            cuda.syncwarp()
            odd = uint32(phase & uint32(1))
            slot = uint32(s + odd * r[0])
            full_rows = load_word(uint32(r[8] + uint32(4) * slot))
            full_first = load_word(uint32(r[7] + uint32(4) * slot))
            if full_rows == 0:
                break
            wait(uint32(r[6] + uint32(8) * slot), uint32(phase >> uint32(1)))
            if more:
                fill(r, s, uint32(s + (odd ^ uint32(1)) * r[0]), first, rows, lane, j)
            total = total_of(r, slot, full_rows, lane)
            if more:
                arrive(r, s, lane)
                more = rows > uint32(0)
                if more and dealt:
                    first, rows = fill_of(r, following, every, j)
                    following = uint32(following + step)
                elif more:
                    first, rows = drawn(r, base, following, every, j)
                    following = draw(counter, last, lane, following)
            finish(j, full_first, full_rows, lane, total)
            s = uint32(s + uint32(1))
            if s == r[0]:
                s, phase = uint32(0), uint32((phase + uint32(1)) & uint32(3))

    return feed


def form(ops: SimpleNamespace, rows: SimpleNamespace, job: SimpleNamespace, hooks: SimpleNamespace) -> Any:
    """run(ring, x8, nbe, counter, j, h): all that a block does whose feeder finishes."""
    from numba import cuda

    prepare, consume = ring_block.preparer(ops), ring_block.summer(ops, rows)
    make, await_them, arrivals = prepare.make, prepare.await_them, job.arrivals
    feed, before = feeder(ops, job, hooks), hooks.before_activations

    @ops.jit
    def run(r, x8, nbe, counter, j, h):  # see above
        thread = int32(cuda.threadIdx.x)
        warps = int32(int32(cuda.blockDim.x) >> 5)
        if thread >> 5 == warps - 1:
            make(r, int32(thread & 31), warps, 1, arrivals)
            feed(r, counter, j, h)
        else:
            await_them(warps)
            before(h)
            consume(r, x8, thread, int32(warps - 1), nbe)

    return run
