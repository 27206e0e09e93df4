"""L3 through a ring of bulk copies (sm_90 and up): the matmul, and ring_gated.py's fusion.

matmul_ring  weights, x8, gu, counter or null, super-blocks per row, rows, rows per ticket, stages
form_c       q8, words for gu; nf for rows. words: two per row pair, all 0 before and after
"""

from types import SimpleNamespace
from typing import Any

from numba import int32, types, uint32

from kernels_numba import q4k, q4k_held, ring_block, ring_feed, ring_gated
from kernels_numba.ops import BYTES, FLOATS, WORDS, gpu_ops


def _matmul_ring(ops: SimpleNamespace, weights: SimpleNamespace) -> Any:
    ring_of, job, hooks = ring_block.ring_of(ops), ring_feed.row_job(ops), ring_feed.no_hooks(ops)
    run = ring_feed.form(ops, weights, job, hooks)

    def kernel(w, x8, gu, counter, nbe, od, rows, stages):  # see above
        parts = ring_of(stages, rows, int32(nbe * q4k.BLOCK), int32(nbe * 4))
        run(parts, x8, nbe, counter, (w, gu, uint32(od)), 0)

    return ring_block.kernel(kernel, weights)


def _form_c(ops: SimpleNamespace, weights: SimpleNamespace) -> Any:
    ring_of, run = ring_block.ring_of(ops), ring_gated.form(ops, weights)

    def kernel(w, x8, q8, words, counter, nbe, nf, rows, stages):  # see above
        parts = ring_of(stages, rows, int32(nbe * q4k.BLOCK), int32(nbe * 4))
        run(parts, x8, nbe, counter, (w, q8, words, uint32(nf)))

    return ring_block.kernel(kernel, weights)


def kernels() -> dict[str, tuple[Any, Any]]:
    ops = gpu_ops()
    weights = q4k_held.rows(ops)
    matmul = types.void(BYTES, BYTES, FLOATS, WORDS, *[types.int32] * 4)
    form_c = types.void(BYTES, BYTES, WORDS, WORDS, WORDS, *[types.int32] * 4)
    return {
        "l3_matmul_ring": (_matmul_ring(ops, weights), matmul),
        "l3_form_c": (_form_c(ops, weights), form_c),
    }
