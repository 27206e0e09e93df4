"""The operations that Numba lacks: `gpu_ops()` for `cuda.jit(device=True)`, `cpu_ops()` for `njit`.

The same functions compile with both, so a kernel's arithmetic is tested without a GPU, to the bit.
"""

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from llvmlite import ir
from numba import float32, float64, int32, int64, njit, types, uint32

from kernels_numba import target

_I16, _I32, _I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
_F32 = ir.FloatType()

BYTES, HALVES, FLOATS, WORDS, LONGS = (
    types.CPointer(t) for t in (types.uint8, types.uint16, types.float32, types.uint32, types.uint64)
)
"""Pointers: one 8-byte kernel parameter each, as in C++."""


def once(make: Callable[..., Any]) -> Callable[..., Any]:
    """A maker of device functions, which gives the same ones for the same arguments and target.

    Numba compiles a device function once per object: 146 of them for a ring kernel, 4 s, of which its sibling
    needs 140 again. Host stand-ins are made anew each time, since what they stand on is another block's.
    """
    made: dict[Any, tuple[Any, Any]] = {}

    @functools.wraps(make)
    def give(ops: SimpleNamespace, *args: Any, **named: Any) -> Any:
        if ops is not gpu_ops():
            return make(ops, *args, **named)
        # By identity, as namespaces have no hash; the entry keeps its arguments alive.
        key = (target.capability, *(id(a) for a in args), *sorted((k, id(v)) for k, v in named.items()))
        if key not in made:
            made[key] = ((args, named), make(ops, *args, **named))
        return made[key][1]

    return give


def _load_words(intrinsic: Callable[..., Any], words: int, align: int) -> Any:
    """An intrinsic (pointer, byte offset) -> `words` uint32, in one load."""

    @intrinsic
    def load(typingctx: Any, pointer: Any, offset: Any) -> Any:
        signature = types.UniTuple(types.uint32, words)(pointer, types.int64)

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            address = builder.gep(args[0], [args[1]])
            vector = builder.load(
                builder.bitcast(address, ir.VectorType(_I32, words).as_pointer()), align=align
            )
            parts = [builder.extract_element(vector, ir.Constant(_I32, k)) for k in range(words)]
            return context.make_tuple(builder, sig.return_type, parts)

        return signature, codegen

    return load


def _memory(intrinsic: Callable[..., Any], aligned: bool) -> dict[str, Any]:
    """Loads and pointer steps: the same LLVM for both targets (the CPU's asks no alignment)."""

    @intrinsic
    def load2(typingctx: Any, pointer: Any, offset: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            address = builder.gep(args[0], [args[1]])
            half = builder.load(builder.bitcast(address, _I16.as_pointer()), align=2 if aligned else 1)
            return builder.zext(half, _I32)

        return types.uint32(pointer, types.int64), codegen

    @intrinsic
    def advance(typingctx: Any, pointer: Any, offset: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return builder.gep(args[0], [args[1]])

        return pointer(pointer, types.int64), codegen

    def bitcast(signature: Any, machine: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return builder.bitcast(args[0], machine)

        return intrinsic(lambda typingctx, value: (signature, codegen))

    @intrinsic  # in 32 bits, for bits < 32: Numba itself makes 64 of them
    def shift_right(typingctx: Any, word: Any, bits: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return builder.lshr(args[0], args[1])

        return types.uint32(types.uint32, types.uint32), codegen

    return {
        "shift_right": shift_right, "load16": _load_words(intrinsic, 4, 16 if aligned else 1),
        "load8": _load_words(intrinsic, 2, 8 if aligned else 1),
        "load4": _load_words(intrinsic, 1, 4 if aligned else 1), "load2": load2, "advance": advance,
        "float_of_bits": bitcast(types.float32(types.uint32), _F32),
        "bits_of_float": bitcast(types.uint32(types.float32), _I32),
    }  # fmt: skip


def _asm(
    intrinsic: Callable[..., Any], signature: Any, text: str, constraints: str, side_effect: bool = False
) -> Any:
    """An intrinsic of inline PTX; `signature` is result(arguments) over 32- and 64-bit Numba types."""
    machine = {
        types.uint32: _I32, types.int32: _I32, types.uint64: _I64, types.int64: _I64, types.float32: _F32,
    }  # fmt: skip
    kind = ir.FunctionType(machine[signature.return_type], [machine[a] for a in signature.args])

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.call(ir.InlineAsm(kind, text, constraints, side_effect=side_effect), args)

    if len(signature.args) == 0:
        return intrinsic(lambda typingctx: (signature, codegen))
    if len(signature.args) == 1:
        return intrinsic(lambda typingctx, a: (signature, codegen))
    return intrinsic(lambda typingctx, a, b, c: (signature, codegen))


@functools.cache
def gpu_ops() -> SimpleNamespace:
    """Operations for cuda.jit(device=True) functions. Importing numba.cuda needs no GPU."""
    from numba import cuda
    from numba.cuda import libdevice
    from numba.cuda.extending import intrinsic

    def keep(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        # The same pointer to global memory, which the compiler will not work out anew for every load.
        asm = ir.InlineAsm(ir.FunctionType(_I64, [_I64]), "mov.b64 $0, $1;", "=l,l", side_effect=True)
        moved = builder.call(asm, [builder.ptrtoint(args[0], _I64)])
        in_global = builder.inttoptr(moved, args[0].type.pointee.as_pointer(1))
        return builder.addrspacecast(in_global, args[0].type)

    return SimpleNamespace(
        jit=cuda.jit(device=True), kept=intrinsic(lambda typingctx, pointer: (pointer(pointer), keep)),
        mul=libdevice.fmul_rn, add=libdevice.fadd_rn, sub=libdevice.fsub_rn, fused=libdevice.fmaf_rn,
        divide=libdevice.fdiv_rn, square_root=libdevice.fsqrt_rn,
        dp4a=_asm(
            intrinsic, types.int32(types.uint32, types.uint32, types.int32),
            "dp4a.s32.s32 $0, $1, $2, $3;", "=r,r,r,r",
        ),
        dp4a_unsigned=_asm(
            intrinsic, types.int32(types.uint32, types.uint32, types.int32),
            "dp4a.u32.s32 $0, $1, $2, $3;", "=r,r,r,r",
        ),
        first_byte=_asm(intrinsic, types.float32(types.uint32), "cvt.rn.f32.s8 $0, $1;", "=f,r"),
        second_byte=_asm(
            intrinsic, types.float32(types.uint32),
            "{ .reg .b32 b; shr.u32 b, $1, 8; cvt.rn.f32.s8 $0, b; }", "=f,r",
        ),
        float_of_half=_asm(
            intrinsic, types.float32(types.uint32),
            "{ .reg .b16 h, z; mov.b32 {h, z}, $1; cvt.f32.f16 $0, h; }", "=f,r",
        ),
        half_of_float=_asm(
            intrinsic, types.uint32(types.float32),
            "{ .reg .b16 h; cvt.rn.f16.f32 h, $1; cvt.u32.u16 $0, h; }", "=r,f",
        ),
        # The same number, of which the compiler knows nothing: see common.cuh.
        anew=_asm(intrinsic, types.int32(types.int32), "mov.b32 $0, $1;", "=r,r", side_effect=True),
        round_to_int=libdevice.float2int_rn,
        globaltimer=_asm(
            intrinsic, types.uint64(), "mov.u64 $0, %globaltimer;", "=l,~{memory}", side_effect=True
        ),
        clock64=_asm(intrinsic, types.uint64(), "mov.u64 $0, %clock64;", "=l,~{memory}", side_effect=True),
        smid=_asm(intrinsic, types.uint32(), "mov.u32 $0, %smid;", "=r", side_effect=True),
        **_memory(intrinsic, aligned=True),
    )  # fmt: skip


@functools.cache
def cpu_ops() -> SimpleNamespace:
    """The same operations for njit. LLVM contracts nothing here, as njit's fastmath is off."""
    from numba.core.extending import intrinsic

    memory = _memory(intrinsic, aligned=False)
    float_of_bits, bits_of_float = memory["float_of_bits"], memory["bits_of_float"]

    @njit
    def mul(a, b):  # compiled for float32 arguments
        return float32(float32(a) * float32(b))

    @njit
    def add(a, b):  # as above
        return float32(float32(a) + float32(b))

    @njit
    def sub(a, b):  # as above
        return float32(float32(a) - float32(b))

    @njit
    def fused(a, b, c):  # a * b + c rounded once, where the sum of their bits fits into a float64's
        return float32(float64(float32(a)) * float64(float32(b)) + float64(float32(c)))

    @njit(error_model="numpy")
    def divide(a, b):  # as above
        return float32(float32(a) / float32(b))

    @njit
    def square_root(x):  # as above, for x >= 0
        return float32(np.sqrt(float32(x)))

    @njit
    def dp4a(a, b, c):  # uint32, uint32, int32 -> int32
        total = int64(c)
        for k in range(4):
            x = int64((uint32(a) >> uint32(8 * k)) & uint32(255))
            y = int64((uint32(b) >> uint32(8 * k)) & uint32(255))
            total += (x - 256 * (x >> 7)) * (y - 256 * (y >> 7))
        return int32(total)

    @njit
    def dp4a_unsigned(a, b, c):  # uint32, uint32, int32 -> int32
        total = int(c)
        for k in range(4):
            x = int((uint32(a) >> uint32(8 * k)) & uint32(255))
            y = int((uint32(b) >> uint32(8 * k)) & uint32(255))
            total += x * (y - 256 * (y >> 7))
        return int32(total)

    @njit
    def first_byte(w):  # uint32 -> float32
        byte = int(uint32(w) & uint32(255))
        return float32(byte - 256 * (byte >> 7))

    @njit
    def second_byte(w):  # uint32 -> float32
        return first_byte(uint32(uint32(w) >> uint32(8)))

    @njit
    def float_of_half(h):  # uint32 with f16 bits -> float32
        sign = uint32((uint32(h) & uint32(0x8000)) << uint32(16))
        exponent = uint32((uint32(h) >> uint32(10)) & uint32(31))
        mantissa = uint32(uint32(h) & uint32(1023))
        if exponent == 31:
            return float_of_bits(uint32(sign | uint32(0x7F800000) | (mantissa << uint32(13))))
        if exponent != 0:
            return float_of_bits(
                uint32(sign | ((exponent + uint32(112)) << uint32(23)) | (mantissa << uint32(13)))
            )
        tiny = float32(float32(mantissa) * float32(2.0**-24))
        return float_of_bits(uint32(sign | bits_of_float(tiny)))

    @njit
    def half_of_float(f):  # float32 -> uint32 with f16 bits, ties to even
        bits = uint32(bits_of_float(float32(f)))
        sign = uint32((bits >> uint32(16)) & uint32(0x8000))
        size = uint32(bits & uint32(0x7FFFFFFF))
        if size > uint32(0x7F800000):
            return uint32(sign | uint32(0x7FFF))
        if size >= uint32(0x477FF000):  # 65520 rounds up to infinity
            return uint32(sign | uint32(0x7C00))
        exponent = int32(size >> uint32(23))
        shift = uint32(13) if exponent > 112 else uint32(126 - exponent)
        if shift > uint32(25):  # below half of the smallest subnormal
            return sign
        if exponent > 112:
            whole = uint32(size - uint32(0x38000000))
        else:
            whole = uint32((size & uint32(0x7FFFFF)) | uint32(0x800000))
        kept = uint32(whole >> shift)
        half = uint32(uint32(1) << uint32(shift - uint32(1)))
        rest = uint32(whole & uint32((uint32(1) << shift) - uint32(1)))
        if rest > half or (rest == half and (kept & uint32(1)) == uint32(1)):
            kept = uint32(kept + uint32(1))
        return uint32(sign | kept)

    @njit
    def round_to_int(x):  # float32 -> int32, ties to even
        return int32(np.rint(float32(x)))

    return SimpleNamespace(
        jit=njit, mul=mul, add=add, sub=sub, fused=fused, divide=divide, square_root=square_root, dp4a=dp4a,
        dp4a_unsigned=dp4a_unsigned, first_byte=first_byte, second_byte=second_byte,
        float_of_half=float_of_half, half_of_float=half_of_float, round_to_int=round_to_int, **memory,
    )  # fmt: skip
