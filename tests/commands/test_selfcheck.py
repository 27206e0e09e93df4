"""The self-check's judgement on made-up samples: quiet where nothing differs, loud where something does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from probes.commands import selfcheck
from probes.report import store
from probes.report.rows import Row

ROOT = Path(__file__).resolve().parents[2]


def run(case: str, rng: np.random.Generator, b: float = 1.0, windows: int = 14) -> list[Row]:
    means = {"a": 20e-6, "b": b * 20e-6, "floor_a": 20e-6, "floor_b": 20e-6}
    return [
        Row(
            probe="selfcheck", case=case, variant=v, backend="cu", source="measured", device="test",
            samples_s=[float(x) for x in m * (1 + 0.003 * rng.standard_normal(2 * windows))],
            windows=windows, processes=1,
        )
        for v, m in means.items()
    ]  # fmt: skip


def test_the_same_kernel_against_itself_claims_nothing() -> None:
    rng = np.random.default_rng(0)
    rows = [r for k in range(20) for r in run(f"run_{k:02d}", rng)]
    judged = selfcheck.judge(rows, 0)
    assert len(judged) == 20
    assert {r.reason for r in judged} == {"claims no difference"}
    assert "GO" not in {r.verdict for r in judged}


def test_a_real_difference_is_seen() -> None:
    (judged,) = selfcheck.judge(run("run_00", np.random.default_rng(1), b=0.9), 0)
    assert (judged.verdict, judged.reason) == ("GO", "CLAIMS A DIFFERENCE")


def test_the_floor_falls_with_windows() -> None:
    rng = np.random.default_rng(2)
    rows = [r for k in range(20) for r in run(f"run_{k:02d}", rng)]
    found = selfcheck.floors(rows, 0)
    assert [n for n, _ in found] == list(selfcheck.WINDOWS_SHOWN)
    assert found[0][1] > found[2][1] > found[-1][1]
    assert "0 said GO" in selfcheck.text(rows, selfcheck.judge(rows, 0), 0, True)


@pytest.mark.parametrize("path", sorted((ROOT / "out").glob("*/selfcheck.json")), ids=lambda p: p.parent.name)
def test_the_committed_self_check_passed(path: Path) -> None:
    head, rows = store.read_json(path)
    assert head.complete
    judged = selfcheck.judge([r for r in rows if not r.verdict], head.seed)
    kept = [r for r in rows if r.verdict]
    assert len(judged) >= 20
    assert [(r.case, r.verdict, r.reason) for r in judged] == [(r.case, r.verdict, r.reason) for r in kept]
    assert {r.reason for r in judged} == {"claims no difference"}
    assert json.loads(path.read_text())["schema"] == head.schema
