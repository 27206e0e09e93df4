"""L2 measured on the stand-in GPU."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from probes.engine import judge, machine_code, reads
from probes.l2 import analysis, report, table
from probes.report.rows import Row
from tests.fixtures import L2_FACTS
from tests.host_gpu import HostGpu, Launched, Running
from tests.host_run import Commands, Ran, cold

CU = ("--backend", "cu", "--windows", "8")


def measured(commands: Commands, *argv: str) -> Ran:
    done = commands("l2", *CU, *argv)
    for row in cold(done.rows):
        row.check()
    return done


def judged(rows: list[Row]) -> list[Row]:
    """Verdicts over the table's contests."""
    return judge.judge(rows, table.CONTESTS, analysis)  # internals


def early(x: Launched) -> float:
    """Where the attribute lets a launch start 3 us before its predecessor's end; a gap of 1 us elsewhere."""
    return -3e-6 if x.pdl else 1e-6


def test_every_chain_and_arm_runs_checked_and_proven(small_l2: HostGpu, commands: Commands) -> None:
    rows = measured(commands, "--blocks=16", *(x for case in table.CHAINS for x in ("--case", case))).rows
    groups = list(dict.fromkeys(r.group for r in rows))
    assert groups == [
        "bandwidth24", "compute24", "decode13@9", "decode13@5", "ffn_down24", "attn_v24", "decode13_ring@9",
        "decode13_ring@5", "empty",
    ]  # fmt: skip
    assert len({r.id for r in rows}) == len(rows)
    for group in groups:
        mine = {r.variant: r for r in rows if r.group == group}
        case = group.partition("@")[0]
        wanted = [a.name for a in table.ARMS if table.runs(a, case)]
        assert [v for v in mine if v in {a.name for a in table.ARMS}] == wanted
        launches = 13 if "decode13" in group else 4
        late = mine["pdl_late_trigger"]
        assert late.bitwise is (None if group == "empty" else True)
        assert late.overlap_s == pytest.approx(-400e-9)
        plain_s = mine["plain"].time_s or 0.0
        assert late.gain_per_interface_s == pytest.approx(0.1 * plain_s / launches, rel=0.01)
        notes = " ".join(late.notes)
        assert "3 replays equal to eager launches" in notes
        assert "edges programmatic" in notes and not late.missing
        assert late.event_loop_time_s is None
        if case in table.RING:
            rows_of = [f"{kind}_{f}" for f in table.ROWS.get(case, ()) for kind in ("plain", "tail")]
            assert wanted == [*table.AGAIN, *table.JUDGED, *rows_of]
            two = [mine[v].skipped for v in rows_of if v.endswith("two")]
            assert all("does not suit a row of 8 units" in (why or "") for why in two)
            continue
        assert mine["pdl_late_off"].notes[-1].startswith("0 of ")
        assert mine["eager"].notes and not any("edges" in n for n in mine["eager"].notes)
    kernels = [r for r in rows if r.group == "decode13@9" and r.variant.startswith("kernel_")]
    assert len(kernels) == 13 and all(r.waves and r.blocks_per_sm and r.notes for r in kernels)
    assert {r.variant for r in rows if r.variant.startswith("pair_")} >= {"pair_plain", "pair_pdl_entry"}


def test_verdicts_tell_of_overlap_and_need_both_kv_lengths(small_l2: HostGpu, commands: Commands) -> None:
    def by_arm(rows: list[Row]) -> dict[str, Row]:
        return {r.variant: r for r in judged(rows)}

    verdicts = by_arm(measured(commands, "--case", "decode13").rows)
    assert [*verdicts] == [*table.JUDGED, "pdl_best"]
    entry, best = verdicts["pdl_entry"], verdicts["pdl_best"]
    assert entry.verdict == "GO" and "neither overlap nor an earlier start" in (entry.reason or "")
    assert (best.verdict, best.of, best.baseline) == ("GO", "pdl_late_tail", "plain")
    small_l2.gap = early  # now as a GPU would show it
    rows = measured(commands, "--case", "decode13").rows
    entry = by_arm(rows)["pdl_entry"]
    assert (entry.verdict, entry.recorded, entry.agrees) == ("GO", "NO-GO", False)
    assert "launches overlap: launches start 3.00 us before" in (entry.reason or "") and "PROBES_PDL=0" in (
        entry.reason or ""
    )
    assert judged(rows)[0].to_json() == judged(rows)[0].to_json()
    one = [r for r in rows if r.kv == 9]
    assert {r.verdict for r in judged(one)} == {"INCONCLUSIVE"}
    for markdown in (False, True):
        text = "\n".join(report.sections(rows, markdown))
        assert "pdl_late_trigger +11." in text and "slower: none" in text
    assert "+11." in report.readme(rows)


def test_a_missing_proof_keeps_an_arm_from_a_verdict(
    small_l2: HostGpu, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_l2.gap = early
    argv = ("--case", "decode13", "--arm", "pdl_entry")

    def reason(done: Ran | None = None) -> str:
        row, best = judged((done or measured(commands, *argv)).rows)
        assert (best.variant, best.of, best.verdict) == ("pdl_best", "pdl_entry", row.verdict)
        return f"{row.verdict}: {row.reason}"

    assert reason().startswith("GO: ")
    small_l2.lost_edges = 1
    assert re.match(r"INCONCLUSIVE: .*1 edges of the graph are not programmatic", reason())
    small_l2.lost_edges = 0
    with monkeypatch.context() as own:
        own.setattr(machine_code, "kernels", lambda probe, names, *rest: {n: [] for n in names})
        assert re.match("INCONCLUSIVE: .*no wait in the SASS", reason())
    monkeypatch.setenv("PROBES_PDL", "0")
    done = measured(commands, *argv)
    assert {r.variant for r in done.rows if r.samples_s and r.case == "decode13"} == {
        *table.AGAIN, "pdl_entry", *(f.of(reads.LARGE) for f in reads.FORMS),
    }  # fmt: skip
    assert done.code == 3
    assert re.match("INCONCLUSIVE: .*PROBES_PDL=0", reason(done))


def test_a_wrong_kernel_is_caught_and_named(small_l2: HostGpu, commands: Commands) -> None:
    def change(x: Running) -> None:
        x.gpu.at(x.launch.args[2], np.float32, 4)[2] += 1

    small_l2.wrong("l2_add_plain", change=change)
    done = commands("l2", *CU, "--case", "decode13", "--kv", "9")
    assert done.code == 1 and "decode13 add/cu at KV 9" in done.err and not done.rows


def test_the_sweep_yields_points_a_text_and_a_plot(
    small_l2: HostGpu, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "SWEEP_WAVES", (1.0, 1.5))
    done = measured(commands, "--case", "compute24", "--sweep")
    sweep = [r for r in done.rows if r.case.startswith("sweep_")]
    assert {r.case for r in sweep} == {
        f"sweep_{k}_b{b}_w{w}" for k in ("compute", "wide") for b in (1, 2) for w in ("1", "1.5")
    }
    assert "No tax was found in this range" in done.report and "24 faster and 0 slower" in done.report
    drawn = (commands.folder / "l2_sweep.svg").exists()
    assert drawn or "matplotlib is not installed" in done.report


def test_an_older_gpu_is_skipped_with_the_reason(small_l2: HostGpu, commands: Commands) -> None:
    small_l2.facts = replace(L2_FACTS, arch="sm_80")
    done = measured(commands)
    assert done.rows and all("sm_90 or later, this GPU is sm_80" in (r.skipped or "") for r in done.rows)
    assert not done.verdicts


def test_kv_lengths_that_no_bar_knows_give_rows_and_no_verdict(small_l2: HostGpu, commands: Commands) -> None:
    done = commands("l2", "--case", "decode13", "--kv", "7", "--arm", "pdl_late", "--backend", "cu")
    assert done.code == 3 and not done.verdicts and {r.kv for r in done.rows} == {7}, done.err
