"""q4_K units (64 values) with register-resident activations. Twin of kernels_cu/q4k_held.cuh; see held.py.

held    16 words of int8, then of both sub-blocks: d8 (0 where no unit is owned), the sum of the int8
place   byte offsets of the super-block's head and of the unit's nibbles from the row's start
group   where its scales and minima are: a byte selector, then masks of own, upper, nibbles
piece   weights: four words of head, eight of nibbles
"""

import functools
from types import SimpleNamespace
from typing import Any

from llvmlite import ir
from numba import float32, int32, njit, types, uint32
from numba.cuda.extending import intrinsic

from kernels_numba import held, q4k, ring
from kernels_numba import ops as _ops
from kernels_numba.ops import once

EXPONENT, TWO_23 = 0x4B000000, 8388608.0  # the float 2^23's bits; a byte put in them is 2^23 + byte


@functools.cache
def gpu_extras() -> SimpleNamespace:
    """permuted(a, b, selector): prmt. bits[k](w): byte k behind 2^23's bits. upper_half(w): the upper f16."""
    word, single = ir.IntType(32), ir.FloatType()

    def permute(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(word, [word] * 3)
        return builder.call(ir.InlineAsm(kind, "prmt.b32 $0, $1, $2, $3;", "=r,r,r,r"), args)

    def byte(k: int) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            kind = ir.FunctionType(word, [word, word])
            asm = ir.InlineAsm(kind, f"prmt.b32 $0, $1, $2, {0x7440 | k};", "=r,r,r")
            return builder.call(asm, [args[0], ir.Constant(word, EXPONENT)])

        return intrinsic(lambda typingctx, w: (types.uint32(types.uint32), codegen))

    def upper(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        text = "{ .reg .b16 z, h; mov.b32 {z, h}, $1; cvt.f32.f16 $0, h; }"
        return builder.call(ir.InlineAsm(ir.FunctionType(single, [word]), text, "=f,r"), args)

    return SimpleNamespace(
        permuted=intrinsic(lambda typingctx, a, b, c: (types.uint32(*[types.uint32] * 3), permute)),
        bits=tuple(byte(k) for k in range(4)),
        upper_half=intrinsic(lambda typingctx, w: (types.float32(types.uint32), upper)),
    )


@functools.cache
def cpu_extras() -> SimpleNamespace:  # the same for njit
    @njit
    def permuted(a, b, selector):  # three uint32 -> uint32
        out = uint32(0)
        for k in range(4):
            which = uint32((uint32(selector) >> uint32(4 * k)) & uint32(7))
            source = uint32(a) if which < uint32(4) else uint32(b)
            byte = uint32((source >> uint32(uint32(8) * (which & uint32(3)))) & uint32(255))
            out = uint32(out | uint32(byte << uint32(8 * k)))
        return out

    def byte(k: int) -> Any:
        @njit
        def bits(w):  # uint32 -> uint32
            return uint32(((uint32(w) >> uint32(8 * k)) & uint32(255)) | uint32(EXPONENT))

        return bits

    float_of_half = _ops.cpu_ops().float_of_half

    @njit
    def upper_half(w):  # uint32 -> float32
        return float_of_half(uint32(uint32(w) >> uint32(16)))

    return SimpleNamespace(permuted=permuted, bits=tuple(byte(k) for k in range(4)), upper_half=upper_half)


@once
def functions(ops: SimpleNamespace) -> SimpleNamespace:
    """activation, hold, place, group_of and term: see ring_rows.py."""
    on_gpu = ops is _ops.gpu_ops()
    dp4a, extras = ops.dp4a_unsigned, gpu_extras() if on_gpu else cpu_extras()
    permuted, upper_half = extras.permuted, extras.upper_half
    scale0, scale1, minimum0, minimum1 = extras.bits
    jit, mul, add, sub, fused = ops.jit, ops.mul, ops.add, ops.sub, ops.fused
    float_of_half, float_of_bits = ops.float_of_half, ops.float_of_bits
    magic, magic_bits = held.MAGIC, held.MAGIC_BITS

    @jit
    def hold(a, owned):  # q4k.activations' words, whether the lane owns the unit
        p, q, r, s, t = a
        d0 = float_of_half(uint32(p[0] & uint32(0xFFFF)))
        d1 = mul(float_of_half(uint32(r[2] & uint32(0xFFFF))), float32(0.0625))
        d0 = d0 if owned else float32(0.0)
        d1 = d1 if owned else float32(0.0)
        sum0, sum1 = float32(int32(r[1])), float32(int32(int32(16) * int32(t[3])))
        return (
            p[1], p[2], p[3], q[0], q[1], q[2], q[3], r[0],
            r[3], s[0], s[1], s[2], s[3], t[0], t[1], t[2], d0, d1, sum0, sum1,
        )  # fmt: skip

    @jit
    def place(unit, nbe):  # -> (head, nibbles)
        head = uint32((uint32(unit) >> uint32(2)) * uint32(q4k.BLOCK))
        return head, uint32(head + uint32(16) + uint32(32) * (uint32(unit) & uint32(3)))

    @jit
    def group_of(unit):  # -> (bytes, own, upper, nibbles)
        z, first = uint32(0), (uint32(unit) & uint32(2)) == uint32(0)
        own = uint32(0x3F3F3F3F) if first else z
        upper = z if first else uint32(0x30303030)
        nibbles = z if first else uint32(0x0F0F0F0F)
        return uint32(0x7632) if uint32(unit) & uint32(1) else uint32(0x5410), own, upper, nibbles

    @jit
    def sixbits(p, group):  # the unit's two scales, then its two minima, a byte each
        own = permuted(p[1], p[2], group[0])
        nibbles = permuted(p[3], uint32(p[3] >> uint32(4)), group[0])
        return uint32((own & group[1]) | (uint32(own >> uint32(2)) & group[2]) | (nibbles & group[3]))

    @jit
    def low(word, x, dot):  # four low nibbles times int8
        return dp4a(uint32(word & uint32(0x0F0F0F0F)), x, dot)

    @jit
    def high(word, x, dot):  # four high nibbles, where they are: times 16
        return dp4a(uint32(word & uint32(0xF0F0F0F0)), x, dot)

    @jit
    def part(dot, scale, minimum, d, dmin, total):  # one sub-block, before its d8; d, dmin: times 1 and -2^23
        value = sub(float_of_bits(uint32(dot)), float32(magic))
        scaled = fused(float_of_bits(scale), d[0], d[1])
        return sub(mul(scaled, value), mul(fused(float_of_bits(minimum), dmin[0], dmin[1]), total))

    @jit
    def shifted(d):  # what `part` takes
        return d, mul(d, float32(-TWO_23))

    @jit
    def term(p, h, group):  # -> float32
        dot0, dot1 = int32(magic_bits), int32(magic_bits)
        dot0 = low(p[7], h[3], low(p[6], h[2], low(p[5], h[1], low(p[4], h[0], dot0))))
        dot0 = low(p[11], h[7], low(p[10], h[6], low(p[9], h[5], low(p[8], h[4], dot0))))
        dot1 = high(p[7], h[11], high(p[6], h[10], high(p[5], h[9], high(p[4], h[8], dot1))))
        dot1 = high(p[11], h[15], high(p[10], h[14], high(p[9], h[13], high(p[8], h[12], dot1))))
        d, dmin = shifted(float_of_half(p[0])), shifted(upper_half(p[0]))  # float_of_half looks at 16 bits
        six = sixbits(p, group)
        first = part(dot0, scale0(six), minimum0(six), d, dmin, h[18])
        second = part(dot1, scale1(six), minimum1(six), d, dmin, h[19])
        return add(mul(h[16], first), mul(h[17], second))

    return SimpleNamespace(
        activation=q4k.functions(ops).activations, hold=hold, place=place, group_of=group_of, term=term
    )


@once
def rows(ops: SimpleNamespace) -> SimpleNamespace:
    """q4_K as stored, 144 bytes a super-block, as a weight format of ring_rows.py."""
    unit, asm = functions(ops), ring.statements()
    pinned, load16, group_of = asm.pinned, asm.load16, unit.group_of

    @ops.jit
    def pin(p):  # place -> the same, kept in registers
        return pinned(p[0]), pinned(p[1])

    @ops.jit
    def lane_of(thread):  # what every unit of a thread shares, kept in registers
        g = group_of(thread & 3)
        return pinned(g[0]), pinned(g[1]), pinned(g[2]), pinned(g[3])

    @ops.jit
    def piece(row, at):  # uint32, place -> 12 words
        nibbles = uint32(row + at[1])
        a, b, c = load16(uint32(row + at[0])), load16(nibbles), load16(uint32(nibbles + uint32(16)))
        return a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3], c[0], c[1], c[2], c[3]

    # Two units held would take 24 registers more from every block, for rows of more than 16384 values alone.
    return SimpleNamespace(
        units=4, most_held=1, most_threads=448, pin=pin, lane_of=lane_of, piece=piece, **vars(unit)
    )
