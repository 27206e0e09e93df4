"""The rules of GO, NO-GO and INCONCLUSIVE, today's and the old one, and the bars they are held against."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.core.types import BadInput
from probes.verdict import bars as bars_module
from probes.verdict.bars import Interval, agree, all_of, bar, bars, decide, judge, judge_ratio

BAR = 0.0165


def ratios(gain: float, low: float, high: float) -> Interval:
    """Ratios of times that save so much."""
    return Interval(1 - gain, 1 - high, 1 - low)


@pytest.mark.parametrize(
    ("gain", "low", "high", "want"),
    [
        (0.17, 0.165, 0.175, "GO"),
        (0.25, 0.125, 0.375, "GO"),
        (0.02, 0.0164, 0.03, "INCONCLUSIVE"),
        (0.0, -0.002, 0.002, "NO-GO"),
        (0.0, -0.02, 0.0166, "INCONCLUSIVE"),  # the upper end must be below the bar
        (-0.05, -0.06, -0.04, "NO-GO"),
        (-0.05, -0.30, 0.01, "NO-GO"),  # however coarse: the whole interval is below the bar
    ],
)
@pytest.mark.parametrize("placement", [0.0, 0.005, 0.2])
def test_ends_decide_and_what_placement_adds_gates_nothing(
    gain: float, low: float, high: float, want: str, placement: float
) -> None:
    got = decide(ratios(gain, low, high), bar("l1.dpl"), placement)
    assert got.verdict == want and "\n" not in got.reason
    for figure in (gain, low, high, BAR):
        assert f"{100 * figure:+.2f} %" in got.reason
    assert f"placement {100 * placement:.2f} %" in got.reason
    stopped = decide(ratios(gain, low, high), bar("l1.dpl"), placement, "a proof is missing")
    assert stopped.verdict == "INCONCLUSIVE" and stopped.reason.endswith("a proof is missing")


def test_on_the_bar() -> None:
    """The lower end on it is enough, but for a strict bar; the upper end on it is not below."""
    strict, quarter = bar("l3.fused"), replace(bar("l1.dpl"), bar=0.25)
    assert strict.strict and not quarter.strict
    assert decide(Interval(0.5, 0.25, 0.75), quarter, 0.0).verdict == "GO"
    assert decide(Interval(0.875, 0.75, 1.0), quarter, 0.0).verdict == "INCONCLUSIVE"
    assert decide(Interval(0.875, 0.7500001, 1.0), quarter, 0.0).verdict == "NO-GO"
    assert decide(Interval(0.5, 0.25, 1.0), strict, 0.0).verdict == "INCONCLUSIVE"
    assert decide(Interval(0.5, 0.25, 0.999), strict, 0.0).verdict == "GO"
    assert decide(Interval(1.5, 1.0, 1.75), strict, 0.0).verdict == "INCONCLUSIVE"
    assert decide(Interval(1.5, 1.001, 1.75), strict, 0.0).verdict == "NO-GO"


@pytest.mark.parametrize(
    ("gain", "low", "high", "floor", "want"),
    [
        (0.17, 0.165, 0.175, 0.005, "GO"),
        (0.0175, 0.0165, 0.0185, 0.005, "GO"),  # the lower end on the bar is enough
        (0.0175, 0.0164, 0.0185, 0.005, "INCONCLUSIVE"),
        (0.17, 0.165, 0.175, 0.2, "INCONCLUSIVE"),  # the floor swallows it
        (0.17, 0.165, 0.175, 0.17, "INCONCLUSIVE"),  # above the floor, not at it
        (0.0, -0.002, 0.002, 0.005, "NO-GO"),  # a lever that does nothing, known precisely
        (0.0, -0.002, 0.002, 0.0165, "INCONCLUSIVE"),  # the floor must be below the bar
        (0.0, -0.02, 0.0165, 0.005, "INCONCLUSIVE"),  # the upper end must be below it too
        (-0.05, -0.06, -0.04, 0.005, "NO-GO"),
    ],
)
def test_old_rules(gain: float, low: float, high: float, floor: float, want: str) -> None:
    got = judge(gain, low, high, floor, BAR)
    assert got.verdict == want
    assert "\n" not in got.reason
    for figure in (gain, low, high, BAR):
        assert f"{100 * figure:+.2f} %" in got.reason
    assert f"noise floor {100 * floor:.2f} %" in got.reason


@pytest.mark.parametrize(
    ("gain", "low", "high", "floor", "want"),
    [
        (0.02, 0.01, 0.03, 0.005, "GO"),
        (0.02, 0.0, 0.03, 0.005, "INCONCLUSIVE"),  # strict: more than 0
        (-0.28, -0.29, -0.27, 0.01, "NO-GO"),
        (-0.02, -0.03, -0.01, 0.025, "INCONCLUSIVE"),  # a loss within the noise
        (0.0, -0.001, 0.001, 0.002, "INCONCLUSIVE"),
    ],
)
def test_an_old_bar_of_zero(gain: float, low: float, high: float, floor: float, want: str) -> None:
    assert judge(gain, low, high, floor, 0.0, strict=True).verdict == want


finite = st.floats(-0.9, 0.9)


@given(finite, finite, finite, st.floats(0, 0.5), st.floats(0, 0.5))
def test_verdicts_exclude_each_other(a: float, b: float, c: float, floor: float, at: float) -> None:
    low, gain, high = sorted((a, b, c))
    got = judge(gain, low, high, floor, at).verdict
    if got == "GO":
        assert low >= at and gain > floor
    if got == "NO-GO":
        assert high < at and (floor < at or (at == 0 and -gain > floor))
    if got == "INCONCLUSIVE":
        assert not (low >= at and gain > floor)
        assert not (high < at and floor < at)
    assert judge(gain, low, high, floor, at, blocked="no overlap was seen").verdict == "INCONCLUSIVE"


def test_what_blocks_is_said() -> None:
    got = judge(0.1, 0.09, 0.11, 0.01, BAR, blocked="no overlap was seen")
    assert got.verdict == "INCONCLUSIVE"
    assert got.reason.endswith("no overlap was seen")


@pytest.mark.parametrize(
    ("gain", "low", "high", "floor", "at"),
    [
        (0.2, 0.0, 0.1, 0.01, 0.01),
        (0.1, 0.0, 0.2, -0.01, 0.01),
        (0.1, 0.0, 0.2, 0.01, -0.01),
        (float("nan"), 0.0, 0.2, 0.01, 0.01),
        (0.1, 0.0, 0.2, float("nan"), 0.01),
    ],
)
def test_bad_figures_are_refused(gain: float, low: float, high: float, floor: float, at: float) -> None:
    with pytest.raises(BadInput, match="got"):
        judge(gain, low, high, floor, at)


def test_gains_by_metric() -> None:
    assert bars_module.gain_of("time_saved", 0.8, 0.79, 0.82) == pytest.approx((0.2, 0.18, 0.21))
    assert bars_module.gain_of("speedup", 0.8, 0.79, 0.82) == pytest.approx(
        (0.25, 1 / 0.82 - 1, 1 / 0.79 - 1)
    )
    with pytest.raises(BadInput, match=r"0\.7"):
        bars_module.gain_of("speedup", 0.7, 0.79, 0.82)


def test_the_recorded_figures_get_the_recorded_verdicts() -> None:
    """Held with a spread of ±0.2 % and a floor of 0.2 %: the record gives no intervals of its own."""
    spread = 0.002
    for name, ratio, want in (
        ("l1.dpl", 176.5 / 212.9, "GO"),
        ("l2.pdl", 1.026, "NO-GO"),
        ("l3.fused", 412.1 / 321.4, "NO-GO"),
    ):
        assert judge_ratio(ratio, ratio - spread, ratio + spread, 0.002, bar(name)).verdict == want
        assert decide(Interval(ratio, ratio - spread, ratio + spread), bar(name), 0.002).verdict == want


def test_bars() -> None:
    assert list(bars()) == [
        "l1.dpl", "l1.best", "l2.pdl", "l2.ring_bandwidth", "l2.ring_decode", "l2.best",
        "l3.fused", "l3.best", "l3.row_grained",
    ]  # fmt: skip
    l1, l2, l3 = (bar(name) for name in ("l1.dpl", "l2.pdl", "l3.fused"))
    best = {name: b for name, b in bars().items() if name.endswith(".best")}
    for flip in (l1, l2, l3):  # the same bar as for the flip
        mine = best[f"{flip.name.partition('.')[0]}.best"]
        assert (mine.bar, mine.metric, mine.strict) == (flip.bar, flip.metric, flip.strict)
    past = {name: b.bar for name, b in bars().items() if b not in (l1, l2, l3, *best.values())}
    assert past == {"l2.ring_bandwidth": 0.10, "l2.ring_decode": 0.08, "l3.row_grained": 0.05}
    assert (l1.bar, l1.metric, l1.strict) == (0.0165, "time_saved", False)
    assert (l2.bar, l2.metric, l2.strict) == (0.003, "speedup", False)
    assert (l3.bar, l3.metric, l3.strict) == (0.0, "time_saved", True)
    assert all(b.where and b.question for b in bars().values())
    assert l1.text == ">= +1.65 %"
    # where the 1.65 % comes from: 0.4 % of a 45.45 ms step, of 11 ms of kernels
    assert pytest.approx(0.004 * 45.45 / 11, rel=0.01) == l1.bar
    with pytest.raises(BadInput, match=r"l1\.dpl"):
        bar("l1.dlp")
    assert len(bars_module.bars_sha256()) == 64


def test_targets_are_no_bars() -> None:
    found = bars_module.targets("l1.limit")
    assert found.metric == "fraction_of_same_bytes_read" and "l1.limit" not in bars_module.bars()
    assert found.targets == {
        "ffn_down_14b": 0.85, "lm_head_14b": 0.93, "attn_v_14b": 0.80,
        "ffn_down_7b": 0.85, "lm_head_7b": 0.95,
    }  # fmt: skip


def test_agreement() -> None:
    assert agree("GO", "LANDED") is True
    assert agree("NO-GO", "LANDED") is False
    assert agree("NO-GO", "NO-GO") is True
    assert agree("INCONCLUSIVE", "GO") is None
    assert agree("GO", None) is None
    with pytest.raises(BadInput, match="MAYBE"):
        agree("GO", "MAYBE")


def test_a_verdict_over_parts() -> None:
    go, no = judge(0.2, 0.19, 0.21, 0.01, BAR), judge(0.0, -0.001, 0.001, 0.001, BAR)
    open_ = judge(0.01, -0.01, 0.03, 0.01, BAR)
    assert all_of([("KV 128", go), ("KV 3254", go)]).verdict == "GO"
    assert all_of([("KV 128", go), ("KV 3254", open_)]).verdict == "INCONCLUSIVE"
    both = all_of([("KV 128", no), ("KV 3254", open_)])
    assert both.verdict == "NO-GO"
    assert both.reason.startswith("KV 128: ")
    assert all_of([]).verdict == "INCONCLUSIVE"


def test_exit_codes() -> None:
    assert bars_module.exit_code(["GO", "NO-GO", None]) == 0
    assert bars_module.exit_code(["GO", "INCONCLUSIVE"]) == 3
