"""q6_K units with register-resident activations. Twin of kernels_cu/held.cuh, which says why no bit changes.

held    8 words of int8, scale as float32, the two biases as int32
place   byte offsets of ql, qh, sc and d from the row's start
group   masks of the low and high bits, and the factors of their sums (GGUF order only)
piece   weights: 4 + 2 words (group order) or 8 + 8 (GGUF order), two scales, d
"""

from types import SimpleNamespace
from typing import Any

from numba import float32, int32, uint32

from kernels_numba import q6k, ring
from kernels_numba.ops import once
from probes.formats.layouts import Layout

MAGIC = 12582912.0  # 1.5 * 2^23: an integer below 2^22 added to its bits is the float MAGIC + integer
MAGIC_BITS = 0x4B400000


@once
def functions(ops: SimpleNamespace, lay: Layout) -> SimpleNamespace:
    """hold(activation, owned), place(unit, nbe), group_of(pair), term(piece, held, group)."""
    jit, dp4a, mul, add, sub = ops.jit, ops.dp4a, ops.mul, ops.add, ops.sub
    float_of_half, float_of_bits = ops.float_of_half, ops.float_of_bits
    dp4a_unsigned, first_byte, second_byte = ops.dp4a_unsigned, ops.first_byte, ops.second_byte
    grouped = lay.order == "group"
    scale = 1 if grouped else 16
    ql_plane, ql_block, ql_offset = lay.ql.plane, lay.ql.block, lay.ql.offset
    qh_plane, qh_block, qh_offset = lay.qh.plane, lay.qh.block, lay.qh.offset
    sc_plane, sc_block, sc_offset = lay.sc.plane, lay.sc.block, lay.sc.offset
    d_plane, d_block, d_offset = lay.d.plane, lay.d.block, lay.d.offset
    bias_step, inverse = 32 * scale, 1.0 / scale

    @jit
    def hold(a, owned):  # q6k.activation's words, whether the lane owns the unit
        ones = uint32(0x01010101)
        sum0 = dp4a(ones, a[4], dp4a(ones, a[3], dp4a(ones, a[2], dp4a(ones, a[1], int32(0)))))
        sum1 = int32(int32(a[9]) - sum0)
        d8 = mul(float_of_half(a[0]), float32(inverse))
        d8 = d8 if owned else float32(0.0)
        bias0 = int32(MAGIC_BITS - int32(bias_step * sum0))
        bias1 = int32(MAGIC_BITS - int32(bias_step * sum1))
        return a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], d8, bias0, bias1

    @jit
    def place(unit, nbe):  # -> (ql, qh, sc, d)
        block, n = uint32(uint32(unit) >> uint32(3)), uint32(nbe)
        pair = uint32(uint32(unit) & uint32(7))
        chunk = uint32(pair >> uint32(2))
        if grouped:
            low, high = uint32(pair * uint32(16)), uint32(pair * uint32(8))
        else:
            low = uint32(chunk * uint32(64) + (pair & uint32(1)) * uint32(32))
            high = uint32(chunk * uint32(32))
        return (
            uint32(uint32(ql_plane) * n + uint32(ql_block) * block + uint32(ql_offset) + low),
            uint32(uint32(qh_plane) * n + uint32(qh_block) * block + uint32(qh_offset) + high),
            uint32(uint32(sc_plane) * n + uint32(sc_block) * block + uint32(sc_offset) + uint32(2) * pair),
            uint32(uint32(d_plane) * n + uint32(d_block) * block + uint32(d_offset)),
        )

    @jit
    def group_of(pair):  # -> (low mask, high mask, low factor, high factor)
        g = uint32(uint32(pair) & uint32(3))
        upper = g >= uint32(2)
        low_mask = uint32(0xF0F0F0F0) if upper else uint32(0x0F0F0F0F)
        low_factor = int32(1) if upper else int32(16)
        shift = uint32(uint32(2) * g)
        return low_mask, uint32(uint32(0x03030303) << shift), low_factor, int32(uint32(256) >> shift)

    @jit
    def finish(dot0, dot1, scales, d, d8):  # the float part of a term
        both = mul(d8, float_of_half(d))
        f0 = sub(float_of_bits(uint32(dot0)), float32(MAGIC))
        f1 = sub(float_of_bits(uint32(dot1)), float32(MAGIC))
        return add(mul(mul(both, first_byte(scales)), f0), mul(mul(both, second_byte(scales)), f1))

    @jit
    def join(low, high):  # four values 0..63 from shifted words
        return uint32((low & uint32(0x0F0F0F0F)) | (high & uint32(0x30303030)))

    @jit
    def term_group(p, h, group):  # -> float32
        two, four = uint32(2), uint32(4)
        dot0 = dp4a(join(p[0], uint32(p[4] << four)), h[0], h[9])
        dot0 = dp4a(join(p[1], uint32(p[4] << two)), h[1], dot0)
        dot0 = dp4a(join(p[2], p[4]), h[2], dot0)
        dot0 = dp4a(join(p[3], uint32(p[4] >> two)), h[3], dot0)
        dot1 = dp4a(join(uint32(p[0] >> four), uint32(p[5] << four)), h[4], h[10])
        dot1 = dp4a(join(uint32(p[1] >> four), uint32(p[5] << two)), h[5], dot1)
        dot1 = dp4a(join(uint32(p[2] >> four), p[5]), h[6], dot1)
        dot1 = dp4a(join(uint32(p[3] >> four), uint32(p[5] >> two)), h[7], dot1)
        return finish(dot0, dot1, p[6], p[7], h[8])

    @jit
    def four_words(a, b, c, d, mask, w, x, y, z):  # masked words times int8 words
        dot = dp4a_unsigned(uint32(b & mask), x, dp4a_unsigned(uint32(a & mask), w, int32(0)))
        return dp4a_unsigned(uint32(d & mask), z, dp4a_unsigned(uint32(c & mask), y, dot))

    @jit
    def weigh(bias, low, high, group):  # -> bias + 16 * dot
        return int32(int32(bias + int32(low * group[2])) + int32(high * group[3]))

    @jit
    def term_gguf(p, h, group):  # -> float32
        low0 = four_words(p[0], p[1], p[2], p[3], group[0], h[0], h[1], h[2], h[3])
        low1 = four_words(p[4], p[5], p[6], p[7], group[0], h[4], h[5], h[6], h[7])
        high0 = four_words(p[8], p[9], p[10], p[11], group[1], h[0], h[1], h[2], h[3])
        high1 = four_words(p[12], p[13], p[14], p[15], group[1], h[4], h[5], h[6], h[7])
        dot0, dot1 = weigh(h[9], low0, high0, group), weigh(h[10], low1, high1, group)
        return finish(dot0, dot1, p[16], p[17], h[8])

    return SimpleNamespace(
        activation=q6k._activation(ops), hold=hold, place=place, group_of=group_of,
        term=term_group if grouped else term_gguf,
    )  # fmt: skip


@once
def _shared_piece(ops: SimpleNamespace, grouped: bool) -> Any:  # piece(row address, place)
    asm = ring.statements()
    load16, load8, load2 = asm.load16, asm.load8, asm.load2

    @ops.jit
    def group(row, at):  # uint32, place -> 8 words
        a = load16(uint32(row + at[0]))
        b = load8(uint32(row + at[1]))
        return a[0], a[1], a[2], a[3], b[0], b[1], load2(uint32(row + at[2])), load2(uint32(row + at[3]))

    @ops.jit
    def gguf(row, at):  # uint32, place -> 18 words
        low, high = uint32(row + at[0]), uint32(row + at[1])
        a, b = load16(low), load16(uint32(low + uint32(16)))
        c, d = load16(high), load16(uint32(high + uint32(16)))
        scales, scale = load2(uint32(row + at[2])), load2(uint32(row + at[3]))
        return (
            a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3],
            c[0], c[1], c[2], c[3], d[0], d[1], d[2], d[3], scales, scale,
        )  # fmt: skip

    return group if grouped else gguf


@once
def rows(ops: SimpleNamespace, lay: Layout) -> SimpleNamespace:
    """q6_K of one layout as a weight format of ring_rows.py."""
    unit, pinned = functions(ops, lay), ring.statements().pinned
    group_of = unit.group_of

    @ops.jit
    def pin(p):  # place -> the same, kept in registers
        return pinned(p[0]), pinned(p[1]), pinned(p[2]), pinned(p[3])

    @ops.jit
    def lane_of(thread):  # what every unit of a thread shares
        return group_of(thread & 7)

    piece = _shared_piece(ops, lay.order == "group")
    return SimpleNamespace(
        units=8, most_held=3, most_threads=320, pin=pin, lane_of=lane_of, piece=piece, **vars(unit)
    )
