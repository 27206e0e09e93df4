// One q6_K unit (32 values) in any layout: its loads, and its term of the reference order.
//
// A layout is a struct of constants generated from probes/formats/layouts.py (layouts.gen.cuh). The
// integer dots are exact, so sum((q-32)*x) is computed as sum(q*x) - 32*sum(x), which costs a
// third of the subtraction byte by byte.
#pragma once

#include "common.cuh"

namespace probes {

// Where a unit's pieces lie, in bytes from the row's start: the same for every row.
struct Place {
    uint32_t ql, qh, sc, d;
};

// Unsigned 32-bit offsets from a base that a whole block shares: one add per address, not a 64-bit pair.
template <class L>
PROBES_FN Place place_of(int unit, int nbe) {
    const uint32_t n = static_cast<uint32_t>(nbe), block = static_cast<uint32_t>(unit) >> 3, pair = unit & 7;
    Place p;
    p.ql = L::ql_plane * n + L::ql_block * block + L::ql_offset;
    p.qh = L::qh_plane * n + L::qh_block * block + L::qh_offset;
    p.sc = L::sc_plane * n + L::sc_block * block + L::sc_offset + 2 * pair;
    p.d = L::d_plane * n + L::d_block * block + L::d_offset;
    p.ql += L::group ? pair * 16 : (pair >> 2) * 64 + (pair & 1) * 32;
    p.qh += L::group ? pair * 8 : (pair >> 2) * 32;
    return p;
}

template <bool Group>
struct Piece;
template <>
struct Piece<true> {  // group order: 16 nibble bytes and 8 high bytes of the unit's own
    Words4 low;
    Words2 high;
    uint32_t scales, d;  // two int8, f16 bits
};
template <>
struct Piece<false> {  // GGUF order: 32 nibble bytes shared by two units, 32 high bytes by four
    Words4 low[2], high[2];
    uint32_t scales, d;
};

template <class L, class From>
PROBES_FN Piece<L::group> load_piece(const uint8_t* row, const Place& at) {
    Piece<L::group> p;
    if constexpr (L::group) {
        p.low = From::w4(row + at.ql);
        p.high = From::w2(row + at.qh);
    } else {
        p.low[0] = From::w4(row + at.ql), p.low[1] = From::w4(row + at.ql + 16);
        p.high[0] = From::w4(row + at.qh), p.high[1] = From::w4(row + at.qh + 16);
    }
    p.scales = From::half(row + at.sc);
    p.d = From::half(row + at.d);
    return p;
}

template <class L>
struct Q6kUnit {
    Piece<L::group> piece;
    Activation act;
    int pair;
};

template <class L>
PROBES_FN Q6kUnit<L> load_q6k(const uint8_t* row, const uint8_t* x8, int unit, int nbe) {
    return {load_piece<L, ReadOnly>(row, place_of<L>(unit, nbe)), load_activation(x8, unit), unit & 7};
}

// Word j holds values 4j..4j+3 of the unit, one 6-bit value in each byte.
template <class L>
PROBES_FN uint32_t q6k_word(const Q6kUnit<L>& u, int j) {
    uint32_t nib, high;
    if constexpr (L::group) {
        nib = u.piece.low.w[j & 3] >> (j < 4 ? 0 : 4);
        high = u.piece.high.w[j >> 2] >> (2 * (j & 3));
    } else {
        const int g = u.pair & 3;
        nib = u.piece.low[j >> 2].w[j & 3] >> ((g >> 1) * 4);
        high = u.piece.high[j >> 2].w[j & 3] >> (2 * g);
    }
    return (nib & 0x0f0f0f0fu) | ((high & 0x03030303u) << 4);
}

template <class L>
PROBES_FN float q6k_term(const Q6kUnit<L>& u) {
    int32_t dot0 = 0, dot1 = 0, sum0 = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        dot0 = dp4a(q6k_word(u, j), u.act.x[j], dot0);
        dot1 = dp4a(q6k_word(u, j + 4), u.act.x[j + 4], dot1);
        sum0 = dp4a(0x01010101u, u.act.x[j], sum0);
    }
    dot0 -= 32 * sum0;
    dot1 -= 32 * (u.act.sum - sum0);
    const float d8 = float_of_half(u.act.scale), d = float_of_half(u.piece.d);
    const float a = mul(mul(mul(d8, signed_byte(u.piece.scales, 0)), d), static_cast<float>(dot0));
    const float b = mul(mul(mul(d8, signed_byte(u.piece.scales, 1)), d), static_cast<float>(dot1));
    return add(a, b);
}

// The sum of every 32-bit (or shorter) word that load_q6k read, in that order, which is the order in which the compiler
// then asks for them: what the stream form returns.
template <class L>
PROBES_FN uint32_t q6k_checksum(const Q6kUnit<L>& u) {
    uint32_t s = 0;
    if constexpr (L::group) {
#pragma unroll
        for (int j = 0; j < 4; ++j) s += u.piece.low.w[j];
        s += u.piece.high.w[0] + u.piece.high.w[1];
    } else {
#pragma unroll
        for (int j = 0; j < 8; ++j) s += u.piece.low[j >> 2].w[j & 3];
#pragma unroll
        for (int j = 0; j < 8; ++j) s += u.piece.high[j >> 2].w[j & 3];
    }
    s += u.piece.scales + u.piece.d + u.act.scale;
#pragma unroll
    for (int j = 0; j < 8; ++j) s += u.act.x[j];
    s += static_cast<uint32_t>(u.act.sum);
    return s;
}

}  // namespace probes
