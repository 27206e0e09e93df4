"""L1 past the record: a persistent grid, each virtual thread's activations held in registers.

    ring    rows stream through shared memory by bulk copies (sm_90 and up)
    async   by copies of 16 bytes (cp.async) of the feeder's lanes (sm_80 and up)

Twins of kernels_cu/l1_ring.cu under the same names and with the same arguments: weights, pad40 activations,
one result per row, ticket counter or null, super-blocks per row, row stride, rows, rows per fill, stages.
How a ring works is told in kernels_cu/ring.cuh.
"""

from __future__ import annotations

from typing import Any

from numba import int32, types, uint32

from kernels_numba import held, ring_block, ring_feed
from kernels_numba.ops import BYTES, FLOATS, WORDS, gpu_ops
from probes.formats.layouts import LAYOUTS, Layout

_RING = types.void(BYTES, BYTES, FLOATS, WORDS, *[types.int32] * 5)
_JOBS = {"ring": ring_feed.row_job, "async": ring_feed.copied_row_job}


def _kernel(lay: Layout, form: str) -> Any:
    """One form of one layout."""
    ops = gpu_ops()
    weights = held.rows(ops, lay)
    run = ring_feed.form(ops, weights, _JOBS[form](ops), ring_feed.no_hooks(ops))
    ring_of = ring_block.ring_of(ops)

    def kernel(w, x8, out, counter, nbe, row_stride, od, rows, stages):  # see above
        run(ring_of(stages, rows, row_stride, int32(nbe * 8)), x8, nbe, counter, (w, out, uint32(od)), 0)

    return ring_block.kernel(kernel, weights)


def kernels(layouts: tuple[Layout, ...] = LAYOUTS) -> dict[str, tuple[Any, Any]]:
    """Every kernel as name -> (Python function, signature), ready for compile.py."""
    return {f"l1_{lay.name}_{form}": (_kernel(lay, form), _RING) for lay in layouts for form in _JOBS}
