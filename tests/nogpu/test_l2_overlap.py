"""No overlap seen means INCONCLUSIVE, however fast the arm was: a rule fixed before anything was measured."""

from __future__ import annotations

import numpy as np
import pytest

from probes import l2, l2_report
from probes.core.rows import Row


def measured(overlap_s: float | None, speed: float = 1.05, notes: tuple[str, ...] = ()) -> list[Row]:
    """decode13 at both KV lengths: plain thrice, and pdl_entry `speed` times as fast."""
    rng = np.random.default_rng(5)
    rows = []
    for kv in l2.KVS:
        for variant in (*l2.AA, "pdl_entry"):
            own = variant == "pdl_entry"
            mean = 1e-4 / (speed if own else 1.0)
            rows.append(
                Row(
                    probe="l2", case="decode13", kv=kv, variant=variant, backend="cu", source="measured",
                    device="test", time_s=mean, windows=20, processes=1, notes=list(notes) if own else [],
                    samples_s=[float(t) for t in mean * (1 + 0.0005 * rng.standard_normal(40))],
                    overlap_s=overlap_s if own else -1.09e-6,
                )
            )  # fmt: skip
    return rows


def verdict_of(rows: list[Row]) -> Row:
    (row,) = [r for r in l2_report.judge(rows, 0) if r.variant == "pdl_entry"]
    return row


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


def test_a_missing_proof_decides_nothing_either() -> None:
    assert verdict_of(measured(2e-6, notes=(f"{l2.MISSING}no wait in pdl_entry",))).verdict == "INCONCLUSIVE"
