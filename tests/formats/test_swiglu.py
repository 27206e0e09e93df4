"""exp's fixed sequence: accuracy against float64, special values, and a scalar twin of its steps."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from probes.formats.swiglu import EXP, exp, swiglu

STEP = 509  # every 509th float32: 4.4 million of them


def ulps(x: np.ndarray) -> np.ndarray:
    """Error of exp(x) in ulps of the exact result; inf where only one of the two is infinite."""
    exact = np.exp(x.astype(np.float64))
    got = exp(x).astype(np.float64)
    with np.errstate(over="ignore"):
        infinite = np.isinf(exact.astype(np.float32))
    ulp = np.maximum(np.exp2(np.floor(np.log2(np.maximum(exact, 1e-60))) - 23), 2.0**-149)
    error = np.abs(np.where(infinite, 0, got) - np.where(infinite, 0, exact)) / ulp
    return np.where(infinite != np.isinf(got), np.inf, error)


@pytest.mark.parametrize("sign", [1, -1])
def test_accuracy_over_the_whole_range(sign: int) -> None:
    last = int(np.float32(89.2 if sign > 0 else 104.5).view(np.uint32))
    worst = 0.0
    for first in range(0, last, 1 << 28):
        bits = np.arange(first, min(last, first + (1 << 28)), STEP, dtype=np.uint32)
        worst = max(worst, float(ulps(np.float32(sign) * bits.view(np.float32)).max()))
    assert 0.5 <= worst <= 1.0


def test_the_worst_case_and_the_edges() -> None:
    x = np.array([float.fromhex("-0x1.769da2p+2"), float.fromhex("0x1.62e42ep+6"), -87.3, -103.9], np.float32)
    assert ulps(x).max() <= 0.99
    near = np.float32(88.7228)
    around = near + np.arange(-50, 50, dtype=np.float32) * np.float32(2.0**-17)
    assert ulps(around).max() <= 1.0


def test_special_values() -> None:
    got = exp(np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 89.0, 3e38, -104.0, -3e38, 1e-45], np.float32))
    assert np.isnan(got[0])
    assert got[1:].tolist() == [np.inf, 0.0, 1.0, 1.0, np.inf, np.inf, 0.0, 0.0, 1.0]
    assert not np.signbit(got[1:]).any()


def test_subnormal_results_are_kept() -> None:
    got = exp(np.array([-88.0, -95.0, -103.2, -103.9], np.float32))
    assert (got > 0).all() and (got < 2.0**-126).all()
    assert got[-1] == np.float32(2.0**-149)


def test_shapes_and_monotony_across_reductions() -> None:
    assert exp(np.float32(1.0)).shape == () and exp(np.ones((2, 3), np.float32)).shape == (2, 3)
    x = np.linspace(-104, 89, 200001, dtype=np.float32)
    y = exp(x)[exp(x) < np.inf].astype(np.float64)
    assert (y[1:] >= y[:-1] * (1 - 2.0**-22)).all()


def test_constants_are_float32_and_the_products_exact() -> None:
    for name, value in EXP._asdict().items():
        if name != "magic_bits":
            assert float(np.float32(value)) == value, name
    assert int(np.float32(EXP.magic).view(np.uint32)) == EXP.magic_bits
    for n in range(-151, 130):
        assert float(np.float32(n * EXP.ln2_hi)) == n * EXP.ln2_hi


def scalar_exp(value: float) -> float:
    """The documented steps, one scalar at a time, from the docstring alone."""
    f32 = np.float32
    x = f32(value)
    x = f32(89) if x > f32(89) else x
    x = f32(-104) if x < f32(-104) else x
    t = f32(f32(x * f32(EXP.log2e)) + f32(EXP.magic))
    n = struct.unpack("<i", struct.pack("<f", t))[0] - EXP.magic_bits
    f = f32(t - f32(EXP.magic))
    r = f32(x - f32(f * f32(EXP.ln2_hi)))
    r = f32(r - f32(f * f32(EXP.ln2_lo)))
    p = f32(EXP.c6)
    for c in (EXP.c5, EXP.c4, EXP.c3, EXP.c2):
        p = f32(f32(p * r) + f32(c))
    p = f32(p * f32(r * r))
    p = f32(f32(p + r) + f32(1))
    h = n >> 1
    s, q = (struct.unpack("<f", struct.pack("<I", (e + 127) << 23))[0] for e in (h, n - h))
    with np.errstate(over="ignore", under="ignore"):
        return float(f32(f32(p * f32(s)) * f32(q)))


def test_the_documented_steps_give_the_same_bits() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate((rng.uniform(-105, 90, 3000), rng.normal(0, 1, 1000), [0.0, -104.0, 89.0])).astype(
        np.float32
    )
    want = np.array([scalar_exp(v) for v in x], np.float32)
    np.testing.assert_array_equal(exp(x).view(np.uint32), want.view(np.uint32))


def test_swiglu() -> None:
    rng = np.random.default_rng(1)
    g, u = (rng.normal(0, 4, (3, 500)).astype(np.float32) for _ in range(2))
    got = swiglu(g, u)
    assert got.dtype == np.float32
    wide = g.astype(np.float64)
    exact = wide / (1 + np.exp(-wide)) * u
    assert (np.abs(got - exact) <= 4 * 2.0**-23 * np.abs(exact)).all()
    one = np.float32(1)
    assert got[1, 7] == (g[1, 7] / (one + exp(-g[1:2, 7:8])[0, 0])) * u[1, 7]


def test_swiglu_special_values() -> None:
    g = np.array([np.inf, -np.inf, -200.0, 0.0, np.nan], np.float32)
    got = swiglu(g, np.full(5, 2.0, np.float32))
    assert got[0] == np.inf and np.isnan(got[1]) and got[2] == 0 and np.signbit(got[2])
    assert got[3] == 0 and np.isnan(got[4])
