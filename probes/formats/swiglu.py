"""SwiGLU, and the one exp that NumPy, Numba and C++ share to the bit.

SwiGLU(g, u) = (g / (1 + exp(-g))) * u; every operation rounds to float32 by itself (no FMA).

exp(x), every step one float32 operation rounded to nearest even, or an integer one as named, with the
constants of `EXP`:

 1. if x > 89: x = 89. If x < -104: x = -104. (Both comparisons are false for NaN, which passes.)
 2. t = x * LOG2E
 3. t = t + MAGIC                         MAGIC = 1.5 * 2^23: t's last bit is now worth 1
 4. n = bits(t) - bits(MAGIC)             int32, wrapping; n = rint(x * LOG2E), -150..128
 5. f = t - MAGIC                         exact: n as a float
 6. r = x - f * LN2_HI                    both exact: LN2_HI has 15 bits, f has 8
 7. r = r - f * LN2_LO                    |r| <= 0.3468
 8. p = C6; p = p * r + C5; p = p * r + C4; p = p * r + C3; p = p * r + C2     (8 roundings)
 9. p = p * (r * r); p = p + r; p = p + 1                                      exp(r), 0.7..1.42
10. h = n >> 1 (arithmetic); k = n - h                                         int32, -75..64
11. s = float_of_bits((h + 127) << 23); q = float_of_bits((k + 127) << 23)     uint32 shift
12. result = (p * s) * q                  p * s is exact; only * q can round, once

Special values: exp(NaN) is NaN (n is arbitrary, hence the wrapping and the unsigned shifts), exp(+inf) = inf,
exp(-inf) = 0, exp(+-0) = 1. Above 88.72283 (0x1.62e42ep+6) the last multiplication overflows to inf.
Subnormal results are kept: step 12 rounds them once, down to 2^-149, and below about -103.97 to 0; a twin
must not flush subnormals (no -ftz, no fast-math). The result is never negative and never -0.

Accuracy: at most 0.989 ulp of the exact result against float64, over every float32 between -104.5 and 89.2 of
magnitude 2^-30 or more; the worst is x = -0x1.769da2p+2. Smaller inputs all give 1.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from probes.formats.q8 import F32


class ExpConstants(NamedTuple):
    """Every constant of `exp`; each is exactly a float32."""

    high: float
    low: float
    log2e: float
    magic: float
    magic_bits: int
    ln2_hi: float
    ln2_lo: float
    c2: float
    c3: float
    c4: float
    c5: float
    c6: float


EXP: Final = ExpConstants(
    high=float.fromhex("0x1.64p+6"),  # 89
    low=float.fromhex("-0x1.ap+6"),  # -104
    log2e=float.fromhex("0x1.715476p+0"),
    magic=float.fromhex("0x1.8p+23"),
    magic_bits=0x4B400000,
    ln2_hi=float.fromhex("0x1.62e4p-1"),  # ln 2 rounded to 15 bits
    ln2_lo=float.fromhex("0x1.7f7d1cp-20"),  # the rest of ln 2
    # Minimax of (e^r - 1 - r) / r^2 over |r| <= 0.3467, each rounded in turn: 2^-28 of e^r.
    c2=float.fromhex("0x1.fffffcp-2"),
    c3=float.fromhex("0x1.555492p-3"),
    c4=float.fromhex("0x1.5558bp-5"),
    c5=float.fromhex("0x1.12398ap-7"),
    c6=float.fromhex("0x1.6a4d14p-10"),
)


def exp(x: F32) -> F32:
    """e^x of `x` f32[...], by the fixed sequence of this module's docstring."""
    f32 = np.float32
    x = np.asarray(x, f32)
    shape, x = x.shape, np.atleast_1d(x)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        x = np.where(x > f32(EXP.high), f32(EXP.high), x)
        x = np.where(x < f32(EXP.low), f32(EXP.low), x)
        t = x * f32(EXP.log2e) + f32(EXP.magic)
        n = t.view(np.int32) - np.int32(EXP.magic_bits)
        f = t - f32(EXP.magic)
        r = x - f * f32(EXP.ln2_hi) - f * f32(EXP.ln2_lo)
        p = np.full_like(r, f32(EXP.c6))
        for c in (EXP.c5, EXP.c4, EXP.c3, EXP.c2):
            p = p * r + f32(c)  # two NumPy operations: two roundings
        p = p * (r * r) + r + f32(1.0)
        h = n >> np.int32(1)
        k = n - h
        s, q = (((i + np.int32(127)) << np.int32(23)).view(f32) for i in (h, k))
        result: F32 = (p * s) * q
    return result.reshape(shape)


def swiglu(g: F32, u: F32) -> F32:
    """(g / (1 + exp(-g))) * u of two f32[...] of one shape, each operation rounded to float32.

    g = +inf gives inf * u; g = -inf gives NaN (-inf / inf), as IEEE says; for g below about -88.7
    the quotient is -0.
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        result: F32 = (g / (np.float32(1.0) + exp(-g))) * u
    return result
