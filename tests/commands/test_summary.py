"""The summary's lines out of the committed reports, and where nothing was measured or a probe failed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from probes.commands import summary
from probes.engine import probe as protocol
from probes.engine.run import Run
from probes.report import store

REPORTS = Path(__file__).resolve().parents[2] / "out" / "nvidia-h200"


def line(name: str) -> list[str]:
    head, rows = store.read_json(REPORTS / f"{name}.json")
    return summary.line(name, Run(name, head, rows))


def test_a_line_says_what_was_recorded_what_holds_here_and_what_beats_it() -> None:
    for name in protocol.names():
        probe, said, here, agrees, gain = line(name)
        assert probe == name and said and here.endswith("cu)") and agrees in ("yes", "NO", "neither way")
        assert gain != "nothing"
    _, said, here, agrees, gain = line("l3")
    assert said == "form_b: NO-GO" and here.startswith("NO-GO") and agrees == "yes"
    won, every = gain.split("; of all kernels ")
    assert won.startswith("form_a ") and every.startswith(("form_c ", "pair_ring "))


def test_a_failed_and_a_predicted_probe_say_so() -> None:
    assert summary.line("l1", None, "no room")[2] == "FAILED: no room"
    head, rows = store.read_json(REPORTS / "l1.json")
    head.mode = "predict"
    assert "not measured" in summary.line("l1", Run("l1", head, rows))[2]
    skipped = [replace(r, source="predicted", skipped="no register counts") for r in rows]
    assert summary.line("l1", Run("l1", head, skipped))[2] == "neither measured nor predicted"
    head.mode = "measure"
    assert summary.line("l1", Run("l1", head, []))[2] == "no verdict reached"
