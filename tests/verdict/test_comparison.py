"""The maths of a comparison: quantiles, one row's change, drift by unchanged rows, Holm."""

from __future__ import annotations

import math

import numpy as np
import pytest

from probes.verdict import comparison as c
from probes.verdict.comparison import Drift, Moved


@pytest.mark.parametrize(
    ("df", "p", "t"), [(7, 0.005, 3.4995), (15, 0.005, 2.9467), (19, 0.0005, 3.8834), (60, 1e-4, 3.962)]
)
def test_student(df: float, p: float, t: float) -> None:
    assert c.student(p, df) == pytest.approx(t, rel=0.01)
    assert c.tail(c.student(p, df), df) == pytest.approx(p, rel=1e-9)


def test_a_row_needs_eight_places_and_bears_a_wild_one() -> None:
    assert c.moved([0.01] * 7) is None
    d = 0.01 + 0.001 * np.array([-3, -2, -1, 0, 0, 1, 2, 3])
    plain, wild = c.moved(d), c.moved([*d[:-1], 0.3])
    assert plain and wild
    assert plain.m == pytest.approx(0.01) and wild.m == pytest.approx(0.01, abs=0.001)
    assert wild.se < 2 * plain.se
    many = c.moved(np.tile(d, 100))
    assert many and many.n == c.MOST and many.m == pytest.approx(0.01, abs=1e-4)


def test_a_group_draws_standard_errors_together() -> None:
    rows = [Moved(0.0, se, 8, 7) for se in (0.001, 0.002, 0.002, 0.009)]
    got = c.settled(rows)
    assert rows[0].se < got[0].se < 0.002 < got[3].se < rows[3].se
    assert all(x.df == 7 + c.BORROWED for x in got)
    assert c.settled(rows[:3]) == rows[:3]


def rows(count: int, m: float, sd: float = 0.001, seed: int = 0) -> list[Moved]:
    noise = np.random.default_rng(seed).standard_normal(count)
    return [Moved(m + sd * float(x), 0.0005, 8, 19) for x in noise]


def test_drift_is_what_unchanged_rows_moved_by() -> None:
    got = c.drift(rows(30, 0.016), rows(20, 0.016, seed=1), same_kernels=True)
    assert got.m == pytest.approx(0.016, abs=0.0005) and got.rows == 50 and not got.why and not got.slack
    assert got.spread == pytest.approx(0.0009, abs=0.0005)
    few = c.drift(rows(2, 0.0), rows(1, 0.0), same_kernels=True)
    assert few.why == "no-controls" and few.slack == c.UNKNOWN


def test_classes_that_disagree_widen_or_the_reads_alone_count() -> None:
    """A slower kernel in the A/A arms too is no drift; with the same kernels nobody knows."""
    reads, again = rows(20, 0.0), rows(40, 0.03, seed=1)
    same = c.drift(reads, again, same_kernels=True)
    assert same.why == "controls-disagree" and same.slack == pytest.approx(0.015, abs=0.001)
    other = c.drift(reads, again, same_kernels=False)
    assert other.why == "reads-alone" and other.m == pytest.approx(0.0, abs=0.001) and other.rows == 20


def test_a_change_is_answered_by_its_interval_and_by_holm() -> None:
    by = Drift(m=0.01, rows=40)
    still, slow = (c.change(Moved(m, 0.001, 24, 35), by, c.PRIOR, 0.01) for m in (0.011, 0.04))
    assert c.answer(still, False, 0.01) == ("SAME", "within-margin")
    assert c.answer(slow, True, 0.01) == ("SLOWER", "beyond-margin")
    assert c.answer(slow, False, 0.01) == ("UNCLEAR", "beyond-margin-alone")
    assert slow.p < 1e-6 and still.p == 1.0 and slow.low > math.log1p(0.01)
    wide = c.change(Moved(0.02, 0.008, 8, 19), by, c.PRIOR, 0.01)
    assert c.answer(wide, False, 0.01) == ("UNCLEAR", "straddles-margin")
    fast = c.change(Moved(-0.03, 0.001, 24, 35), by, c.PRIOR, 0.01)
    assert c.answer(fast, True, 0.01)[0] == "FASTER"


def test_holm() -> None:
    assert c.holm([0.01, 0.04, 0.03, 0.005]) == [True, False, False, True]
    assert c.holm([]) == [] and c.holm([0.05]) == [True] and c.holm([0.026, 0.9]) == [False, False]


def test_the_usual_clock_may_contradict() -> None:
    assert c.contradicts("SLOWER", 0.002, 0.01) and not c.contradicts("SLOWER", 0.03, 0.01)
    assert c.contradicts("FASTER", 0.03, 0.01) and not c.contradicts("FASTER", -0.03, 0.01)
    assert c.contradicts("SAME", 0.02, 0.01) and not c.contradicts("UNCLEAR", 0.02, 0.01)
