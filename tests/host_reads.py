"""What the kernels that only read do, in NumPy: a block per tile, of so many threads and shared bytes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from probes.formats import chains, checksum
from tests.host_gpu import Running

U8, U32, THREADS = np.uint8, np.uint32, 256


def harness_read(tile: int = 16384, block: int = THREADS, smem: int = 0) -> Callable[..., None]:
    def run(x: Running, data: int, out: int, vectors: int) -> None:
        found = checksum.read_xors(x.read(data, U8, 16 * vectors), tile)
        assert (x.launch.grid, x.launch.block, x.launch.smem) == (found.size, block, smem)
        x.write(out, U32, found.size)[:] = found

    return run


def stream(tile: int = 16384, block: int = THREADS, smem: int = 0) -> Callable[..., None]:
    def run(x: Running, w: int, prev: int, out: int) -> None:
        n = x.launch.grid
        assert (x.launch.block, x.launch.smem >= smem) == (block, True)
        tiles = checksum.read_xors(x.read(w, U8, n * tile), tile)
        x.write(out, U32, n)[:] = chains.stream(tiles, x.read(prev, U32, n), 1)

    return run


READS = {
    "harness_read": harness_read(),
    "harness_read_32k": harness_read(32768),
    "harness_read_4k": harness_read(4096, 32),
    "harness_read_bulk": harness_read(32768, smem=32768 + 16),
}
