"""The fixed float32 exp and SwiGLU, step for step as probes/formats/swiglu.py states them."""

from types import SimpleNamespace

from numba import float32, int32, uint32

from kernels_numba.ops import once
from probes.formats.swiglu import EXP


@once
def functions(ops: SimpleNamespace) -> SimpleNamespace:
    """exp(x), silu(g) and swiglu(g, u), float32 each, for the GPU (`gpu_ops()`) or the CPU (`cpu_ops()`)."""
    jit, mul, add, sub, divide = ops.jit, ops.mul, ops.add, ops.sub, ops.divide
    bits_of_float, float_of_bits = ops.bits_of_float, ops.float_of_bits
    magic_bits = EXP.magic_bits
    high, low, log2e, magic = EXP.high, EXP.low, EXP.log2e, EXP.magic
    ln2_hi, ln2_lo, c2, c3, c4, c5, c6 = EXP.ln2_hi, EXP.ln2_lo, EXP.c2, EXP.c3, EXP.c4, EXP.c5, EXP.c6

    @jit
    def exp(x):  # float32 -> float32
        if x > float32(high):
            x = float32(high)
        if x < float32(low):
            x = float32(low)
        t = add(mul(x, float32(log2e)), float32(magic))
        n = int32(uint32(bits_of_float(t) - uint32(magic_bits)))
        f = sub(t, float32(magic))
        r = sub(x, mul(f, float32(ln2_hi)))
        r = sub(r, mul(f, float32(ln2_lo)))
        p = add(mul(float32(c6), r), float32(c5))
        p = add(mul(p, r), float32(c4))
        p = add(mul(p, r), float32(c3))
        p = add(mul(p, r), float32(c2))
        p = add(add(mul(p, mul(r, r)), r), float32(1.0))
        h = int32(n >> 1)
        s = float_of_bits(uint32(uint32(uint32(h) + uint32(127)) << uint32(23)))
        q = float_of_bits(uint32(uint32(uint32(int32(n - h)) + uint32(127)) << uint32(23)))
        return mul(mul(p, s), q)

    @jit
    def silu(g):  # float32 -> float32
        return divide(g, add(float32(1.0), exp(float32(-g))))

    @jit
    def swiglu(g, u):  # float32, float32 -> float32
        return mul(silu(g), u)

    return SimpleNamespace(exp=exp, silu=silu, swiglu=swiglu)
