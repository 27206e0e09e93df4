"""The harness' own kernels: plain reads, the SM clock, an empty launch. Twins of harness.cu."""

from types import SimpleNamespace
from typing import Any

from numba import int32, int64, types, uint32

from kernels_numba import pdl, reads
from kernels_numba.ops import BYTES, LONGS, WORDS, gpu_ops


def _read(ops: SimpleNamespace, fetch: Any, size: int, threads: int, dependent: bool = False) -> Any:
    """Block b: the XOR of tile b. As a dependent it reads before it waits, and triggers at once."""
    from numba import cuda

    gate, of_warp = pdl.parts("late" if dependent else "plain"), reads.of_warp(ops)
    trigger, wait, advance = gate.tail, gate.late_wait, ops.advance
    warps, vectors_of_all, words = threads // 32, size // 16, reads.SUMS

    def read(src, out, vectors):
        trigger(pdl.TAIL)
        t, b = int32(cuda.threadIdx.x), int64(cuda.blockIdx.x)
        left = vectors - b * vectors_of_all
        own = int32(left) if left < vectors_of_all else int32(vectors_of_all)
        x = of_warp(fetch(advance(src, b * size), own))
        sums = cuda.shared.array(words, uint32, alignment=128)
        if t & 31 == 0:
            sums[uint32(t) >> uint32(5)] = x
        cuda.syncthreads()
        wait()
        if t == 0:
            for k in range(1, warps):
                x = uint32(x ^ sums[k])
            out[b] = x

    read.max_threads = threads  # type: ignore[attr-defined]  # for compile.py
    return read


def kernels() -> dict[str, tuple[Any, Any]]:
    """Every kernel as name -> (Python function, signature), ready for compile.py."""
    ops = gpu_ops()
    globaltimer, clock64, smid = ops.globaltimer, ops.clock64, ops.smid

    def clock(out):  # {SM cycles, nanoseconds, SM id}
        ns = globaltimer()
        out[0] = clock64()
        out[1] = ns
        out[2] = types.uint64(smid())

    def empty():  # the launch itself
        return

    reading = types.void(BYTES, WORDS, types.int64)
    return {
        "harness_read": (_read(ops, reads.loaded(ops, 16384, 256), 16384, 256), reading),
        "harness_read_32k": (_read(ops, reads.loaded(ops, 32768, 256), 32768, 256), reading),
        "harness_read_4k": (_read(ops, reads.loaded(ops, 4096, 32), 4096, 32), reading),
        "harness_read_bulk": (_read(ops, reads.copied(ops, 32768, 256), 32768, 256, True), reading),
        "harness_clock": (clock, types.void(LONGS)),
        "harness_empty": (empty, types.void()),
    }
