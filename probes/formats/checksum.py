"""What the checksum kernels must return, as exact integers: the stream forms' word sums, the read kernel's
tile XORs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from probes.formats.layouts import COMPONENTS, Layout, Piece, pieces
from probes.formats.q8 import U8

U32 = NDArray[np.uint32]

READ_TILE_BYTES = 16384  # one block of the default read kernel: 256 threads x 4 loads x 16 bytes
_REPEATS = {"gguf": (2, 4), "group": (1, 1)}  # how many units load each ql and each qh byte, by unit order


def _component(packed: U8, piece: Piece, size: int, nbe: int, dtype: str) -> NDArray[Any]:
    """One component of every super-block, as words: [rows, nbe, size / word size]."""
    start = packed[:, piece.plane * nbe + piece.offset :]
    strides = (packed.strides[0], piece.block, 1)
    view = np.lib.stride_tricks.as_strided(start, (len(packed), nbe, size), strides, writeable=False)
    return np.ascontiguousarray(view).view(dtype)


def bits(array: NDArray[Any]) -> U32:
    """float32 or uint32 results as words, for comparing to the bit."""
    words: U32 = np.ascontiguousarray(array).view(np.uint32)
    return words


def sampled_rows(rows: int, seed: int, least: int = 4096) -> NDArray[np.int64]:
    """Rows that the oracle checks: all of them up to `least`, else a seeded sample that keeps both ends."""
    if rows <= least + least // 4:
        return np.arange(rows, dtype=np.int64)
    inner = np.random.default_rng(seed).choice(rows - 2, least - 2, replace=False) + 1
    return np.sort(np.concatenate([[0, rows - 1], inner])).astype(np.int64)


def stream_sums(packed: U8, lay: Layout, nbe: int, x8: U8) -> U32:
    """Sum, modulo 2^32, of every word that the loop form loads in each row.

    packed: u8[rows, stride] in layout `lay`; x8: pad40 activations, u8[nbe*8*40]. Returns u32[rows].
    """
    kinds = zip(("<u4", "<u4", "<u2", "<u2"), (*_REPEATS[lay.order], 1, 8), strict=True)
    total = np.zeros(packed.shape[0], np.uint64)
    for piece, (_, _, size), (dtype, repeats) in zip(pieces(lay), COMPONENTS, kinds, strict=True):
        total += repeats * _component(packed, piece, size, nbe, dtype).sum(axis=(1, 2), dtype=np.uint64)
    units = x8.reshape(-1, 40)
    for part, dtype in ((units[:, 4:], "<u4"), (units[:, :2], "<u2")):
        total += part.copy().view(dtype).sum(dtype=np.uint64)
    sums: U32 = total.astype(np.uint32)
    return sums


def read_xors(data: U8, tile: int = READ_TILE_BYTES) -> U32:
    """XOR of the 32-bit words of each tile of so many bytes; the last may be short. u8[n] -> u32[tiles]."""
    whole = data.size // tile * tile
    wide = np.bitwise_xor.reduce(data[:whole].view("<u8").reshape(-1, tile // 8), axis=1)
    tiles: U32 = np.bitwise_xor.reduce(wide.view("<u4").reshape(-1, 2), axis=1)
    if whole < data.size:
        tiles = np.append(tiles, np.bitwise_xor.reduce(data[whole:].view("<u4"))).astype(np.uint32)
    return tiles
