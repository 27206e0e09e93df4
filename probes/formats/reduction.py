"""The reference order: how one row's unit terms become one float32, which is what "bitwise" means here.

A row belongs to 256 virtual threads; thread t adds the
terms of units t, t + 256, t + 512, ... in ascending order to its own float32 accumulator, from
0.0. Each virtual warp of 32 then reduces by an XOR butterfly (offsets 16, 8, 4, 2, 1), and the 8
warp sums are added one after another, warp 0 first, from 0.0. Every operation rounds to float32
by itself (no FMA). A kernel may map the virtual threads to hardware in any way.

Signed zero decides nothing: a sum is -0.0 only if both its operands are, and every accumulator starts at
+0.0. A thread without a unit, or one that adds an extra +0.0, ends with the same bits: padding is free.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from probes.core.types import VIRTUAL_THREADS
from probes.formats.q8 import F32

WARP = 32  # virtual threads in one virtual warp
CHUNK_VALUES = 1 << 20  # weights that the oracles decode at a time: 4 MB as float32 stay in cache


def butterfly(lanes: F32) -> F32:
    """Sum f32[..., 32] over lanes by the XOR butterfly, f32[...].

    It is folded: after the step with offset o, lanes i and i ^ o hold the same sum (addition commutes), so
    only the lower half is carried on.
    """
    while lanes.shape[-1] > 1:
        offset = lanes.shape[-1] // 2
        lanes = lanes[..., :offset] + lanes[..., offset:]
    return lanes[..., 0]


def reduce_units(terms: F32) -> F32:
    """Sum `terms` f32[k, units] over its units in the reference order, to f32[k]."""
    rows, units = terms.shape
    acc = np.zeros((rows, VIRTUAL_THREADS), np.float32)
    for first in range(0, units, VIRTUAL_THREADS):
        part = terms[:, first : first + VIRTUAL_THREADS]
        acc[:, : part.shape[1]] += part
    total = np.zeros(rows, np.float32)
    for warp in butterfly(acc.reshape(rows, -1, WARP)).T:
        total += warp
    return total


def spread(x: NDArray[np.int8], group: int) -> F32:
    """Activations int8[n, 256] as block-diagonal f32[n, 256, 256 // group].

    `q[n, rows, 256] @ spread(x, group)` is every group's dot in one BLAS call, and the int32 dot of the
    definition: all partial sums are integers below 2^24 (63 * 128 * 32 = 258048), exact in any order.
    """
    blocks, width = x.shape
    out = np.zeros((blocks, width, width // group), np.float32)
    column = np.arange(width)
    out[:, column, column // group] = x
    return out
