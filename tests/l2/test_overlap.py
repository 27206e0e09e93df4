"""Verdicts out of made-up rows; whether launches overlap says where a gain comes from, and gates nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from probes.engine import judge
from probes.l2 import analysis, report, table
from probes.report.rows import Row
from tests.block_rows import paired


def measured(
    overlap_s: float | None, speed: float = 1.05, case: str = "decode13", arm: str = "pdl_entry",
    stray: float = 1.0, **more: Any,
) -> list[Row]:  # fmt: skip
    """A chain (at both KV lengths, where it has any): plain thrice, and `arm` `speed` times as fast.

    stray: what the first A/A arm takes of plain's time; more: fields of the arm's own rows.
    """
    rng = np.random.default_rng(5)
    rows = []
    for kv in table.KVS if case in table.DECODE else (None,):
        for variant in (*table.AGAIN, arm):
            own = variant == arm
            mean = 1e-4 / (speed if own else 1.0) * (stray if variant == "plain_aa" else 1.0)
            repeats = not own and variant != "plain"
            rows.append(
                Row(
                    probe="l2", case=case, kv=kv, variant=variant, backend="cu", source="measured",
                    device="test", time_s=mean, windows=20, processes=1,
                    samples_s=[float(t) for t in mean * (1 + 0.0005 * rng.standard_normal(40))],
                    overlap_s=overlap_s if own else -1.09e-6, role="again" if repeats else "variant",
                    of="plain" if repeats else None, **{"bitwise": True, **(more if own else {})},
                )
            )  # fmt: skip
    return paired(rows, table.CONTESTS, analysis, noise=0.0005)


def judged(rows: list[Row]) -> list[Row]:
    """Verdicts over the table's contests."""
    return judge.judge(rows, table.CONTESTS, analysis)


def verdict_of(rows: list[Row], arm: str = "pdl_entry") -> Row:
    (row,) = [r for r in judged(rows) if r.variant == arm]
    return row


def near(rows: list[Row]) -> dict[str, list[str]]:
    """Chain -> its line's cells in the report's table on how near the ring chains come, the chain aside."""
    text = next((s for s in report.sections(rows, True) if "How near the ring chains come" in s), "")
    lines = [[c.strip() for c in x.split("|")[1:-1]] for x in text.splitlines() if x.startswith("|")]
    return {chain: cells for chain, *cells in lines[2:]}


def test_an_overlap_lets_the_gain_decide() -> None:
    for speed, want in ((1.05, "GO"), (0.97, "NO-GO")):
        row = verdict_of(measured(2e-6, speed=speed))
        assert row.verdict == want and "launches overlap: launches start 2.00 us before" in (row.reason or "")


@pytest.mark.parametrize(
    ("overlap_s", "words"),
    [
        (-0.83e-6, "an earlier start, no overlap: launches start 0.83 us after their predecessor's end"),
        (-1.05e-6, "neither overlap nor an earlier start: launches start 1.05 us after"),
        (-1.09e-6, "neither overlap nor an earlier start: launches start 1.09 us after"),
        (0.0, "an earlier start, no overlap"),
    ],
)
@pytest.mark.parametrize(("speed", "want"), [(1.05, "GO"), (0.97, "NO-GO"), (1.003, "INCONCLUSIVE")])
def test_without_an_overlap_the_gain_decides_and_the_reason_keeps_the_figure(
    overlap_s: float, words: str, speed: float, want: str
) -> None:
    row = verdict_of(measured(overlap_s, speed))
    assert row.verdict == want
    assert words in (row.reason or "") and "1.09 us after their predecessor's end in the plain graph" in (
        row.reason or ""
    )
    assert row.ratio_to_baseline == pytest.approx(1 / speed, rel=2e-3)


def test_without_a_look_at_the_starts_nothing_is_decided() -> None:
    row = verdict_of(measured(None))
    assert row.verdict == "INCONCLUSIVE" and row.agrees is None
    assert "no overlap was looked for" in (row.reason or "")
    assert row.ratio_to_baseline == pytest.approx(1 / 1.05, rel=2e-3)


RINGS = [("ffn_down24", 0.10), ("decode13_ring", 0.08)]


@pytest.mark.parametrize("arm", table.JUDGED)
@pytest.mark.parametrize(("case", "bar"), RINGS)
def test_every_arm_of_a_ring_chain_is_held_to_its_own_bar(case: str, bar: float, arm: str) -> None:
    for speed, overlap_s, want in (
        (1 + bar + 0.01, 2e-6, "GO"),
        (1 + bar - 0.01, 2e-6, "NO-GO"),
        (1 + bar + 0.01, -1e-6, "GO"),
        (1 + bar, 2e-6, "INCONCLUSIVE"),
    ):
        row = verdict_of(measured(overlap_s, speed, case=case, arm=arm), arm)
        assert (row.case, row.variant, row.verdict, row.recorded) == (case, arm, want, None)
        assert f"bar >= +{100 * bar:.2f} %" in (row.reason or "")
        assert ("KV 3254" in (row.reason or "")) is (case == "decode13_ring")


def test_a_ring_chain_needs_its_proofs_and_both_kv_lengths() -> None:
    rows = measured(2e-6, 1.2, case="decode13_ring", arm="pdl_late_tail")
    row = verdict_of([r for r in rows if r.kv == table.KVS[0]], "pdl_late_tail")
    assert row.verdict == "INCONCLUSIVE" and "KV 3254: not measured" in (row.reason or "")
    lacking: tuple[tuple[dict[str, Any], str], ...] = (
        ({"missing": ["no wait in l2_q6k_ring_late"]}, "no wait in l2_q6k_ring_late"),
        ({"cold": False}, judge.COLD),
    )
    for more, said in lacking:
        row = verdict_of(measured(2e-6, 1.2, "ffn_down24", "pdl_late_tail", **more), "pdl_late_tail")
        assert row.verdict == "INCONCLUSIVE" and said in (row.reason or "")
    assert verdict_of(measured(2e-6, 1.2, case="ffn_down24")).verdict == "GO"
    row = verdict_of(measured(2e-6, 1.2, case="ffn_down24", stray=1.3))
    assert row.verdict == "INCONCLUSIVE" and "the interval straddles the bar" in (row.reason or "")
    assert row.noise_floor and row.noise_floor > 0.1, "an A/A pair strays: no such gain is told from it"


def test_best_against_best_is_the_fastest_of_each_side() -> None:
    rows = measured(2e-6, 1.02, case="ffn_down24")
    best = verdict_of(rows, "pdl_best")
    assert (best.verdict, best.of, best.baseline, best.recorded) == ("GO", "pdl_entry", "plain", None)
    assert "bar >= +0.30 %" in (best.reason or "")
    assert verdict_of(rows).verdict == "NO-GO", "the flip is held to a bar of its own"


@pytest.mark.parametrize(
    ("fraction", "said"), [(0.9, "reached"), (0.8, "not reached"), (0.85, "(within the interval)")]
)
def test_a_target_is_reached_or_not(fraction: float, said: str) -> None:
    rows = measured(2e-6, 1.2, case="ffn_down24", arm="pdl_late", bitwise=True)
    late = next(r for r in rows if r.variant == "pdl_late")
    read = replace(late, variant="read_chain_pdl", samples_s=[fraction * t for t in late.samples_s])
    noise = 1 + 0.002 * np.random.default_rng(1).standard_normal(len(late.samples_s))
    read.samples_s = [float(t) for t in np.array(read.samples_s) * noise]
    assert not near(rows), "no read, no fraction"
    found = near([*rows, read])
    assert [*found] == ["ffn_down24"]
    backend, arm, _, ratio, target, words = found["ffn_down24"]
    assert (backend, arm, target) == ("cu", "pdl_late", "0.85") and words.endswith(said)
    assert float(ratio.split()[0]) == pytest.approx(fraction, rel=2e-3)


def test_a_missing_proof_decides_nothing_either() -> None:
    assert verdict_of(measured(2e-6, missing=["no wait in pdl_entry"])).verdict == "INCONCLUSIVE"
