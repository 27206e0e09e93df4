// One q6_K unit (32 values) in any layout: its loads, and its term of the reference order.
//
// A layout is a struct of constants generated from probes/core/layouts.py (layouts.gen.cuh). The
// integer dots are exact, so sum((q-32)*x) is computed as sum(q*x) - 32*sum(x), which costs a
// third of the subtraction byte by byte.
#pragma once

#include "common.cuh"

namespace probes {

template <bool Group>
struct Q6kBytes;

template <>
struct Q6kBytes<false> {  // GGUF order: 32 nibble bytes shared by two units, 32 high bytes by four
    Words4 nib[2], high[2];
};
template <>
struct Q6kBytes<true> {  // group order: 16 nibble bytes and 8 high bytes of the unit's own
    Words4 nib;
    Words2 high;
};

template <class L>
struct Q6kUnit {
    Q6kBytes<L::group> bytes;
    uint32_t scales;  // two int8
    uint32_t d;       // f16 bits
    Activation act;
    int pair;
};

template <class L>
PROBES_FN Q6kUnit<L> load_q6k(const uint8_t* row, const uint8_t* x8, int unit, int nbe) {
    // Unsigned 32-bit offsets from a base that a whole block shares: one add per address, not a 64-bit pair.
    const uint32_t n = static_cast<uint32_t>(nbe), block = static_cast<uint32_t>(unit) >> 3, pair = unit & 7;
    uint32_t ql = L::ql_plane * n + L::ql_block * block + L::ql_offset;
    uint32_t qh = L::qh_plane * n + L::qh_block * block + L::qh_offset;
    const uint32_t sc = L::sc_plane * n + L::sc_block * block + L::sc_offset + 2 * pair;
    const uint32_t d = L::d_plane * n + L::d_block * block + L::d_offset;
    Q6kUnit<L> u;
    if constexpr (L::group) {
        u.bytes.nib = load16(row + (ql + pair * 16));
        u.bytes.high = load8(row + (qh + pair * 8));
    } else {
        ql += (pair >> 2) * 64 + (pair & 1) * 32;
        qh += (pair >> 2) * 32;
        u.bytes.nib[0] = load16(row + ql), u.bytes.nib[1] = load16(row + ql + 16);
        u.bytes.high[0] = load16(row + qh), u.bytes.high[1] = load16(row + qh + 16);
    }
    u.scales = load2(row + sc);
    u.d = load2(row + d);
    u.act = load_activation(x8, unit);
    u.pair = static_cast<int>(pair);
    return u;
}

// Word j holds values 4j..4j+3 of the unit, one 6-bit value in each byte.
template <class L>
PROBES_FN uint32_t q6k_word(const Q6kUnit<L>& u, int j) {
    uint32_t nib, high;
    if constexpr (L::group) {
        nib = u.bytes.nib.w[j & 3] >> (j < 4 ? 0 : 4);
        high = u.bytes.high.w[j >> 2] >> (2 * (j & 3));
    } else {
        const int g = u.pair & 3;
        nib = u.bytes.nib[j >> 2].w[j & 3] >> ((g >> 1) * 4);
        high = u.bytes.high[j >> 2].w[j & 3] >> (2 * g);
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
    const float d8 = float_of_half(u.act.scale), d = float_of_half(u.d);
    const float a = mul(mul(mul(d8, signed_byte(u.scales, 0)), d), static_cast<float>(dot0));
    const float b = mul(mul(mul(d8, signed_byte(u.scales, 1)), d), static_cast<float>(dot1));
    return add(a, b);
}

// The sum of every 32-bit (or shorter) word that load_q6k read: what the stream form returns.
template <class L>
PROBES_FN uint32_t q6k_checksum(const Q6kUnit<L>& u) {
    uint32_t s = u.scales + u.d + u.act.scale + static_cast<uint32_t>(u.act.sum);
#pragma unroll
    for (int j = 0; j < 8; ++j) s += u.act.x[j];
    if constexpr (L::group) {
#pragma unroll
        for (int j = 0; j < 4; ++j) s += u.bytes.nib.w[j];
        s += u.bytes.high.w[0] + u.bytes.high.w[1];
    } else {
#pragma unroll
        for (int j = 0; j < 8; ++j) s += u.bytes.nib[j >> 2].w[j & 3] + u.bytes.high[j >> 2].w[j & 3];
    }
    return s;
}

}  // namespace probes
