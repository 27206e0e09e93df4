"""L2's tuned ring geometries without a GPU: the table's rows, and the sweep that they come from."""

from __future__ import annotations

import pytest

from probes import (
    l2,
    l2_ring,
    l2_ring_sweep,
)
from probes.core.types import BadInput
from probes.device import facts as profiles
from probes.device import tuning
from probes.device.tuning import ChainRing, Geometry
from probes.report.rows import Row
from tests.host_gpu import HostGpu
from tests.host_run import Commands

H200 = profiles.load("h200")


def test_tuned_rows_are_taken_and_survive_being_written(monkeypatch: pytest.MonkeyPatch) -> None:
    head = 'devices = ["h200"]\nwhere = "here"\n[l1]\n'
    chosen = {"ffn_down": ChainRing(Geometry(2, 2, 5), 4, Geometry(8, 1))}
    table = tuning.parse(head + tuning.dump_l2("ffn_down24", chosen))
    assert table.l2 == {"ffn_down24": chosen}
    before = l2.report_digest("l2", "h200")
    monkeypatch.setattr(tuning, "tables", lambda: (table,))
    assert tuning.l2("h200", "ffn_down24", "ffn_down") == chosen["ffn_down"]
    assert tuning.l2("h200", "decode13_ring", "down") is None and tuning.l2("gb10", "x", "y") is None
    case = l2.Case("ffn_down24")
    assert l2_ring.steps(case, H200)[0].args[-3:] == (2, 5, 4), "stages that are named may fill the SM"
    assert l2_ring.steps(case, H200, plain=True)[0].args[-3:] == (8, 1, 4), "the plain graph's own"
    assert l2.report_digest("l2", "h200") != before, "a report knows the geometry that it was measured with"
    assert l2.report_digest("l2", "other") == l2.digest()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[l2.nothing]\nx = { ring = "1r1b0s-dealt", ahead = 0 }', "no such chain or matrix"),
        ('[l2.ffn_down24]\ndown = { ring = "1r1b0s-dealt", ahead = 0 }', "no such chain or matrix"),
        ('[l2.decode13_ring]\ndown = { ring = "1r1b0s-dealt" }', "a row is"),
        ('[l2.attn_v24]\nattn_v = { ring = "1r1b0s-drawn", ahead = 0 }', "dealt, got 1r1b0s-drawn"),
        (
            '[l2.attn_v24]\nattn_v = { ring = "1r1b0s-dealt", ahead = 0, plain = "1r1b0s-drawn" }',
            "dealt, got 1r1b0s-drawn",
        ),
        ('[l2.attn_v24]\nattn_v = { ring = "1r1b0s-dealt", ahead = -1 }', "ahead counts fills, got -1"),
        ('[l2.attn_v24]\nattn_v = { ring = "1r1b0s-dealt", ahead = true }', "ahead counts fills, got True"),
        ('[l2.attn_v24]\nattn_v = { ring = "quick", ahead = 0 }', "got 'quick'"),
    ],
)  # fmt: skip
def test_a_bad_tuning_row_names_its_fault(text: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        tuning.parse(f'devices = ["a"]\nwhere = "x"\n[l1]\n{text}', "t.toml")


# On the stand-in


def test_the_sweep_shows_what_the_tuning_table_should_hold(small_l2: HostGpu, commands: Commands) -> None:
    argv = ["--case", "ffn_down24", "--case", "decode13_ring", "--kv", "9", "--sweep", "--arm", "pdl_late"]
    done = commands("l2", "--backend", "cu", "--windows", "2", *argv)
    rows = done.rows
    swept = [r for r in rows if r.case.startswith(l2_ring_sweep.CASE)]
    for case in ("ffn_down24", "decode13_ring"):
        mine = [r for r in swept if r.case == f"sweep_ring_{case}"]
        wanted = {"now", "now_plain", *(v for v, *_ in l2_ring_sweep.points(case))}
        assert {r.variant for r in mine} - set(l2.READS) == wanted
        assert all(r.skipped or r.bitwise for r in mine) and {r.backend for r in mine} == {"cu"}
    best = l2_ring_sweep.best(swept, "ffn_down24")  # internals
    assert best == {"ffn_down": ChainRing(Geometry(2, 2, 5), 2, Geometry(8, 1, 2))}, "tail and plain apart"
    text = l2_ring_sweep.section(swept, False)
    toml = text[text.index("[l2.") :]
    table = tuning.parse(f'devices = ["x"]\nwhere = "y"\n[l1]\n{toml}')
    assert table.l2["ffn_down24"] == best
    decode13 = table.l2["decode13_ring"]
    assert {decode13[m].ring for m in ("qkv", "o", "gate_up")} == {Geometry(8, 4, 2)}
    assert "The ring chains swept" in done.report and "compute24 swept" not in done.report


def test_where_now_wins_the_point_of_the_same_launches_is_written() -> None:
    point = l2_ring_sweep.points("attn_v24")[0]

    def row(variant: str, time_s: float | None, skipped: str = "") -> Row:
        return Row(
            probe="l2", case="sweep_ring_attn_v24", variant=variant, backend="cu", source="measured",
            device="none", time_s=time_s, skipped=skipped,
        )  # fmt: skip

    rows = [row("now", 1e-4), row("now_plain", 2e-4), row(point[0], None, "the same launches as now")]
    assert l2_ring_sweep.best(rows, "attn_v24") == {"attn_v": point[2].choice}
    assert l2_ring_sweep.best(rows[:2], "attn_v24") == {}, "a geometry by rule is no row of a table"


# Flags and predictions
