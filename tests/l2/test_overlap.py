"""Verdicts out of made-up rows; no overlap seen means INCONCLUSIVE, a rule fixed before any measurement."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from probes.engine import judge
from probes.l2 import analysis, report, table
from probes.report.rows import Row


def measured(
    overlap_s: float | None, speed: float = 1.05, case: str = "decode13", arm: str = "pdl_entry", **more: Any
) -> list[Row]:  # fmt: skip
    """A chain (at both KV lengths, where it has any): plain thrice, and `arm` `speed` times as fast.

    more: fields of the arm's own rows.
    """
    rng = np.random.default_rng(5)
    rows = []
    for kv in table.KVS if case in table.DECODE else (None,):
        for variant in (*table.AGAIN, arm):
            own = variant == arm
            mean = 1e-4 / (speed if own else 1.0)
            rows.append(
                Row(
                    probe="l2", case=case, kv=kv, variant=variant, backend="cu", source="measured",
                    device="test", time_s=mean, windows=20, processes=1,
                    samples_s=[float(t) for t in mean * (1 + 0.0005 * rng.standard_normal(40))],
                    overlap_s=overlap_s if own else -1.09e-6, **(more if own else {}),
                )
            )  # fmt: skip
    return rows


def judged(rows: list[Row]) -> list[Row]:
    """Verdicts over the table's contests."""
    return judge.judge(rows, table.CONTESTS, analysis, 0)


def verdict_of(rows: list[Row]) -> Row:
    (row,) = [r for r in judged(rows) if r.variant == "pdl_entry"]
    return row


def near(rows: list[Row]) -> dict[str, list[str]]:
    """Chain -> its line's cells in the report's table on how near the ring chains come, the chain aside."""
    text = next((s for s in report.sections(rows, True) if "How near the ring chains come" in s), "")
    lines = [[c.strip() for c in x.split("|")[1:-1]] for x in text.splitlines() if x.startswith("|")]
    return {chain: cells for chain, *cells in lines[2:]}


def test_an_overlap_lets_the_gain_decide() -> None:
    assert verdict_of(measured(2e-6)).verdict == "GO"
    assert verdict_of(measured(2e-6, speed=0.97)).verdict == "NO-GO"


@pytest.mark.parametrize(
    ("overlap_s", "words"),
    [
        (-0.83e-6, "0.26 us earlier than in the plain graph"),
        (-1.09e-6, "no earlier than in the plain graph"),
        (0.0, "no overlap seen"),
        (None, "no overlap was looked for"),
    ],
)
def test_without_an_overlap_nothing_is_decided_and_the_reason_keeps_the_figure(
    overlap_s: float | None, words: str
) -> None:
    row = verdict_of(measured(overlap_s))
    assert row.verdict == "INCONCLUSIVE" and row.agrees is None
    assert words in (row.reason or "")
    assert row.ratio_to_baseline == pytest.approx(1 / 1.05, rel=2e-3)


RINGS = [("ffn_down24", 0.10), ("decode13_ring", 0.08)]


@pytest.mark.parametrize("arm", table.JUDGED)
@pytest.mark.parametrize(("case", "bar"), RINGS)
def test_every_arm_of_a_ring_chain_is_held_to_its_own_bar(case: str, bar: float, arm: str) -> None:
    for speed, overlap_s, want in (
        (1 + bar + 0.01, 2e-6, "GO"),
        (1 + bar - 0.01, 2e-6, "NO-GO"),
        (1 + bar + 0.01, -1e-6, "INCONCLUSIVE"),
    ):
        (row,) = judged(measured(overlap_s, speed, case=case, arm=arm))
        assert (row.case, row.variant, row.verdict, row.recorded) == (case, arm, want, None)
        assert f"bar >= +{100 * bar:.2f} %" in (row.reason or "")
        assert ("KV 3254" in (row.reason or "")) is (case == "decode13_ring")


def test_a_ring_chain_needs_its_proofs_and_both_kv_lengths() -> None:
    rows = measured(2e-6, 1.2, case="decode13_ring", arm="pdl_late_tail")
    (row,) = judged([r for r in rows if r.kv == table.KVS[0]])
    assert row.verdict == "INCONCLUSIVE" and "KV 3254: not measured" in (row.reason or "")
    lacking: tuple[tuple[dict[str, Any], str], ...] = (
        ({"missing": ["no wait in l2_q6k_ring_late"]}, "no wait in l2_q6k_ring_late"),
        ({"cold": False}, judge.COLD),
    )
    for more, said in lacking:
        (row,) = judged(measured(2e-6, 1.2, "ffn_down24", "pdl_late_tail", **more))
        assert row.verdict == "INCONCLUSIVE" and said in (row.reason or "")
    floor = [r for r in measured(2e-6, 1.2, case="ffn_down24") if r.variant != "plain_ab"]
    floor[1].samples_s = [1.3 * t for t in floor[1].samples_s]
    (row,) = judged(floor)
    assert row.verdict == "INCONCLUSIVE" and "not above the floor" in (row.reason or "")


@pytest.mark.parametrize(
    ("fraction", "said"), [(0.9, "reached"), (0.8, "not reached"), (0.85, "(within the interval)")]
)
def test_a_target_is_reached_or_not(fraction: float, said: str) -> None:
    rows = measured(2e-6, 1.2, case="ffn_down24", arm="pdl_late", bitwise=True)
    late = rows[-1]
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
