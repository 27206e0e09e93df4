"""Weights as float32 to the bit of ggml, and how far the float32 oracles may lie from an exact product.

What the oracles' own tests hold them to: float64, which shares no arithmetic with them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from probes.core.types import QK_K, UNIT, VIRTUAL_THREADS, BadInput
from probes.formats import kquant, q4k, q6k, q8
from probes.formats.q8 import F32, F64, U8
from probes.formats.reduction import CHUNK_VALUES, WARP

U32, U64 = 2.0**-24, 2.0**-53  # unit roundoff of float32 and float64, round to nearest


def roundings(units: int) -> int:
    """Float32 additions that one unit's term passes through, counting only those that can round.

    Of a thread's ceil(units / 256) additions the first is to 0.0 and exact; the butterfly makes 5;
    of the 8 warp additions the first is to 0.0 and exact.
    """
    return (-(-units // VIRTUAL_THREADS) - 1) + 5 + (VIRTUAL_THREADS // WARP - 1)


def gamma(k: int, u: float) -> float:
    """Higham's k*u / (1 - k*u): k roundings of unit roundoff u change a product by no more."""
    return k * u / (1.0 - k * u)


def bounded(
    raw: U8, x8: U8, rows: NDArray[np.int64], form: kquant.Format, of: Callable[[U8, F64], tuple[F64, F64]]
) -> tuple[F64, F64]:
    """`of(some of the rows, activations f64[id])` over all of `rows`, in chunks: (f64[k], f64[k])."""
    values = kquant.blocks(raw, form).shape[1] * QK_K
    activations = q8.dequantise(x8).astype(np.float64)
    if activations.size != values:
        raise BadInput(f"{activations.size} activations do not fit weight rows of {values} values")
    out = np.empty((2, len(rows)))
    step = max(1, CHUNK_VALUES // values)
    for first in range(0, len(rows), step):
        out[:, first : first + step] = of(raw[rows[first : first + step]], activations)
    return out[0], out[1]


def q4k_values(raw: U8) -> F32:
    """Values of `raw` u8[..., nbe * 144] as f32[..., id], to the bit those of ggml.

    d * s, dmin * m and (d * s) * q are exact in float32 (11 + 6 + 4 bits); the subtraction rounds.
    """
    blocks = kquant.blocks(raw, q4k.FORM)
    s, m, d, dmin = q4k._scales(blocks)
    q = q4k._decode(blocks).astype(np.float32).reshape(*blocks.shape[:-1], QK_K // q4k.SUB, q4k.SUB)
    values = (d * s)[..., None] * q - (dmin * m)[..., None]
    return values.reshape(*raw.shape[:-1], -1)


def q4k_bound(raw: U8, x8: U8, rows: NDArray[np.int64]) -> tuple[F64, F64]:
    """What `q4k.reference` may differ from: (exact product f64[k], bound on |reference - product| f64[k]).

    The product of the dequantised weights and activations in float64 shares no arithmetic with it.

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
    return bounded(raw, x8, rows, q4k.FORM, _q4k)


def _q4k(raw: U8, activations: F64) -> tuple[F64, F64]:
    blocks, values = kquant.blocks(raw, q4k.FORM), activations.size
    groups = activations.reshape(-1, QK_K // q4k.SUB, q4k.SUB)
    products = q4k_values(raw).astype(np.float64) * activations
    s, m, d, dmin = (a.astype(np.float64) for a in q4k._scales(blocks))
    q = q4k._decode(blocks).astype(np.float64).reshape(len(raw), *groups.shape)
    p = np.abs(s * d * (q * groups).sum(axis=3))
    o = np.abs(m * dmin * groups.sum(axis=2))
    terms = (p + o).sum(axis=(1, 2))
    weight_part = np.abs(products).sum(axis=1)
    bound = (
        gamma(4 + roundings(values // (2 * q4k.SUB)), U32) * terms
        + gamma(1, U32) * weight_part
        + 2.0 * gamma(values, U64) * (terms + weight_part)
    )
    return products.sum(axis=1), bound


def q6k_values(raw: U8) -> F32:
    """Values of `raw` u8[..., nbe * 210] as f32[..., id], to the bit those of ggml.

    (d * sc) * (q - 32) is exact in float32: 11 + 7 + 5 significant bits, 24 available.
    """
    blocks = kquant.blocks(raw, q6k.FORM)
    sc, d = q6k._scales(blocks)
    q = q6k._decode(blocks).astype(np.float32).reshape(*blocks.shape[:-1], QK_K // q6k.SUB, q6k.SUB)
    values = (d * sc)[..., None] * (q - np.float32(32.0))
    return values.reshape(*raw.shape[:-1], -1)


def q6k_bound(raw: U8, x8: U8, rows: NDArray[np.int64]) -> tuple[F64, F64]:
    """What `q6k.reference` may differ from: (exact product f64[k], bound on |reference - product| f64[k]).

    The product of the dequantised weights and activations in float64 shares no arithmetic with it.

    The bound. Write a sub-block's contribution as s = d8 * sc * d * dot, exactly. The oracle makes
    d8 * sc exactly (11 + 7 bits), then rounds at * d, at * dot, and at the unit's own addition: 3;
    then come the `roundings(units)` additions of the reference order. Each rounding multiplies by
    1 + e, |e| <= u = 2^-24; nothing underflows (the smallest non-zero product is 2^-48) or overflows
    (the largest sum is below 2^80). Hence |reference - sum s| <= gamma(3 + roundings, u) * sum |s|.
    In float64 the weights (23 bits) times the activations (18 bits), and their sum over the 16 values
    of a sub-block (an integer below 2^23 times two 11-bit scales), are exact. Only the sum over the n
    sub-blocks rounds: gamma(n, 2^-53) * sum |s| more, and as much again for sum |s| itself.
    """
    return bounded(raw, x8, rows, q6k.FORM, _q6k)


def _q6k(raw: U8, activations: F64) -> tuple[F64, F64]:
    s = (q6k_values(raw).astype(np.float64) * activations).reshape(len(raw), -1, q6k.SUB).sum(axis=2)
    relative = gamma(3 + roundings(activations.size // UNIT), U32) + 2.0 * gamma(s.shape[1], U64)
    return s.sum(axis=1), relative * np.abs(s).sum(axis=1)
