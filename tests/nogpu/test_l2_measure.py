"""L2's measuring code without a GPU, on the stand-ins of l2_fakes.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from probes import cli, l2, l2_measure, l2_report, l2_sweep
from probes.bench import Bench
from probes.core.types import WrongResult
from probes.gpu.kernels import Launch
from probes.report.rows import Row
from tests.nogpu import l2_fakes
from tests.nogpu.l2_fakes import FACTS, at

bench = l2_fakes.bench


def arguments(*argv: str) -> Any:
    return cli.parser("l2").parse_args(list(argv))


def rows_of(bench: Bench, *argv: str) -> list[Row]:
    rows = [r for rows in l2_measure.measure(bench, arguments("--backend", "cu", *argv)) for r in rows]
    for row in rows:  # these chains are too small to be cold
        row.notes = [n for n in row.notes if not n.startswith("hot")]
    return rows


def test_every_chain_and_arm_runs_checked_and_proven(bench: Bench) -> None:
    rows = rows_of(bench, *(x for case in l2.CASES for x in ("--case", case)))
    for row in rows:
        row.check()
    groups = list(dict.fromkeys(r.group for r in rows))
    assert groups == [
        "bandwidth24", "compute24", "decode13@9", "decode13@5", "ffn_down24", "attn_v24", "decode13_ring@9",
        "decode13_ring@5", "empty",
    ]  # fmt: skip
    assert len({r.id for r in rows}) == len(rows)
    for group in groups:
        mine = {r.variant: r for r in rows if r.group == group}
        case = group.partition("@")[0]
        wanted = [a.name for a in l2.ARMS if l2.runs(a, case)]
        assert [v for v in mine if v in {a.name for a in l2.ARMS}] == wanted
        launches = 13 if "decode13" in group else 4
        late = mine["pdl_late_trigger"]
        assert late.bitwise is (None if group == "empty" else True)
        assert late.overlap_s == pytest.approx(-400e-9)
        assert late.gain_per_interface_s == pytest.approx(1e-5 / launches, rel=0.01)
        notes = " ".join(late.notes)
        assert "3 replays equal to eager launches" in notes
        assert "edges programmatic" in notes and l2.MISSING not in notes.replace("proof missing: no wait", "")
        assert late.event_loop_time_s is None
        if case in l2.RING:
            assert wanted == [*l2.AA, *l2.JUDGED]
            continue
        assert mine["pdl_late_off"].notes[-1].startswith("0 of ")
        assert mine["eager"].notes and not any("edges" in n for n in mine["eager"].notes)
    kernels = [r for r in rows if r.group == "decode13@9" and r.variant.startswith("kernel_")]
    assert len(kernels) == 13 and all(r.waves and r.blocks_per_sm and r.notes for r in kernels)
    assert {r.variant for r in rows if r.variant.startswith("pair_")} >= {"pair_plain", "pair_pdl_entry"}


def test_verdicts_need_an_overlap_and_both_kv_lengths(bench: Bench) -> None:
    rows = rows_of(bench, "--case", "decode13")
    verdicts = {(r.variant, r.backend): r for r in l2_report.judge(rows, 0)}
    assert [k[0] for k in verdicts] == list(l2.JUDGED)
    entry = verdicts["pdl_entry", "cu"]
    assert entry.verdict == "INCONCLUSIVE" and "no overlap seen" in (entry.reason or "")
    for row in rows:  # now as a GPU would show it
        if row.variant.startswith("pdl_"):
            row.overlap_s = 3e-6
        elif row.variant == "plain":
            row.overlap_s = -1e-6
    verdicts = {(r.variant, r.backend): r for r in l2_report.judge(rows, 0)}
    entry = verdicts["pdl_entry", "cu"]
    assert (entry.verdict, entry.recorded, entry.agrees) == ("GO", "NO-GO", False)
    assert "3.00 us before" in (entry.reason or "") and "PROBES_PDL=0" in (entry.reason or "")
    assert l2_report.judge(rows, 0)[0].to_json() == l2_report.judge(rows, 0)[0].to_json()
    one = [r for r in rows if r.kv == 9]
    assert {r.verdict for r in l2_report.judge(one, 0)} == {"INCONCLUSIVE"}
    for markdown in (False, True):
        text = "\n".join(l2_report.sections(rows, markdown))
        assert "pdl_late_trigger +11." in text and "slower: none" in text
    assert "+11." in l2_report.readme(rows)


def test_a_missing_proof_keeps_an_arm_from_a_verdict(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBES_PDL", "0")
    rows = rows_of(bench, "--case", "decode13", "--arm", "pdl_entry")
    assert {r.variant for r in rows if r.samples_s} == {*l2.AA, "pdl_entry"}
    (row,) = l2_report.judge(rows, 0)
    assert row.verdict == "INCONCLUSIVE" and "PROBES_PDL=0" in (row.reason or "")


def test_a_wrong_kernel_is_caught_and_named(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Launch.enqueue

    def wrong(self: Launch, stream: Any) -> None:
        right(self, stream)
        if self.kernel.name == "l2_add_plain":
            at(self.args[2], np.float32, 4)[2] += 1

    monkeypatch.setattr(Launch, "enqueue", wrong)
    with pytest.raises(WrongResult, match="decode13 add/cu at KV 9"):
        rows_of(bench, "--case", "decode13", "--kv", "9")


def test_the_sweep_yields_points_a_text_and_a_plot(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(l2_sweep, "cap_smem", lambda kernel, block, blocks, gpu: 0)
    monkeypatch.setattr(l2, "SWEEP_WAVES", (1.0, 1.5))
    rows = rows_of(bench, "--case", "compute24", "--sweep")
    sweep = [r for r in rows if r.case.startswith("sweep_")]
    assert {r.case for r in sweep} == {
        f"sweep_{k}_b2_w{w}" for k in ("compute", "wide") for w in ("1", "1.5")
    }
    text = "\n".join(l2_report.sections(rows, True))
    assert "No tax was found in this range" in text and "12 faster and 0 slower" in text
    blocks = l2_report.plots(rows, tmp_path / "l2.md")
    assert blocks and ((tmp_path / "l2_sweep.svg").exists() or "matplotlib" in blocks[0])


def test_an_older_gpu_is_skipped_with_the_reason(bench: Bench) -> None:
    from dataclasses import replace

    bench.gpu.facts = replace(FACTS, arch="sm_80")
    rows = rows_of(bench)
    assert rows and all("sm_90 or later, this GPU is sm_80" in (r.skipped or "") for r in rows)
    assert not l2_report.judge(rows, 0)
