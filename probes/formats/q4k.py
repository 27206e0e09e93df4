"""q4_K weights: bytes, dequantising, random data, and the float32 oracle of the reference order.

A super-block holds 256 values in 144 bytes: `d` float16, `dmin` float16, 12 bytes that pack 8
six-bit scales and 8 six-bit minima, `qs[128]`. Value = d * s * q - dmin * m, q in 0..15.

A unit is a chunk of 64 consecutive values, 4 per block: chunk c is the 32 bytes at 16 + 32 * c;
their low nibbles are sub-block 2c, their high nibbles sub-block 2c + 1. 144 is a multiple of 16,
so rows need no padding.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from probes.core.types import QK_K, BadInput, Shape
from probes.formats import q8
from probes.formats.reduction import CHUNK_VALUES, U32, U64, gamma, reduce_units, roundings, spread

BLOCK = 144
"""Bytes of one super-block of 256 values."""

CHUNK = 64
"""Values in one unit of q4_K: two sub-blocks, two q8 blocks."""

SUB = 32
"""Values that share one scale and one minimum."""


def _blocks(raw: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """`raw` u8[..., nbe * 144] as u8[..., nbe, 144]; BadInput for any other length or type."""
    if raw.dtype != np.uint8 or raw.ndim < 1 or raw.shape[-1] == 0 or raw.shape[-1] % BLOCK:
        raise BadInput(f"q4_K rows must be a multiple of {BLOCK} uint8, got {raw.dtype} {raw.shape}")
    return raw.reshape(*raw.shape[:-1], -1, BLOCK)


def _decode(blocks: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Blocks u8[..., 144] to q u8[..., 256], 0..15, in the order of the values."""
    lead = blocks.shape[:-1]
    qs = blocks[..., 16:].reshape(*lead, 4, 32)
    q = np.empty((*lead, 4, 2, 32), np.uint8)
    np.bitwise_and(qs, np.uint8(15), out=q[..., 0, :])
    np.right_shift(qs, np.uint8(4), out=q[..., 1, :])
    return q.reshape(*lead, QK_K)


def _scales(blocks: NDArray[np.uint8]) -> tuple[NDArray[np.float32], ...]:
    """Blocks u8[..., 144] to (s f32[..., 8], m f32[..., 8], d f32[..., 1], dmin f32[..., 1]), exact.

    Of the 12 packed bytes p: for j < 4 the low 6 bits of p[j] are scale j and those of p[4 + j]
    minimum j; the nibbles of p[8 + j] are the low 4 bits of scale and minimum 4 + j, and the top 2
    bits of p[j] and p[4 + j] are their high 2 bits.
    """
    p = blocks[..., 4:16]
    first, second, third = p[..., 0:4], p[..., 4:8], p[..., 8:12]
    top = np.uint8(0x30)
    s_late = (third & np.uint8(15)) | ((first >> np.uint8(2)) & top)
    m_late = (third >> np.uint8(4)) | ((second >> np.uint8(2)) & top)
    s = np.concatenate((first & np.uint8(63), s_late), axis=-1)
    m = np.concatenate((second & np.uint8(63), m_late), axis=-1)
    halves = np.ascontiguousarray(blocks[..., :4]).view("<f2").astype(np.float32)
    return s.astype(np.float32), m.astype(np.float32), halves[..., 0:1], halves[..., 1:2]


def decode_values(raw: NDArray[np.uint8]) -> NDArray[np.int8]:
    """The integers q, 0..15, of `raw` u8[..., nbe * 144], as int8[..., id]."""
    q = _decode(_blocks(raw))
    return q.reshape(*raw.shape[:-1], -1).view(np.int8)


def dequantise(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Values of `raw` u8[..., nbe * 144] as f32[..., id], to the bit those of ggml.

    d * s, dmin * m and (d * s) * q are exact in float32 (11 + 6 + 4 bits); the subtraction rounds.
    """
    blocks = _blocks(raw)
    s, m, d, dmin = _scales(blocks)
    q = _decode(blocks).astype(np.float32).reshape(*blocks.shape[:-1], QK_K // SUB, SUB)
    values = (d * s)[..., None] * q - (dmin * m)[..., None]
    return values.reshape(*raw.shape[:-1], -1)


def check_scales(raw: NDArray[np.uint8], what: str) -> None:
    """Raise BadInput naming the first block of `raw` u8[od, nbe * 144] whose d or dmin is not finite."""
    blocks = _blocks(raw)
    for name, at in (("d", 0), ("dmin", 2)):
        bad = (blocks[..., at + 1] & np.uint8(0x7C)) == 0x7C
        if bad.any():
            where = np.unravel_index(int(np.argmax(bad)), bad.shape)
            value = np.ascontiguousarray(blocks[where][at : at + 2]).view("<f2")[0]
            raise BadInput(
                f"{what}: {name} is {value} in row {where[0]}, super-block {where[-1]}; the tensor is damaged"
            )


def random_raw(shape: Shape, seed: int) -> NDArray[np.uint8]:
    """Seeded random weights u8[od, nbe * 144]: every byte random, d and dmin finite and below 2.

    As `q6k.random_raw`: the top exponent bit of d and dmin is cleared.
    """
    size = shape.od * shape.nbe * BLOCK
    words = np.random.SFC64(seed).random_raw(-(-size // 8))
    raw: NDArray[np.uint8] = words.view(np.uint8)[:size].reshape(shape.od, shape.nbe, BLOCK)
    raw[:, :, 1:4:2] &= np.uint8(0xBF)
    return raw.reshape(shape.od, shape.nbe * BLOCK)


def reference(
    raw: NDArray[np.uint8], x8: NDArray[np.uint8], rows: NDArray[np.int64] | None = None
) -> NDArray[np.float32]:
    """The oracle: rows of `raw` u8[od, nbe * 144] times `x8` u8[id // 32 * 40], f32[k].

    `rows` picks the k rows to compute (all of them by default). Term of a chunk of 64 values with
    sub-blocks a and b, each step rounded to float32:

        d8a * ((sa * d) * dota - (ma * dmin) * sxa) + d8b * ((sb * d) * dotb - (mb * dmin) * sxb)

    where dot = sum of q * x and sx = sum of x are exact; then the reference order over units of 64
    (see `probes.core.order`). Raises BadInput where the shapes do not fit each other.
    """
    blocks = _blocks(raw)
    if blocks.ndim != 3:
        raise BadInput(f"weights must be rows by bytes, got shape {raw.shape}")
    nbe = blocks.shape[1]
    d8, x = q8.units_for(x8, nbe * QK_K)
    x_spread = spread(x, SUB)
    x_sum = x.reshape(nbe, 1, QK_K // SUB, SUB).sum(axis=3, dtype=np.int32).astype(np.float32)
    d8_sub = d8.reshape(nbe, 1, QK_K // SUB)
    count = blocks.shape[0] if rows is None else len(rows)
    out = np.empty(count, np.float32)
    step = max(1, CHUNK_VALUES // (nbe * QK_K))
    for first in range(0, count, step):
        last = min(first + step, count)
        part = blocks[first:last] if rows is None else blocks[rows[first:last]]
        # Super-block first, row second: one BLAS call per super-block over all rows of the chunk.
        part = np.ascontiguousarray(part.transpose(1, 0, 2))
        dot = np.matmul(_decode(part).astype(np.float32), x_spread)
        s, m, d, dmin = _scales(part)
        halves = d8_sub * ((s * d) * dot - (m * dmin) * x_sum)
        terms = halves[..., 0::2] + halves[..., 1::2]
        out[first:last] = reduce_units(terms.transpose(1, 0, 2).reshape(last - first, -1))
    return out


def float64_bound(
    raw: NDArray[np.uint8], x8: NDArray[np.uint8], rows: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What `reference` may differ from: (exact product f64[k], bound on |reference - product| f64[k]).

    The product is that of the dequantised weights and the dequantised activations, in float64;
    it shares no arithmetic with `reference`.

    The bound. A sub-block contributes d8 * (p - o) with p = s * d * dot and o = m * dmin * sx. The
    oracle makes s * d and m * dmin exactly (6 + 11 bits), then rounds at * dot and * sx, at the
    subtraction, at * d8, and at the chunk's own addition: 4 for p and 4 for o; then come the
    `roundings(units)` additions of the reference order. Nothing under- or overflows (the smallest
    non-zero magnitude is 2^-48), so with u = 2^-24 the oracle is within
    gamma(4 + roundings, u) * sum |d8| * (|p| + |o|) of the sum of the exact d8 * (p - o).
    Each dequantised weight w itself is one rounding, u * |w| / (1 - u) at most, away from
    d * s * q - dmin * m: sum of that times |activation| more. The float64 sums of at most `id`
    terms add gamma(id, 2^-53) of either sum.
    """
    blocks = _blocks(raw)
    nbe = blocks.shape[1]
    values = nbe * QK_K
    activations = q8.dequantise(x8).astype(np.float64)
    if activations.size != values:
        raise BadInput(f"{activations.size} activations do not fit weight rows of {values} values")
    groups = activations.reshape(nbe, QK_K // SUB, SUB)
    exact, bound = np.empty(len(rows)), np.empty(len(rows))
    step = max(1, CHUNK_VALUES // values)
    for first in range(0, len(rows), step):
        part = raw[rows[first : first + step]]
        weights = dequantise(part).astype(np.float64)
        products = weights * activations
        s, m, d, dmin = (a.astype(np.float64) for a in _scales(_blocks(part)))
        q = decode_values(part).astype(np.float64).reshape(len(part), nbe, QK_K // SUB, SUB)
        p = np.abs(s * d * (q * groups).sum(axis=3))
        o = np.abs(m * dmin * groups.sum(axis=2))
        terms = (p + o).sum(axis=(1, 2))
        weight_part = np.abs(products).sum(axis=1)
        exact[first : first + step] = products.sum(axis=1)
        bound[first : first + step] = (
            gamma(4 + roundings(values // CHUNK), U32) * terms
            + gamma(1, U32) * weight_part
            + 2.0 * gamma(values, U64) * (terms + weight_part)
        )
    return exact, bound
