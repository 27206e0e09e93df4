"""L1 measured on the stand-in GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from probes import cli
from probes.core.types import BadInput
from probes.device import tuning
from probes.device.tuning import Geometry
from probes.engine import limit, reads, sweep
from probes.engine.judge import compared, find
from probes.l1 import plan, report, table
from probes.report import tables
from probes.report.rows import Row
from probes.verdict.bars import Interval
from tests.fixtures import L1_CASES
from tests.host_gpu import TWO_SMS, HostGpu
from tests.host_run import Commands, Ran, cold
from tests.l1.l1_rows import judged

FEW = ("--windows", "8")


def measured(commands: Commands, *argv: str) -> Ran:
    done = commands("l1", *FEW, *argv)
    for row in cold(done.rows):
        row.check()
    assert len({r.id for r in done.rows}) == len(done.rows) > 0
    return done


def test_every_form_runs_with_its_own_arguments_and_is_checked(small_l1: HostGpu, commands: Commands) -> None:
    rows = measured(commands).rows
    by = {(r.case, r.variant): r for r in rows if r.backend == "cu"}
    want = {v.name for v in table.every()} | set(table.AGAIN) | set(table.FLIP)
    for case in L1_CASES:
        assert want <= {v for c, v in by if c == case.id}
    skipped = {"ffn_down_14b": ("pf3",), "attn_v_14b": ("pf", "pf3"), "ffn_down_7b": ("pf",)}
    for case_id, forms in skipped.items():
        found = {r.variant for r in rows if r.case == case_id and r.skipped}
        assert found == {f"{lay}_{form}" for lay in table.READ_OF for form in forms}
    assert all(r.bitwise and r.ratio_to_baseline for r in rows if r.samples_s and "read" not in r.variant)
    ring, plain = by["ffn_down_14b", "gpl_ring"], by["ffn_down_14b", "gpl_loop"]
    assert (ring.grid, plain.grid) == (4, 40)
    assert (ring.waves, ring.blocks_per_sm) == (1.0, 2)
    assert ring.notes == ["geometry 4r2b0s-drawn, 3 stages, by the default rule"]
    assert (ring.geometry, plain.geometry) == ("4r2b0s-drawn", None)
    assert by["ffn_down_14b", "gpl_async"].notes == ring.notes
    assert {file for _, file, _, _ in small_l1.loaded} == {"l1", "l1_ring", "harness"}


def test_a_form_alone_and_what_it_needs(small_l1: HostGpu, commands: Commands) -> None:
    rows = measured(
        commands, "--form", "ring", "--layout", "gpl", "--backend", "cu", "--case", "attn_v_14b"
    ).rows
    assert [r.variant for r in rows] == [
        "padded_loop", "padded_ring", "gpl_ring", "padded_loop_aa", "padded_ring_aa",
        *(f.of(x) for x in ("read_large", "read_padded", "read_dpl") for f in reads.FORMS),
        "read_hot", "gpl_ring:padded_ring", "padded_ring_aa:padded_ring",
    ]  # fmt: skip
    rows = measured(commands, "--form", "loop", "--case", "attn_v_14b").rows
    assert not [r for r in rows if "ring" in r.variant]


def test_blocks_per_sm_holds_the_grid(small_l1: HostGpu, commands: Commands) -> None:
    argv = ["--blocks-per-sm", "1", "--form", "async", "--form", "ring", "--backend", "cu"]
    by = measured(commands, *argv, "--layout", "gpl", "--case", "ffn_down_14b").by()
    assert (by["gpl_ring"].grid, by["gpl_async"].grid) == (2, 2)
    assert "4r1b0s-drawn" in by["gpl_ring"].notes[0] and by["gpl_ring"].geometry == "4r1b0s-drawn"
    assert by["padded_loop"].blocks_per_sm == 1
    assert {bound for _, file, _, bound in small_l1.loaded if file != "harness"} == {1}


def test_an_older_gpu_skips_ring_with_the_reason(small_l1: HostGpu, commands: Commands) -> None:
    small_l1.facts = replace(TWO_SMS, arch="sm_86")
    rows = measured(commands, "--backend", "cu", "--case", "attn_v_14b").rows
    skipped = {r.variant: r.skipped for r in rows if r.skipped and not r.variant.endswith(("_pf", "_pf3"))}
    assert set(skipped) == {f"{lay}_ring" for lay in table.READ_OF} | {"padded_ring_aa"}
    assert set(skipped.values()) == {"bulk copies need sm_90, this GPU is sm_86"}
    assert {r.variant for r in rows if r.variant.endswith("async") and r.bitwise}


BEATS = "What beats the recorded kernels here"
LEFT = "What is left to a plain read of the same bytes"


def section(rows: list[Row], title: str) -> list[str]:
    """The one section that begins so, none where there is none."""
    return [text for text in report.sections(rows, True) if text.startswith(f"### {title}")]


def test_the_ring_is_judged_and_the_limit_shown(small_l1: HostGpu, commands: Commands) -> None:
    rows = measured(commands).rows
    by = {(r.case, r.variant): r for r in judged(rows) if r.backend == "cu"}
    found = by["ffn_down_14b", "dpl_ring"]
    assert found.verdict == "GO" and found.recorded is None
    assert found.ratio_to_baseline == pytest.approx(210 / 224, abs=1e-3)
    assert "fewer bytes: the gain is the bytes, no more and no less" in (found.reason or "")
    assert by["model_14b", "dpl_ring"].verdict == "GO"
    padded = find(rows, "ffn_down_14b", "padded_ring", "cu")
    assert padded and "in geometry" not in (found.reason or "")
    padded.geometry = "4r2b0s-dealt"
    again = {(r.case, r.variant, r.backend): r for r in judged(rows)}
    assert "in geometry 4r2b0s-drawn against 4r2b0s-dealt" in (
        again["ffn_down_14b", "dpl_ring", "cu"].reason or ""
    )
    best = report._nearest(rows, "ffn_down_14b", "cu")  # internals
    assert best is not None
    assert best.row.variant in ("dpl_ring", "gpl_ring")
    assert best.fraction == pytest.approx(1 / 1.1, abs=1e-3) and best.said == "reached"
    dispatched = find(rows, "ffn_down_14b", "dispatch_padded", "cu")
    assert dispatched
    ratio = compared(best.row, dispatched)
    assert ratio[0] == pytest.approx(1.1 / 1.6 * 210 / 224, abs=1e-3)
    (text,) = section(rows, BEATS)
    line = next(x for x in text.splitlines() if x.startswith("| ffn_down_14b") and "| cu " in x)
    for word in (best.row.variant, tables.format_ratio(*ratio), "| reached"):
        assert word in line
    text = report.readme([*rows, *judged(rows)])
    assert BEATS in text and "| reached" in text
    assert BEATS in report.sections(rows, False)[0]


@pytest.mark.parametrize(
    ("fraction", "low", "high", "target", "want"),
    [
        (0.96, 0.955, 0.965, 0.95, "reached"),
        (0.949, 0.945, 0.953, 0.95, "not reached (within the interval)"),
        (0.951, 0.947, 0.955, 0.95, "reached (within the interval)"),
        (0.90, 0.89, 0.91, 0.95, "not reached"),
        (0.90, 0.89, 0.91, None, ""),
    ],
)
def test_a_target_is_reached_or_not(
    fraction: float, low: float, high: float, target: float | None, want: str
) -> None:
    row = Row(probe="l1", case="c", variant="gpl_ring", backend="cu", source="measured")
    assert limit.Nearest(row, Interval(fraction, low, high), fraction, target).said == want


def test_the_reads_and_the_stream_form_are_no_kernel_that_beats_anything(
    small_l1: HostGpu, commands: Commands
) -> None:
    argv = ["--form", "stream", "--form", "loop", "--case", "attn_v_14b", "--backend", "cu"]
    rows = measured(commands, *argv).rows
    for row in rows:
        if row.variant.endswith("stream"):
            row.time_s = 1e-9
    best = report._nearest(rows, "attn_v_14b", "cu")  # internals
    assert best is not None and best.row.variant.endswith("_loop")
    assert len(section(rows, BEATS)) == 1
    assert section([r for r in rows if r.variant != "dispatch_padded"], BEATS) == []
    assert section([r for r in rows if r.role != "read"], BEATS) == []
    assert section([], BEATS) == []


def test_what_is_left_to_a_plain_read_is_told_of_every_form_past_the_record() -> None:
    row = Row(
        probe="l1", case="attn_v_14b", variant="gpl_ring", backend="cu", source="measured", device="x",
        time_s=4e-6, same_bytes_read_s=3e-6, read_ceiling_gbps=4000.0, grid=100, smem_bytes=1 << 20,
        dram_bytes_read=8_000_000, profiler_time_s=4e-6,
    )  # fmt: skip
    (text,) = section([row], LEFT)
    for word in ("2000", "50.0 %", "100.00 MiB", "4.00 µs", "1.00 µs", "75.0 %"):
        assert word in text, word
    (text,) = section([replace(row, variant="gpl_async")], LEFT)
    assert "75.0 %" in text and "100.00 MiB" in text, "copies fill its shared memory too"
    (text,) = section([replace(row, variant="gpl_pf3")], LEFT)
    assert "75.0 %" in text and "100.00 MiB" not in text, "no copies fill its shared memory"
    for without in (
        {"variant": "gpl_loop"}, {"variant": "padded_ring_aa"}, {"variant": "read_dpl"},
        {"profiler_time_s": None},
    ):  # fmt: skip
        assert section([replace(row, **without)], LEFT) == []
    assert {f.name for f in table.FORMS} > set(table.RECORDED)


def test_a_sweep_names_every_geometry_once_and_what_to_write(small_l1: HostGpu, commands: Commands) -> None:
    done = measured(commands, "--sweep", "--case", "ffn_down_14b")
    rows = done.rows
    variants = [r.variant for r in rows]
    tried = {v for v in variants if v.startswith("gpl_")}
    assert tried == {f"gpl_{form}@{g}" for form in table.RINGS for g in plan.CANDIDATES}
    assert {r.backend for r in rows} == {"cu"}
    assert {r.windows for r in rows if r.samples_s} == {sweep.WINDOWS}
    assert sum(v.startswith("padded_") for v in variants) == plan.FEW * len(table.RINGS)
    why = {r.variant: r.skipped for r in rows if r.skipped}
    assert {w.rstrip("0123456789rbs-dealtwn") for w in why.values() if w} >= {"the same launch as gpl_ring@"}
    assert any("blocks of it fit on an SM" in (w or "") for w in why.values())
    best = {
        f"{lay}_{form}": sweep.fastest(rows, f"{lay}_{form}") for lay in table.READ_OF for form in table.RINGS
    }
    assert all(r.time_s for timed in best.values() for r in timed)
    chosen = {
        lay: {form: sweep.at(best[f"{lay}_{form}"][0]) for form in table.RINGS} for lay in table.READ_OF
    }
    assert {g.rows for row in chosen.values() for g in row.values()} == {2}
    text = tuning.dump("l1", "ffn_down_14b", chosen)
    head = 'devices = ["x"]\nwhere = "a test"\n\n'
    assert tuning.parse(head + text).rows == {"l1": {"ffn_down_14b": chosen}}
    assert f"```toml\n{text}\n```" in done.report
    assert (done.code, done.verdicts) == (0, [])
    assert {(r.role, r.sweep) for r in rows} == {(x, "geometries") for x in ("point", "read", "ceiling")}


def test_a_sweep_of_one_form_and_layout(small_l1: HostGpu, commands: Commands) -> None:
    done = measured(commands, "--sweep", "--form", "async", "--layout", "padded", "--case", "attn_v_14b")
    assert {r.variant for r in done.rows if r.role == "point"} == {
        f"padded_async@{g}" for g in plan.CANDIDATES
    }
    assert "it takes both forms" in done.out
    with pytest.raises(BadInput, match="--sweep"):  # internals: its children are no process of this GPU's
        table.check_flags(cli.parser("l1").parse_args(["--sweep", "--processes", "2"]))
    for argv in (["--form", "loop"], ["--counters"], ["--blocks-per-sm", "2"]):
        refused = commands("l1", "--sweep", *argv)
        assert refused.code == 2 and "--sweep" in refused.err


def test_once_launches_every_arm_in_the_order_of_its_rows(small_l1: HostGpu, commands: Commands) -> None:
    done = measured(commands, "--once", "--backend", "cu", "--case", "attn_v_14b")
    assert {"gpl_ring", "gpl_async", "padded_ring_aa"} <= {r.variant for r in done.rows}
    assert done.code == 0 and not [r for r in done.rows if r.samples_s]
    seen = [x.kernel for x in small_l1.launched if x.profiled]
    flip = {"dispatch_padded": "padded_loop", "dispatch_dpl": "dpl_loop"}
    names = [r.variant.removesuffix("_aa") for r in done.rows if not r.skipped]
    plain = {f.of(x): f.kernel for f in reads.FORMS for x in ("read_large", "read_padded", "read_dpl")}
    assert seen == [plain.get(n) or f"l1_{flip.get(n, n)}" for n in names]


def test_a_geometry_is_read_as_it_is_written() -> None:
    for geometry in plan.CANDIDATES:
        assert Geometry.parse(str(geometry)) == geometry
    with pytest.raises(BadInput, match="8r2b0s-drawn"):
        Geometry.parse("8r 2b drawn")


def test_a_stopped_sweep_keeps_its_finished_rounds(
    small_l1: HostGpu, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lead layout's round is done when the others' begins."""
    true = plan.points

    def stopped(*args: Any) -> Any:
        if args[-1]:
            raise KeyboardInterrupt
        return true(*args)

    monkeypatch.setattr(plan, "points", stopped)
    done = commands("l1", "--sweep", "--case", "attn_v_14b", "--form", "ring")
    assert done.code == 130 and {r.of for r in done.rows if r.role == "point" and r.time_s} == {"gpl_ring"}


def test_unfinished_rows_never_lie_where_a_committed_report_does(
    small_l1: HostGpu, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--mode", "measure", "--record", "--out", "out/two-sms"]
    assert cli.main("l1", argv) == 2 and "give unfinished rows another --out" in capsys.readouterr().err
