"""A ring's job for gate and up: SwiGLU of row pairs, q8 of groups of 32, in one kernel.

kernels_cu/ring_gated.cuh says how and why. j = (weights, q8, words, nf).
"""

from types import SimpleNamespace
from typing import Any

from numba import float32, int32, int64, uint32

from kernels_numba import q8, ring, ring_block, ring_feed, swiglu
from kernels_numba.ops import once
from kernels_numba.ring_rows import COUNT, FIRST, FULL, SUMMED, TOLD

GROUP, GROUP_WORDS = 32, 10
LAST, UP = 1 << 30, 1 << 29  # what a tile's first row tells besides the first pair
PAIR = UP - 1


@once
def gated_job(ops: SimpleNamespace) -> SimpleNamespace:
    """The job of ring_feed.py; the finisher takes its sums."""
    asm, advance = ring.statements(), ops.advance
    expect, copy_bulk, arrive_at = asm.barrier_expect, asm.bulk_copy, asm.barrier_arrive

    @ops.jit
    def tickets(r, j):  # see ring_feed.py's docstring, here and below
        return uint32(uint32(uint32(2) * j[3]) // r[1])

    @ops.jit
    def fill_of(r, ticket, j):
        row, mask = uint32(ticket * r[1]), uint32(GROUP - 1)
        if row < j[3]:
            return row, r[1]
        groups, turn = uint32(j[3] >> uint32(5)), uint32(uint32(row - j[3]) >> uint32(5))
        at, after = uint32(row & mask), uint32((row & mask) + r[1])
        back = uint32(uint32(at * groups) >> uint32(5))
        wrapped = turn < back
        group = uint32(turn + groups - back) if wrapped else uint32(turn - back)
        following = uint32(group + uint32(uint32(after * groups) >> uint32(5)))
        first = uint32(uint32(group * uint32(GROUP) + at) | uint32(UP))
        if not wrapped and (after == uint32(GROUP) or following >= groups):
            first = uint32(first | uint32(LAST))
        return first, r[1]

    @ops.jit
    def copy(r, to, slot, first, rows, lane, j):
        if lane == 0:
            size, full = uint32(r[1] * r[2]), uint32(slot + uint32(FULL))
            row = uint32(first & uint32(PAIR))
            if first & uint32(UP):
                row = uint32(row + j[3])
            expect(full, size)
            copy_bulk(to, advance(j[0], int64(row) * int64(r[2])), size, full)

    @ops.jit
    def arrive(slot, lane):
        if lane == 0:
            arrive_at(uint32(slot + uint32(TOLD)))
            arrive_at(uint32(slot + uint32(FULL)))

    @ops.jit
    def arrive_first(slot):  # for the finisher, which has seen no tile yet
        arrive_at(uint32(slot + uint32(FULL)))

    @ops.jit
    def prefetch(r, first, rows, j):  # nobody asks for it
        return

    @ops.jit
    def finish(r, at, j, first, rows, lane):
        return

    return SimpleNamespace(
        arrivals=1 + 32, tickets=tickets, fill_of=fill_of, copy=copy, arrive=arrive,
        arrive_first=arrive_first, prefetch=prefetch, finish=finish,
    )  # fmt: skip


@once
def _finisher(ops: SimpleNamespace) -> Any:  # the warp that takes the sums, and lets a slot be summed again
    from numba import cuda

    asm, store, gated = ring.statements(), q8.warp_store(ops), swiglu.functions(ops).silu
    arrive, wait, load_word, total_of = (
        asm.barrier_arrive, asm.barrier_wait, asm.load_word, ring_feed.totals(ops),
    )  # fmt: skip
    hand_over, handed_over, take_back, advance = asm.hand_over, asm.handed_over, asm.take_back, ops.advance
    bits, value, mul = ops.bits_of_float, ops.float_of_bits, ops.mul
    place = ring_block.places(ops)
    start, go_on, after = place.start, place.go_on, place.after

    @ops.jit
    def words_of(j, told, lane):  # the lane's pair's, in the group that a tile belongs to
        pair = uint32(uint32(uint32(told & uint32(PAIR)) & uint32(~uint32(GROUP - 1))) + uint32(lane))
        return advance(j[2], int64(uint32(2) * pair))

    @ops.jit
    def told_of(j, at, lane):  # a tile's first row and its rows, what is there by now of its group
        wait(uint32(at[2] + uint32(TOLD)), at[3])
        rows = load_word(uint32(at[2] + uint32(COUNT)))
        first = uint32(load_word(uint32(at[2] + uint32(FIRST))))
        gate_word, up_word = uint32(0), uint32(0)
        if rows != 0 and first & uint32(LAST):
            gate_word, up_word = handed_over(words_of(j, first, lane))
        return rows, first, gate_word, up_word

    @ops.jit
    def complete(r, j, lane):  # see above
        row, following = uint32(uint32(lane) & uint32(r[1] - uint32(1))), start(r)
        coming = told_of(j, following, lane)
        while coming[0] != 0:
            at, told, gate_word, up_word = following, coming[1], coming[2], coming[3]
            arrive(uint32(after(r, at[2]) + uint32(FULL)))
            following = go_on(r, at)
            coming = told_of(j, following, lane)
            words, last, gate = words_of(j, told, lane), told & uint32(LAST), float32(0.0)
            if last:
                while not cuda.all_sync(0xFFFFFFFF, gate_word != uint32(0)):
                    gate_word, up_word = handed_over(words)
                gate = gated(value(uint32(~gate_word)))
            wait(uint32(at[2] + uint32(SUMMED)), at[3])
            here = int32(lane - int32(told & uint32(GROUP - 1)))
            mine = here >= 0 and here < int32(r[1])
            total = uint32(~uint32(bits(total_of(r, at[1], row))))
            if last:
                while not cuda.all_sync(0xFFFFFFFF, mine or up_word != uint32(0)):
                    gate_word, up_word = handed_over(words)
                take_back(words)
                up_word = total if mine else up_word
                group = uint32(uint32(told & uint32(PAIR)) >> uint32(5))
                store(mul(gate, value(uint32(~up_word))), j[1], int32(group * uint32(GROUP_WORDS)))
            elif mine:
                hand_over(advance(words, int64(1) if told & uint32(UP) else int64(0)), total)

    return complete


@once
def form(ops: SimpleNamespace, rows: SimpleNamespace) -> Any:
    """run(ring, x8, nbe, counter, j): a block; its last warp finishes, the one before is the producer."""
    from numba import cuda

    prepare, summer, job = ring_block.preparer(ops), ring_block.summer(ops, rows), gated_job(ops)
    make, await_them, arrivals = prepare.make, prepare.await_them, job.arrivals
    me_of, first_of, consume = summer.me_of, summer.first_of, summer.consume
    feed, complete = ring_feed.feeder(ops, job, ring_feed.no_hooks(ops)), _finisher(ops)

    @ops.jit
    def run(r, x8, nbe, counter, j):  # see above
        thread = int32(cuda.threadIdx.x)
        warps, lane = int32(int32(cuda.blockDim.x) >> 5), int32(thread & 31)
        role = int32(warps - 1 - int32(thread >> 5))
        if role == 1:
            make(r, lane, warps, 2, arrivals)
            feed(r, counter, j, 0)
        else:  # one place to wait for the block: see ring.cuh's ring_sum
            me = me_of(r, thread, warps, 2, nbe)
            first = first_of(x8, me, nbe)
            await_them(warps)
            if role == 0:
                complete(r, j, lane)
            else:
                consume(r, first, x8, me, nbe)

    return run
