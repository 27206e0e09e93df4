"""Order statistics of blocks: what they promise, and what simulated runs show of it.

`--campaigns` simulates 4,000 runs of each kind, CI 500: what may miss grows by two standard deviations of
that number.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from probes.core.types import BadInput
from probes.verdict import bars, blocks
from probes.verdict.blocks import Estimate
from tests.verdict import simulate

BAR = bars.bar("l1.dpl")
ON_THE_BAR = math.log(1 - BAR.bar)


def most(runs: int, share: float) -> float:
    """How many of `runs` may do what a share of them does."""
    return share * runs + 2 * math.sqrt(runs * share * (1 - share))


def test_the_looks_together_miss_one_in_a_hundred() -> None:
    missed = {n: 100 * blocks.miss(n, k) for n, k in blocks.LOOKS.items()}
    assert missed == pytest.approx({16: 0.418, 32: 0.210, 64: 0.369}, abs=5e-4)
    assert sum(missed.values()) == pytest.approx(0.997, abs=1e-3)


def test_ranks_of_other_counts_miss_no_more_than_they_may() -> None:
    assert [blocks.rank(n) for n in (1, 7)] == [0, 0]
    for n in range(blocks.LEAST, 16):
        assert blocks.miss(n, blocks.rank(n)) <= 0.01 < blocks.miss(n, blocks.rank(n) + 1)
    for n in (65, 128, 192, 640, 2000):
        assert blocks.miss(n, blocks.rank(n)) <= blocks.miss(64, 21) < blocks.miss(n, blocks.rank(n) + 1)
    assert [blocks.looked(n) for n in (7, 12, 16, 20, 40, 64, 65, 200)] == [7, 12, 16, 16, 32, 64, 65, 200]


def test_a_block_s_figure_is_the_variant_over_the_baseline_whoever_comes_first() -> None:
    r = blocks.figures([2.0, 1.0, 1.0, 2.0, 1.0, 2.0, 2.0, 1.0])
    assert r == pytest.approx([math.log(2)] * 2)
    steady = [1.0 + 0.01 * k for k in range(8)]  # a drift
    assert blocks.figures(steady) == pytest.approx([0.0, 0.0], abs=1e-12)
    for bad in ([], [1.0] * 3, [1.0, 1.0, 1.0, -1.0], [1.0, 1.0, 1.0, math.nan]):
        with pytest.raises(BadInput):
            blocks.figures(bad)


def test_the_ends_are_the_values_that_the_rank_names() -> None:
    r = np.random.default_rng(0).permutation(np.arange(64.0))
    assert blocks.interval(r) == Estimate(31.5, 20.0, 43.0)
    assert blocks.interval(r[:7]) is None


def test_an_end_is_as_many_standard_errors_away_as_normal_figures_say() -> None:
    """The square of a half-width over `spread` is the variance of the median, in the mean over many runs."""
    rng = np.random.default_rng(9)
    for n in blocks.LOOKS:
        found = [blocks.interval(r) for r in rng.standard_normal((1500, n))]
        se = math.sqrt(np.mean([(e.half / blocks.spread(n)) ** 2 for e in found if e]))
        assert se == pytest.approx(float(np.std([e.m for e in found if e])), rel=0.08)


def test_a_pair_that_is_well_known_counts_more_than_noisy_ones() -> None:
    """Half of the pairs have ten times the noise; tau is still found."""
    rng = np.random.default_rng(10)
    found, true = [], 0.001
    for k in range(200):
        sigma = 0.002 if k % 2 else 0.02
        r = true * rng.standard_normal() + sigma * rng.standard_normal(32)
        e = blocks.interval(r)
        assert e
        found.append((e, 32))
    assert blocks.tau(found) == pytest.approx(true, rel=0.3)


def test_tau_is_what_a_pairs_own_noise_does_not_explain() -> None:
    quiet = [(Estimate(0.0, -0.003, 0.003), 32)] * 20
    assert blocks.tau(quiet) == 0.0
    biased = [(Estimate(m, m - 1e-9, m + 1e-9), 32) for m in (0.003, -0.003) * 10]
    assert blocks.tau(biased) == pytest.approx(0.003)
    assert blocks.tau([]) == pytest.approx(blocks.PRIOR), "no pair: as pairs were elsewhere"
    half = math.sqrt((10 * 0.003**2 + 10 * blocks.PRIOR**2) / 20)
    assert blocks.tau(biased[:10]) == pytest.approx(half), "each pair that lacks counts as the prior"


def test_ends_move_out_by_what_placement_adds() -> None:
    e = blocks.placed(Estimate(0.0, -0.003, 0.004), 0.001)
    assert (e.low, e.high) == pytest.approx((-math.hypot(0.003, 0.0033), math.hypot(0.004, 0.0033)))


def test_a_sum_is_weighed_by_time_and_its_ends_add_as_independent_ones_do() -> None:
    a, b = Estimate(math.log(0.9), math.log(0.9) - 0.01, math.log(0.9) + 0.02), Estimate(0.0, -0.01, 0.01)
    e = blocks.weighted([(3.0, a), (1.0, b)])
    assert e.ratio.ratio == pytest.approx(0.925)
    assert e.m - e.low == pytest.approx(math.hypot(3 * 0.9 * 0.01, 0.01) / 4 / 0.925)
    assert e.high - e.m == pytest.approx(math.hypot(3 * 0.9 * 0.02, 0.01) / 4 / 0.925)
    same = blocks.weighted([(2.0, b)])
    assert (same.low, same.high) == pytest.approx((b.low, b.high))
    with pytest.raises(BadInput):
        blocks.weighted([(0.0, a)])


def test_clocks_are_held_against_the_run_s_own_and_unknown_ones_are_not_low() -> None:
    clocks = [0.0] * 4 + [1.9e9] * 90 + [1.2e9] * 6
    usual = blocks.usual_clock(clocks)
    assert usual == pytest.approx(1.9e9) and blocks.usual_clock([0.0]) == 0.0
    assert int(blocks.low(clocks, usual).sum()) == 6
    assert not blocks.low(clocks, 0.0).any()


@pytest.mark.parametrize("name", list(simulate.NOISES))
def test_intervals_hold_the_truth_over_all_looks(name: str, campaign: int) -> None:
    """A run misses where the truth is outside at any look, decided or not."""
    rng = np.random.default_rng(1)
    noise = simulate.NOISES[name](rng, campaign, simulate.MOST)
    effect = -0.05
    missed = sum(not all(e.low <= effect <= e.high for e in simulate.looks(n, effect, 0.0)) for n in noise)
    assert missed <= most(campaign, 0.015)


@pytest.mark.parametrize("name", ["iid", "episodes"])
def test_placement_is_held_by_the_ends_too(name: str, campaign: int) -> None:
    """Arms differ by 0.3 % by where they lie; the truth is the effect without that."""
    rng = np.random.default_rng(2)
    runs, placement = campaign // 2, 0.003
    noise = simulate.NOISES[name](rng, runs, simulate.MOST)
    taus = simulate.taus(rng, runs, simulate.iid, placement)
    bias = placement * rng.standard_normal(runs)
    seen = [simulate.looks(n, -0.05 + b, t) for n, b, t in zip(noise, bias, taus, strict=True)]
    missed = sum(not all(e.low <= -0.05 <= e.high for e in s) for s in seen)
    assert missed <= most(runs, 0.015)
    blind = sum(
        not all(e.low <= -0.05 <= e.high for e in simulate.looks(n, -0.05 + b, 0.0))
        for n, b in zip(noise, bias, strict=True)
    )
    assert blind > 0.1 * runs, "without tau the same runs miss: the simulation can fail"


@pytest.mark.parametrize("name", list(simulate.NOISES))
@pytest.mark.parametrize("placement", [0.0, 0.003])
def test_an_effect_on_the_bar_is_seldom_decided(name: str, placement: float, campaign: int) -> None:
    rng = np.random.default_rng(3)
    runs = campaign // 2
    noise = simulate.NOISES[name](rng, runs, simulate.MOST)
    taus = simulate.taus(rng, runs, simulate.iid, placement)
    bias = placement * rng.standard_normal(runs)
    found = [
        simulate.decided(simulate.looks(n, ON_THE_BAR + b, t), BAR)
        for n, b, t in zip(noise, bias, taus, strict=True)
    ]
    assert sum(v != "INCONCLUSIVE" for v in found) <= most(runs, 0.025)


def test_a_slowdown_of_two_per_cent_is_found(campaign: int) -> None:
    """Against a bar of 0, with the noise of the small shapes and what placement adds on an H200."""
    rng = np.random.default_rng(4)
    noise = simulate.iid(rng, campaign, simulate.MOST)
    zero = bars.bar("l3.fused")
    found = [simulate.decided(simulate.looks(n, math.log(1.02), 0.001), zero) for n in noise]
    assert sum(v == "NO-GO" for v in found) >= 0.95 * campaign
    assert "GO" not in found
