"""The arithmetic of a decode layer's small kernels, step for step as probes/formats/layer.py states it."""

from types import SimpleNamespace

from numba import float32, uint32

from kernels_numba import swiglu
from kernels_numba.ops import once


@once
def functions(ops: SimpleNamespace) -> SimpleNamespace:
    """rms_scale, rms_value, rotated, dot4, softmax_weight: for `gpu_ops()` or `cpu_ops()`."""
    jit, mul, add, sub, divide = ops.jit, ops.mul, ops.add, ops.sub, ops.divide
    square_root, float_of_half = ops.square_root, ops.float_of_half
    exp = swiglu.functions(ops).exp

    @jit
    def rms_scale(total, n, eps):  # float32, int32, float32 -> float32
        return divide(float32(1.0), square_root(add(divide(total, float32(n)), eps)))

    @jit
    def rms_value(x, r, gamma):  # three float32 -> float32
        return mul(mul(x, r), gamma)

    @jit
    def rotated(a, b, c, s, low):  # value i (low: i < 64) of the pair a, b
        if low:
            return sub(mul(a, c), mul(b, s))
        return add(mul(b, c), mul(a, s))

    @jit
    def dot4(q0, q1, q2, q3, k0, k1):  # four float32, two words of two f16
        acc = mul(q0, float_of_half(uint32(k0 & uint32(0xFFFF))))
        acc = add(acc, mul(q1, float_of_half(uint32(k0 >> uint32(16)))))
        acc = add(acc, mul(q2, float_of_half(uint32(k1 & uint32(0xFFFF)))))
        return add(acc, mul(q3, float_of_half(uint32(k1 >> uint32(16)))))

    @jit
    def softmax_weight(s, top):  # two float32 -> float32
        return exp(sub(s, top))

    return SimpleNamespace(
        rms_scale=rms_scale, rms_value=rms_value, rotated=rotated, dot4=dot4, softmax_weight=softmax_weight
    )
