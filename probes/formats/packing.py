"""Packing q6_K weights into a layout and back, by the layout's row alone.

Small matrices go through plain NumPy: the definition that the compiled form is tested against. Larger ones go
through a loop that Numba compiles in 0.8 s, at 0.6 of a plain copy's speed (padded, dpl) or 0.4 (gs, gpl).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probes.core.types import BadInput
from probes.formats import q6k
from probes.formats.layouts import BLOCK_BYTES, COMPONENTS, Layout, check_stride, pieces
from probes.formats.q8 import U8

ALIGN = 64  # bytes, of a matrix that `pack` allocates
NUMPY_MAX_BYTES = 4 << 20  # up to here NumPy packs faster than Numba takes to be imported and to compile

SIZES = np.array([size for _, _, size in COMPONENTS], np.uint64)  # bytes of a super-block's ql, qh, sc and d

WORDS = {"gguf": np.array([8, 4, 4, 1], np.uint64), "group": np.array([4, 8, 1, 2], np.uint64)}
"""Where a chunk's 4-byte words lie, by unit order: in ql the steps per h and per i of word [h][i][4], whose
nibbles are units h and 2 + h (gguf) or values 16i on (group); in qh those per half and per word of four."""

_PAIRS = np.array([0, 2, 4, 6], np.uint8)  # bits below each pair of bits of a byte

# what `addresses` says of a row in GGUF order
GGUF = np.array([v for _, offset, _ in COMPONENTS for v in (offset, BLOCK_BYTES)], np.uint64)


def addresses(lay: Layout, nbe: int) -> NDArray[np.uint64]:
    """u64[8]: first byte and step per super-block of ql, qh, sc and d, in a row of `nbe` blocks."""
    return np.array([v for p in pieces(lay) for v in (p.plane * nbe + p.offset, p.block)], np.uint64)


def pack(raw: U8, lay: Layout, out: U8 | None = None, threads: int | None = None) -> U8:
    """Weights in GGUF order u8[od, nbe * 210] to `lay`, u8[od, stride]; unused bytes are 0.

    `out` must be C-contiguous with a legal stride; without it a matrix aligned to 64 bytes is allocated.
    `threads` defaults to the CPUs this process may use. Raises BadInput for shapes that do not fit.
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


def unpack(packed: U8, lay: Layout, nbe: int, threads: int | None = None) -> U8:
    """The inverse of `pack`: `lay` u8[od, stride] to GGUF order, u8[od, nbe * 210]."""
    _rows(packed, 1, "packed rows")
    check_stride(lay, nbe, packed.shape[1])
    raw = _empty(len(packed), nbe * BLOCK_BYTES)
    if raw.nbytes > NUMPY_MAX_BYTES and _compiled(False, lay, packed, raw, nbe, threads):
        return raw
    _in_parts(lambda a, b: _unpack_numpy(packed[a:b], lay, raw[a:b], nbe), len(packed), raw.shape[1])
    return raw


def _rows(matrix: U8, multiple: int, what: str) -> int:
    """Row length of `matrix` in units of `multiple` bytes; BadInput unless u8[od > 0, multiple * n > 0]."""
    if matrix.dtype != np.uint8 or matrix.ndim != 2 or 0 in matrix.shape or matrix.shape[1] % multiple:
        got = f"{matrix.dtype} {matrix.shape}"
        raise BadInput(f"{what} must be uint8[rows, a multiple of {multiple}], got {got}")
    return int(matrix.shape[1]) // multiple


def _empty(rows: int, row_bytes: int) -> U8:
    """u8[rows, row_bytes], C-contiguous and aligned."""
    store = np.empty(rows * row_bytes + ALIGN, np.uint8)
    skip = -store.ctypes.data % ALIGN
    return store[skip : skip + rows * row_bytes].reshape(rows, row_bytes)


def _in_parts(work: Callable[[int, int], None], rows: int, row_bytes: int) -> None:
    """Call work(first, last) over parts of 1 MB, so that temporaries stay small."""
    step = max(1, (1 << 20) // row_bytes)
    for first in range(0, rows, step):
        work(first, min(first + step, rows))


def _compiled(packing: bool, lay: Layout, source: U8, target: U8, nbe: int, threads: int | None) -> bool:
    """Move all rows with the compiled loop, on `threads` threads; False where Numba is not there."""
    try:
        rows = compiled()
    except ImportError:
        return False
    source = np.ascontiguousarray(source)
    here, there = (GGUF, WORDS["gguf"]), (addresses(lay, nbe), WORDS[lay.order])
    if not packing:
        here, there = there, here
    sizes = [np.uint64(n) for n in (source.shape[1], target.shape[1], nbe)]
    planes = np.array([0, 128, nbe * 128, 64], np.uint64)

    def move(first: int, last: int) -> None:
        near = np.empty((2, nbe * 192), np.uint8)
        scratch = near, near.view(np.uint32), planes
        span = np.uint64(first), np.uint64(last)
        rows(source.reshape(-1), *here, target.reshape(-1), *there, *sizes, *span, *scratch)

    count = len(source)
    workers = min(max(1, cpus() if threads is None else threads), count)
    move(0, 1)  # compiles before any thread starts
    edges = [count * i // workers for i in range(workers + 1)]
    with ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(move, a, b) for a, b in pairwise(edges)]:
            done.result()
    return True


@cache
def compiled() -> Callable[..., None]:
    """The loop that moves rows first..last of a matrix, compiled for this CPU; it runs without the GIL.

    rows(source u8 1-d, its `addresses` and `WORDS`, target u8 1-d, its own; as u64 bytes per row of both,
    nbe, first and last; scratch u8[2, nbe * 192] for ql and qh, the same as u32, and its addresses).
    Nothing is checked here. Raises ImportError where Numba is missing.
    """
    import numba

    jit = numba.njit(nogil=True)
    # Unsigned indices: a signed one may count from the end, and asking for that keeps LLVM from using
    # vectors (0.1 of a copy's speed in place of 0.6).
    U = np.uint64

    @jit  # type: ignore[untyped-decorator]  # numba has no stubs
    def move(source: Any, i: Any, a: Any, target: Any, j: Any, b: Any, sizes: Any, nbe: Any) -> None:
        """The pieces of `sizes` bytes of one row, which begins at i and is to begin at j."""
        for c in range(U(len(sizes))):
            p, q = i + a[U(2) * c], j + b[U(2) * c]
            p_step, q_step, size = a[U(2) * c + U(1)], b[U(2) * c + U(1)], sizes[c]
            for _ in range(nbe):
                for k in range(size):
                    target[q + k] = source[p + k]
                p += p_step
                q += q_step

    @jit  # type: ignore[untyped-decorator]  # numba has no stubs
    def swap(a: Any, b: Any, bits: Any, mask: Any) -> Any:
        """The bits of `a` that lie `bits` above `mask` change places with the bits of `b` under it."""
        both = ((a >> bits) ^ b) & mask
        return a ^ (both << bits), b ^ both

    @jit  # type: ignore[untyped-decorator]  # numba has no stubs
    def reorder(x: Any, a: Any, y: Any, b: Any, nbe: Any) -> None:
        """One row's ql u32[nbe * 32] and qh u32[nbe * 16]: nibbles transposed 2 x 2, pairs of bits 4 x 4."""
        low, even = U(0x0F0F0F0F), U(0x33333333)
        for chunk in range(U(2) * nbe):
            for h in range(U(2)):
                p, q = U(16) * chunk + h * a[0], U(16) * chunk + h * b[0]
                for k in range(U(4)):
                    y[q + k], y[q + k + b[1]] = swap(x[p + k], x[p + k + a[1]], U(4), low)
                p = q = U(32) * nbe + U(8) * chunk
                p, p_step, q, q_step = p + h * a[2], a[3], q + h * b[2], b[3]
                s, t = swap(x[p], x[p + p_step], U(2), even)
                u, v = swap(x[p + U(2) * p_step], x[p + U(3) * p_step], U(2), even)
                y[q], y[q + U(2) * q_step] = swap(s, u, U(4), low)
                y[q + q_step], y[q + U(3) * q_step] = swap(t, v, U(4), low)

    @jit  # type: ignore[untyped-decorator]  # numba has no stubs
    def rows(
        source: Any, a: Any, words: Any, target: Any, b: Any, new_words: Any,
        source_row: Any, target_row: Any, nbe: Any, first: Any, last: Any,
        near: Any, near_words: Any, planes: Any,
    ) -> None:  # fmt: skip
        for r in range(first, last):
            i, j = r * source_row, r * target_row
            for k in range(target_row):
                target[j + k] = 0
            if words[0] == new_words[0]:
                move(source, i, a, target, j, b, SIZES, nbe)
                continue
            move(source, i, a, near[0], U(0), planes, SIZES[:2], nbe)
            reorder(near_words[0], words, near_words[1], new_words, nbe)
            move(near[1], U(0), planes, target, j, b, SIZES[:2], nbe)
            move(source, i, a[4:], target, j, b[4:], SIZES[2:], nbe)

    result: Callable[..., None] = rows
    return result


def cpus() -> int:
    """CPUs this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _views(packed: U8, lay: Layout, nbe: int) -> list[U8]:
    """ql u8[rows, nbe, 128], qh [.., 64], sc [.., 16] and d [.., 2] of a packed matrix, as views."""
    views = []
    for (_, _, size), piece in zip(COMPONENTS, pieces(lay), strict=True):
        start = piece.plane * nbe + piece.offset
        part = packed[:, start:]
        strides = (packed.strides[0], piece.block * packed.strides[1], packed.strides[1])
        views.append(np.lib.stride_tricks.as_strided(part, (len(packed), nbe, size), strides))
    return views


def _pack_numpy(raw: U8, lay: Layout, out: U8, nbe: int) -> None:
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
    high = (q >> 4).reshape(len(raw), nbe, 8, 2, 4, 4) << _PAIRS[:, None]  # unit, half, j, k
    targets[1][...] = np.bitwise_or.reduce(high, -2).reshape(len(raw), nbe, 64)


def _unpack_numpy(packed: U8, lay: Layout, raw: U8, nbe: int) -> None:
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
    high = (units >> _PAIRS[:, None]) & 3
    blocks[:, :, 128:192] = np.bitwise_or.reduce(high << _PAIRS.reshape(4, 1, 1, 1), 3).reshape(rows, nbe, 64)
