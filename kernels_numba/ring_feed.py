"""The producer warp of a ring: twin of kernels_cu/ring_feed.cuh, which says how and why.

A block is put together from three namespaces. A tile travels as its first row and its rows, 0 at the end:

    rows   how a row of the weight format is summed, see ring_rows.py
    job    what a ticket names, `row_job`, `copied_row_job` or ring_gated.py's; its values travel as tuple j
             arrivals                                    complete a full barrier besides bulk copies' bytes
             tickets(ring, j)                            how many there are
             fill_of(ring, ticket, j)                    first row and rows
             copy(ring, to, slot, first, rows, lane, j)  the warp: into a stage
             arrive(slot, lane)                          the warp, after all else that a tile takes
             arrive_first(slot)                          of a stage's first tile, for who else takes the sums
             prefetch(ring, first, rows, j)              lane 0: into L2
             finish(ring, at, j, first, rows, lane)      the warp: takes the sums at a place, if it does
    hooks  what a kernel does besides, `no_hooks` or l2_ring.py's; its values travel as tuple h
             ahead(h)                                    tickets past the stages to be brought into L2
             before_activations(h)                       every consumer
             all_asked(h)                                lane 0, static schedule: the last tile was asked for
"""

from types import SimpleNamespace
from typing import Any

from numba import float32, int32, int64, uint32

from kernels_numba import ring, ring_block
from kernels_numba.ops import once
from kernels_numba.ring_rows import COUNT, EMPTY, FIRST, FULL, SLOT, SUMMED


@once
def row_job(ops: SimpleNamespace) -> SimpleNamespace:
    """j = (weights, out, od): a ticket is the ring's rows of `od`, by bulk copies; each sum is stored."""
    asm, total_of = ring.statements(), totals(ops)
    expect, copy_bulk, bulk, arrive_at = (
        asm.barrier_expect, asm.bulk_copy, asm.bulk_prefetch, asm.barrier_arrive,
    )  # fmt: skip
    advance, wait = ops.advance, asm.barrier_wait

    @ops.jit
    def tickets(r, j):  # see the module's docstring, here and below
        return uint32((j[2] + r[1] - uint32(1)) // r[1])

    @ops.jit
    def fill_of(r, ticket, j):
        first = uint32(ticket * r[1])
        return first, uint32(min(uint32(j[2] - first), r[1]))

    @ops.jit
    def copy(r, to, slot, first, rows, lane, j):
        if lane == 0:
            size, full = uint32(rows * r[2]), uint32(slot + uint32(FULL))
            expect(full, size)
            copy_bulk(to, advance(j[0], int64(first) * int64(r[2])), size, full)

    @ops.jit
    def arrive(slot, lane):
        arrive_at(uint32(slot + uint32(FULL)))

    @ops.jit
    def arrive_first(slot):  # the producer warp takes them
        return

    @ops.jit
    def prefetch(r, first, rows, j):
        bulk(advance(j[0], int64(first) * int64(r[2])), uint32(rows * r[2]))

    @ops.jit
    def finish(r, at, j, first, rows, lane):
        wait(uint32(at[2] + uint32(SUMMED)), at[3])
        total = total_of(r, at[1], uint32(lane) if lane < rows else uint32(0))
        if lane < rows:
            j[1][int32(first + lane)] = total

    return SimpleNamespace(
        arrivals=32, tickets=tickets, fill_of=fill_of, copy=copy, arrive=arrive, arrive_first=arrive_first,
        prefetch=prefetch, finish=finish,
    )  # fmt: skip


@once
def copied_row_job(ops: SimpleNamespace) -> SimpleNamespace:
    """The same by copies of 16 bytes, the producer warp's lanes by turns: ring_feed.cuh's CopiedRows."""
    plain, asm = row_job(ops), ring.statements()
    copy16, arrive_at, arrive_copied, advance = (
        asm.copy_16, asm.barrier_arrive, asm.barrier_arrive_copied, ops.advance,
    )  # fmt: skip

    @ops.jit
    def copy(r, to, slot, first, rows, lane, j):  # see the module's docstring, here and below
        size, at = uint32(rows * r[2]), uint32(uint32(16) * uint32(lane))
        source = advance(j[0], int64(first) * int64(r[2]))
        while at < size:
            copy16(uint32(to + at), advance(source, int64(at)))
            at = uint32(at + uint32(512))

    @ops.jit
    def arrive(slot, lane):
        full = uint32(slot + uint32(FULL))
        arrive_copied(full)
        arrive_at(full)

    return SimpleNamespace(**{**vars(plain), "arrivals": 64, "copy": copy, "arrive": arrive})


@once
def no_hooks(ops: SimpleNamespace) -> SimpleNamespace:  # h is of no use
    @ops.jit
    def ahead(h):  # nothing is fetched ahead
        return uint32(0)

    @ops.jit
    def nothing(h):  # nor is anything done
        return

    return SimpleNamespace(ahead=ahead, before_activations=nothing, all_asked=nothing)


@once
def totals(ops: SimpleNamespace) -> Any:
    """total(ring, sums, row): a row's warp sums, one after another; those without a unit are not added."""
    load_floats, add = ring.statements().load_floats, ops.add
    size = ring_block.SUM_BYTES

    @ops.jit
    def some(result, v, warps):  # the first so many of four, one at least
        result = add(result, v[0])
        result = add(result, v[1]) if warps > 1 else result
        result = add(result, v[2]) if warps > 2 else result
        return add(result, v[3]) if warps > 3 else result

    @ops.jit
    def total(r, sums, row):  # see above
        at, warps = uint32(sums + row * uint32(size)), int32(r[6])
        result = some(float32(0.0), load_floats(at), warps)
        if warps > 4:
            result = some(result, load_floats(uint32(at + uint32(16))), int32(warps - 4))
        return result

    return total


@once
def tickets(ops: SimpleNamespace, job: SimpleNamespace) -> SimpleNamespace:
    """fill_of(ring, ticket, every, j); drawn(ring, base, next, every, j); draw(counter, last, lane, next).

    every: how many tickets there are. next: a ticket; of a dynamic schedule, lane 0's draw.
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


@once
def feeder(ops: SimpleNamespace, job: SimpleNamespace, hooks: SimpleNamespace) -> Any:
    """feed(ring, counter, j, h): the producer warp fills stages, adds warp sums and finishes rows."""
    from numba import cuda

    asm, of, place = ring.statements(), tickets(ops, job), ring_block.places(ops)
    wait, load_word, store_word, is_null = asm.barrier_wait, asm.load_word, asm.store_word, asm.is_null
    fill_of, drawn, draw, after = of.fill_of, of.drawn, of.draw, place.after
    start, go_on, arrive, arrive_first = place.start, place.go_on, job.arrive, job.arrive_first
    tickets_of, copy, prefetch, finish = job.tickets, job.copy, job.prefetch, job.finish
    ahead_of, tell = hooks.ahead, hooks.all_asked

    @ops.jit
    def fill(r, to, slot, first, rows, lane, j):  # a stage gets a tile, which its slot tells of
        if rows > uint32(0):
            copy(r, to, slot, first, rows, lane, j)
        if lane == 0:
            store_word(uint32(slot + uint32(FIRST)), int32(first))
            store_word(uint32(slot + uint32(COUNT)), int32(rows))
        arrive(slot, lane)

    @ops.jit
    def feed(r, counter, j, h):  # see above
        lane, step = int32(int32(cuda.threadIdx.x) & 31), uint32(cuda.gridDim.x)
        every, following, dealt = tickets_of(r, j), uint32(cuda.blockIdx.x), is_null(counter)
        first, rows = uint32(0), uint32(0)  # of the tile that comes next
        base, last, s = uint32(0), uint32(0), uint32(0)
        more, told = True, False  # whether there may be more tiles; whether `all_asked` was told
        while s < r[0] and more:
            first, rows = fill_of(r, following, every, j)
            slot = uint32(r[5] + uint32(SLOT) * s)
            fill(r, uint32(r[3] + s * r[1] * r[2]), slot, first, rows, lane, j)
            arrive_first(slot)
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
            if not dealt:  # the number of draws is known, and the last of them wraps the counter to 0
                base = uint32(step * r[0])
                last = uint32(every + step - base - uint32(1))
                following = draw(counter, last, lane, following)
        at = start(r)
        while True:
            if more and dealt:
                first, rows = fill_of(r, following, every, j)
                following = uint32(following + step)
            elif more:
                first, rows = drawn(r, base, following, every, j)
            if dealt and rows == uint32(0) and not told:
                told = True
                if lane == 0:
                    tell(h)
            cuda.syncwarp()
            full_rows = load_word(uint32(at[2] + uint32(COUNT)))
            full_first = load_word(uint32(at[2] + uint32(FIRST)))
            if full_rows == 0:
                break
            if more:
                wait(uint32(at[2] + uint32(EMPTY)), at[3])
                fill(r, at[0], after(r, at[2]), first, rows, lane, j)
                more = rows > uint32(0)
                if more and not dealt:
                    following = draw(counter, last, lane, following)
            finish(r, at, j, full_first, full_rows, lane)
            at = go_on(r, at)

    return feed


@once
def form(ops: SimpleNamespace, rows: SimpleNamespace, job: SimpleNamespace, hooks: SimpleNamespace) -> Any:
    """run(ring, x8, nbe, counter, j, h): all that a block does whose producer warp finishes."""
    from numba import cuda

    prepare, summer, arrivals = ring_block.preparer(ops), ring_block.summer(ops, rows), job.arrivals
    make, await_them = prepare.make, prepare.await_them
    me_of, first_of, consume = summer.me_of, summer.first_of, summer.consume
    feed, before = feeder(ops, job, hooks), hooks.before_activations

    @ops.jit
    def run(r, x8, nbe, counter, j, h):  # see above
        thread = int32(cuda.threadIdx.x)
        warps = int32(int32(cuda.blockDim.x) >> 5)
        if thread >> 5 == warps - 1:
            make(r, int32(thread & 31), warps, 1, arrivals)
            feed(r, counter, j, h)
        else:
            before(h)
            me = me_of(r, thread, warps, 1, nbe)
            first = first_of(x8, me, nbe)  # on their way while the barriers are made
            await_them(warps)
            consume(r, first, x8, me, nbe)

    return run
