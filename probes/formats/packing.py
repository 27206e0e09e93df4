"""Packing q6_K weights into a layout and back, by the layout's row alone.

Small matrices go through plain NumPy, which is also the definition the compiled form is tested
against; larger ones through `regroup`, at 0.5 to 1.0 of the speed of a plain copy on the same threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from probes.core.types import BadInput
from probes.formats import q6k
from probes.formats.layouts import BLOCK_BYTES, COMPONENTS, Layout, check_stride, pieces

ALIGN = 64
"""Alignment in bytes of a matrix that `pack` allocates."""

NUMPY_MAX_BYTES = 4 << 20
"""Up to here plain NumPy packs faster than Numba takes to be imported and to compile."""


def addresses(lay: Layout, nbe: int) -> NDArray[np.int64]:
    """i64[8]: first byte and step per super-block of ql, qh, sc and d, in a row of `nbe` blocks."""
    return np.array([v for p in pieces(lay) for v in (p.plane * nbe + p.offset, p.block)], np.int64)


def pack(
    raw: NDArray[np.uint8], lay: Layout, out: NDArray[np.uint8] | None = None, threads: int | None = None
) -> NDArray[np.uint8]:
    """Weights in GGUF order u8[od, nbe * 210] to `lay`, u8[od, stride]; unused bytes are 0.

    `out` must be C-contiguous with a legal stride; without it a matrix aligned to 64 bytes is
    allocated, the only memory beyond `raw` that this needs. `threads` defaults to the CPUs this
    process may use. Raises BadInput for shapes that do not fit.
    """
    od, nbe = len(raw), _rows(raw, BLOCK_BYTES, "q6_K rows")
    if out is None:
        out = _empty(od, lay.row_stride(nbe))
    if out.dtype != np.uint8 or out.ndim != 2 or len(out) != od or not out.flags.c_contiguous:
        raise BadInput(f"out must be C-contiguous uint8 of {od} rows, got {out.dtype} {out.shape}")
    if np.may_share_memory(raw, out):
        raise BadInput("out must not share memory with the rows to pack")
    check_stride(lay, nbe, out.shape[1])
    if raw.nbytes > NUMPY_MAX_BYTES and _compiled(True, lay, raw, out, nbe, threads):
        return out
    _in_parts(lambda a, b: _pack_numpy(raw[a:b], lay, out[a:b], nbe), od, raw.shape[1])
    return out


def unpack(packed: NDArray[np.uint8], lay: Layout, nbe: int, threads: int | None = None) -> NDArray[np.uint8]:
    """The inverse of `pack`: `lay` u8[od, stride] to GGUF order, u8[od, nbe * 210]."""
    _rows(packed, 1, "packed rows")
    check_stride(lay, nbe, packed.shape[1])
    raw = _empty(len(packed), nbe * BLOCK_BYTES)
    if raw.nbytes > NUMPY_MAX_BYTES and _compiled(False, lay, packed, raw, nbe, threads):
        return raw
    _in_parts(lambda a, b: _unpack_numpy(packed[a:b], lay, raw[a:b], nbe), len(packed), raw.shape[1])
    return raw


def _rows(matrix: NDArray[np.uint8], multiple: int, what: str) -> int:
    """Row length of `matrix` in units of `multiple` bytes; BadInput unless u8[od > 0, multiple * n > 0]."""
    if matrix.dtype != np.uint8 or matrix.ndim != 2 or 0 in matrix.shape or matrix.shape[1] % multiple:
        raise BadInput(
            f"{what} must be uint8[rows, a multiple of {multiple}], got {matrix.dtype} {matrix.shape}"
        )
    return int(matrix.shape[1]) // multiple


def _empty(rows: int, row_bytes: int) -> NDArray[np.uint8]:
    """u8[rows, row_bytes], C-contiguous, aligned to 64 bytes, its content undefined."""
    store = np.empty(rows * row_bytes + ALIGN, np.uint8)
    skip = -store.ctypes.data % ALIGN
    return store[skip : skip + rows * row_bytes].reshape(rows, row_bytes)


def _in_parts(work: Callable[[int, int], None], rows: int, row_bytes: int) -> None:
    """Call work(first, last) over parts of 1 MB, so that temporaries stay small."""
    step = max(1, (1 << 20) // row_bytes)
    for first in range(0, rows, step):
        work(first, min(first + step, rows))


def _compiled(
    packing: bool,
    lay: Layout,
    source: NDArray[np.uint8],
    target: NDArray[np.uint8],
    nbe: int,
    threads: int | None,
) -> bool:
    """Move all rows with the compiled loop, on `threads` threads; False where Numba is not there."""
    try:
        from probes.formats import regroup

        rows = regroup.compiled(packing, lay.order == "group")
    except ImportError:
        return False
    source = np.ascontiguousarray(source)
    flat_source, flat_target = source.reshape(-1), target.reshape(-1)
    table = addresses(lay, nbe)

    def move(first: int, last: int) -> None:
        rows(flat_source, source.shape[1], flat_target, target.shape[1], first, last, nbe, table)

    count = len(source)
    workers = min(max(1, threads if threads is not None else cpus()), count)
    move(0, 1)  # compiles before any thread starts
    edges = [count * i // workers for i in range(workers + 1)]
    with ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(move, a, b) for a, b in pairwise(edges)]:
            done.result()
    return True


def cpus() -> int:
    """CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _views(packed: NDArray[np.uint8], lay: Layout, nbe: int) -> list[NDArray[np.uint8]]:
    """ql u8[rows, nbe, 128], qh [.., 64], sc [.., 16] and d [.., 2] of a packed matrix, as views."""
    views = []
    for (_, _, size), piece in zip(COMPONENTS, pieces(lay), strict=True):
        start = piece.plane * nbe + piece.offset
        part = packed[:, start:]
        strides = (packed.strides[0], piece.block * packed.strides[1], packed.strides[1])
        views.append(np.lib.stride_tricks.as_strided(part, (len(packed), nbe, size), strides))
    return views


def _pack_numpy(raw: NDArray[np.uint8], lay: Layout, out: NDArray[np.uint8], nbe: int) -> None:
    """`pack` in plain NumPy: the definition that the compiled form is tested against."""
    blocks = raw.reshape(len(raw), nbe, BLOCK_BYTES)
    out[:] = 0
    targets = _views(out, lay, nbe)
    for view, (_, offset, size) in zip(targets, COMPONENTS, strict=True):
        view[...] = blocks[:, :, offset : offset + size]
    if lay.order == "gguf":
        return
    q = q6k.decode_values(raw).view(np.uint8).reshape(len(raw), nbe, 8, 32)
    low = (q[..., :16] & 15) | (q[..., 16:] << 4)
    targets[0][...] = low.reshape(len(raw), nbe, 128)
    high = (q >> 4).reshape(len(raw), nbe, 8, 2, 4, 4)  # unit, half, j, k
    high = high[..., 0, :] | (high[..., 1, :] << 2) | (high[..., 2, :] << 4) | (high[..., 3, :] << 6)
    targets[1][...] = high.reshape(len(raw), nbe, 64)


def _unpack_numpy(packed: NDArray[np.uint8], lay: Layout, raw: NDArray[np.uint8], nbe: int) -> None:
    """`unpack` in plain NumPy."""
    rows = len(packed)
    blocks = raw.reshape(rows, nbe, BLOCK_BYTES)
    sources = _views(packed, lay, nbe)
    for view, (_, offset, size) in zip(sources, COMPONENTS, strict=True):
        blocks[:, :, offset : offset + size] = view
    if lay.order == "gguf":
        return
    low = sources[0].reshape(rows, nbe, 2, 2, 2, 16)  # chunk, g >> 1, g & 1, byte
    nibbles = np.concatenate((low & 15, low >> 4), axis=-1)
    ql = nibbles[:, :, :, 0] | (nibbles[:, :, :, 1] << 4)
    blocks[:, :, :128] = ql.reshape(rows, nbe, 128)
    units = sources[1].reshape(rows, nbe, 2, 4, 2, 1, 4)  # chunk, g, half, (j), k
    high = (units >> np.array([0, 2, 4, 6], np.uint8)[:, None]) & 3
    qh = high[:, :, :, 0] | (high[:, :, :, 1] << 2) | (high[:, :, :, 2] << 4) | (high[:, :, :, 3] << 6)
    blocks[:, :, 128:192] = qh.reshape(rows, nbe, 64)
