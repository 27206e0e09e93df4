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
