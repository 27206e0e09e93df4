"""L1 past the record: a persistent grid, each virtual thread's activations held in registers.

    ring    rows stream through shared memory by bulk copies (sm_90 and up)
    async   rows come by plain wide loads into registers, the next pass's before the current one is summed

Twins of kernels_cu/l1_ring.cu under the same names and with the same arguments; how a ring works is told
in kernels_cu/ring.cuh. ring: weights, pad40 activations, one result per row, ticket counter or null,
super-blocks per row, row stride, rows, rows per fill, stages. async: without the last two and the counter.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from numba import int32, int64, types, uint32

from kernels_numba import held, ring, ring_block
from kernels_numba.ops import gpu_ops
from probes.core.layouts import LAYOUTS, Layout

THREADS, VIRTUAL_WARPS = 256, 8
_BYTES, _FLOATS, _WORDS = (
    types.CPointer(types.uint8), types.CPointer(types.float32), types.CPointer(types.uint32),
)  # fmt: skip
_RING = types.void(_BYTES, _BYTES, _FLOATS, _WORDS, *[types.int32] * 5)
_ASYNC = types.void(_BYTES, _BYTES, _FLOATS, types.int32, types.int32, types.int32)


def butterflies(ops: SimpleNamespace) -> SimpleNamespace:
    """one(a, lane), two(a, b, lane), four(a, b, c, d, lane): a virtual warp's sums of that many rows at once.

    Lane k ends with the sum of row k // (32 // rows); see held.cuh's butterfly.
    """
    from numba import cuda

    add = ops.add

    @ops.jit
    def from4(v):  # offsets 4, 2, 1
        v = add(v, cuda.shfl_xor_sync(0xFFFFFFFF, v, 4))
        v = add(v, cuda.shfl_xor_sync(0xFFFFFFFF, v, 2))
        return add(v, cuda.shfl_xor_sync(0xFFFFFFFF, v, 1))

    @ops.jit
    def halve(a, b, lane, offset):  # keep one sum, hand the other over
        upper = (lane & offset) != 0
        keep, give = (b, a) if upper else (a, b)
        return add(keep, cuda.shfl_xor_sync(0xFFFFFFFF, give, offset))

    @ops.jit
    def one(a, lane):  # float32, int32 -> float32
        v = add(a, cuda.shfl_xor_sync(0xFFFFFFFF, a, 16))
        return from4(add(v, cuda.shfl_xor_sync(0xFFFFFFFF, v, 8)))

    @ops.jit
    def two(a, b, lane):  # the same
        v = halve(a, b, lane, 16)
        return from4(add(v, cuda.shfl_xor_sync(0xFFFFFFFF, v, 8)))

    @ops.jit
    def four(a, b, c, d, lane):  # the same
        return from4(halve(halve(a, c, lane, 16), halve(b, d, lane, 16), lane, 8))

    return SimpleNamespace(one=one, two=two, four=four)


def held_steps(ops: SimpleNamespace, unit: SimpleNamespace) -> dict[int, Any]:
    """K -> function (x8, thread, nbe) -> (held, place) * K: a thread's activations of its first K units."""
    hold, activation, place_of = unit.hold, unit.activation, unit.place
    pinned = ring.statements().pinned

    @ops.jit
    def step(x8, thread, k, nbe):  # -> held, place
        mine = int32(thread + int32(k * THREADS))
        owned = mine < int32(nbe * 8)
        u = mine if owned else int32(thread & 7)
        p = place_of(u, nbe)
        return hold(activation(x8, u), owned), (pinned(p[0]), pinned(p[1]), pinned(p[2]), pinned(p[3]))

    @ops.jit
    def one(x8, thread, nbe):  # K = 1
        return step(x8, thread, 0, nbe)

    @ops.jit
    def two(x8, thread, nbe):  # K = 2
        a, b = step(x8, thread, 0, nbe), step(x8, thread, 1, nbe)
        return a[0], a[1], b[0], b[1]

    @ops.jit
    def three(x8, thread, nbe):  # K = 3
        a, b, c = step(x8, thread, 0, nbe), step(x8, thread, 1, nbe), step(x8, thread, 2, nbe)
        return a[0], a[1], b[0], b[1], c[0], c[1]

    return {1: one, 2: two, 3: three}


def _shared_piece(ops: SimpleNamespace, grouped: bool) -> Any:
    """piece(row address, place): one unit's weights out of shared memory."""
    asm = ring.statements()
    load16, load8, load2 = asm.load16, asm.load8, asm.load2

    @ops.jit
    def group(row, at):  # uint32, place -> 8 words
        a = load16(uint32(row + at[0]))
        b = load8(uint32(row + at[1]))
        return a[0], a[1], a[2], a[3], b[0], b[1], load2(uint32(row + at[2])), load2(uint32(row + at[3]))

    @ops.jit
    def gguf(row, at):  # uint32, place -> 18 words
        low, high = uint32(row + at[0]), uint32(row + at[1])
        a, b = load16(low), load16(uint32(low + uint32(16)))
        c, d = load16(high), load16(uint32(high + uint32(16)))
        scales, scale = load2(uint32(row + at[2])), load2(uint32(row + at[3]))
        return (
            a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3],
            c[0], c[1], c[2], c[3], d[0], d[1], d[2], d[3], scales, scale,
        )  # fmt: skip

    return group if grouped else gguf


def global_piece(ops: SimpleNamespace, grouped: bool) -> Any:
    """piece(row pointer, place): the same out of global memory."""
    load16, load8, load2 = ops.load16, ops.load8, ops.load2

    @ops.jit
    def group(row, at):  # pointer, place -> 8 words
        a = load16(row, int64(at[0]))
        b = load8(row, int64(at[1]))
        return a[0], a[1], a[2], a[3], b[0], b[1], load2(row, int64(at[2])), load2(row, int64(at[3]))

    @ops.jit
    def gguf(row, at):  # pointer, place -> 18 words
        a, b = load16(row, int64(at[0])), load16(row, int64(at[0]) + 16)
        c, d = load16(row, int64(at[1])), load16(row, int64(at[1]) + 16)
        scales, scale = load2(row, int64(at[2])), load2(row, int64(at[3]))
        return (
            a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3],
            c[0], c[1], c[2], c[3], d[0], d[1], d[2], d[3], scales, scale,
        )  # fmt: skip

    return group if grouped else gguf


def _row_sums(ops: SimpleNamespace, term: Any, piece: Any) -> dict[int, Any]:
    """K -> function (row, steps, group) -> float32: a thread's K terms of one row, in ascending order."""
    add = ops.add

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

    return {1: one, 2: two, 3: three}


def _passes(ops: SimpleNamespace, row_sum: Any) -> dict[int, Any]:
    """P -> function (row, stride, steps, group, lane, sums): P rows of a stage, row r's sum to sums[8 r]."""
    store = ring.statements().store_float
    reduce = butterflies(ops)
    sum1, sum2, sum4 = reduce.one, reduce.two, reduce.four

    @ops.jit
    def one(row, stride, s, group, lane, sums):  # P = 1
        total = sum1(row_sum(row, s, group), lane)
        if lane == 0:
            store(sums, total)

    @ops.jit
    def two(row, stride, s, group, lane, sums):  # P = 2
        total = sum2(row_sum(row, s, group), row_sum(uint32(row + stride), s, group), lane)
        if lane & 15 == 0:
            store(uint32(sums + uint32(lane) * uint32(2)), total)

    @ops.jit
    def four(row, stride, s, group, lane, sums):  # P = 4
        r1, r2 = uint32(row + stride), uint32(row + uint32(2) * stride)
        a, b = row_sum(row, s, group), row_sum(r1, s, group)
        c, d = row_sum(r2, s, group), row_sum(uint32(r2 + stride), s, group)
        total = sum4(a, b, c, d, lane)
        if lane & 7 == 0:
            store(uint32(sums + uint32(lane) * uint32(4)), total)

    return {1: one, 2: two, 4: four}


def _ring_kernel(lay: Layout) -> Any:
    """The ring form of one layout."""
    from numba import cuda

    ops, asm = gpu_ops(), ring.statements()
    unit = held.functions(ops, lay)
    piece = _shared_piece(ops, lay.order == "group")
    steps, sums = held_steps(ops, unit), _row_sums(ops, unit.term, piece)
    consume1 = ring_block.consumer(ops, unit, steps[1], _passes(ops, sums[1]), 4)
    consume2 = ring_block.consumer(ops, unit, steps[2], _passes(ops, sums[2]), 2)
    consume3 = ring_block.consumer(ops, unit, steps[3], _passes(ops, sums[3]), 1)
    consume_any = ring_block.any_consumer(ops, unit, piece, butterflies(ops).one)
    feed, prepare, memory = ring_block.feeder(ops), ring_block.preparer(ops), asm.memory

    def kernel(w, x8, out, counter, nbe, row_stride, od, rows, stages):  # see above
        thread = int32(cuda.threadIdx.x)
        warps = int32(int32(cuda.blockDim.x) >> 5)
        warp = int32(thread >> 5)
        # stages, rows, stride, data, sums, full, empty, first, count
        n, r, stride = uint32(stages), uint32(rows), uint32(row_stride)
        data = memory()
        sums_at = uint32(data + n * r * stride)
        full = uint32(sums_at + n * r * uint32(4 * VIRTUAL_WARPS))
        empty = uint32(full + uint32(8) * n)
        first = uint32(empty + uint32(8) * n)
        parts = (n, r, stride, data, sums_at, full, empty, first, uint32(first + uint32(4) * n))
        prepare(parts, thread, warps)
        cuda.syncthreads()
        if warp == warps - 1:
            feed(parts, w, out, counter, od)
        else:
            count = (int32(nbe * 8) - warp * 32 + THREADS - 1) >> 8
            if count == 1:
                consume1(parts, x8, thread, nbe)
            elif count == 2:
                consume2(parts, x8, thread, nbe)
            elif count == 3:
                consume3(parts, x8, thread, nbe)
            else:
                consume_any(parts, x8, thread, nbe)

    kernel.max_threads = (VIRTUAL_WARPS + 1) * 32  # type: ignore[attr-defined]  # read by compile.py
    return kernel


def kernels(layouts: tuple[Layout, ...] = LAYOUTS) -> dict[str, tuple[Any, Any]]:
    """Every kernel as name -> (Python function, signature), ready for compile.py."""
    from kernels_numba import l1_async

    table = {f"l1_{lay.name}_ring": (_ring_kernel(lay), _RING) for lay in layouts}
    for lay in layouts:
        table[f"l1_{lay.name}_async"] = l1_async.kernel(lay), _ASYNC
    return table
