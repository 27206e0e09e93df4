"""A neighbour that comes and goes: the run ends with rows, marks and INCONCLUSIVE, never with bad input."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from probes.engine import machine_code
from tests.host_gpu import HostGpu
from tests.host_run import Commands


def slices(seconds: float, share: float) -> Callable[[int], float]:
    """Another process' time slices: `share` of the replays wait for one."""
    rng = np.random.default_rng(5)
    return lambda k: seconds * float(rng.random() < share)


@pytest.fixture(autouse=True)
def no_disassembly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times that stray would have kernels compiled, to say why one language is slower."""
    monkeypatch.setattr(machine_code, "explain", lambda *rest: None)


def test_time_slices_of_2_ms_end_in_rows_and_INCONCLUSIVE(commands: Commands, small_l1: HostGpu) -> None:
    small_l1.disturbed = slices(2e-3, 0.5)
    done = commands("l1", "--blocks", "16")
    assert done.code == 3 and done.head.complete and "error" not in done.err
    assert {r.verdict for r in done.verdicts} == {"INCONCLUSIVE"}
    pairs = [r for r in done.rows if r.role == "contest"]
    assert pairs and all(r.retaken for r in pairs)
    told = [r.reason for r in done.verdicts]
    assert any("had a slope at or below 0: another process on the GPU?" in t for t in told)


def test_a_neighbour_that_goes_costs_blocks_and_no_verdict(commands: Commands, small_l1: HostGpu) -> None:
    """A burst now and then: its blocks are taken again, and the figures are those of a quiet run."""
    quiet = commands("l1", "--blocks", "16")
    small_l1.disturbed = slices(2e-3, 0.02)
    done = commands("l1", "--blocks", "16")
    assert done.head.complete and sum(r.retaken or 0 for r in done.rows) > 0
    assert {r.id for r in done.verdicts} == {r.id for r in quiet.verdicts}
    assert all(len(r.blocks_s) == 64 for r in done.rows if r.role == "contest" and not r.missing)
    ratio = {r.id: r.ratio_to_baseline for r in quiet.verdicts}
    assert all(r.ratio_to_baseline == pytest.approx(ratio[r.id], rel=2e-3) for r in done.verdicts)
