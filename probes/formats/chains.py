"""The synthetic chains of L2: what their dependent launches must return, and what their kernels are made of.

stream   block b XORs the words of its 16 KiB tile, x, and stores (x ^ prev[last - b]) * mix + 1
compute  thread i holds `words` words i * words + s; half of `iters` steps x * m + c; XOR with prev[last - i];
         the other steps; their sum

All words are uint32, wrapping. The predecessor's result, prev, is read backwards: the blocks that start first
need what was written last, so a missing wait shows.
"""

from __future__ import annotations

import functools
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

U32: TypeAlias = NDArray[np.uint32]


class ChainConstants(NamedTuple):
    """Compile-time constants that both kernel languages read."""

    tile: int  # bytes of one block's tile
    narrow: int  # words of a thread of `compute`
    wide: int  # words of a thread of `wide`: as many registers more
    mix: int  # an odd factor


CONSTANTS: Final = ChainConstants(tile=16384, narrow=4, wide=48, mix=0x9E3779B1)
FACTOR, STEP = 1664525, 1013904223  # m and c of the compute chain; any odd m keeps every word different


def start(words: int, seed: int) -> U32:
    """What the first launch of a chain reads in its predecessor's place."""
    return np.random.default_rng(seed).integers(0, 2**32, words, dtype=np.uint64).astype(np.uint32)


def stream(tiles: U32, prev: U32, launches: int) -> U32:
    """Result of `launches` launches over tiles with these XORs, u32[blocks]."""
    for _ in range(launches):
        prev = (tiles ^ prev[::-1]) * np.uint32(CONSTANTS.mix) + np.uint32(1)
    return prev


def steps(count: int) -> tuple[np.uint32, np.uint32]:
    """(a, b) with a * x + b equal to `count` steps of x * FACTOR + STEP, modulo 2^32."""
    a, b = 1, 0
    for _ in range(count):
        a, b = a * FACTOR % 2**32, (b * FACTOR + STEP) % 2**32
    return np.uint32(a), np.uint32(b)


def compute_fast(words: int, iters: int, prev: U32, launches: int) -> U32:
    """Result of `launches` launches with `words` words a thread, u32[threads]; Numba compiles the loop."""
    factors = *steps(iters // 2), *steps(iters - iters // 2)
    for _ in range(launches):
        out = np.empty_like(prev)
        _launch()(prev, out, words, *factors)
        prev = out
    return prev


@functools.cache
def _launch() -> Any:
    from numba import njit, uint32

    @njit(nogil=True)
    def launch(prev, out, words, a, b, c, d):  # type: ignore[no-untyped-def]  # all uint32 but words
        for i in range(prev.size):
            carry, total = prev[prev.size - 1 - i], uint32(0)
            for s in range(words):
                x = uint32(uint32(uint32(i * words + s) * a) + b)
                total = uint32(total + uint32(uint32(uint32(x ^ carry) * c) + d))
            out[i] = total

    return launch
