"""One q6_K unit (32 values): its loads, term and checksum.

A unit is a flat tuple of uint32:

    gguf order   8 nibble words, 8 high words, scales, d, activation scale, 8 words of int8, their sum
    group order  4 nibble words, 2 high words, the same tail
"""

from types import SimpleNamespace
from typing import Any

from numba import float32, int32, int64, uint32

from kernels_numba.ops import once
from probes.formats.layouts import Layout

PAD40 = 40


@once
def _activation(ops: SimpleNamespace) -> Any:
    load8 = ops.load8

    @ops.jit
    def activation(x8, unit):  # 40 bytes as five 8-byte loads
        base = int64(uint32(uint32(unit) * uint32(PAD40)))
        a0, a1 = load8(x8, base)
        a2, a3 = load8(x8, base + 8)
        a4, a5 = load8(x8, base + 16)
        a6, a7 = load8(x8, base + 24)
        a8, a9 = load8(x8, base + 32)
        return uint32(a0 & uint32(0xFFFF)), a1, a2, a3, a4, a5, a6, a7, a8, a9

    return activation


@once
def functions(ops: SimpleNamespace, lay: Layout) -> SimpleNamespace:
    """load(row, x8, unit, nbe) -> unit; term(unit, u) -> float32; checksum(unit) -> uint32.

    A unit is what piece(row, unit, nbe) gives, and after it activation(x8, unit).
    """
    jit, load16, load8, load2, dp4a = ops.jit, ops.load16, ops.load8, ops.load2, ops.dp4a
    mul, add, float_of_half = ops.mul, ops.add, ops.float_of_half
    activation = _activation(ops)
    ql_plane, ql_block, ql_offset = lay.ql.plane, lay.ql.block, lay.ql.offset
    qh_plane, qh_block, qh_offset = lay.qh.plane, lay.qh.block, lay.qh.offset
    sc_plane, sc_block, sc_offset = lay.sc.plane, lay.sc.block, lay.sc.offset
    d_plane, d_block, d_offset = lay.d.plane, lay.d.block, lay.d.offset

    # Unsigned 32-bit offsets from a base that a whole block shares: one add per address, not a 64-bit pair.
    @jit
    def bases(unit, nbe):  # byte offsets of the four components in the row
        block, n = uint32(uint32(unit) >> uint32(3)), uint32(nbe)
        return (
            uint32(uint32(ql_plane) * n + uint32(ql_block) * block + uint32(ql_offset)),
            uint32(uint32(qh_plane) * n + uint32(qh_block) * block + uint32(qh_offset)),
            uint32(uint32(sc_plane) * n + uint32(sc_block) * block + uint32(sc_offset)),
            uint32(uint32(d_plane) * n + uint32(d_block) * block + uint32(d_offset)),
        )

    @jit
    def piece_gguf(row, unit, nbe):  # the weights of a unit; see the module's docstring
        ql, qh, sc, d = bases(unit, nbe)
        pair = uint32(uint32(unit) & uint32(7))
        chunk = uint32(pair >> uint32(2))
        low = int64(uint32(ql + chunk * uint32(64) + (pair & uint32(1)) * uint32(32)))
        high = int64(uint32(qh + chunk * uint32(32)))
        n0, n1, n2, n3 = load16(row, low)
        n4, n5, n6, n7 = load16(row, low + 16)
        h0, h1, h2, h3 = load16(row, high)
        h4, h5, h6, h7 = load16(row, high + 16)
        scales = load2(row, int64(uint32(sc + uint32(2) * pair)))
        scale = load2(row, int64(d))
        return n0, n1, n2, n3, n4, n5, n6, n7, h0, h1, h2, h3, h4, h5, h6, h7, scales, scale

    @jit
    def piece_group(row, unit, nbe):  # likewise
        ql, qh, sc, d = bases(unit, nbe)
        pair = uint32(uint32(unit) & uint32(7))
        n0, n1, n2, n3 = load16(row, int64(uint32(ql + pair * uint32(16))))
        h0, h1 = load8(row, int64(uint32(qh + pair * uint32(8))))
        scales = load2(row, int64(uint32(sc + uint32(2) * pair)))
        scale = load2(row, int64(d))
        return n0, n1, n2, n3, h0, h1, scales, scale

    piece = piece_group if lay.order == "group" else piece_gguf

    @jit
    def load(row, x8, unit, nbe):  # the whole unit
        return (*piece(row, unit, nbe), activation(x8, unit))

    @jit
    def six_bits(nib, nib_shift, high, high_shift):  # four values 0..63 in one word
        low = uint32((nib >> nib_shift) & uint32(0x0F0F0F0F))
        top = uint32(((high >> high_shift) & uint32(0x03030303)) << uint32(4))
        return uint32(low | top)

    @jit
    def signed_byte(word, shift):  # one int8 of a word, as float32
        byte = int32((word >> uint32(shift)) & uint32(255))
        return float32(int32((byte ^ 128) - 128))

    @jit
    def finish(dot0, dot1, sum0, scales, scale, act_scale, act_sum):  # the float part
        d8 = float_of_half(act_scale)
        d = float_of_half(scale)
        exact0 = int32(dot0 - 32 * sum0)
        exact1 = int32(dot1 - 32 * int32(int32(act_sum) - sum0))
        first = mul(mul(mul(d8, signed_byte(scales, 0)), d), float32(exact0))
        second = mul(mul(mul(d8, signed_byte(scales, 8)), d), float32(exact1))
        return add(first, second)

    @jit
    def sum_of_first_half(a):  # exact sum of the unit's first 16 int8
        ones = uint32(0x01010101)
        return dp4a(ones, a[4], dp4a(ones, a[3], dp4a(ones, a[2], dp4a(ones, a[1], int32(0)))))

    @jit
    def term_gguf(v, unit):  # -> float32
        g = uint32(unit & 3)
        ns = uint32((g >> uint32(1)) * uint32(4))
        hs = uint32(g * uint32(2))
        a = v[18]
        dot0, dot1 = int32(0), int32(0)
        dot0 = dp4a(six_bits(v[0], ns, v[8], hs), a[1], dot0)
        dot0 = dp4a(six_bits(v[1], ns, v[9], hs), a[2], dot0)
        dot0 = dp4a(six_bits(v[2], ns, v[10], hs), a[3], dot0)
        dot0 = dp4a(six_bits(v[3], ns, v[11], hs), a[4], dot0)
        dot1 = dp4a(six_bits(v[4], ns, v[12], hs), a[5], dot1)
        dot1 = dp4a(six_bits(v[5], ns, v[13], hs), a[6], dot1)
        dot1 = dp4a(six_bits(v[6], ns, v[14], hs), a[7], dot1)
        dot1 = dp4a(six_bits(v[7], ns, v[15], hs), a[8], dot1)
        return finish(dot0, dot1, sum_of_first_half(a), v[16], v[17], a[0], a[9])

    @jit
    def term_group(v, unit):  # -> float32
        z, four = uint32(0), uint32(4)
        a = v[8]
        dot0, dot1 = int32(0), int32(0)
        dot0 = dp4a(six_bits(v[0], z, v[4], z), a[1], dot0)
        dot0 = dp4a(six_bits(v[1], z, v[4], uint32(2)), a[2], dot0)
        dot0 = dp4a(six_bits(v[2], z, v[4], four), a[3], dot0)
        dot0 = dp4a(six_bits(v[3], z, v[4], uint32(6)), a[4], dot0)
        dot1 = dp4a(six_bits(v[0], four, v[5], z), a[5], dot1)
        dot1 = dp4a(six_bits(v[1], four, v[5], uint32(2)), a[6], dot1)
        dot1 = dp4a(six_bits(v[2], four, v[5], four), a[7], dot1)
        dot1 = dp4a(six_bits(v[3], four, v[5], uint32(6)), a[8], dot1)
        return finish(dot0, dot1, sum_of_first_half(a), v[6], v[7], a[0], a[9])

    @jit
    def tail_sum(scales, scale, a):  # -> uint32
        s = uint32(scales + scale + a[0] + a[1] + a[2] + a[3] + a[4] + a[5])
        return uint32(s + a[6] + a[7] + a[8] + a[9])

    @jit
    def checksum_gguf(v):  # -> uint32
        s = uint32(v[0] + v[1] + v[2] + v[3] + v[4] + v[5] + v[6] + v[7])
        s = uint32(s + v[8] + v[9] + v[10] + v[11] + v[12] + v[13] + v[14] + v[15])
        return uint32(s + tail_sum(v[16], v[17], v[18]))

    @jit
    def checksum_group(v):  # -> uint32
        return uint32(v[0] + v[1] + v[2] + v[3] + v[4] + v[5] + tail_sum(v[6], v[7], v[8]))

    term, checksum = (term_group, checksum_group) if lay.order == "group" else (term_gguf, checksum_gguf)
    return SimpleNamespace(load=load, piece=piece, activation=activation, term=term, checksum=checksum)
