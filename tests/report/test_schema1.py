"""Reports of schema 1: what they told by names and notes stands in fields once they are read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from probes.engine import judge, probe
from probes.report import provenance, schema1, store
from probes.report.provenance import Head
from probes.report.rows import FIELDS, Row
from probes.verdict import windows

ROOT = Path(__file__).resolve().parents[2]
REPORTS = sorted(
    p for name in probe.names() for p in (ROOT / "out").glob(f"*/{name}*.json") if p.parent.name != "runs"
) + sorted((ROOT / "tests" / "data" / "schema1").glob("*.json"))
SECOND = ("role", "of", "baseline", "read", "geometry", "cold", "missing", "sweep", "scope")
"""The fields that schema 1 had not."""
THIRD = ("blocks_s", "block_clock_hz", "retaken")
"""Those that schema 2 had not."""
RATIO = ("ratio_to_baseline", "ratio_low", "ratio_high")


def row(variant: str, *notes: str, **more: Any) -> Row:
    base: dict[str, Any] = {"probe": "l1", "case": "c", "backend": "cu", "source": "measured"}
    return Row(variant=variant, notes=list(notes), **{**base, **more})


def upgraded(one: Row) -> Row:
    (found,) = schema1.upgraded([one])
    return found


@pytest.mark.parametrize(
    ("one", "role", "of", "sweep"),
    [
        (row("dpl_loop"), "variant", None, None),
        (row("padded_loop_aa"), "again", "padded_loop", None),
        (row("plain_ab"), "again", "plain", None),
        (row("dispatch_dpl", "dispatched to dpl_pf"), "choice", "dpl_pf", None),
        (row("read_large"), "ceiling", None, None),
        (row("read_dpl"), "read", None, None),
        (row("kernel_gate_up"), "kernel", "gate_up", None),
        (row("profiled_gate_up_late"), "alone", "gate_up", None),
        (row("profiled_gate_up_read"), "read", "gate_up", None),
        (row("pair_gate_up", overlap_s=1e-6), "gap", "gate_up", None),
        (row("pair_ring", time_s=1e-5, overlap_s=1e-6), "variant", None, None),
        (row("gpl_ring@8r2b0s-drawn"), "point", "gpl_ring", "geometries"),
        (row("a_name", case="sweep_ring_q6k"), "point", None, "rings"),
        (row("form_b", case="sweep_00792_blocks"), "variant", None, "waves"),
        (row("plain", case="sweep_1.5_waves"), "variant", None, "tails"),
        (row("dpl", verdict="GO"), "verdict", None, None),
    ],
    ids=lambda x: f"{x.case}/{x.variant}" if isinstance(x, Row) else "",
)
def test_what_a_row_is(one: Row, role: str, of: str | None, sweep: str | None) -> None:
    found = upgraded(one)
    assert (found.role, found.of, found.sweep) == (role, of, sweep)


def test_what_a_verdict_is_over() -> None:
    assert upgraded(row("dpl", verdict="GO")).scope == "each"
    assert upgraded(row("dpl", verdict="GO", case="model_14b")).scope == "sum"
    assert upgraded(row("dpl_loop")).scope is None


@pytest.mark.parametrize(
    ("notes", "rotation", "cold"),
    [
        ((), 1 << 30, True),
        (("hot: too little memory to rotate over cold copies",), 1 << 20, False),
        (("a one-shot run",), 1 << 30, True),
        (("hot: of no weights",), None, None),
    ],
)
def test_whether_it_was_cold(notes: tuple[str, ...], rotation: int | None, cold: bool | None) -> None:
    assert upgraded(row("dpl_loop", *notes, rotation_bytes=rotation)).cold is cold


def test_geometry_and_missing_proofs() -> None:
    found = upgraded(
        row("gpl_ring", "geometry 8r2b0s-drawn, 3 stages, tuned", "proof missing: a wait", "else")
    )
    assert found.geometry == "8r2b0s-drawn" and found.missing == ["proof missing: a wait"]
    assert found.notes[-1] == "else"
    assert (
        upgraded(row("gpl_ring@2r1b0s-dealt", "geometry 8r2b0s-drawn, 3 stages")).geometry == "8r2b0s-drawn"
    )
    assert upgraded(row("gpl_ring@2r1b0s-dealt")).geometry == "2r1b0s-dealt"
    bare = upgraded(row("gpl_loop"))
    assert (bare.geometry, bare.missing) == (None, [])


def test_baselines_and_reads_are_of_the_same_group_and_backend() -> None:
    rows = schema1.upgraded(
        [
            row("read_dpl", time_s=3e-6),
            row("padded_loop", ratio_to_baseline=1.0),
            row("dpl_loop", ratio_to_baseline=0.8, ratio_low=0.79, same_bytes_read_s=3e-6),
            row("dpl_loop", backend="numba", ratio_to_baseline=0.8, ratio_low=0.79),
            row("dpl_loop", case="other", ratio_to_baseline=0.8, ratio_low=0.79, same_bytes_read_s=3e-6),
        ]
    )
    assert [r.baseline for r in rows] == [None, "padded_loop", "padded_loop", None, None]
    assert [r.read for r in rows] == [None, None, "read_dpl", None, None]


@pytest.mark.parametrize("path", REPORTS, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_the_fields_are_those_behind_the_report_s_own_figures(path: Path) -> None:
    """Ratios, ceilings and shares of a plain read, made again from the samples by the fields alone."""
    head, rows = store.read_json(path)
    timed = [r for r in rows if r.samples_s]
    if path.stem == "l1-sweep":  # its second round had reads of its own, and a file holds the first's alone
        timed = [r for r in timed if r.role != "point" or str(r.of).startswith("gpl_")]
    assert len(timed) > 10 and all(r.role != "verdict" for r in timed)
    names = (
        *RATIO, "read_ceiling_gbps", "fraction_of_ceiling", "same_bytes_read_s",
        "fraction_of_same_bytes_read",
    )  # fmt: skip
    bare = [replace(r, notes=[], **dict.fromkeys(names)) for r in timed]
    judge.relate(bare)
    for was, now in zip(timed, bare, strict=True):
        found = by_windows(head, was, bare) if head.schema < 3 else by_blocks(was, rows)
        if was.baseline and found:
            now.ratio_to_baseline, now.ratio_low, now.ratio_high = found
        for name in names:
            want = getattr(was, name)
            close = None if want is None else pytest.approx(want, rel=1e-12)
            assert getattr(now, name) == close, (was.id, name)


def by_windows(head: Head, one: Row, rows: Sequence[Row]) -> Sequence[float | None]:
    """A row's ratio as it was told before contests had blocks of their own."""
    base = judge.find(rows, one.group, one.baseline or "", one.backend)
    if base is None or base.variant == one.variant:
        return 1.0, None, None
    a, b = (windows.arm(r.samples_s, r.processes or 1) for r in (one, base))
    return windows.weighted_ratio([(1, a, b)], head.seed)


def by_blocks(one: Row, rows: Sequence[Row]) -> Sequence[float | None] | None:
    """The ratio of the two side by side, where they were."""
    want = (one.group, one.backend, one.variant, one.baseline)
    pairs = [r for r in rows if r.role == "contest" and (r.group, r.backend, r.of, r.baseline) == want]
    return [getattr(pairs[0], name) for name in RATIO] if pairs else None


def written(path: Path, rows: Sequence[Row], schema: int) -> Path:
    """A report's file of that schema."""
    head = provenance.collect(mode="measure", device="test", seed=0, kernels_sha256="0", argv=["l1"])
    store.write_json(path, head, list(rows))
    data = json.loads(path.read_text())
    assert data["schema"] == provenance.SCHEMA == 3
    data["schema"] = schema
    if schema == 1:
        data["rows"] = [{k: v for k, v in r.items() if k not in SECOND + THIRD} for r in data["rows"]]
    path.write_text(json.dumps(data))
    return path


def test_notes_are_read_out_of_schema_1_alone(tmp_path: Path) -> None:
    assert FIELDS[-len(SECOND + THIRD) :] == SECOND + THIRD, "new fields stand at the end"
    notes = ("hot: little memory", "proof missing: a wait", "geometry 8r2b0s-drawn, 3 stages")
    one = row("gpl_ring", *notes, rotation_bytes=1 << 30, cold=True)
    _, (old,) = store.read_json(written(tmp_path / "old.json", [one], 1))
    assert (old.cold, old.missing, old.geometry) == (False, [notes[1]], "8r2b0s-drawn")
    _, (new,) = store.read_json(written(tmp_path / "new.json", [one], 2))
    assert new == one
