"""q4_K weights: bytes, random data, and the float32 oracle of the reference order.

A super-block holds 256 values in 144 bytes: `d` and `dmin` float16, 12 bytes that pack 8 six-bit scales and
8 six-bit minima, `qs[128]`. Value = d * s * q - dmin * m, q in 0..15.

A unit is a chunk of 64 consecutive values: chunk c is the 32 bytes at 16 + 32 * c; their low nibbles are
sub-block 2c, their high nibbles sub-block 2c + 1. 144 is a multiple of 16: rows need no padding.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from probes.core.types import QK_K, Shape
from probes.formats import kquant
from probes.formats.q8 import F32, U8

BLOCK = 144  # bytes of one super-block of 256 values
SUB = 32  # values that share one scale and one minimum
FORM = kquant.Format("q4_K", BLOCK, SUB, {"d": 0, "dmin": 2})


def _decode(blocks: U8) -> U8:
    """Blocks u8[..., 144] to q u8[..., 256], 0..15, in the order of the values."""
    qs = blocks[..., 16:].reshape(*blocks.shape[:-1], 4, 1, 32)
    q = np.concatenate((qs & np.uint8(15), qs >> np.uint8(4)), axis=-2)
    return q.reshape(*blocks.shape[:-1], QK_K)


def _scales(blocks: U8) -> tuple[F32, F32, F32, F32]:
    """Blocks u8[..., 144] to (s f32[..., 8], m f32[..., 8], d f32[..., 1], dmin f32[..., 1]), exact.

    Of the 12 packed bytes p: for j < 4 the low 6 bits of p[j] are scale j and those of p[4 + j]
    minimum j; the nibbles of p[8 + j] are the low 4 bits of scale and minimum 4 + j, and the top 2
    bits of p[j] and p[4 + j] are their high 2 bits.
    """
    first, second, third = (blocks[..., at : at + 4] for at in (4, 8, 12))
    top = np.uint8(0x30)
    s_late = (third & np.uint8(15)) | ((first >> np.uint8(2)) & top)
    m_late = (third >> np.uint8(4)) | ((second >> np.uint8(2)) & top)
    s = np.concatenate((first & np.uint8(63), s_late), axis=-1)
    m = np.concatenate((second & np.uint8(63), m_late), axis=-1)
    halves = np.ascontiguousarray(blocks[..., :4]).view("<f2").astype(np.float32)
    return s.astype(np.float32), m.astype(np.float32), halves[..., 0:1], halves[..., 1:2]


def random_raw(shape: Shape, seed: int) -> U8:
    """Seeded random weights u8[od, nbe * 144], as `kquant.random_raw`."""
    return kquant.random_raw(shape, seed, FORM)


def reference(raw: U8, x8: U8, rows: NDArray[np.int64] | None = None) -> F32:
    """The oracle: rows of `raw` u8[od, nbe * 144] times `x8` u8[id // 32 * 40], f32[k].

    `rows` picks the k rows to compute (all of them by default). Term of a chunk of 64 values with
    sub-blocks a and b, each step rounded to float32:

        d8a * ((sa * d) * dota - (ma * dmin) * sxa) + d8b * ((sb * d) * dotb - (mb * dmin) * sxb)

    where dot = sum of q * x and sx = sum of x are exact; then the reference order over units of 64
    (see `reduction`). Raises BadInput where the shapes do not fit each other.
    """
    return kquant.reference(raw, x8, rows, FORM, _decode, _contributions)


def _contributions(blocks: U8, d8: F32, dot: F32, sx: F32) -> F32:
    s, m, d, dmin = _scales(blocks)
    return d8 * ((s * d) * dot - (m * dmin) * sx)
