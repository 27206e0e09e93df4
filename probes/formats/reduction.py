"""The reference order: how one row's unit terms become one float32, and exact dots on the way.

What "bitwise" means in this project. A row belongs to 256 virtual threads; thread t adds the
terms of units t, t + 256, t + 512, ... in ascending order to its own float32 accumulator, from
0.0. Each virtual warp of 32 then reduces by an XOR butterfly (offsets 16, 8, 4, 2, 1), and the 8
warp sums are added one after another, warp 0 first, from 0.0. Every operation rounds to float32
by itself (no FMA). A kernel may map the virtual threads to hardware in any way.

Signed zero never decides anything here: a sum is -0.0 only if both its operands are, and every
accumulator starts at +0.0, so none ever becomes -0.0 (x + (-x) is +0.0 too). A thread that has no
unit, or one that adds an extra +0.0, therefore ends with the same bits: padding is free.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from probes.core.types import VIRTUAL_THREADS

WARP = 32
"""Virtual threads in one virtual warp."""

CHUNK_VALUES = 1 << 20
"""Weights decoded at a time by the oracles: 4 MB as float32, so that a chunk stays in cache."""

U32 = 2.0**-24
"""Unit roundoff of float32, round to nearest."""

U64 = 2.0**-53
"""Unit roundoff of float64."""


def reduce_units(terms: NDArray[np.float32]) -> NDArray[np.float32]:
    """Sum `terms` f32[k, units] over its units in the reference order, to f32[k].

    The butterfly is folded: after the step with offset o, lanes i and i ^ o hold the same sum
    (addition commutes), so only the lower half is carried on.
    """
    rows, units = terms.shape
    acc = np.zeros((rows, VIRTUAL_THREADS), np.float32)
    for first in range(0, units, VIRTUAL_THREADS):
        part = terms[:, first : first + VIRTUAL_THREADS]
        acc[:, : part.shape[1]] += part
    lanes = acc.reshape(rows, VIRTUAL_THREADS // WARP, WARP)
    offset = WARP // 2
    while offset:
        lanes = lanes[:, :, :offset] + lanes[:, :, offset:]
        offset //= 2
    total = np.zeros(rows, np.float32)
    for warp in range(VIRTUAL_THREADS // WARP):
        total += lanes[:, warp, 0]
    return total


def roundings(units: int) -> int:
    """Float32 additions that one unit's term passes through, counting only those that can round.

    Of a thread's ceil(units / 256) additions the first is to 0.0 and exact; the butterfly makes 5;
    of the 8 warp additions the first is to 0.0 and exact.
    """
    return (-(-units // VIRTUAL_THREADS) - 1) + 5 + (VIRTUAL_THREADS // WARP - 1)


def gamma(k: int, u: float) -> float:
    """Higham's k*u / (1 - k*u): k roundings of unit roundoff u change a product by no more."""
    return k * u / (1.0 - k * u)


def spread(x: NDArray[np.int8], group: int) -> NDArray[np.float32]:
    """Activations int8[n, 256] as block-diagonal f32[n, 256, 256 // group].

    `q[n, rows, 256] @ spread(x, group)` is then every group's dot in one BLAS call. All partial
    sums are integers below 2^24 (63 * 128 * 32 = 258048), so float32 holds them exactly in any
    order, with or without FMA: these dots are the int32 dots of the definition.
    """
    blocks, width = x.shape
    out = np.zeros((blocks, width, width // group), np.float32)
    column = np.arange(width)
    out[:, column, column // group] = x
    return out
