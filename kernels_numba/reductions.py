"""Sums of a warp and of a block, in the reference order (probes/formats/reduction.py)."""

from types import SimpleNamespace
from typing import Any

from numba import float32, int32, uint32


def butterfly(ops: SimpleNamespace) -> Any:
    """total(acc): the warp's float32 sum by the XOR butterfly, in every lane."""
    from numba import cuda

    add = ops.add

    @ops.jit
    def total(acc):  # float32 -> float32
        acc = add(acc, cuda.shfl_xor_sync(0xFFFFFFFF, acc, 16))
        acc = add(acc, cuda.shfl_xor_sync(0xFFFFFFFF, acc, 8))
        acc = add(acc, cuda.shfl_xor_sync(0xFFFFFFFF, acc, 4))
        acc = add(acc, cuda.shfl_xor_sync(0xFFFFFFFF, acc, 2))
        return add(acc, cuda.shfl_xor_sync(0xFFFFFFFF, acc, 1))

    return total


def row(ops: SimpleNamespace, fewer: bool = False) -> Any:
    """total(acc): the block's float32 sum, warp sums one after another from 0; in thread 0 alone.

    fewer: for blocks of fewer than eight warps; those that they lack count as 0, which changes no bit.
    """
    from numba import cuda

    add, warp = ops.add, butterfly(ops)

    @ops.jit
    def total(acc):  # float32 -> float32
        sums = cuda.shared.array(8, float32, alignment=16)
        acc = warp(acc)
        t = int32(cuda.threadIdx.x)
        if t & 31 == 0:
            sums[uint32(t) >> uint32(5)] = acc
        if fewer and t < 8 and t * 32 >= int32(cuda.blockDim.x):
            sums[uint32(t)] = float32(0.0)
        cuda.syncthreads()
        total = float32(0.0)
        if t == 0:
            for k in range(8):
                total = add(total, sums[k])
        return total

    return total


def words(ops: SimpleNamespace) -> Any:
    """total(acc): the uint32 sum of a block of up to eight warps, for checksums; in thread 0 alone."""
    from numba import cuda

    @ops.jit
    def total(acc):  # uint32 -> uint32
        sums = cuda.shared.array(8, uint32, alignment=16)
        for k in range(5):
            acc = uint32(acc + uint32(cuda.shfl_xor_sync(0xFFFFFFFF, int32(acc), 16 >> k)))
        t = int32(cuda.threadIdx.x)
        if t & 31 == 0:
            sums[uint32(t) >> uint32(5)] = acc
        if t < 8 and t * 32 >= int32(cuda.blockDim.x):
            sums[uint32(t)] = uint32(0)
        cuda.syncthreads()
        total = uint32(0)
        if t == 0:
            for k in range(8):
                total = uint32(total + sums[k])
        return total

    return total
