"""A ring's job for gate and up: SwiGLU of each pair of rows, and q8 of each group of 32, in one kernel.

Twin of kernels_cu/ring_gated.cuh, which says in which order tickets name a group's parts, how their sums
meet, and what the two warps beside the consumers do. j = (weights, q8, words, nf).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from numba import float32, int32, int64, uint32

from kernels_numba import q8, ring, ring_block, ring_feed, swiglu

GROUP, GROUP_ROWS, GROUP_WORDS = 32, 64, 10
LAST, UP = 1 << 30, 1 << 29
"""What a fill's first row tells besides the first pair."""

PAIR = UP - 1


def gated_job(ops: SimpleNamespace) -> SimpleNamespace:
    """The job of ring_feed.py. Its sums are the finisher's affair."""
    asm, advance = ring.statements(), ops.advance
    expect, copy_bulk, arrive_at = asm.barrier_expect, asm.bulk_copy, asm.barrier_arrive

    @ops.jit
    def tickets(r, j):  # see ring_feed.py's docstring, here and below
        return uint32(uint32(uint32(2) * j[3]) // r[1])

    @ops.jit
    def fill_of(r, ticket, j):
        groups, every = uint32(j[3] >> uint32(5)), uint32(ticket * r[1])
        turn, at = uint32(every >> uint32(6)), uint32(every & uint32(GROUP_ROWS - 1))
        back, after = uint32(uint32(at * groups) >> uint32(6)), uint32(at + r[1])
        wrapped = turn < back
        group = uint32(turn + groups - back) if wrapped else uint32(turn - back)
        following = uint32(group + uint32(uint32(after * groups) >> uint32(6)))
        first = uint32(group * uint32(GROUP) + uint32(at & uint32(GROUP - 1)))
        if at >= uint32(GROUP):
            first = uint32(first | uint32(UP))
        if not wrapped and (after == uint32(GROUP_ROWS) or following >= groups):
            first = uint32(first | uint32(LAST))
        return first, r[1]

    @ops.jit
    def copy(r, s, first, rows, lane, j):
        if lane == 0:
            size, full = uint32(r[1] * r[2]), uint32(r[5] + uint32(8) * s)
            row = uint32(first & uint32(PAIR))
            if first & uint32(UP):
                row = uint32(row + j[3])
            expect(full, size)
            copy_bulk(uint32(r[3] + s * size), advance(j[0], int64(row) * int64(r[2])), size, full)

    @ops.jit
    def arrive(r, s, lane):
        if lane == 0:
            arrive_at(uint32(r[5] + uint32(8) * s))

    @ops.jit
    def prefetch(r, first, rows, j):  # nobody asks for it
        return

    @ops.jit
    def total(r, slot, rows, lane):
        return float32(0.0)

    @ops.jit
    def finish(j, first, rows, lane, total):
        return

    return SimpleNamespace(
        arrivals=1 + 32, tickets=tickets, fill_of=fill_of, copy=copy, arrive=arrive, prefetch=prefetch,
        total=total, finish=finish,
    )  # fmt: skip


def _finisher(ops: SimpleNamespace) -> Any:
    """complete(ring, j, lane): the warp that takes the sums, and lets a slot be summed again."""
    from numba import cuda

    asm, store, gated = ring.statements(), q8.warp_store(ops), swiglu.functions(ops).swiglu
    arrive, wait, load_word, total_of = (
        asm.barrier_arrive, asm.barrier_wait, asm.load_word, ring_feed.totals(ops),
    )  # fmt: skip
    hand_over, handed_over, take_back, advance = asm.hand_over, asm.handed_over, asm.take_back, ops.advance
    bits, value = ops.bits_of_float, ops.float_of_bits

    @ops.jit
    def complete(r, j, lane):  # see above
        s, phase = uint32(0), uint32(0)
        while s < r[0]:
            arrive(uint32(r[5] + uint32(8) * s))
            s = uint32(s + uint32(1))
        s, row = uint32(0), uint32(uint32(lane) & uint32(r[1] - uint32(1)))
        while True:
            full, odd = uint32(r[5] + uint32(8) * s), uint32(phase & uint32(1))
            slot = uint32(s + odd * r[0])
            wait(full, odd)
            if load_word(uint32(r[8] + uint32(4) * slot)) == 0:
                break
            told = uint32(load_word(uint32(r[7] + uint32(4) * slot)))
            arrive(full)
            here = int32(lane - int32(told & uint32(GROUP - 1)))
            mine, up, last = here >= 0 and here < int32(r[1]), told & uint32(UP), told & uint32(LAST)
            group = uint32(uint32(told & uint32(PAIR)) >> uint32(5))
            at = advance(j[2], int64(uint32(2) * (group * uint32(GROUP) + uint32(lane))))  # the lane's pair's
            gate_word, up_word = uint32(0), uint32(0)
            if last:
                gate_word, up_word = handed_over(at)
            wait(uint32(r[6] + uint32(8) * slot), uint32(phase >> uint32(1)))
            total = uint32(~uint32(bits(total_of(r, slot, row))))
            if last:
                own_gate = total if mine and not up else uint32(0)
                own_up = total if mine and up else uint32(0)
                gate_word, up_word = uint32(gate_word | own_gate), uint32(up_word | own_up)
                while not cuda.all_sync(0xFFFFFFFF, gate_word != uint32(0) and up_word != uint32(0)):
                    both = handed_over(at)
                    gate_word, up_word = uint32(both[0] | own_gate), uint32(both[1] | own_up)
                take_back(at)
                h = gated(value(uint32(~gate_word)), value(uint32(~up_word)))
                store(h, j[1], int32(group * uint32(GROUP_WORDS)))
            elif mine:
                hand_over(advance(at, int64(1) if up else int64(0)), total)
            s = uint32(s + uint32(1))
            if s == r[0]:
                s, phase = uint32(0), uint32((phase + uint32(1)) & uint32(3))

    return complete


def form(ops: SimpleNamespace, rows: SimpleNamespace) -> Any:
    """run(ring, x8, nbe, counter, j): all that a block does. Its last warp finishes, the one before feeds."""
    from numba import cuda

    prepare, consume, job = ring_block.preparer(ops), ring_block.summer(ops, rows), gated_job(ops)
    make, await_them, arrivals = prepare.make, prepare.await_them, job.arrivals
    feed, complete = ring_feed.feeder(ops, job, ring_feed.no_hooks(ops)), _finisher(ops)

    @ops.jit
    def run(r, x8, nbe, counter, j):  # see above
        thread = int32(cuda.threadIdx.x)
        warps, lane = int32(int32(cuda.blockDim.x) >> 5), int32(thread & 31)
        role = int32(warps - 1 - int32(thread >> 5))
        if role == 1:
            make(r, lane, warps, 2, arrivals)
            feed(r, counter, j, 0)
        else:
            await_them(warps)
            if role == 0:
                complete(r, j, lane)
            else:
                consume(r, x8, thread, int32(warps - 2), nbe)

    return run
