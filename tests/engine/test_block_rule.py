"""The rule of blocks on made-up rows: what decides, what placement and the clock do to it, what blocks it."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from probes.engine import block_rule, judge
from probes.engine.block_rule import BlockRule, Part
from probes.report.rows import Row
from probes.verdict import bars, blocks
from probes.verdict.bars import Interval
from tests.block_rows import blocks as made

BAR, ZERO = bars.bar("l1.dpl"), bars.bar("l3.fused")
USUAL = 1.9e9


def row(variant: str, time_s: float = 1e-5, **more: Any) -> Row:
    return Row(
        probe="l1", case="c", variant=variant, backend="cu", source="measured", time_s=time_s,
        samples_s=[time_s] * 8, windows=4, processes=1, bitwise=True, **more,
    )  # fmt: skip


def contest(
    ratio: float = 0.9, count: int = 64, noise: float = 1e-3, of: str = "a", clock: list[float] | None = None,
    seed: int = 0, **more: Any,
) -> Row:  # fmt: skip
    own = made(ratio * 1e-5, 1e-5, np.random.default_rng(seed), noise, count)
    return Row(
        probe="l1", case="c", variant=f"{of}:b", backend="cu", source="measured", role="contest", of=of,
        baseline="b", blocks_s=own, block_clock_hz=clock or [USUAL] * count, retaken=0, bitwise=True, **more,
    )  # fmt: skip


def part(pair: Row, tau: float = 0.0, usual: float = USUAL) -> Part:
    return BlockRule(tau, usual).of(pair, row("a"), row("b"))


def word(found: Part, bar: bars.Bar = BAR, why: str | None = None) -> tuple[str, str]:
    return BlockRule(0.0, USUAL).decide(found, bar, why)


def test_blocks_decide_and_what_came_after_the_last_look_does_not() -> None:
    pair = contest(0.9, 40)
    assert block_rule.seen(pair).size == 32
    assert (
        part(pair).found
        == part(replace(pair, blocks_s=pair.blocks_s[:128], block_clock_hz=[USUAL] * 32)).found
    )
    assert word(part(pair))[0] == "GO" and word(part(contest(1.1)))[0] == "NO-GO"
    assert word(part(contest(1 - BAR.bar)))[0] == "INCONCLUSIVE"


def test_ends_move_out_by_tau_on_both_sides() -> None:
    narrow, wide = part(contest()), part(contest(), tau=0.01)
    assert narrow.found and wide.found and narrow.estimate
    assert wide.found.ratio == narrow.found.ratio
    e = blocks.placed(narrow.estimate, 0.01)
    assert (wide.found.low, wide.found.high) == pytest.approx((math.exp(e.low), math.exp(e.high)))
    assert wide.found.low < narrow.found.low < narrow.found.high < wide.found.high
    assert narrow.noise == 0.0 and wide.noise == pytest.approx(math.expm1(0.033))


def test_too_few_blocks_decide_nothing() -> None:
    few = part(contest(0.5, 7))
    assert few.found is None and word(few) == ("INCONCLUSIVE", "7 blocks are too few for an interval")
    assert part(contest(0.5, 8)).found is not None
    none = part(contest(0.5, 0, missing=["17 of 17 blocks had a slope at or below 0"]))
    assert word(none) == ("INCONCLUSIVE", "17 of 17 blocks had a slope at or below 0")


def test_bad_blocks_keep_a_pair_from_its_verdict_whatever_the_rest_says() -> None:
    decided = word(part(contest(0.5, missing=["20 of 36 blocks"])))
    assert decided[0] == "INCONCLUSIVE" and decided[1].endswith("20 of 36 blocks")
    assert word(part(contest(0.5)), why="a doubt")[0] == "INCONCLUSIVE"


# The clock


def slowed(count: int, ratio: float = 0.99, low_ratio: float = 0.9) -> Row:
    """A pair of 64 blocks of which `count` ran low, and said something else there."""
    quick, slow = contest(ratio, 64, 1e-4), contest(low_ratio, 64, 1e-4)
    low = np.arange(64) >= 64 - count
    both = np.where(low[:, None], np.reshape(slow.blocks_s, (64, 4)), np.reshape(quick.blocks_s, (64, 4)))
    clocks = [float(c) for c in np.where(low, 0.96 * USUAL, USUAL)]
    return replace(quick, blocks_s=[float(t) for t in both.reshape(-1)], block_clock_hz=clocks)


def test_where_blocks_at_a_low_clock_decide_nothing_is_decided() -> None:
    """40 of 64 say GO, the 24 at the usual clock say NO-GO."""
    found = part(slowed(40))
    assert found.usual and found.low == "40 of 64 blocks ran at a low clock"
    verdict, reason = word(found)
    assert verdict == "INCONCLUSIVE"
    assert reason.endswith(
        "the clock decides: 40 of 64 blocks ran at a low clock, and the others alone say NO-GO"
    )
    assert word(part(slowed(40, 0.9, 0.85)))[0] == "GO", "where both say the same, it stands"
    assert "40 of 64 blocks ran at a low clock" in word(part(slowed(40, 0.9, 0.85)))[1]


@pytest.mark.parametrize(("count", "said"), [(7, ""), (8, "8 of 64 blocks ran at a low clock")])
def test_a_few_low_blocks_are_no_clock_episode(count: int, said: str) -> None:
    assert part(slowed(count)).low == said


def test_no_block_is_dropped_for_its_clock_and_an_unknown_one_is_not_low() -> None:
    assert part(slowed(40)).found == part(replace(slowed(40), block_clock_hz=[0.0] * 64)).found
    unknown = part(replace(slowed(40), block_clock_hz=[]))
    assert unknown.usual is None and unknown.low == ""
    assert not blocks.low([0.98, 0.0], 1.0).any() and blocks.low([0.96], 1.0).all()


@pytest.mark.parametrize(
    ("usual", "highest", "said"),
    [
        (0.0, 1.9e9, "the SM clock is unknown"),
        (1.9e9, 1.95e9, ""),
        (1.4e9, 2.0e9, "the whole run's SM clock was 70 % of the device's highest"),
        (1.4e9, None, ""),
    ],
)
def test_a_run_s_clock_as_a_whole_is_told_beside_the_verdict(
    usual: float, highest: float | None, said: str
) -> None:
    assert block_rule.clock_note(usual, highest) == said
    by = block_rule.rule([contest(clock=[usual] * 64)], highest)
    assert by.clock == said and by.usual_hz == usual
    reason = by.decide(by.of(contest(), row("a"), row("b")), BAR, None).reason
    assert (said in reason) if said else not reason.endswith(")")


def test_the_usual_clock_is_the_run_s_upper_end() -> None:
    assert block_rule.rule([contest(clock=[USUAL] * 20 + [1.2e9] * 44)]).usual_hz == USUAL


# tau


def test_tau_is_told_from_pairs_of_the_same_kernel_alone() -> None:
    again = [row(f"x{k}", role="again", of="b") for k in range(20)]
    apart = [contest(1.003 if k % 2 else 0.997, 64, 1e-5, f"x{k}", seed=k) for k in range(20)]
    assert block_rule.placement([*again, *apart]) == pytest.approx(0.003, rel=0.02)
    assert block_rule.placement(apart) == pytest.approx(blocks.PRIOR), "none of them is a repeat"
    rest = [*again[:5], *apart[:5]]
    assert block_rule.placement(rest) == pytest.approx(
        math.sqrt((5 * 0.003**2 + 15 * blocks.PRIOR**2) / 20), rel=0.02
    )
    other = [replace(r, case="d") for r in again]
    assert block_rule.placement([*other, *apart]) == pytest.approx(blocks.PRIOR), "nor of another group"


def test_a_pair_s_own_noise_is_no_placement() -> None:
    """Medians that stray as far as their intervals say."""
    one = blocks.spread(32) * 0.001
    for half, want in ((one, 0.0), (1e-9, 0.001)):
        pairs = [(blocks.Estimate(m, m - half, m + half), 32) for m in (0.001, -0.001) * 10]
        assert blocks.tau(pairs) == pytest.approx(want, abs=1e-9)


def test_what_a_pair_is_worth_that_was_not_measured() -> None:
    assert (blocks.PAIRS, blocks.PRIOR, blocks.REACH) == (20, 0.002, 3.3)
    assert block_rule.placement([]) == pytest.approx(0.002)


# Sums


def test_a_sum_weighs_by_launches_and_the_baseline_s_time() -> None:
    by = BlockRule(0.001, USUAL)
    one, other = (by.of(contest(r, noise=1e-5), row("a"), row("b", t)) for r, t in ((0.9, 3e-5), (1.0, 1e-5)))
    whole = by.sum([(2, one), (6, other)])
    assert whole.found and whole.found.ratio == pytest.approx(0.95, abs=1e-4)
    assert by.sum([(2, one)]).found == pytest.approx(one.found)


def test_a_sum_with_a_bad_part_decides_nothing() -> None:
    by = BlockRule(0.0, USUAL)
    good, bad = (by.of(contest(0.5, missing=m), row("a"), row("b")) for m in ([], ["bad blocks"]))
    few = by.of(contest(0.5, 4), row("a"), row("b"))
    assert by.decide(by.sum([(1, good), (1, good)]), BAR, None).verdict == "GO"
    stopped = by.decide(by.sum([(1, good), (1, bad)]), BAR, None)
    assert stopped.verdict == "INCONCLUSIVE" and stopped.reason.endswith("bad blocks")
    lacking = by.sum([(1, good), (1, few)])
    assert lacking.found is None and "too few" in by.decide(lacking, BAR, None).reason


def test_the_clock_may_decide_a_sum_too() -> None:
    by = BlockRule(0.0, USUAL)
    low, usual = by.of(slowed(40), row("a"), row("b")), by.of(contest(0.99, noise=1e-4), row("a"), row("b"))
    decided = by.decide(by.sum([(9, low), (1, usual)]), BAR, None)
    assert decided.verdict == "INCONCLUSIVE" and "the clock decides" in decided.reason


# What the judge does with it


DOUBT = "an error in the count, or not cold"
ZERO_DRAM = "is not cold: only 0 % of its content came from DRAM"
NONE: Any = SimpleNamespace(blocked=lambda row, base: None)


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        ({}, {}, None),
        ({"missing": ["no wait"]}, {}, "no wait"),
        ({"cold": False}, {}, judge.COLD),
        ({}, {"cold": False}, judge.COLD),
        ({"cold": True}, {"cold": None}, None),
        ({"fraction_of_ceiling": 1.03}, {}, f"a is at 103 % of the read ceiling: {DOUBT}"),
        ({}, {"fraction_of_ceiling": 1.03}, f"b is at 103 % of the read ceiling: {DOUBT}"),
        ({"fraction_of_ceiling": 1.01}, {}, None),
        (
            {"fraction_of_same_bytes_read": 1.25}, {},
            f"a is at 125 % of a plain read of the same bytes: {DOUBT}",
        ),
        (
            {"dram_bytes_read": 90, "content_bytes": 100}, {},
            "a is not cold: only 90 % of its content came from DRAM",
        ),
        ({"dram_bytes_read": 99, "content_bytes": 100}, {}, None),
        ({"dram_bytes_read": 0, "content_bytes": 100}, {}, f"a {ZERO_DRAM}"),
    ],
)  # fmt: skip
def test_doubts_block(a: dict[str, Any], b: dict[str, Any], said: str | None) -> None:
    assert judge.blocked(row("a", **a), row("b", **b), NONE) == said


def test_a_probe_s_own_proof_blocks_too() -> None:
    own: Any = SimpleNamespace(blocked=lambda row, base: f"{row.variant} over {base.variant}")
    assert judge.blocked(row("a"), row("b"), own) == "a over b"


def test_the_ceiling_is_the_fastest_read_and_so_is_a_read_of_the_same_bytes() -> None:
    reads = [
        replace(row(f"large{k}", role="ceiling"), content_gbps=g, backend=b)
        for k, (g, b) in enumerate(((4000.0, "cu"), (4400.0, "numba")))
    ]
    same = [row("read_x", t, role="read") for t in (9e-6, 8e-6)]
    same[1].backend = "numba"
    own = replace(row("a", 1e-5), content_gbps=2200.0, read="read_x")
    judge.relate([*reads, *same, own])
    assert (own.read_ceiling_gbps, own.fraction_of_ceiling) == (4400.0, pytest.approx(0.5))
    assert (own.same_bytes_read_s, own.fraction_of_same_bytes_read) == (8e-6, pytest.approx(0.8))


def test_a_ratio_with_blocks_of_its_own_is_theirs_where_the_baseline_is_the_same() -> None:
    b, a, other = row("b", baseline="b"), row("a", 2e-5, baseline="b"), row("x", 2e-5, baseline="z")
    pairs = [contest(0.9), contest(0.9, of="x"), contest(0.9, 7, of="y")]
    judge.relate([b, a, other, *pairs])
    e = blocks.interval(block_rule.seen(pairs[0]))
    assert e and Interval(a.ratio_to_baseline or 0, a.ratio_low or 0, a.ratio_high or 0) == e.ratio
    assert pairs[0].ratio_to_baseline == a.ratio_to_baseline and b.ratio_to_baseline == 1.0
    assert other.ratio_to_baseline is None and pairs[1].ratio_to_baseline is not None
    assert pairs[2].ratio_to_baseline is None, "too few blocks"
