"""What a test needs to call the host builds of the C++ kernels."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probes.formats import layer as decode_layer
from probes.formats.layouts import Layout, Piece

MIRROR = Layout(
    "mirror", "group", Piece(80, 128, 0), Piece(16, 64, 0), Piece(0, 16, 0), Piece(208, 2, 0), 210
)
"""A made-up fifth layout, the planes in another order: one row, and every twin serves it."""

FAULTS = (
    "none, hang, double init, unknown barrier, too many arrivals, bad copy, copy left over, wrong arguments"
).split(", ")
"""What ended a run, by the number that it returns (cuda_on_host/ring.h)."""


def pointer(array: NDArray[Any] | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if array is None else array.ctypes.data)


def aligned(array: NDArray[Any]) -> NDArray[Any]:
    """A copy on a multiple of 16, as bulk copies need it."""
    room = np.empty(array.nbytes + 16, np.uint8)
    start = -room.ctypes.data % 16
    out = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    out[...] = array
    return out


def run(
    lib: ctypes.CDLL, kernel: str, args: Sequence[int | float], grid: int, block: int, smem: int = 0,
    order: int = 0, at_once: bool = False,
) -> None:  # fmt: skip
    """One launch on fibers: addresses, ints and float32 values; threads, blocks and copies in one `order`."""
    words = [struct.unpack("<I", struct.pack("<f", a))[0] if isinstance(a, float) else a for a in args]
    given = (ctypes.c_uint64 * len(words))(*(w % 2**64 for w in words))
    end = grid, block, ctypes.c_int64(smem), ctypes.c_uint(order), ctypes.c_bool(at_once)
    fault = getattr(lib, f"run_{kernel}")(given, len(words), *end)
    assert FAULTS[fault] == "none", f"{kernel}: {FAULTS[fault]}"


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


TINY = decode_layer.Layer(hidden=512, ffn=256, kv_heads=2)  # of the same structure as a 14B one
