"""L2's matrices through a ring, q4_K as stored or q6_K in dpl; kinds as in kernels_cu/l2_ring.cuh.

Arguments: weights, x8, next x8 or null, results, super-blocks per row, row stride, rows, rows per ticket,
stages, tickets ahead (late kind only), flags, stamps.
"""

from types import SimpleNamespace
from typing import Any

from numba import int32, types, uint32

from kernels_numba import held, pdl, q4k_held, ring, ring_block, ring_feed
from kernels_numba.ops import BYTES, FLOATS, LONGS, WORDS, gpu_ops, once
from probes.formats.layouts import layout

PAD_WORDS = 10
_SIGNATURE = types.void(BYTES, BYTES, WORDS, FLOATS, *[types.int32] * 7, LONGS)


@once
def hand_on(ops: SimpleNamespace) -> Any:
    """hand_on(x8, next8, nbe, first, every): activations to next8 (if not null), rotated by one unit."""
    is_null, load4 = ring.statements().is_null, ops.load4

    @ops.jit
    def hand(x8, next8, nbe, first, every):  # a thread's words, from `first` on
        if not is_null(next8):
            words = uint32(uint32(nbe) * uint32(8 * PAD_WORDS))
            i = uint32(first)
            while i < words:
                to = uint32(i + uint32(PAD_WORDS))
                if to >= words:
                    to = uint32(to - words)
                next8[to] = load4(x8, uint32(i * uint32(4)))[0]
                i = uint32(i + every)

    return hand


def _hooks(ops: SimpleNamespace, kind: str) -> SimpleNamespace:
    """Where consumers wait, and the tail trigger. h = (ahead, flags, x8, next8, super-blocks per row)."""
    from numba import cuda

    gate, hand = pdl.parts(kind), hand_on(ops)
    late_wait, tail = gate.late_wait, gate.tail

    @ops.jit
    def some(h):  # tickets to be brought into L2
        return uint32(h[0])

    @ops.jit
    def none(h):  # only the late kind fetches ahead
        return uint32(0)

    @ops.jit
    def before_activations(h):  # then next8 gets the activations, rotated by one unit
        late_wait()
        consumers = uint32(uint32(cuda.blockDim.x) - uint32(32))
        first = uint32(uint32(cuda.blockIdx.x) * consumers + uint32(cuda.threadIdx.x))
        hand(h[2], h[3], h[4], first, uint32(uint32(cuda.gridDim.x) * consumers))

    @ops.jit
    def all_asked(h):  # the last tickets of this block
        tail(h[1])

    return SimpleNamespace(
        ahead=some if kind == "late" else none, before_activations=before_activations, all_asked=all_asked
    )


def _ring(ops: SimpleNamespace, weights: SimpleNamespace, kind: str) -> Any:
    gate, no_counter, ring_of = pdl.parts(kind), ring.statements().no_counter, ring_block.ring_of(ops)
    begin, end, units = gate.begin, gate.end, weights.units
    run = ring_feed.form(ops, weights, ring_feed.row_job(ops), _hooks(ops, kind))

    def kernel(w, x8, next8, out, nbe, row_stride, od, rows, stages, ahead, flags, stamps):  # see above
        begin(flags, stamps)
        h = (ahead, flags, x8, next8, nbe)
        parts = ring_of(stages, rows, row_stride, int32(nbe * units))
        run(parts, x8, nbe, no_counter(), (w, out, uint32(od)), h)
        end(flags, stamps)

    return ring_block.kernel(kernel, weights)


def kernels() -> dict[str, tuple[Any, Any]]:
    ops = gpu_ops()
    formats = {"q4k": q4k_held.rows(ops), "q6k": held.rows(ops, layout("dpl"))}
    return {
        f"l2_{name}_ring_{kind}": (_ring(ops, rows, kind), _SIGNATURE)
        for name, rows in formats.items()
        for kind in pdl.KINDS
    }
