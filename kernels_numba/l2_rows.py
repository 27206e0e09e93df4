"""L2's matrices by a row per block, one unit or two to a thread, plain or late. Twin of l2_rows.cuh.

Arguments: weights, pad40 activations, the next activations or null, one result per row, super-blocks per row,
row stride, flags, stamps.
"""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from numba import float32, int32, int64, uint32

from kernels_numba import l2_ring, pdl, q6k, reductions
from probes.formats.layouts import Layout, layout

THREADS = 256


def _gate(ops: SimpleNamespace, kind: str) -> Any:  # between the weights asked for first and the activations
    from numba import cuda

    gate, hand = pdl.parts(kind), l2_ring.hand_on(ops)
    late_wait, tail = gate.late_wait, gate.tail

    @ops.jit
    def pass_on(x8, next8, nbe, flags):  # see above
        tail(flags)
        late_wait()
        first = uint32(uint32(cuda.blockIdx.x) * uint32(THREADS) + uint32(cuda.threadIdx.x))
        hand(x8, next8, nbe, first, uint32(uint32(cuda.gridDim.x) * uint32(THREADS)))

    return pass_on


def _one(ops: SimpleNamespace, lay: Layout, kind: str) -> Any:
    """acc(row, x8, next8, nbe, flags): 256 units at most, one to a thread, its weights ahead of the wait."""
    from numba import cuda

    unit, add, pass_on = q6k.functions(ops, lay), ops.add, _gate(ops, kind)
    piece, activation, term = unit.piece, unit.activation, unit.term

    @ops.jit
    def one(row, x8, next8, nbe, flags):  # a thread without a unit asks for its place in the first block
        t = int32(cuda.threadIdx.x)
        owns = t < int32(nbe * 8)
        first = t if owns else int32(t & 7)
        weights = piece(row, first, nbe)
        pass_on(x8, next8, nbe, flags)
        if owns:
            return add(float32(0.0), term((*weights, activation(x8, t)), t))
        return float32(0.0)

    return one


def _two(ops: SimpleNamespace, lay: Layout, kind: str) -> Any:
    """acc(row, x8, next8, nbe, flags): 256 < units <= 512, both ahead of the wait."""
    from numba import cuda

    unit, add, pass_on = q6k.functions(ops, lay), ops.add, _gate(ops, kind)
    piece, activation, term = unit.piece, unit.activation, unit.term

    @ops.jit
    def two_units(row, x8, next8, nbe, flags):  # a lane that owns no second unit drops its term, as in L1
        t, units = int32(cuda.threadIdx.x), int32(nbe * 8)
        second = int32(t + THREADS)
        two, owns = (second & ~31) < units, second < units
        last = second if owns else t
        a, b = piece(row, t, nbe), piece(row, last, nbe)
        pass_on(x8, next8, nbe, flags)
        if two:
            x, y = activation(x8, t), activation(x8, last)
            one = add(float32(0.0), term((*a, x), t))
            both = add(one, term((*b, y), last))
            return both if owns else one
        return add(float32(0.0), term((*a, activation(x8, t)), t))

    return two_units


def _rows(form: Callable[..., Any], lay: Layout, ops: SimpleNamespace, kind: str) -> Any:
    from numba import cuda

    gate, reduce_row, acc_of = pdl.parts(kind), reductions.row(ops), form(ops, lay, kind)
    begin, end, advance, kept = gate.begin, gate.end, ops.advance, ops.kept

    def kernel(w, x8, next8, out, nbe, row_stride, flags, stamps):  # see above
        begin(flags, stamps)
        row = kept(advance(w, int64(cuda.blockIdx.x) * int64(row_stride)))
        total = reduce_row(acc_of(row, x8, next8, nbe, flags))
        if cuda.threadIdx.x == 0:
            out[cuda.blockIdx.x] = total
        end(flags, stamps)

    return kernel


FORMS: dict[str, Callable[[SimpleNamespace, str], Any]] = {
    "gpl_two": partial(_rows, _two, layout("gpl")),
    **{f"{name}_one": partial(_rows, _one, layout(name)) for name in ("gpl", "gs", "dpl")},
}
"""Kernel -> its maker, of ops and kind."""
