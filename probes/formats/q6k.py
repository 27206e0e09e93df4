"""q6_K weights: bytes, dequantising, random data, and the float32 oracle of the reference order.

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

from probes.core.types import QK_K, UNIT, Shape
from probes.formats import kquant
from probes.formats.q8 import F32, F64, U8
from probes.formats.reduction import U32, U64, gamma, roundings

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


def dequantise(raw: U8) -> F32:
    """Values of `raw` u8[..., nbe * 210] as f32[..., id], to the bit those of ggml.

    (d * sc) * (q - 32) is exact in float32: 11 + 7 + 5 significant bits, 24 available.
    """
    blocks = kquant.blocks(raw, FORM)
    sc, d = _scales(blocks)
    q = _decode(blocks).astype(np.float32).reshape(*blocks.shape[:-1], QK_K // SUB, SUB)
    values = (d * sc)[..., None] * (q - np.float32(32.0))
    return values.reshape(*raw.shape[:-1], -1)


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


def float64_bound(raw: U8, x8: U8, rows: NDArray[np.int64]) -> tuple[F64, F64]:
    """What `reference` may differ from: (exact product f64[k], bound on |reference - product| f64[k]).

    The product of the dequantised weights and activations in float64 shares no arithmetic with `reference`.

    The bound. Write a sub-block's contribution as s = d8 * sc * d * dot, exactly. The oracle makes
    d8 * sc exactly (11 + 7 bits), then rounds at * d, at * dot, and at the unit's own addition: 3;
    then come the `roundings(units)` additions of the reference order. Each rounding multiplies by
    1 + e, |e| <= u = 2^-24; nothing underflows (the smallest non-zero product is 2^-48) or overflows
    (the largest sum is below 2^80). Hence |reference - sum s| <= gamma(3 + roundings, u) * sum |s|.
    In float64 the weights (23 bits) times the activations (18 bits), and their sum over the 16 values
    of a sub-block (an integer below 2^23 times two 11-bit scales), are exact. Only the sum over the n
    sub-blocks rounds: gamma(n, 2^-53) * sum |s| more, and as much again for sum |s| itself.
    """
    return kquant.bounded(raw, x8, rows, FORM, _bound)


def _bound(raw: U8, activations: F64) -> tuple[F64, F64]:
    s = (dequantise(raw).astype(np.float64) * activations).reshape(len(raw), -1, SUB).sum(axis=2)
    relative = gamma(3 + roundings(activations.size // UNIT), U32) + 2.0 * gamma(s.shape[1], U64)
    return s.sum(axis=1), relative * np.abs(s).sum(axis=1)
