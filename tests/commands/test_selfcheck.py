"""The self-check's judgement on made-up samples: quiet where nothing differs, loud where something does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from probes.commands import selfcheck
from probes.gpu.sampling import Blocks
from probes.report import store
from probes.report.rows import Row
from tests.block_rows import blocks

ROOT = Path(__file__).resolve().parents[2]


def run(case: str, rng: np.random.Generator, b: float = 1.0) -> Row:
    """A pair of the same kernel, the second time `b` times as fast."""
    times = blocks(20e-6, b * 20e-6, rng, noise=0.003)
    return Row(
        probe="selfcheck", case=case, variant="padded_loop_aa:padded_loop", backend="cu", source="measured",
        device="test", role="contest", of="padded_loop_aa", baseline="padded_loop", bitwise=True,
        blocks_s=times, block_clock_hz=[0.0] * (len(times) // 4),
    )  # fmt: skip


def test_the_same_kernel_against_itself_claims_nothing() -> None:
    rng = np.random.default_rng(0)
    judged = selfcheck.judge([run(f"l1_case_{k:03d}", rng) for k in range(20)])
    assert len(judged) == 20
    assert {r.reason for r in judged} == {"claims no difference"}
    assert "GO" not in {r.verdict for r in judged}
    assert "20 A/A runs: 0 said GO, 0 claimed a difference" in selfcheck.text(judged, [], True)
    assert not selfcheck.wrong(judged, [])


@pytest.mark.parametrize(("b", "verdict"), [(1 / 0.9, "GO"), (0.9, "NO-GO")])
def test_a_real_difference_is_seen(b: float, verdict: str) -> None:
    rng = np.random.default_rng(1)
    rows = [run(f"l1_case_{k:03d}", rng, b if k == 7 else 1.0) for k in range(20)]
    judged = selfcheck.judge(rows)
    assert (judged[7].verdict, judged[7].reason) == (verdict, "CLAIMS A DIFFERENCE")
    assert selfcheck.wrong(judged, []) is (verdict == "GO"), "one of 20 may claim a difference"
    assert selfcheck.wrong(selfcheck.judge([run("l1_case_000", rng, b)]), []) is (verdict == "GO")


def test_too_many_claims_are_wrong() -> None:
    rng = np.random.default_rng(2)
    rows = [run(f"l1_case_{k:03d}", rng, 0.9 if k < 2 else 1.0) for k in range(40)]
    judged = selfcheck.judge(rows)
    assert sum(r.reason == "CLAIMS A DIFFERENCE" for r in judged) == 2
    assert selfcheck.wrong(judged, []) and not selfcheck.wrong(judged[1:], [])


def test_what_shifts_a_sample_is_seen() -> None:
    """By its place in the block, and by the arm before; each probe by itself."""
    rng = np.random.default_rng(3)

    def taken(place: int | None, after: str = "", slow: float = 1.004) -> Blocks:
        t = np.reshape(blocks(20e-6, 20e-6, rng, noise=1e-4), (-1, 4))
        if place is not None:
            t[:, place] *= slow
        return Blocks(t.reshape(-1).tolist(), [0.0] * len(t), [after] * len(t))

    def seen(*found: tuple[str, Blocks]) -> list[str]:
        return [s.what for s in selfcheck.shifts(found) if s.wrong]

    assert seen(("l1", taken(None)), ("l2", taken(None, "eager/cu"))) == []
    assert seen(("l1", taken(2)), ("l2", taken(2, slow=1.001))) == ["l1, third in its block"]
    few = Blocks([20e-6 * f for f in (1.01, 1, 1, 1)] * 7, [0.0] * 7, ["a/cu"] * 7)
    assert seen(("l1", few)) == [], "a handful says nothing"
    disturbed, usual = taken(0, "eager/cu"), taken(None, "plain/cu")
    assert "l1, after eager/cu" in seen(("l1", disturbed), ("l1", usual))
    assert "l1, after plain/cu" not in seen(("l1", disturbed), ("l1", usual))
    assert selfcheck.wrong([], selfcheck.shifts([("l1", disturbed)]))


@pytest.mark.parametrize("path", sorted((ROOT / "out").glob("*/selfcheck.json")), ids=lambda p: p.parent.name)
def test_the_committed_self_check_passed(path: Path) -> None:
    head, rows = store.read_json(path)
    assert head.complete
    judged = selfcheck.judge([r for r in rows if not r.verdict])
    kept = [r for r in rows if r.verdict]
    assert len(judged) >= 20
    assert [(r.case, r.verdict, r.reason) for r in judged] == [(r.case, r.verdict, r.reason) for r in kept]
    assert not selfcheck.wrong(judged, [])
    assert json.loads(path.read_text())["schema"] == head.schema
