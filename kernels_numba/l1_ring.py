"""L1 on a persistent grid, with register-resident activations. Rows stream through shared memory.

ring    by bulk copies (sm_90 and up)
async   by 16-byte copies (cp.async) of the producer warp's lanes (sm_80 and up)

Arguments: as kernels_cu/l1_ring.cu. kernels_cu/ring.cuh tells how a ring works.
"""

from typing import Any

from numba import int32, types, uint32

from kernels_numba import held, ring_block, ring_feed
from kernels_numba.ops import BYTES, FLOATS, WORDS, gpu_ops
from probes.formats.layouts import LAYOUTS, Layout

_RING = types.void(BYTES, BYTES, FLOATS, WORDS, *[types.int32] * 5)
_JOBS = {"ring": ring_feed.row_job, "async": ring_feed.copied_row_job}


def _kernel(lay: Layout, form: str) -> Any:
    ops = gpu_ops()
    weights = held.rows(ops, lay)
    run = ring_feed.form(ops, weights, _JOBS[form](ops), ring_feed.no_hooks(ops))
    ring_of = ring_block.ring_of(ops)

    def kernel(w, x8, out, counter, nbe, row_stride, od, rows, stages):  # see above
        run(ring_of(stages, rows, row_stride, int32(nbe * 8)), x8, nbe, counter, (w, out, uint32(od)), 0)

    return ring_block.kernel(kernel, weights)


def kernels(layouts: tuple[Layout, ...] = LAYOUTS) -> dict[str, tuple[Any, Any]]:
    return {f"l1_{lay.name}_{form}": (_kernel(lay, form), _RING) for lay in layouts for form in _JOBS}
