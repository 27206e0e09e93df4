"""Quantising float32 values to one pad40 block: the steps, and the warp that makes a block."""

from types import SimpleNamespace
from typing import Any

from llvmlite import ir
from numba import float32, int32, types, uint32
from numba.cuda.extending import intrinsic

from kernels_numba import target
from kernels_numba.ops import gpu_ops, once


@once
def functions(ops: SimpleNamespace) -> SimpleNamespace:
    """scale(top), inverse(d) and value(x, inverse). top: the bits of the block's largest |value|."""
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


def _reduction(operation: str) -> Any:  # of a warp's int32; one instruction from sm_80 on
    step = f"shfl.sync.bfly.b32 o, w, {{}}, 31, -1; {operation}.s32 w, w, o; "
    steps = "".join(step.format(offset) for offset in (16, 8, 4, 2, 1))

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        text = f"redux.sync.{operation}.s32 $0, $1, -1;"
        if target.capability < (8, 0):
            text = f"{{ .reg .b32 o, w; mov.b32 w, $1; {steps}mov.b32 $0, w; }}"
        word = ir.IntType(32)
        asm = ir.InlineAsm(ir.FunctionType(word, [word]), text, "=r,r", side_effect=True)
        return builder.call(asm, args, attrs=("convergent",))

    return intrinsic(lambda typingctx, word: (types.int32(types.int32), codegen))


@once
def _reductions(ops: SimpleNamespace) -> SimpleNamespace:
    if ops is gpu_ops():
        return SimpleNamespace(largest=_reduction("max"), total=_reduction("add"))
    from numba import cuda

    def largest(word: Any) -> Any:
        for k in range(5):
            word = max(word, cuda.shfl_xor_sync(0xFFFFFFFF, word, 16 >> k))
        return word

    def total(word: Any) -> Any:
        for k in range(5):
            word = int32(word + cuda.shfl_xor_sync(0xFFFFFFFF, word, 16 >> k))
        return word

    return SimpleNamespace(largest=largest, total=total)


@once
def warp_store(ops: SimpleNamespace) -> Any:
    """store(x, out, first): a warp makes a block, lane k from value k; ten words from out[first]."""
    from numba import cuda

    unit, reduce = functions(ops), _reductions(ops)
    largest, sum_of = reduce.largest, reduce.total
    scale, inverse, value = unit.scale, unit.inverse, unit.value
    bits_of_float, half_of_float = ops.bits_of_float, ops.half_of_float

    @ops.jit
    def store(x, out, first):  # float32, uint32 pointer, int
        lane = int32(cuda.threadIdx.x) & 31
        d = scale(uint32(largest(int32(bits_of_float(x) & uint32(0x7FFFFFFF)))))
        q = value(x, inverse(d))
        total = sum_of(q)
        word = uint32(uint32(q) & uint32(255))  # bytes of lanes 4j..4j+3 meet in lane 4j
        word = uint32(word | (uint32(cuda.shfl_down_sync(0xFFFFFFFF, int32(word), 1)) << uint32(8)))
        word = uint32(word | (uint32(cuda.shfl_down_sync(0xFFFFFFFF, int32(word), 2)) << uint32(16)))
        if lane & 3 == 0:
            out[first + 1 + (lane >> 2)] = word
        if lane == 0:
            out[first] = half_of_float(d)
            out[first + 9] = uint32(total)

    return store
