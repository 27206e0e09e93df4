"""What a test needs to call the host builds of the C++ kernels."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

FAULTS = "none, hang, double init, unknown barrier, too many arrivals, bad copy, copy left over".split(", ")
"""A ring's faults by the number that its run returns (cuda_on_host/ring.h)."""


def pointer(array: NDArray[Any] | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if array is None else array.ctypes.data)


def aligned(array: NDArray[Any]) -> NDArray[np.uint8]:
    """A copy on a multiple of 16, as bulk copies need it."""
    room = np.empty(array.nbytes + 16, np.uint8)
    start = -room.ctypes.data % 16
    out = room[start : start + array.nbytes]
    out[:] = array.reshape(-1).view(np.uint8)
    return out


def global_piece(ops: Any, grouped: bool) -> Any:
    """piece(row pointer, place): a q6_K unit's weights, as a ring's consumers hold them."""
    from numba import int64

    load16, load8, load2 = ops.load16, ops.load8, ops.load2

    @ops.jit
    def group(row, at):  # pointer, place -> 8 words
        a = load16(row, int64(at[0]))
        b = load8(row, int64(at[1]))
        return a[0], a[1], a[2], a[3], b[0], b[1], load2(row, int64(at[2])), load2(row, int64(at[3]))

    @ops.jit
    def gguf(row, at):  # pointer, place -> 18 words
        a, b = load16(row, int64(at[0])), load16(row, int64(at[0]) + 16)
        c, d = load16(row, int64(at[1])), load16(row, int64(at[1]) + 16)
        scales, scale = load2(row, int64(at[2])), load2(row, int64(at[3]))
        return (
            a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3],
            c[0], c[1], c[2], c[3], d[0], d[1], d[2], d[3], scales, scale,
        )  # fmt: skip

    return group if grouped else gguf
