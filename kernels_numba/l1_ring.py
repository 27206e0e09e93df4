"""L1 past the record: a persistent grid, each virtual thread's activations held in registers.

    ring    rows stream through shared memory by bulk copies (sm_90 and up)
    async   rows come by plain wide loads into registers, the next pass's before the current one is summed

Twins of kernels_cu/l1_ring.cu under the same names and with the same arguments; how a ring works is told
in kernels_cu/ring.cuh. ring: weights, pad40 activations, one result per row, ticket counter or null,
super-blocks per row, row stride, rows, rows per fill, stages. async: without the last two and the counter.
"""

from __future__ import annotations

from typing import Any

from numba import int32, types, uint32

from kernels_numba import held, l1_async, ring_block, ring_feed
from kernels_numba.ops import gpu_ops
from probes.core.layouts import LAYOUTS, Layout

_BYTES, _FLOATS, _WORDS = (
    types.CPointer(types.uint8), types.CPointer(types.float32), types.CPointer(types.uint32),
)  # fmt: skip
_RING = types.void(_BYTES, _BYTES, _FLOATS, _WORDS, *[types.int32] * 5)
_ASYNC = types.void(_BYTES, _BYTES, _FLOATS, types.int32, types.int32, types.int32)


def _ring_kernel(lay: Layout) -> Any:
    """The ring form of one layout."""
    ops = gpu_ops()
    weights = held.rows(ops, lay)
    run = ring_feed.form(ops, weights, ring_feed.row_job(ops), ring_feed.no_hooks(ops))
    ring_of = ring_block.ring_of(ops)

    def kernel(w, x8, out, counter, nbe, row_stride, od, rows, stages):  # see above
        run(ring_of(stages, rows, row_stride, int32(nbe * 8)), x8, nbe, counter, (w, out, uint32(od)), 0)

    return ring_block.kernel(kernel, weights)


def kernels(layouts: tuple[Layout, ...] = LAYOUTS) -> dict[str, tuple[Any, Any]]:
    """Every kernel as name -> (Python function, signature), ready for compile.py."""
    table = {f"l1_{lay.name}_ring": (_ring_kernel(lay), _RING) for lay in layouts}
    for lay in layouts:
        table[f"l1_{lay.name}_async"] = l1_async.kernel(lay), _ASYNC
    return table
