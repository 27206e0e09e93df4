"""L2's tuned ring geometries without a GPU: the table's rows, and the sweep that they come from.

What a row must not hold: tests/device/test_tuning.py.
"""

from __future__ import annotations

import pytest

from probes import cli
from probes.core.types import BadInput
from probes.device import facts as profiles
from probes.device import tuning
from probes.device.tuning import Geometry
from probes.engine import digests, reads, sweep
from probes.l2 import analysis, chains, plan, table
from probes.l2.chains import ChainRing
from probes.l2.table import ChainCase
from probes.report.rows import Row
from tests.host_gpu import HostGpu
from tests.host_run import Commands

H200 = profiles.load("h200")
HEAD = 'devices = ["h200"]\nwhere = "here"\n'


def test_tuned_rows_are_taken_and_survive_being_written(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = {"ffn_down": ChainRing(Geometry(2, 2, 5), 4, Geometry(8, 1)), "x": ChainRing(Geometry(1, 1))}
    rows = {matrix: ring.row for matrix, ring in chosen.items()}
    made = tuning.parse(HEAD + tuning.dump("l2", "ffn_down24", rows))
    assert made.rows == {"l2": {"ffn_down24": rows}}
    before = digests.report("l2", "h200")
    monkeypatch.setattr(tuning, "tables", lambda: (made,))
    for matrix, ring in chosen.items():
        assert chains.tuned("h200", "ffn_down24", matrix) == ring
    assert chains.tuned("h200", "decode13_ring", "down") is None and chains.tuned("gb10", "x", "y") is None
    case = ChainCase(id="ffn_down24", chain="ffn_down24")
    assert chains.steps(case, H200)[0].args[-3:] == (2, 5, 4), "stages that are named may fill the SM"
    assert chains.steps(case, H200, plain=True)[0].args[-3:] == (8, 1, 4), "the plain graph's own"
    assert digests.report("l2", "h200") != before, "a report knows the geometry that it was measured with"
    assert digests.report("l2", "other") == digests.report("l2", "")


def test_the_sweep_shows_what_the_tuning_table_should_hold(small_l2: HostGpu, commands: Commands) -> None:
    argv = ["--case", "ffn_down24", "--case", "decode13_ring", "--kv", "9", "--sweep", "--arm", "pdl_late"]
    done = commands("l2", "--backend", "cu", "--windows", "2", *argv)
    swept = [r for r in done.rows if r.sweep == table.RINGS]
    assert {r.case for r in swept} == {"sweep_ring_ffn_down24", "sweep_ring_decode13_ring"}
    for chain in ("ffn_down24", "decode13_ring"):
        mine = [r for r in swept if r.case == f"sweep_ring_{chain}"]
        points = {"now", "now_plain", *(v for v, *_ in plan.ring_points(chain))}
        large = {f.of(reads.LARGE) for f in reads.FORMS}
        same = table.READS if chain in chains.MATRICES else ()
        assert {r.variant for r in mine} == points | large | {*same}
        assert {r.variant for r in mine if r.role == "point"} == points
        assert all(r.skipped or r.bitwise for r in mine) and {r.backend for r in mine} == {"cu"}
    best = analysis.best(swept, "ffn_down24")  # internals
    ring = ChainRing(Geometry(2, 2, 5), 2, Geometry(8, 1, 2))
    assert best == {"ffn_down": ring.row}, "tail and plain apart"
    toml = done.report[done.report.index("[l2.") :].partition("```")[0]
    held = tuning.parse(HEAD + toml).rows["l2"]
    assert held["ffn_down24"] == best
    rings = [held["decode13_ring"][m]["ring"] for m in ("qkv", "o", "gate_up")]
    assert rings == [Geometry(8, 4, 2)] * 3
    assert "The ring chains swept" in done.report and "compute24 swept" not in done.report


def test_where_now_wins_the_point_of_the_same_launches_is_written() -> None:
    variant, _, point = plan.ring_points("attn_v24")[0]

    def row(variant: str, time_s: float | None, skipped: str = "") -> Row:
        return Row(
            probe="l2", case="sweep_ring_attn_v24", variant=variant, backend="cu", source="measured",
            device="none", time_s=time_s, skipped=skipped, role="point", sweep=table.RINGS,
        )  # fmt: skip

    rows = [row("now", 1e-4), row("now_plain", 2e-4), row(variant, None, sweep.SAME.format("now"))]
    assert analysis.best(rows, "attn_v24") == {"attn_v": point.choice.row}
    assert analysis.best(rows[:2], "attn_v24") == {}, "a geometry by rule is no row of a table"


def test_tune_sweeps_the_rings_and_nothing_else(small_l2: HostGpu, commands: Commands) -> None:
    done = commands("l2", "--tune", "--case", "attn_v24", "--backend", "cu")
    assert done.code == 0 and not done.verdicts and {r.sweep for r in done.rows} == {table.RINGS}
    held = tuning.parse(HEAD + done.report[done.report.index("[l2.") :].partition("```")[0]).rows["l2"]
    assert held == {"attn_v24": analysis.best(done.rows, "attn_v24")}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--sweep"], "not go with --sweep"), (["--processes", "2"], "not go with --processes"),
        (["--case", "decode13"], "which --case or --quick leaves out"),
    ],
)  # fmt: skip
def test_what_tune_does_not_go_with(flags: list[str], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        table.check_flags(cli.parser("l2").parse_args(["--tune", *flags]))


@pytest.mark.parametrize(("probe", "flag"), [("l1", "--sweep"), ("l3", "--geometries")])
def test_tune_is_one_word_for_every_probe(probe: str, flag: str) -> None:
    parser = cli.parser(probe)
    assert parser.parse_args(["--tune"]) == parser.parse_args([flag])
