"""A ring's job for gate and up: SwiGLU of each pair of rows, and q8 of each group of 32, in one kernel.

Twin of kernels_cu/ring_gated.cuh, which says which groups a block owns, how the others are shared, and what
the two warps beside the consumers do. Two tuples travel beside the ring:

    j  weights, q8, words, nf, pairs of a fill, own groups of a block, own fills kept for the end
    t  the feeder's: own group and part of it, own fills left, the ticket drawn last, whether there may be
       more tickets, whether there may be more fills
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from numba import float32, int32, int64, uint32

from kernels_numba import q8, ring, ring_block, ring_feed, swiglu

GROUP, GROUP_WORDS = 32, 10


def _feeder(ops: SimpleNamespace) -> Any:
    """feed(ring, j, lane, warps): the warp that makes the barriers and fills stages; its lane 0 does."""
    from numba import cuda

    asm = ring.statements()
    expect, copy, store_word, arrive, wait, count_up, load_word = (
        asm.barrier_expect, asm.bulk_copy, asm.store_word, asm.barrier_arrive, asm.barrier_wait, asm.draw,
        asm.load_word,
    )  # fmt: skip
    advance, make = ops.advance, ring_block.preparer(ops).make

    @ops.jit
    def land(r, s, slot, first, j):  # gate rows from `first` on, then as many up rows
        store_word(uint32(r[7] + uint32(4) * slot), int32(first))
        store_word(uint32(r[8] + uint32(4) * slot), int32(uint32(2) * j[4]))
        size, full = uint32(j[4] * r[2]), uint32(r[5] + uint32(8) * s)
        to, stride = uint32(r[3] + s * r[1] * r[2]), int64(r[2])
        expect(full, uint32(uint32(2) * size))
        copy(to, advance(j[0], int64(first) * stride), size, full)
        copy(uint32(to + size), advance(j[0], int64(uint32(j[3] + first)) * stride), size, full)

    @ops.jit
    def shared_of(j):  # the first pair that is shared
        return uint32(j[5] * uint32(cuda.gridDim.x) * uint32(GROUP))

    @ops.jit
    def tickets_of(j):  # fills that are shared
        return uint32((j[3] - shared_of(j)) // j[4])

    @ops.jit
    def draw(j):  # what is drawn is not used before the next fill; the last draw of all sets the counter back
        at = advance(j[2], int64(uint32(2) * j[3]))  # behind the pairs' words
        return count_up(at, uint32(tickets_of(j) + uint32(cuda.gridDim.x) - uint32(1)))

    @ops.jit
    def begin(j):  # -> t
        left, ticket, some = uint32(j[5] * (uint32(GROUP) // j[4])), uint32(0), tickets_of(j) > uint32(0)
        if some and left <= j[6]:
            ticket = draw(j)
        return uint32(cuda.blockIdx.x), uint32(0), left, ticket, some, True

    @ops.jit
    def own_fill(r, s, slot, j, t):  # -> t
        group, part = t[0], t[1]
        land(r, s, slot, uint32(group * uint32(GROUP) + part), j)
        part = uint32(part + j[4])
        if part == uint32(GROUP):
            group, part = uint32(group + uint32(cuda.gridDim.x)), uint32(0)
        return group, part, uint32(t[2] - uint32(1)), t[3], t[4], t[5]

    @ops.jit
    def fill(r, s, phase, j, t):  # -> t; once there is nothing left, the fill ends the work
        slot = uint32(s + phase * r[0])
        if t[2] > j[6]:
            u = own_fill(r, s, slot, j, t)
            ticket = u[3]
            if t[4] and u[2] == j[6]:
                ticket = draw(j)
            return u[0], u[1], u[2], ticket, t[4], True
        if t[4] and t[3] < tickets_of(j):
            land(r, s, slot, uint32(shared_of(j) + t[3] * j[4]), j)
            return t[0], t[1], t[2], draw(j), True, True
        if t[2] > uint32(0):
            u = own_fill(r, s, slot, j, t)
            return u[0], u[1], u[2], u[3], False, True
        store_word(uint32(r[8] + uint32(4) * slot), int32(0))
        arrive(uint32(r[5] + uint32(8) * s))
        return t[0], t[1], t[2], t[3], False, False

    @ops.jit
    def feed(r, j, lane, warps):  # see above
        t = uint32(0), uint32(0), uint32(0), uint32(0), False, False
        s, parity = uint32(0), uint32(0)
        if lane == 0:
            t = begin(j)
        make(r, lane, warps, 2, 1 + 32)  # while the first draw is under way
        if lane == 0:
            while s < r[0] and t[5]:
                t = fill(r, s, parity, j, t)
                s = uint32(s + uint32(1))
        cuda.syncwarp()
        s = uint32(0)
        while load_word(uint32(r[8] + uint32(4) * (s + parity * r[0]))) != 0:
            wait(uint32(r[6] + uint32(8) * s), parity)
            if t[5]:
                t = fill(r, s, uint32(parity ^ uint32(1)), j, t)
            s = uint32(s + uint32(1))
            if s == r[0]:
                s, parity = uint32(0), uint32(parity ^ uint32(1))
            cuda.syncwarp()

    return feed


def _finisher(ops: SimpleNamespace) -> Any:
    """complete(ring, j, lane): the warp that takes the sums, and lets a stage be summed again."""
    from numba import cuda

    asm, store, gated = ring.statements(), q8.warp_store(ops), swiglu.functions(ops).swiglu
    arrive, wait, load_word, total_of = (
        asm.barrier_arrive, asm.barrier_wait, asm.load_word, ring_feed.totals(ops),
    )  # fmt: skip
    hand_over, handed_over, advance = asm.hand_over, asm.handed_over, ops.advance
    bits, value = ops.bits_of_float, ops.float_of_bits

    @ops.jit
    def quantise(j, group, gate, up):  # lane k has the sums of the group's pair k
        store(gated(gate, up), j[1], int32(group * uint32(GROUP_WORDS)))

    @ops.jit
    def share(j, pair, gate, up):  # one pair's sums, inverted: 0 says that there are none
        at = advance(j[2], int64(uint32(2) * pair))
        hand_over(at, uint32(~uint32(bits(gate))), uint32(~uint32(bits(up))))

    @ops.jit
    def settle(j, group, lane, to_the_end):  # -> whether a shared group's words were there; if so, quantised
        at = advance(j[2], int64(uint32(2) * (group * uint32(GROUP) + uint32(lane))))
        both = handed_over(at)
        while not cuda.all_sync(0xFFFFFFFF, (both[0] | both[1]) != uint32(0)):
            if not to_the_end:
                return False
            both = handed_over(at)
        hand_over(at, uint32(0), uint32(0))
        quantise(j, group, value(uint32(~both[0])), value(uint32(~both[1])))
        return True

    @ops.jit
    def complete(r, j, lane):  # see above
        shared, pairs = uint32(j[5] * uint32(cuda.gridDim.x) * uint32(GROUP)), int32(j[4])
        s, parity = uint32(0), uint32(0)
        while s < r[0]:
            arrive(uint32(r[5] + uint32(8) * s))
            s = uint32(s + uint32(1))
        s, gate, up = uint32(0), float32(0.0), float32(0.0)
        due, owing = uint32(0), False  # a shared group whose last fill was this block's, not quantised yet
        while True:
            full, slot = uint32(r[5] + uint32(8) * s), uint32(s + parity * r[0])
            wait(full, parity)
            first = uint32(load_word(uint32(r[7] + uint32(4) * slot)))
            if load_word(uint32(r[8] + uint32(4) * slot)) == 0:
                break
            wait(uint32(r[6] + uint32(8) * s), parity)
            total = total_of(r, s, lane < 2 * pairs, lane)
            arrive(full)
            group, at = uint32(first >> uint32(5)), int32(first & uint32(GROUP - 1))
            here = int32(lane - at)
            of_gate = cuda.shfl_sync(0xFFFFFFFF, total, here & 31)
            of_up = cuda.shfl_sync(0xFFFFFFFF, total, (here + pairs) & 31)
            mine, last, own = here >= 0 and here < pairs, at + pairs == GROUP, first < shared
            if own:
                if mine:
                    gate, up = of_gate, of_up
                if last:
                    quantise(j, group, gate, up)
            elif mine:
                share(j, uint32(first + uint32(here)), of_gate, of_up)
            more = last and not own  # one more is due: none may be left then
            if owing and settle(j, due, lane, more):
                owing = False
            if more:
                due, owing = group, True
            s = uint32(s + uint32(1))
            if s == r[0]:
                s, parity = uint32(0), uint32(parity ^ uint32(1))
        if owing:
            settle(j, due, lane, True)

    return complete


def form(ops: SimpleNamespace, rows: SimpleNamespace) -> Any:
    """run(ring, x8, nbe, j): all that a block does. Its last warp finishes, the one before feeds."""
    from numba import cuda

    await_them, consume = ring_block.preparer(ops).await_them, ring_block.summer(ops, rows)
    feed, complete = _feeder(ops), _finisher(ops)

    @ops.jit
    def run(r, x8, nbe, j):  # see above
        thread = int32(cuda.threadIdx.x)
        warps, lane = int32(int32(cuda.blockDim.x) >> 5), int32(thread & 31)
        role = int32(warps - 1 - int32(thread >> 5))
        if role == 1:
            feed(r, j, lane, warps)
        else:
            await_them(warps)
            if role == 0:
                complete(r, j, lane)
            else:
                consume(r, x8, thread, int32(warps - 2), nbe)

    return run
