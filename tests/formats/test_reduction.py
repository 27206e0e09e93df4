"""The reference order itself: order of additions, padding, and the rounding count of the bound."""

from __future__ import annotations

import numpy as np
import pytest

from probes.formats.reduction import reduce_units, spread
from tests.formats.bounds import gamma, roundings


@pytest.mark.parametrize("units", [1, 31, 32, 255, 256, 257, 432, 592, 1024])
def test_reduce_units_is_the_definition(units: int) -> None:
    rng = np.random.default_rng(units)
    terms = (rng.standard_normal((3, units)) * 10.0 ** rng.uniform(-6, 6, (3, units))).astype(np.float32)
    for row, got in zip(terms, reduce_units(terms), strict=True):
        acc = np.zeros(256, np.float32)
        for u, term in enumerate(row):
            acc[u % 256] += term
        total = np.float32(0)
        for warp in acc.reshape(8, 32):
            lanes = warp.copy()
            for offset in (16, 8, 4, 2, 1):
                lanes = lanes + lanes[np.arange(32) ^ offset]
            assert (lanes == lanes[0]).all()
            total = np.float32(total + lanes[0])
        assert got.tobytes() == total.tobytes()


def test_another_order_gives_other_bits() -> None:
    terms = np.random.default_rng(0).standard_normal((50, 432)).astype(np.float32)
    assert (reduce_units(terms) != reduce_units(terms[:, ::-1].copy())).any()
    assert (reduce_units(terms) != terms.sum(axis=1)).any()


def test_no_sum_is_negative_zero() -> None:
    terms = np.full((1, 300), -0.0, np.float32)
    assert reduce_units(terms).tobytes() == np.zeros(1, np.float32).tobytes()
    terms[0, :2] = [3.0, -3.0]
    assert not np.signbit(reduce_units(terms)[0])


def test_roundings_counts_each_path() -> None:
    assert [roundings(u) for u in (1, 256, 257, 512, 513)] == [12, 12, 13, 13, 14]
    assert gamma(10, 2.0**-24) > 10 * 2.0**-24


def test_spread_dots_are_integers() -> None:
    rng = np.random.default_rng(2)
    x = rng.integers(-128, 128, (3, 256)).astype(np.int8)
    q = rng.integers(0, 64, (3, 5, 256))
    want = (q * x[:, None, :].astype(np.int64)).reshape(3, 5, 16, 16).sum(axis=3)
    np.testing.assert_array_equal(np.matmul(q.astype(np.float32), spread(x, 16)), want)
    most = np.matmul(np.full((1, 1, 256), 63, np.float32), spread(np.full((1, 256), -128, np.int8), 32))
    assert (most == -63 * 128 * 32).all()
