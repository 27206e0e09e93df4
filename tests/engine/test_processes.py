"""--processes: rows of several processes joined, proofs included; a stop keeps what was finished."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest

from probes.core.types import BadInput, Unavailable
from probes.engine import judge, processes
from probes.report.rows import Row
from tests.block_rows import blocks


def row(variant: str, mean: float, notes: list[str] | None = None, **more: object) -> Row:
    times = [mean * f for f in (1.0, 1.01, 0.99, 1.0, 1.02, 0.98)]
    known = {"content_bytes": 1000, "content_gbps": 1000 / mean / 1e9, "windows": 3, "processes": 1}
    return Row(
        probe="l1", case="c", variant=variant, backend="cu", source="measured", samples_s=times, time_s=mean,
        notes=notes or [], ratio_to_baseline=1.0 if variant == "padded_loop" else 2.0,
        ratio_low=None if variant == "padded_loop" else 1.9, ratio_high=None, baseline="padded_loop",
        **{**known, **more},
    )  # fmt: skip


def test_samples_stand_one_after_another_and_the_rest_is_made_again() -> None:
    joined = processes.join(
        [
            row(
                "dpl_loop",
                1e-3,
                ["a"],
                overlap_s=1e-6,
                event_loop_time_s=1.0e-3,
                throttled_samples=[1],
                cold=True,
            ),
            row(
                "dpl_loop",
                2e-3,
                ["a", "c"],
                overlap_s=3e-6,
                throttled_samples=[0, 5],
                cold=False,
                missing=["proof missing: b"],
            ),
        ]
    )
    assert len(joined.samples_s) == 12 and joined.processes == 2
    assert joined.time_s == pytest.approx(1.5e-3, rel=0.02)
    assert joined.content_gbps == pytest.approx(1000 / joined.time_s / 1e9)
    assert joined.overlap_s == pytest.approx(2e-6)
    assert joined.event_loop_time_s == pytest.approx(1e-3)
    assert joined.notes == ["a", "c"]
    assert joined.missing == ["proof missing: b"], "in one process is missing in all"
    assert joined.cold is False, "hot in one process is hot"
    assert joined.throttled_samples == [1, 6, 11] and joined.throttled == 3
    joined.check()


def test_ratios_are_of_the_joined_samples() -> None:
    rows = [
        processes.join([row("padded_loop", 1e-3), row("padded_loop", 1.1e-3)]),
        processes.join([row("dpl_loop", 0.8e-3), row("dpl_loop", 0.88e-3)]),
    ]
    judge.relate(rows)
    assert rows[1].ratio_to_baseline == pytest.approx(0.8, abs=0.01)
    assert rows[1].ratio_low is not None and rows[1].ratio_high is not None
    assert rows[1].ratio_low <= 0.8 <= rows[1].ratio_high


def test_blocks_of_a_pair_stand_one_after_another_in_whole_turns() -> None:
    """A process that ends on A B B A would swap who comes first in all that follows."""

    def pair(ratio: float, count: int, **more: object) -> Row:
        own = {"role": "contest", "of": "dpl_loop", "windows": None, "retaken": 1}
        made = row("dpl_loop:padded_loop", 1e-3, **{**own, **more})
        made.samples_s = []
        made.blocks_s = blocks(ratio * 1e-3, 1e-3, np.random.default_rng(count), noise=0.0, count=count)
        made.block_clock_hz = [float(count)] * count
        return made

    joined = processes.join([pair(0.8, 17), pair(0.9, 32), pair(0.9, 16, missing=["another process"])])
    assert len(joined.blocks_s) == 4 * (16 + 32 + 16) and joined.retaken == 3
    assert joined.block_clock_hz == [17.0] * 16 + [32.0] * 32 + [16.0] * 16
    assert joined.missing == ["another process"], "in one process is in all"
    judge.relate([joined])
    found = joined.ratio_to_baseline, joined.ratio_low, joined.ratio_high
    assert found == pytest.approx((0.9, 0.9, 0.9)), "16 of 64 are no end"
    joined.check()


def test_a_pair_s_ratio_stands_in_its_variant_s_row_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def child(name: str, args: argparse.Namespace, k: int, out: Path) -> list[Row]:
        own = row("dpl_loop:padded_loop", 1e-3, role="contest", of="dpl_loop", windows=None)
        own.samples_s = []
        own.blocks_s = blocks(0.7e-3, 1e-3, np.random.default_rng(k), noise=0.0, count=16)
        return [row("padded_loop", 1e-3), row("dpl_loop", 0.8e-3), own]

    monkeypatch.setattr(processes, "_child", child)
    _, dpl, own = next(processes.pooled("l1", argparse.Namespace(processes=2, seed=0), lambda line: None))
    assert dpl.ratio_to_baseline == own.ratio_to_baseline == pytest.approx(0.7), "not 0.8, by windows"


def test_rows_of_different_arms_are_not_joined() -> None:
    with pytest.raises(BadInput, match="different arms"):
        processes.join([row("padded_loop", 1e-3), row("dpl_loop", 1e-3)])


@pytest.mark.parametrize("stop", [KeyboardInterrupt, Unavailable])
def test_a_stop_keeps_the_finished_processes(
    stop: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def child(name: str, args: argparse.Namespace, k: int, out: Path) -> list[Row]:
        if k == 2:
            raise stop
        return [row("padded_loop", 1e-3), row("dpl_loop", 0.8e-3)]

    monkeypatch.setattr(processes, "_child", child)
    seen = processes.pooled("l1", argparse.Namespace(processes=3, seed=0), lambda line: None)
    rows = next(seen)
    assert [r.processes for r in rows] == [2, 2]
    with pytest.raises(stop):
        next(seen)


def test_processes_with_other_rows_are_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    def child(name: str, args: argparse.Namespace, k: int, out: Path) -> list[Row]:
        return [row("padded_loop", 1e-3)] * (k + 1)

    monkeypatch.setattr(processes, "_child", child)
    with pytest.raises(BadInput, match="measured different arms"):
        next(processes.pooled("l1", argparse.Namespace(processes=2, seed=0), lambda line: None))
