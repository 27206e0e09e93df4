"""One q4_K chunk (64 values, two sub-blocks): its loads, and its term of the reference order.

Weights travel as (head words, 8 nibble words), activations as 20 words of two pad40 units.
"""

from types import SimpleNamespace

from numba import float32, int32, int64, uint32

from kernels_numba.ops import once

BLOCK = 144


@once
def functions(ops: SimpleNamespace) -> SimpleNamespace:
    """weights(row, unit); activations(x8, unit); term(weights, activations, unit) -> float32."""
    jit, load16, dp4a = ops.jit, ops.load16, ops.dp4a
    mul, add, sub, float_of_half = ops.mul, ops.add, ops.sub, ops.float_of_half

    @jit
    def weights(row, unit):  # see the module's docstring
        block = int64(int32((unit >> 2) * BLOCK))
        qs = int64(int32(block + 16 + 32 * (unit & 3)))
        return load16(row, block), load16(row, qs), load16(row, qs + 16)

    @jit
    def activations(x8, unit):  # as above
        act = int64(int32(unit * 80))  # always a multiple of 16
        a, b, c = load16(x8, act), load16(x8, act + 16), load16(x8, act + 32)
        d, e = load16(x8, act + 48), load16(x8, act + 64)
        return a, b, c, d, e

    @jit
    def sixbit(own, nibbles, chunk):  # the chunk's two, in the low two bytes
        if chunk < 2:
            word = uint32(own & uint32(0x3F3F3F3F))
        else:
            word = uint32((nibbles & uint32(0x0F0F0F0F)) | ((own >> uint32(2)) & uint32(0x30303030)))
        return uint32(word >> uint32(16 * (chunk & 1)))

    @jit
    def byte(word, shift):  # 0..63 as float32
        return float32(int32((word >> uint32(shift)) & uint32(255)))

    @jit
    def low_nibbles(word):  # four values 0..15
        return uint32(word & uint32(0x0F0F0F0F))

    @jit
    def high_nibbles(word):  # four values 0..15
        return uint32((word >> uint32(4)) & uint32(0x0F0F0F0F))

    @jit
    def half(dot, total, scale, minimum, d, dmin):  # one sub-block, before its d8
        return sub(mul(mul(scale, d), float32(dot)), mul(mul(minimum, dmin), float32(int32(total))))

    @jit
    def term(v, x, unit):  # -> float32
        head, p, q = v
        a, b, c, d, e = x
        chunk = int32(unit & 3)
        dot_a, dot_b = int32(0), int32(0)
        dot_a = dp4a(low_nibbles(p[0]), a[1], dot_a)
        dot_a = dp4a(low_nibbles(p[1]), a[2], dot_a)
        dot_a = dp4a(low_nibbles(p[2]), a[3], dot_a)
        dot_a = dp4a(low_nibbles(p[3]), b[0], dot_a)
        dot_a = dp4a(low_nibbles(q[0]), b[1], dot_a)
        dot_a = dp4a(low_nibbles(q[1]), b[2], dot_a)
        dot_a = dp4a(low_nibbles(q[2]), b[3], dot_a)
        dot_a = dp4a(low_nibbles(q[3]), c[0], dot_a)
        dot_b = dp4a(high_nibbles(p[0]), c[3], dot_b)
        dot_b = dp4a(high_nibbles(p[1]), d[0], dot_b)
        dot_b = dp4a(high_nibbles(p[2]), d[1], dot_b)
        dot_b = dp4a(high_nibbles(p[3]), d[2], dot_b)
        dot_b = dp4a(high_nibbles(q[0]), d[3], dot_b)
        dot_b = dp4a(high_nibbles(q[1]), e[0], dot_b)
        dot_b = dp4a(high_nibbles(q[2]), e[1], dot_b)
        dot_b = dp4a(high_nibbles(q[3]), e[2], dot_b)
        scale, dmin = (
            float_of_half(uint32(head[0] & uint32(0xFFFF))), float_of_half(uint32(head[0] >> uint32(16))),
        )  # fmt: skip
        s = sixbit(head[1], head[3], chunk)
        m = sixbit(head[2], uint32(head[3] >> uint32(4)), chunk)
        first = half(dot_a, c[1], byte(s, 0), byte(m, 0), scale, dmin)
        second = half(dot_b, e[3], byte(s, 8), byte(m, 8), scale, dmin)
        d8a = float_of_half(uint32(a[0] & uint32(0xFFFF)))
        d8b = float_of_half(uint32(c[2] & uint32(0xFFFF)))
        return add(mul(d8a, first), mul(d8b, second))

    return SimpleNamespace(weights=weights, activations=activations, term=term)
