"""The old rule: intervals hold what they promise with few windows; a kernel against itself claims nothing."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.core.types import BadInput
from probes.verdict import windows as old
from probes.verdict.bars import Interval

SIGMA = 0.003


def claims_difference(found: Interval, floor: float) -> bool:
    """True where the interval excludes 1 and the effect exceeds the noise floor."""
    return not found.low <= 1.0 <= found.high and abs(found.ratio - 1.0) > floor


def run(rng: np.random.Generator, kind: str, arms: int, windows: int) -> np.ndarray:
    """Times f64[arms, windows, 2] of equal arms, taken as that harness did: in a random order and back."""
    out = rng.permuted(np.tile(np.arange(arms), (windows, 1)), axis=1)
    order = np.concatenate([out, out[:, ::-1]], axis=1)
    steps = order.size
    if kind == "normal":
        e = rng.normal(0, SIGMA, steps)
    elif kind == "heavy":
        e = SIGMA * rng.standard_t(3, steps)
    elif kind == "skewed":
        e = SIGMA * np.exp(rng.normal(0, 1, steps))
    elif kind == "spikes":
        e = rng.normal(0, SIGMA, steps) + (rng.random(steps) < 0.04) * rng.exponential(0.3, steps)
    else:  # drift: a warm-up ramp, a slow wave and a random walk, with a step of the clock
        e = rng.normal(0, SIGMA, steps) + np.cumsum(rng.normal(0, 0.002, steps))
        e += np.linspace(0, 0.03, steps) + 0.01 * np.sin(np.arange(steps) / 7)
        e[rng.integers(steps) :] += 0.02
    out = np.empty((arms, windows, 2))
    place = np.argsort(order, axis=1, kind="stable").reshape(windows, arms, 2)
    flat = np.maximum(0.2, 1 + e).reshape(windows, 2 * arms) * 1e-4
    for w in range(windows):
        out[:, w, :] = flat[w][place[w]]
    return out


def test_a_linear_drift_inside_a_window_leaves_the_ratio() -> None:
    # times 1, 2, 3, 4 in the order A B B A: both arms sum to 5
    assert old.paired_ratios([[1.0, 4.0]], [[2.0, 3.0]]) == pytest.approx([1.0])
    drift = np.linspace(1.0, 1.5, 4 * 12).reshape(12, 4)
    a, b = 0.8 * drift[:, [0, 3]], drift[:, [1, 2]]
    assert old.paired_ratios(a, b) == pytest.approx(np.full(12, 0.8))


@pytest.mark.parametrize("windows", [8, 12, 16])
@pytest.mark.parametrize("kind", ["normal", "heavy", "skewed", "spikes", "drift"])
def test_a_kernel_against_itself_claims_no_difference(kind: str, windows: int) -> None:
    """20 runs are asked for; 100 of each kind are held to it here, with two A/A pairs as the floor."""
    rng = np.random.default_rng(11 * windows)
    covered = 0
    for seed in range(100):
        t = run(rng, kind, 6, windows)
        found = old.interval(old.paired_ratios(t[1], t[0]), seed, n=400)
        floor = old.noise_floor([old.paired_ratios(t[3], t[2]), old.paired_ratios(t[5], t[4])], seed, n=400)
        assert not claims_difference(found, floor), (kind, seed, found, floor)
        covered += found.low <= 1 <= found.high
    assert covered >= 94


@pytest.mark.parametrize("windows", [8, 16])
def test_a_real_difference_is_claimed(windows: int) -> None:
    rng = np.random.default_rng(5)
    hits = 0
    for seed in range(40):
        t = run(rng, "drift", 4, windows)
        t[1] *= 0.93
        found = old.interval(old.paired_ratios(t[1], t[0]), seed, n=400)
        floor = old.noise_floor([old.paired_ratios(t[3], t[2])], seed, n=400)
        hits += claims_difference(found, floor) and found.low <= 0.93 <= found.high
    assert hits >= 37


def test_the_floor_grows_with_fewer_windows() -> None:
    rng = np.random.default_rng(8)
    floors = []
    for windows in (6, 12, 48):
        t = [run(rng, "normal", 2, windows) for _ in range(30)]
        floors.append(np.mean([old.noise_floor([old.paired_ratios(x[1], x[0])], 0, n=400) for x in t]))
    assert floors[0] > 1.5 * floors[1] > 2 * floors[2]


def test_an_interval_is_seeded_and_fast() -> None:
    r = 1 + np.random.default_rng(0).normal(0, 0.01, 16)
    assert old.interval(r, 4) == old.interval(r, 4)
    assert old.interval(r, 4) != old.interval(r, 5)
    start = time.process_time()
    for seed in range(5):
        old.interval(r, seed)
    assert (time.process_time() - start) / 5 < 0.1


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0.2, 5.0), min_size=2, max_size=24),
    st.integers(0, 2**32 - 1),
    st.floats(0.1, 10.0),
)
def test_intervals_hold_their_estimate_and_scale(ratios: list[float], seed: int, by: float) -> None:
    one = old.interval(ratios, seed, n=200)
    assert 0 < one.low <= one.ratio <= one.high
    assert one.ratio == pytest.approx(np.median(ratios))
    scaled = old.interval(np.array(ratios) * by, seed, n=200)
    assert np.array(scaled) == pytest.approx(np.array(one) * by, rel=1e-6)


def test_constant_samples_give_a_point() -> None:
    assert old.interval([0.9] * 8, 0) == pytest.approx((0.9, 0.9, 0.9))


def test_one_stray_window_in_twelve_moves_little() -> None:
    r = 1 + np.random.default_rng(2).normal(0, SIGMA, 12)
    clean = old.interval(r, 0)
    r[5] = 2.0
    stray = old.interval(r, 0)
    assert stray.high - stray.low < 3 * (clean.high - clean.low)


def test_a_model_sum_weighs_by_count_and_time() -> None:
    t = np.ones((12, 2))
    parts = [(24.0, 0.8 * 2e-4 * t, 2e-4 * t), (1.0, 1.1 * 3e-3 * t, 3e-3 * t)]
    want = (24 * 0.8 * 2e-4 + 1.1 * 3e-3) / (24 * 2e-4 + 3e-3)
    assert old.weighted_ratio(parts, 0) == pytest.approx((want, want, want))


def test_parts_of_a_model_sum_are_resampled_apart() -> None:
    """Noise of 4 independent, equal parts averages out to about half; in one draw for all it would not."""
    rng = np.random.default_rng(4)
    widths = []
    for parts in (1, 4):
        found = []
        for seed in range(30):
            t = [run(rng, "normal", 2, 16) for _ in range(parts)]
            i = old.weighted_ratio([(1, x[1], x[0]) for x in t], seed, n=400)
            found.append(i.high - i.low)
        widths.append(np.mean(found))
    assert 0.4 < widths[1] / widths[0] < 0.65


def test_a_model_sum_of_a_kernel_against_itself_claims_nothing() -> None:
    rng = np.random.default_rng(9)
    for seed in range(40):
        t = [run(rng, "drift", 4, 12) for _ in range(3)]
        counts = (24, 24, 1)
        found = old.weighted_ratio([(n, x[1], x[0]) for n, x in zip(counts, t, strict=True)], seed, n=400)
        aa = old.weighted_ratio([(n, x[3], x[2]) for n, x in zip(counts, t, strict=True)], seed, n=400)
        assert not claims_difference(found, old.floor_of([aa]))


@pytest.mark.parametrize(("processes", "between"), [(3, 0.0), (3, 0.004), (5, 0.004)])
def test_intervals_over_processes_cover(processes: int, between: float) -> None:
    """Each fresh process shifts the ratio by its own luck: 99 % intervals must still hold 1."""
    rng = np.random.default_rng(12)
    covered = 0
    for seed in range(80):
        r = 1 + rng.normal(0, between, (processes, 1)) + rng.normal(0, SIGMA, (processes, 12))
        found = old.interval(r, seed, n=400)
        covered += found.low <= 1 <= found.high
    assert covered >= 76


def test_processes_that_disagree_widen_the_interval() -> None:
    rng = np.random.default_rng(1)
    same = 0.9 + rng.normal(0, SIGMA, (4, 12))
    apart = same + np.array([[-0.02], [0.01], [0.02], [-0.01]])
    a, b = (old.interval(x, 0) for x in (same, apart))
    assert b.high - b.low > 3 * (a.high - a.low)
    assert old.weighted_ratio([(1, t := np.stack([same, same], -1), np.ones_like(t))], 0) == pytest.approx(
        a, abs=2e-4
    )


def test_one_process_is_the_plain_interval() -> None:
    r = 1 + np.random.default_rng(0).normal(0, 0.01, 12)
    assert old.interval([r], 3) == old.interval(r, 3)


def test_t_quantiles_equal_the_tables() -> None:
    table = {1: 63.657, 2: 9.925, 3: 5.841, 7: 3.499, 10: 3.169, 15: 2.947, 60: 2.660}
    for df, want in table.items():
        assert old.t_quantile(0.99, df) == pytest.approx(want, abs=6e-4)


def test_samples_become_windows() -> None:
    flat = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    assert old.arm(flat, processes=2)[1, 0].tolist() == [5.0, 6.0]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: old.interval([1.0], 0), "at least 2 windows, got 1"),
        (lambda: old.interval([1.0, float("nan")], 0), "nan at index 1"),
        (lambda: old.interval([1.0, -1.0], 0), "-1.0 at index 1"),
        (lambda: old.paired_ratios([1.0, 2.0], [1.0, 2.0]), r"\(2,\)"),
        (lambda: old.arm([1.0, 2.0, 3.0]), "3 samples"),
        (lambda: old.noise_floor([], 0), "at least one A/A pair"),
        (lambda: old.weighted_ratio([], 0), "at least one part"),
        (lambda: old.weighted_ratio([(0, np.ones((4, 2)), np.ones((4, 2)))], 0), "positive, got 0"),
        (lambda: old.interval([1.0, 1.0], 0, level=1.5), "level"),
    ],
)
def test_bad_samples_are_named(call, text: str) -> None:
    with pytest.raises(BadInput, match=text):
        call()
