"""The async form of l1_ring: plain wide loads into registers, those of the next pass before the current sums.

Twin of async_form in kernels_cu/l1_ring.cu.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from numba import float32, int32, int64

from kernels_numba import held, ring_rows
from kernels_numba.ops import gpu_ops
from probes.core.layouts import Layout

THREADS, VIRTUAL_WARPS, SUMS = 256, 8, 64


def _finish(ops: SimpleNamespace) -> Any:
    """finish(total, sums, number, rows, first, od, out): a pass's warp sums meet, one warp adds them."""
    from numba import cuda

    add = ops.add

    @ops.jit
    def finish(total, sums, number, rows, first, od, out):  # see above
        thread, warps = int32(cuda.threadIdx.x), int32(int32(cuda.blockDim.x) >> 5)
        lane, warp = int32(thread & 31), int32(thread >> 5)
        # Two sets of sums in turn: a warp a pass ahead does not touch what is still read.
        base = int32(int32(number & 1) * (4 * VIRTUAL_WARPS))
        share = int32(32 // rows)
        if lane % share == 0:
            sums[base + (lane // share) * VIRTUAL_WARPS + warp] = total
        cuda.syncthreads()
        if warp == number % warps and lane < rows and first + lane < od:
            result = float32(0.0)
            for k in range(VIRTUAL_WARPS):
                if k < warps:
                    result = add(result, sums[base + lane * VIRTUAL_WARPS + k])
            out[first + lane] = result

    return finish


def _row(ops: SimpleNamespace) -> Any:
    advance = ops.advance

    @ops.jit
    def row(w, stride, od, r):  # where row r starts; the last row past the end
        return advance(w, int64(min(r, int32(od - 1))) * int64(stride))

    return row


def _loads(ops: SimpleNamespace, piece: Any) -> dict[tuple[int, int], Any]:
    """(rows, K) -> function (w, stride, od, first, steps): the weights of a pass, as a tuple of pieces."""
    row = _row(ops)

    @ops.jit
    def row1(w, stride, od, r, s):  # K = 1
        return (piece(row(w, stride, od, r), s[1]),)

    @ops.jit
    def row2(w, stride, od, r, s):  # K = 2
        p = row(w, stride, od, r)
        return piece(p, s[1]), piece(p, s[3])

    @ops.jit
    def row3(w, stride, od, r, s):  # K = 3
        p = row(w, stride, od, r)
        return piece(p, s[1]), piece(p, s[3]), piece(p, s[5])

    def of(one: Any, rows: int) -> Any:
        @ops.jit
        def load1(w, stride, od, first, s):  # one row
            return (one(w, stride, od, first, s),)

        @ops.jit
        def load2(w, stride, od, first, s):  # two
            return one(w, stride, od, first, s), one(w, stride, od, int32(first + 1), s)

        @ops.jit
        def load4(w, stride, od, first, s):  # four
            a, b = one(w, stride, od, first, s), one(w, stride, od, int32(first + 1), s)
            c, d = one(w, stride, od, int32(first + 2), s), one(w, stride, od, int32(first + 3), s)
            return a, b, c, d

        return {1: load1, 2: load2, 4: load4}[rows]

    by_steps = {1: row1, 2: row2, 3: row3}
    return {(rows, k): of(one, rows) for k, one in by_steps.items() for rows in (1, 2, 4)}


def _totals(ops: SimpleNamespace, term: Any) -> dict[tuple[int, int], Any]:
    """(rows, K) -> function (pieces, steps, group, lane) -> float32: a pass summed, folded to lanes."""
    add, fold = ops.add, ring_rows.butterflies(ops)
    fold1, fold2, fold4 = fold.one, fold.two, fold.four

    @ops.jit
    def sum1(p, s, group):  # K = 1
        return term(p[0], s[0], group)

    @ops.jit
    def sum2(p, s, group):  # K = 2
        return add(term(p[0], s[0], group), term(p[1], s[2], group))

    @ops.jit
    def sum3(p, s, group):  # K = 3
        return add(sum2(p, s, group), term(p[2], s[4], group))

    def of(one: Any, rows: int) -> Any:
        @ops.jit
        def total1(p, s, group, lane):  # one row
            return fold1(one(p[0], s, group), lane)

        @ops.jit
        def total2(p, s, group, lane):  # two
            return fold2(one(p[0], s, group), one(p[1], s, group), lane)

        @ops.jit
        def total4(p, s, group, lane):  # four
            a, b = one(p[0], s, group), one(p[1], s, group)
            return fold4(a, b, one(p[2], s, group), one(p[3], s, group), lane)

        return {1: total1, 2: total2, 4: total4}[rows]

    by_steps = {1: sum1, 2: sum2, 3: sum3}
    return {(rows, k): of(one, rows) for k, one in by_steps.items() for rows in (1, 2, 4)}


def _rows(ops: SimpleNamespace, unit: SimpleNamespace, steps: Any, load: Any, total: Any, rows: int) -> Any:
    """walk(w, x8, out, nbe, stride, od, sums): every pass of a block, `rows` rows each."""
    from numba import cuda

    finish, group_of = _finish(ops), unit.group_of

    @ops.jit
    def walk(w, x8, out, nbe, stride, od, sums):  # see above
        thread = int32(cuda.threadIdx.x)
        lane = int32(thread & 31)
        held, group = steps(x8, thread, nbe), group_of(thread & 7)
        step = int32(int32(cuda.gridDim.x) * rows)
        first = int32(int32(cuda.blockIdx.x) * rows)
        number = int32(0)
        following = load(w, stride, od, first, held)
        while first < od:
            now = following
            following = load(w, stride, od, int32(first + step), held)
            finish(total(now, held, group, lane), sums, number, rows, first, od, out)
            first = int32(first + step)
            number = int32(number + 1)

    return walk


def _any(ops: SimpleNamespace, unit: SimpleNamespace, piece: Any) -> Any:
    """walk(...): more units than registers hold, one row per pass, activations from memory."""
    from numba import cuda

    finish, row = _finish(ops), _row(ops)
    group_of, term, hold, place, activation = unit.group_of, unit.term, unit.hold, unit.place, unit.activation
    add, fold = ops.add, ring_rows.butterflies(ops).one

    @ops.jit
    def walk(w, x8, out, nbe, stride, od, sums):  # see above
        thread = int32(cuda.threadIdx.x)
        group = group_of(thread & 7)
        first, number = int32(cuda.blockIdx.x), int32(0)
        while first < od:
            here = row(w, stride, od, first)
            acc = float32(0.0)
            u = thread
            while u < int32(nbe * 8):
                acc = add(acc, term(piece(here, place(u, nbe)), hold(activation(x8, u), True), group))
                u = int32(u + THREADS)
            finish(fold(acc, int32(thread & 31)), sums, number, 1, first, od, out)
            first = int32(first + int32(cuda.gridDim.x))
            number = int32(number + 1)

    return walk


def kernel(lay: Layout) -> Any:
    """The async form of one layout."""
    from numba import cuda

    ops = gpu_ops()
    grouped = lay.order == "group"
    unit = held.rows(ops, lay)
    piece = held.global_piece(ops, grouped)
    loads, totals, steps = _loads(ops, piece), _totals(ops, unit.term), ring_rows.held_steps(ops, unit)
    most = 4 if grouped else 2  # 28 bytes a unit against 68: what two passes of 128 registers hold

    def walk(rows: int, k: int) -> Any:
        return _rows(ops, unit, steps[k], loads[rows, k], totals[rows, k], rows)

    one, two, other = walk(most, 1), walk(most // 2, 2), _any(ops, unit, piece)
    three = walk(1, 3) if grouped else other

    def run(w, x8, out, nbe, row_stride, od):  # see the module's docstring
        sums = cuda.shared.array(SUMS, float32, alignment=16)
        units = int32(nbe * 8)
        if units <= THREADS:
            one(w, x8, out, nbe, row_stride, od, sums)
        elif units <= 2 * THREADS:
            two(w, x8, out, nbe, row_stride, od, sums)
        elif units <= 3 * THREADS:
            three(w, x8, out, nbe, row_stride, od, sums)
        else:
            other(w, x8, out, nbe, row_stride, od, sums)

    return run
