"""q6_K weights: bytes, random data, and the float32 oracle of the reference order.

A super-block holds 256 values in 210 bytes: `ql[128]` low 4 bits, `qh[64]` high 2 bits, `sc[16]`
int8 scales (one per 16 values), `d` float16. Value = d * sc * (q - 32), q in 0..63.

A unit is 32 consecutive values. Unit u lies in block u >> 3; with pair = u & 7, chunk = pair >> 2
and g = pair & 3, its low bits are the low (g < 2) or high nibbles of
ql[chunk * 64 + (g & 1) * 32 ..+32), its high bits are bits 2g..2g+1 of qh[chunk * 32 ..+32), and
its scales are sc[2 * pair] (first 16 values) and sc[2 * pair + 1].

No float32 here is subnormal: non-zero |d| of weights and activations is 2^-24 at least, a product 2^-48.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from probes.core.types import QK_K, Shape
from probes.formats import kquant
from probes.formats.q8 import F32, U8

BLOCK = 210  # bytes of one super-block of 256 values
SUB = 16  # values that share one scale
FORM = kquant.Format("q6_K", BLOCK, SUB, {"d": 208})
_QH_SHIFT = np.array([0, 2, 4, 6], np.uint8)[:, None]


def _decode(blocks: U8) -> U8:
    """Blocks u8[..., 210] to q u8[..., 256], 0..63, in the order of the values."""
    lead = blocks.shape[:-1]
    ql = blocks[..., :128].reshape(*lead, 2, 2, 32)
    qh = blocks[..., 128:192].reshape(*lead, 2, 1, 32)
    q = (qh >> _QH_SHIFT) & np.uint8(3)
    q <<= np.uint8(4)
    q[..., :2, :] |= ql & np.uint8(15)
    q[..., 2:, :] |= ql >> np.uint8(4)
    return q.reshape(*lead, QK_K)


def _scales(blocks: U8) -> tuple[F32, F32]:
    """Blocks u8[..., 210] to (sc f32[..., 16], d f32[..., 1]); both conversions are exact."""
    sc = blocks[..., 192:208].view(np.int8).astype(np.float32)
    d = np.ascontiguousarray(blocks[..., 208:]).view("<f2").astype(np.float32)
    return sc, d


def decode_values(raw: U8) -> NDArray[np.int8]:
    """The integers q, 0..63, of `raw` u8[..., nbe * 210], as int8[..., id]."""
    return _decode(kquant.blocks(raw, FORM)).reshape(*raw.shape[:-1], -1).view(np.int8)


def random_raw(shape: Shape, seed: int) -> U8:
    """Seeded random weights u8[od, nbe * 210], as `kquant.random_raw`."""
    return kquant.random_raw(shape, seed, FORM)


def reference(raw: U8, x8: U8, rows: NDArray[np.int64] | None = None) -> F32:
    """The oracle: rows of `raw` u8[od, nbe * 210] times `x8` u8[id // 32 * 40], f32[k].

    `rows` picks the k rows to compute (all of them by default). Unit term, each step rounded to
    float32: ((d8 * sc0) * d) * dot0 + ((d8 * sc1) * d) * dot1, dots exact; then the reference
    order (see `reduction`). Raises BadInput where the shapes do not fit each other.
    """
    return kquant.reference(raw, x8, rows, FORM, _decode, _contributions)


def _contributions(blocks: U8, d8: F32, dot: F32, sx: F32) -> F32:
    sc, d = _scales(blocks)
    return ((d8 * sc) * d) * (dot - np.float32(32.0) * sx)
