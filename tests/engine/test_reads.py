"""The hot control: a read of one copy alone, which shows that the others are cold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.engine import reads
from probes.report.rows import Row
from tests.host_gpu import HostGpu
from tests.host_run import Commands

SMALL, L2 = 4 << 20, 60 << 20


def row(variant: str, time_s: float, **more: object) -> Row:
    own = {"case": "attn_v_14b", "backend": "cu", "source": "measured", "traffic_bytes": SMALL, "cold": True}
    made = Row(probe="l1", variant=variant, time_s=time_s, l2_bytes=L2, **own)  # type: ignore[arg-type]  # by name
    return replace(made, **more)  # type: ignore[arg-type]  # fields by name


@pytest.mark.parametrize(
    ("hot_s", "size", "stopped"), [(2e-6, SMALL, False), (2.5e-6, SMALL, True), (2.5e-6, L2, False)]
)
def test_a_control_that_is_no_faster_stops_every_cold_row(hot_s: float, size: int, stopped: bool) -> None:
    """Where a matrix fills half of the L2 or more, it says nothing."""
    hot = row(reads.HOT, hot_s, role="control", of="read_padded", cold=None)
    rows = [row("dpl_loop", 3e-6), row("read_padded", 2.5e-6, role="read", traffic_bytes=size), hot]
    reads.hold(rows)
    assert [bool(r.missing) for r in rows] == [stopped, stopped, False]
    assert not stopped or "a read of one copy alone is no faster than read_padded" in rows[0].missing[0]


def test_a_run_has_one_control_a_case_which_reads_copy_0_alone(commands: Commands, small_l1: HostGpu) -> None:
    done = commands("l1", "--blocks", "16", "--case", "attn_v_14b")
    (hot,) = [r for r in done.rows if r.role == "control"]
    assert (hot.variant, hot.of, hot.cold, hot.bitwise) == (reads.HOT, "read_padded", None, True)
    told = [r for r in done.rows if r.cold is not None and r.role == "read"]
    assert told and all(r.time_s for r in told)
