"""q6_K weights: bytes, dequantising, random data, and the float32 oracle of the reference order.

A super-block holds 256 values in 210 bytes: `ql[128]` low 4 bits, `qh[64]` high 2 bits, `sc[16]`
int8 scales (one per 16 values), `d` float16. Value = d * sc * (q - 32), q in 0..63.

A unit is 32 consecutive values. Unit u lies in block u >> 3; with pair = u & 7, chunk = pair >> 2
and g = pair & 3, its low bits are the low (g < 2) or high nibbles of
ql[chunk * 64 + (g & 1) * 32 ..+32), its high bits are bits 2g..2g+1 of qh[chunk * 32 ..+32), and
its scales are sc[2 * pair] (first 16 values) and sc[2 * pair + 1].

Nothing here meets a subnormal float32: the smallest non-zero |d| is 2^-24 for weights and for
activations, so the smallest non-zero product is 2^-48.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from probes.core.types import QK_K, UNIT, BadInput, Shape
from probes.formats import q8
from probes.formats.reduction import CHUNK_VALUES, U32, U64, gamma, reduce_units, roundings, spread

BLOCK = 210
"""Bytes of one super-block of 256 values."""

SUB = 16
"""Values that share one scale."""

_QH_SHIFT = np.array([0, 2, 4, 6], np.uint8)[:, None]


def _blocks(raw: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """`raw` u8[..., nbe * 210] as u8[..., nbe, 210]; BadInput for any other length or type."""
    if raw.dtype != np.uint8 or raw.ndim < 1 or raw.shape[-1] == 0 or raw.shape[-1] % BLOCK:
        raise BadInput(f"q6_K rows must be a multiple of {BLOCK} uint8, got {raw.dtype} {raw.shape}")
    return raw.reshape(*raw.shape[:-1], -1, BLOCK)


def _decode(blocks: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Blocks u8[..., 210] to q u8[..., 256], 0..63, in the order of the values."""
    lead = blocks.shape[:-1]
    ql = blocks[..., :128].reshape(*lead, 2, 2, 32)
    qh = blocks[..., 128:192].reshape(*lead, 2, 1, 32)
    q = (qh >> _QH_SHIFT) & np.uint8(3)
    q <<= np.uint8(4)
    q[..., :2, :] |= ql & np.uint8(15)
    q[..., 2:, :] |= ql >> np.uint8(4)
    return q.reshape(*lead, QK_K)


def _scales(blocks: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Blocks u8[..., 210] to (sc f32[..., 16], d f32[..., 1]); both conversions are exact."""
    sc = blocks[..., 192:208].view(np.int8).astype(np.float32)
    d = np.ascontiguousarray(blocks[..., 208:]).view("<f2").astype(np.float32)
    return sc, d


def decode_values(raw: NDArray[np.uint8]) -> NDArray[np.int8]:
    """The integers q, 0..63, of `raw` u8[..., nbe * 210], as int8[..., id]."""
    q = _decode(_blocks(raw))
    return q.reshape(*raw.shape[:-1], -1).view(np.int8)


def dequantise(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Values of `raw` u8[..., nbe * 210] as f32[..., id], to the bit those of ggml.

    (d * sc) * (q - 32) is exact in float32: 11 + 7 + 5 significant bits, 24 available.
    """
    blocks = _blocks(raw)
    sc, d = _scales(blocks)
    q = _decode(blocks).astype(np.float32).reshape(*blocks.shape[:-1], QK_K // SUB, SUB)
    q -= np.float32(32.0)
    values = (d * sc)[..., None] * q
    return values.reshape(*raw.shape[:-1], -1)


def check_scales(raw: NDArray[np.uint8], what: str) -> None:
    """Raise BadInput naming the first super-block of `raw` u8[od, nbe * 210] whose d is not finite."""
    high = _blocks(raw)[..., 209]
    bad = (high & np.uint8(0x7C)) == 0x7C
    if bad.any():
        at = np.unravel_index(int(np.argmax(bad)), bad.shape)
        d = np.ascontiguousarray(_blocks(raw)[at][208:]).view("<f2")[0]
        raise BadInput(f"{what}: d is {d} in row {at[0]}, super-block {at[-1]}; the tensor is damaged")


def random_raw(shape: Shape, seed: int) -> NDArray[np.uint8]:
    """Seeded random weights u8[od, nbe * 210]: every byte random, d finite.

    d keeps its random sign and mantissa; the top exponent bit is cleared, so that |d| < 2 and one
    block in sixteen has a subnormal (rarely zero) d. Random d bits would give NaN, and NaN never
    equals itself, which reads as a false difference.
    """
    size = shape.od * shape.nbe * BLOCK
    words = np.random.SFC64(seed).random_raw(-(-size // 8))
    raw: NDArray[np.uint8] = words.view(np.uint8)[:size].reshape(shape.od, shape.nbe, BLOCK)
    raw[:, :, 209] &= np.uint8(0xBF)
    return raw.reshape(shape.od, shape.nbe * BLOCK)


def reference(
    raw: NDArray[np.uint8], x8: NDArray[np.uint8], rows: NDArray[np.int64] | None = None
) -> NDArray[np.float32]:
    """The oracle: rows of `raw` u8[od, nbe * 210] times `x8` u8[id // 32 * 40], f32[k].

    `rows` picks the k rows to compute (all of them by default). Unit term, each step rounded to
    float32: ((d8 * sc0) * d) * dot0 + ((d8 * sc1) * d) * dot1, dots exact; then the reference
    order (see `probes.core.order`). Raises BadInput where the shapes do not fit each other.
    """
    blocks = _blocks(raw)
    if blocks.ndim != 3:
        raise BadInput(f"weights must be rows by bytes, got shape {raw.shape}")
    nbe = blocks.shape[1]
    d8, x = q8.units_for(x8, nbe * QK_K)
    x_spread = spread(x, SUB)
    x_sum = x.reshape(nbe, 1, QK_K // SUB, SUB).sum(axis=3, dtype=np.int32).astype(np.float32)
    d8_sub = np.repeat(d8.reshape(nbe, 1, QK_K // UNIT), UNIT // SUB, axis=2)
    count = blocks.shape[0] if rows is None else len(rows)
    out = np.empty(count, np.float32)
    step = max(1, CHUNK_VALUES // (nbe * QK_K))
    for first in range(0, count, step):
        last = min(first + step, count)
        part = blocks[first:last] if rows is None else blocks[rows[first:last]]
        # Super-block first, row second: one BLAS call per super-block over all rows of the chunk.
        part = np.ascontiguousarray(part.transpose(1, 0, 2))
        dot = np.matmul(_decode(part).astype(np.float32), x_spread)
        dot -= np.float32(32.0) * x_sum
        sc, d = _scales(part)
        products = ((d8_sub * sc) * d) * dot
        terms = products[..., 0::2] + products[..., 1::2]
        out[first:last] = reduce_units(terms.transpose(1, 0, 2).reshape(last - first, -1))
    return out


def float64_bound(
    raw: NDArray[np.uint8], x8: NDArray[np.uint8], rows: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What `reference` may differ from: (exact product f64[k], bound on |reference - product| f64[k]).

    The product is that of the dequantised weights and the dequantised activations, in float64;
    it shares no arithmetic with `reference`.

    The bound. Write a sub-block's contribution as s = d8 * sc * d * dot, exactly. The oracle makes
    d8 * sc exactly (11 + 7 bits), then rounds at * d, at * dot, and at the unit's own addition: 3;
    then come the `roundings(units)` additions of the reference order. A standard argument (each
    rounding multiplies by 1 + e, |e| <= u = 2^-24; nothing underflows, the smallest non-zero
    product is 2^-48, or overflows, the largest sum is below 2^80) gives
    |reference - sum s| <= gamma(3 + roundings, u) * sum |s|. In float64 the weights (23 bits) times
    the activations (18 bits), and their sum over the 16 values of a sub-block (an integer below
    2^23 times two 11-bit scales), are exact, so only the sum over the n sub-blocks rounds:
    gamma(n, 2^-53) * sum |s| more, and as much again for sum |s| itself.
    """
    blocks = _blocks(raw)
    nbe = blocks.shape[1]
    activations = q8.dequantise(x8).astype(np.float64)
    if activations.size != nbe * QK_K:
        raise BadInput(f"{activations.size} activations do not fit weight rows of {nbe * QK_K} values")
    subs = nbe * QK_K // SUB
    relative = gamma(3 + roundings(nbe * QK_K // UNIT), U32) + 2.0 * gamma(subs, U64)
    exact, bound = np.empty(len(rows)), np.empty(len(rows))
    step = max(1, CHUNK_VALUES // (nbe * QK_K))
    for first in range(0, len(rows), step):
        weights = dequantise(raw[rows[first : first + step]]).astype(np.float64)
        s = (weights * activations).reshape(len(weights), subs, SUB).sum(axis=2)
        exact[first : first + step] = s.sum(axis=1)
        bound[first : first + step] = relative * np.abs(s).sum(axis=1)
    return exact, bound
