"""A tile of bytes, read by one block: twin of kernels_cu/reads.cuh, which says what the two forms are.

`fetch(tile, vectors)` gives the XOR of a thread's own vectors (16 bytes each) of a tile that has so many.
"""

from types import SimpleNamespace
from typing import Any

from numba import int32, int64, uint32

from kernels_numba import ring
from kernels_numba.ops import once

SUMS = 32
"""Words for a block's warps, 128 bytes of them: what a bulk copy fills comes next, and the linker keeps to no
multiple of 128 by itself. 16 bytes after one, a copy of 58 MB took 7 % longer than C++'s (H200)."""


@once
def loaded(ops: SimpleNamespace, size: int, threads: int) -> Any:
    """fetch by 16-byte loads, all of a thread's in flight at once."""
    from numba import cuda

    load16, advance = ops.load16, ops.advance
    loads, vectors_of_all = size // 16 // threads, size // 16

    @ops.jit
    def fetch(tile, vectors):  # pointer, int32 -> uint32
        t = int32(cuda.threadIdx.x)
        mine, x = advance(tile, int64(t) * 16), uint32(0)
        if vectors == vectors_of_all:  # apart, as in C++
            for k in range(loads):
                v = load16(mine, int64(k * threads * 16))
                x = uint32(x ^ v[0] ^ v[1] ^ v[2] ^ v[3])
        else:
            for k in range(loads):
                if t + k * threads < vectors:
                    v = load16(mine, int64(k * threads * 16))
                    x = uint32(x ^ v[0] ^ v[1] ^ v[2] ^ v[3])
        return x

    return fetch


@once
def copied(ops: SimpleNamespace, size: int, threads: int) -> Any:
    """fetch by one bulk copy into dynamic shared memory: the tile, then its barrier. sm_90 and up."""
    from numba import cuda

    asm = ring.statements()
    memory, init, ready, expect = asm.memory, asm.barrier_init, asm.barriers_ready, asm.barrier_expect
    copy, arrive, wait, load16 = asm.bulk_copy, asm.barrier_arrive, asm.barrier_wait, asm.load16
    loads, vectors_of_all = size // 16 // threads, size // 16

    @ops.jit
    def fetch(tile, vectors):  # pointer, int32 -> uint32
        t, data = int32(cuda.threadIdx.x), memory()
        full = uint32(data + uint32(size))
        if t == 0:
            many = uint32(uint32(vectors) * uint32(16))
            init(full, uint32(1))
            ready()
            expect(full, many)
            copy(data, tile, many, full)
            arrive(full)
        cuda.syncthreads()
        wait(full, uint32(0))
        x, mine = uint32(0), uint32(data + uint32(16) * uint32(t))
        if vectors == vectors_of_all:
            for k in range(loads):
                v = load16(uint32(mine + uint32(k * threads * 16)))
                x = uint32(x ^ v[0] ^ v[1] ^ v[2] ^ v[3])
        else:
            for k in range(loads):
                if int32(t + k * threads) < vectors:
                    v = load16(uint32(mine + uint32(k * threads * 16)))
                    x = uint32(x ^ v[0] ^ v[1] ^ v[2] ^ v[3])
        return x

    return fetch


@once
def of_warp(ops: SimpleNamespace) -> Any:
    """xor(x): the XOR of a warp's words, in every lane."""
    from numba import cuda

    @ops.jit
    def xor(x):  # uint32 -> uint32
        for k in range(5):
            x = uint32(x ^ uint32(cuda.shfl_xor_sync(0xFFFFFFFF, int32(x), 16 >> k)))
        return x

    return xor
