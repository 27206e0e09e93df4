"""q8 activations: the quantising rule step by step, its bytes, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from probes.core.types import BadInput
from probes.formats import q8


def naive(x: np.ndarray) -> bytes:
    """The rule, one value at a time."""
    f32, out = np.float32, b""
    for start in range(0, len(x), 32):
        block = [f32(v) for v in x[start : start + 32]]
        d = f32(max(abs(v) for v in block) / f32(127.0))
        r = f32(0.0) if d == 0 else f32(f32(1.0) / d)
        q = [int(min(max(np.rint(f32(v * r)), -128), 127)) for v in block]
        out += np.array([d], "<f2").tobytes() + b"\0\0" + np.array(q, np.int8).tobytes()
        out += np.array([sum(q)], "<i4").tobytes()
    return out


finite = st.floats(-1000, 1000, width=32).filter(lambda v: v == 0 or abs(v) > 1e-30)


@settings(max_examples=40, deadline=None)
@given(hnp.arrays(np.float32, st.sampled_from([32, 64, 256]), elements=finite))
def test_quantise_is_the_rule_to_the_byte(x: np.ndarray) -> None:
    got = q8.quantise(x)
    assert got.tobytes() == naive(x)
    d, q, total = q8.unpack(got)
    np.testing.assert_array_equal(total, q.astype(np.int32).sum(axis=1))
    np.testing.assert_array_equal(got.reshape(-1, q8.PAD40)[:, 2:4], 0)
    np.testing.assert_array_equal(q8.dequantise(got), (d.astype(np.float64)[:, None] * q).reshape(-1))


def test_rounding_is_to_even_and_the_largest_is_127() -> None:
    x = np.zeros(32, np.float32)
    x[:5] = [127.0, 0.5, 1.5, 2.5, -0.5]  # d is exactly 1
    d, q, total = q8.unpack(q8.quantise(x))
    assert d[0] == 1.0 and q[0, :5].tolist() == [127, 0, 2, 2, 0] and total[0] == 131


def test_q_comes_from_the_float32_scale_not_from_the_stored_one() -> None:
    top = np.float32(1000.3)
    d32 = top / np.float32(127)
    assert float(np.float16(d32)) < d32 * (1 - 1.5e-4)  # stored, it is 7.875: smaller
    k = np.arange(31, dtype=np.float32) + 90
    x = np.append(top, (k + np.float32(0.5)) * d32 * np.float32(1 - 1e-4)).astype(np.float32)
    d, q, _ = q8.unpack(q8.quantise(x))
    assert d[0] == np.float16(d32)
    np.testing.assert_array_equal(q[0, 1:], k)  # the stored scale would give k + 1 everywhere
    np.testing.assert_array_equal(np.rint(x[1:] / d.astype(np.float32)), k + 1)


def test_zeros_and_tiny_scales() -> None:
    x = np.zeros(64, np.float32)
    x[32:] = 1e-10  # d = 7.9e-13 is below float16's smallest: stored as 0
    d, q, total = q8.unpack(q8.quantise(x))
    assert (
        d.tolist() == [0.0, 0.0] and (q[0] == 0).all() and (q[1] == 127).all() and total.tolist() == [0, 4064]
    )
    x[32:] = 127 * 2.0**-24  # float16's smallest subnormal is kept
    assert q8.unpack(q8.quantise(x))[0][1] == np.float16(2.0**-24)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_is_refused(value: float) -> None:
    x = np.ones(96, np.float32)
    x[70] = value
    with pytest.raises(BadInput, match=f"activation 70 is {value}"):
        q8.quantise(x)


def test_scales_out_of_range_are_refused() -> None:
    x = np.ones(64, np.float32)
    x[40] = 127 * 65500.0
    assert np.isfinite(q8.unpack(q8.quantise(x))[0]).all()  # rounds down to 65504
    x[40] = 127 * 65520.0
    with pytest.raises(BadInput, match=r"activations 32\.\.63: scale 65520 does not fit float16"):
        q8.quantise(x)
    x[:32] = 1e-38
    x[40] = 1.0
    with pytest.raises(BadInput, match=r"activations 0\.\.31: scale .* has no float32 inverse"):
        q8.quantise(x)


@pytest.mark.parametrize("x", [np.ones(31, np.float32), np.ones(0, np.float32), np.ones((2, 32), np.float32)])
def test_wrong_shapes_are_refused(x: np.ndarray) -> None:
    with pytest.raises(BadInput, match="multiple of 32"):
        q8.quantise(x)


def test_wrong_types_are_refused() -> None:
    with pytest.raises(BadInput, match="float64"):
        q8.quantise(np.ones(32))
    with pytest.raises(BadInput, match="multiple of 40"):
        q8.unpack(np.zeros(41, np.uint8))


def test_random_x8_is_seeded_and_varied() -> None:
    a = q8.random_x8(2048, seed=1)
    np.testing.assert_array_equal(a, q8.random_x8(2048, seed=1))
    assert (a != q8.random_x8(2048, seed=2)).any()
    d, q, _ = q8.unpack(a)
    assert d.max() > 30 * d.min() > 0 and np.unique(q).size > 200
