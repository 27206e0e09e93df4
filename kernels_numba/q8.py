"""Quantising float32 values to one pad40 block: the steps, and the warp that makes a whole block."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from numba import float32, int32, uint32


def functions(ops: SimpleNamespace) -> SimpleNamespace:
    """scale(top) and inverse(d), float32; value(x, inverse), int32: for the GPU or the CPU.

    `top` is the bits of the block's largest |value|: as integers, they are in the floats' order.
    """
    jit, mul, divide = ops.jit, ops.mul, ops.divide
    float_of_bits, round_to_int = ops.float_of_bits, ops.round_to_int

    @jit
    def scale(top):  # uint32 -> float32
        return divide(float_of_bits(top), float32(127.0))

    @jit
    def inverse(d):  # float32 -> float32
        if d == float32(0.0):
            return float32(0.0)
        return divide(float32(1.0), d)

    @jit
    def value(x, inv):  # float32, float32 -> int32 in -128..127
        q = int32(round_to_int(mul(x, inv)))
        if q < -128:
            q = int32(-128)
        if q > 127:
            q = int32(127)
        return q

    return SimpleNamespace(scale=scale, inverse=inverse, value=value)


def warp_store(ops: SimpleNamespace) -> Any:
    """store(x, out, first): one warp makes one block, lane k from value k; ten words from out[first]."""
    from numba import cuda

    unit = functions(ops)
    scale, inverse, value = unit.scale, unit.inverse, unit.value
    bits_of_float, half_of_float = ops.bits_of_float, ops.half_of_float

    @ops.jit
    def store(x, out, first):  # float32, uint32 pointer, int
        lane = int32(cuda.threadIdx.x) & 31
        top = int32(bits_of_float(x) & uint32(0x7FFFFFFF))
        for k in range(5):
            other = int32(cuda.shfl_xor_sync(0xFFFFFFFF, top, 16 >> k))
            top = max(top, other)
        d = scale(uint32(top))
        q = value(x, inverse(d))
        total = q
        for k in range(5):
            total = int32(total + cuda.shfl_xor_sync(0xFFFFFFFF, total, 16 >> k))
        word = uint32(uint32(q) & uint32(255))  # bytes of lanes 4j..4j+3 meet in lane 4j
        word = uint32(word | (uint32(cuda.shfl_down_sync(0xFFFFFFFF, int32(word), 1)) << uint32(8)))
        word = uint32(word | (uint32(cuda.shfl_down_sync(0xFFFFFFFF, int32(word), 2)) << uint32(16)))
        if lane & 3 == 0:
            out[first + 1 + (lane >> 2)] = word
        if lane == 0:
            out[first] = half_of_float(d)
            out[first + 9] = uint32(total)

    return store
