"""A ring's job for gate and up: SwiGLU of each pair of rows, and q8 of each group of 32, in one kernel.

Twin of kernels_cu/ring_gated.cuh, which says which groups a block owns, how the others are shared, and why
the finisher is a warp of its own. Three tuples travel beside the ring:

    j  weights, sums, q8, counters, nf, pairs of a fill, own groups of a block, own fills kept for the end
    t  the feeder's: own group and part of it, own fills left, the ticket drawn last, whether there may be
       more tickets, whether there may be more fills
    n  the finisher's: this lane's shared group, how many are noted, what this one's counter is at, whether
       they were counted in
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from numba import float32, int32, int64, uint32

from kernels_numba import q8, ring, ring_block, ring_feed, swiglu

GROUP, GROUP_WORDS = 32, 10


def _feeder(ops: SimpleNamespace) -> Any:
    """feed(ring, j): one lane that fills stages, and nothing else."""
    from numba import cuda

    asm = ring.statements()
    expect, copy, store_word, arrive, wait, count_up = (
        asm.barrier_expect, asm.bulk_copy, asm.store_word, asm.barrier_arrive, asm.barrier_wait, asm.draw,
    )  # fmt: skip
    advance = ops.advance

    @ops.jit
    def land(r, s, slot, first, j):  # gate rows from `first` on, then as many up rows
        store_word(uint32(r[7] + uint32(4) * slot), int32(first))
        store_word(uint32(r[8] + uint32(4) * slot), int32(uint32(2) * j[5]))
        size, full = uint32(j[5] * r[2]), uint32(r[5] + uint32(8) * s)
        to, stride = uint32(r[3] + s * r[1] * r[2]), int64(r[2])
        expect(full, uint32(uint32(2) * size))
        copy(to, advance(j[0], int64(first) * stride), size, full)
        copy(uint32(to + size), advance(j[0], int64(uint32(j[4] + first)) * stride), size, full)

    @ops.jit
    def shared_of(j):  # the first pair that is shared
        return uint32(j[6] * uint32(cuda.gridDim.x) * uint32(GROUP))

    @ops.jit
    def tickets_of(j):  # fills that are shared
        return uint32((j[4] - shared_of(j)) // j[5])

    @ops.jit
    def draw(j):  # what is drawn is not used before the next fill; the last draw of all sets the counter back
        at = advance(j[3], int64(uint32(j[4] // uint32(GROUP))))
        return count_up(at, uint32(tickets_of(j) + uint32(cuda.gridDim.x) - uint32(1)))

    @ops.jit
    def begin(j):  # -> t
        left, ticket, some = uint32(j[6] * (uint32(GROUP) // j[5])), uint32(0), tickets_of(j) > uint32(0)
        if some and left <= j[7]:
            ticket = draw(j)
        return uint32(cuda.blockIdx.x), uint32(0), left, ticket, some, True

    @ops.jit
    def own_fill(r, s, slot, j, t):  # -> t
        group, part = t[0], t[1]
        land(r, s, slot, uint32(group * uint32(GROUP) + part), j)
        part = uint32(part + j[5])
        if part == uint32(GROUP):
            group, part = uint32(group + uint32(cuda.gridDim.x)), uint32(0)
        return group, part, uint32(t[2] - uint32(1)), t[3], t[4], t[5]

    @ops.jit
    def fill(r, s, phase, j, t):  # -> t; once there is nothing left, the fill ends the work
        slot = uint32(s + phase * r[0])
        if t[2] > j[7]:
            u = own_fill(r, s, slot, j, t)
            ticket = u[3]
            if t[4] and u[2] == j[7]:
                ticket = draw(j)
            return u[0], u[1], u[2], ticket, t[4], True
        if t[4] and t[3] < tickets_of(j):
            land(r, s, slot, uint32(shared_of(j) + t[3] * j[5]), j)
            return t[0], t[1], t[2], draw(j), True, True
        if t[2] > uint32(0):
            u = own_fill(r, s, slot, j, t)
            return u[0], u[1], u[2], u[3], False, True
        store_word(uint32(r[8] + uint32(4) * slot), int32(0))
        arrive(uint32(r[5] + uint32(8) * s))
        return t[0], t[1], t[2], t[3], False, False

    @ops.jit
    def feed(r, j):  # see above
        t = begin(j)
        s, parity = uint32(0), uint32(0)
        while s < r[0] and t[5]:
            t = fill(r, s, parity, j, t)
            s = uint32(s + uint32(1))
        s = uint32(0)
        while t[5]:
            wait(uint32(r[6] + uint32(8) * s), parity)
            t = fill(r, s, uint32(parity ^ uint32(1)), j, t)
            s = uint32(s + uint32(1))
            if s == r[0]:
                s, parity = uint32(0), uint32(parity ^ uint32(1))

    return feed


def _sharing(ops: SimpleNamespace, quantise: Any) -> SimpleNamespace:
    """note(n, group, lane) -> n, step(j, lane, n) -> n, settle(j, lane, n) -> n: groups that blocks share."""
    from numba import cuda

    asm = ring.statements()
    atomic_add, fence, load_from_l2, advance = asm.atomic_add, asm.fence, asm.load_from_l2, ops.advance

    @ops.jit
    def note(n, group, lane):  # a fill of this group was stored
        mine = group if uint32(lane) == n[1] else n[0]
        return mine, uint32(n[1] + uint32(1)), n[2], n[3]

    @ops.jit
    def count(j, lane, n):  # counts what was noted in
        cuda.syncwarp()
        total = n[2]
        if uint32(lane) < n[1]:
            fence()
            total = uint32(atomic_add(advance(j[3], int64(n[0])), j[5]) + j[5])
        return n[0], n[1], total, True

    @ops.jit
    def finish(j, lane, n):  # quantises the groups that are complete
        fence()
        k = uint32(0)
        while k < n[1]:
            if uint32(cuda.shfl_sync(0xFFFFFFFF, int32(n[2]), int32(k))) == uint32(GROUP):
                which = int32(cuda.shfl_sync(0xFFFFFFFF, int32(n[0]), int32(k)))
                gate = advance(j[1], int64(int32(which * GROUP + lane)))
                quantise(j, which, load_from_l2(gate), load_from_l2(advance(gate, int64(j[4]))))
                if lane == 0:
                    j[3][which] = uint32(0)
            k = uint32(k + uint32(1))
        return n[0], uint32(0), n[2], False

    @ops.jit
    def step(j, lane, n):  # one of the two, if there is anything to do
        if n[1] > uint32(0):
            if n[3]:
                n = finish(j, lane, n)
            else:
                n = count(j, lane, n)
        return n

    @ops.jit
    def settle(j, lane, n):  # both
        while n[1] > uint32(0):
            n = step(j, lane, n)
        return n

    return SimpleNamespace(note=note, step=step, settle=settle)


def _finisher(ops: SimpleNamespace) -> Any:
    """complete(ring, j, lane): the warp that takes the sums, and lets a stage be summed again."""
    from numba import cuda

    asm, store, gated = ring.statements(), q8.warp_store(ops), swiglu.functions(ops).swiglu
    arrive, wait, load_word, total_of = (
        asm.barrier_arrive, asm.barrier_wait, asm.load_word, ring_feed.totals(ops),
    )  # fmt: skip

    @ops.jit
    def quantise(j, group, gate, up):  # lane k has the sums of the group's pair k
        store(gated(gate, up), j[2], int32(group * GROUP_WORDS))

    sharing = _sharing(ops, quantise)
    note, step, settle = sharing.note, sharing.step, sharing.settle

    @ops.jit
    def place(j, lane, first, total, gate, up):  # -> this lane's sums of the own group under way
        at, pairs = int32(first & uint32(GROUP - 1)), int32(j[5])
        of_gate = cuda.shfl_sync(0xFFFFFFFF, total, (lane - at) & 31)
        of_up = cuda.shfl_sync(0xFFFFFFFF, total, (lane - at + pairs) & 31)
        if lane >= at and lane < at + pairs:
            gate, up = of_gate, of_up
        if at + pairs == GROUP:
            quantise(j, int32(first >> uint32(5)), gate, up)
        return gate, up

    @ops.jit
    def complete(r, j, lane):  # see above
        shared, pairs = uint32(j[6] * uint32(cuda.gridDim.x) * uint32(GROUP)), int32(j[5])
        n = uint32(0), uint32(0), uint32(0), False
        s, parity = uint32(0), uint32(0)
        while s < r[0]:
            arrive(uint32(r[5] + uint32(8) * s))
            s = uint32(s + uint32(1))
        s, gate, up = uint32(0), float32(0.0), float32(0.0)
        while True:
            full, slot = uint32(r[5] + uint32(8) * s), uint32(s + parity * r[0])
            wait(full, parity)
            first = uint32(load_word(uint32(r[7] + uint32(4) * slot)))
            if load_word(uint32(r[8] + uint32(4) * slot)) == 0:
                break
            wait(uint32(r[6] + uint32(8) * s), parity)
            total = total_of(r, s, lane < 2 * pairs, lane)
            arrive(full)
            if first >= shared:
                if n[1] == uint32(32):
                    n = settle(j, lane, n)
                if lane < 2 * pairs:
                    further = int32(0) if lane < pairs else int32(int32(j[4]) - pairs)
                    j[1][int32(int32(first) + lane + further)] = total
                n = note(n, uint32(first >> uint32(5)), lane)
            else:
                gate, up = place(j, lane, first, total, gate, up)
                n = step(j, lane, n)
            s = uint32(s + uint32(1))
            if s == r[0]:
                s, parity = uint32(0), uint32(parity ^ uint32(1))
        settle(j, lane, n)

    return complete


def form(ops: SimpleNamespace, rows: SimpleNamespace) -> Any:
    """run(ring, x8, nbe, j): all that a block does. Its last warp finishes, the one before feeds."""
    from numba import cuda

    prepare, consume = ring_block.preparer(ops), ring_block.summer(ops, rows)
    make, await_them, clear = prepare.make, prepare.await_them, prepare.clear
    feed, complete = _feeder(ops), _finisher(ops)

    @ops.jit
    def run(r, x8, nbe, j):  # see above
        thread = int32(cuda.threadIdx.x)
        warps, lane = int32(int32(cuda.blockDim.x) >> 5), int32(thread & 31)
        role = int32(warps - 1 - int32(thread >> 5))
        if role == 0:
            await_them(warps)
            complete(r, j, lane)
        elif role == 1:
            make(r, lane, warps, 2, 1 + 32)
            if lane == 0:
                feed(r, j)
        else:
            clear(r, thread, warps, 2)
            consume(r, x8, thread, int32(warps - 2), nbe)

    return run
