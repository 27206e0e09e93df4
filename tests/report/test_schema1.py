"""A report of schema 1 told by names and notes what later ones state in fields: reading makes the fields."""

from __future__ import annotations

from pathlib import Path

import pytest

from probes.report import store
from probes.report.provenance import Head
from probes.report.rows import Row
from probes.report.schema1 import upgraded


def row(variant: str, **more: object) -> Row:
    base: dict[str, object] = {
        "probe": "l1", "case": "attn_v_14b", "variant": variant, "backend": "cu", "source": "measured",
    }  # fmt: skip
    return Row(**{**base, **more})  # type: ignore[arg-type]  # fields by name


@pytest.mark.parametrize(
    ("old", "role", "of"),
    [
        (row("dpl_loop"), "variant", None),
        (row("padded_ring_aa"), "again", "padded_ring"),
        (row("plain_ab"), "again", "plain"),
        (row("dispatched_dpl", notes=["dispatched to dpl_pf"]), "choice", "dpl_pf"),
        (row("read_large"), "ceiling", None),
        (row("read_padded"), "read", None),
        (row("kernel_gate_up"), "kernel", "gate_up"),
        (row("profiled_down_read"), "read", "down"),
        (row("profiled_down_plain"), "alone", "down"),
        (row("pair_pdl_late", overlap_s=1e-6), "gap", "pdl_late"),
        (row("pair_ring", time_s=1e-6), "variant", None),  # L3's, which is timed
        (row("form_c@8r1b8s4x-drawn"), "point", "form_c"),
        (row("q4k_8r4b2s-dealt_a0_tail", case="sweep_ring_decode13"), "point", None),
        (row("form_b", verdict="GO", reason="a gain"), "verdict", None),
    ],
    ids=lambda x: x.variant if isinstance(x, Row) else None,
)
def test_a_name_says_what_a_row_is(old: Row, role: str, of: str | None) -> None:
    (new,) = upgraded([old])
    assert (new.role, new.of) == (role, of)


@pytest.mark.parametrize(
    ("case", "variant", "sweep"),
    [
        ("attn_v_14b", "dpl_loop", None),
        ("attn_v_14b", "gpl_ring@8r2b0s-drawn", "geometries"),
        ("sweep_432_blocks", "form_b", "waves"),
        ("sweep_ring_attn_v24", "now", "rings"),
        ("sweep_1.50_narrow", "plain", "tails"),
    ],
)
def test_a_case_says_which_sweep_a_row_is_part_of(case: str, variant: str, sweep: str | None) -> None:
    (new,) = upgraded([row(variant, case=case)])
    assert new.sweep == sweep


def test_notes_become_fields() -> None:
    hot = "hot: too little memory to rotate over cold copies"
    told = ["geometry 4r3b2s-dealt, 2 stages, tuned; a persistent grid", "proof missing: no wait", hot]
    new, cold, bare = upgraded(
        [row("form_c", notes=told, rotation_bytes=1), row("pair", rotation_bytes=1), row("plain")]
    )
    assert (new.geometry, new.missing, new.cold) == ("4r3b2s-dealt", ["proof missing: no wait"], False)
    assert (cold.geometry, cold.missing, cold.cold) == (None, [], True)
    assert bare.cold is None, "a row without weights is neither"
    assert new.notes == told, "people still read them"
    (point,) = upgraded([row("gpl_ring@8r2b0s-drawn")])
    assert point.geometry == "8r2b0s-drawn"


def test_rows_that_were_timed_together_name_their_baseline_and_read() -> None:
    read = row("read_padded", time_s=1e-6, fraction_of_same_bytes_read=1.0)
    base = row("padded_loop", time_s=2e-6, ratio_to_baseline=1.0, same_bytes_read_s=1e-6)
    other = row("dpl_loop", time_s=1.8e-6, ratio_to_baseline=0.9, ratio_low=0.89, ratio_high=0.91)
    apart = row("dpl_loop", case="lm_head_14b", ratio_to_baseline=0.9, ratio_low=0.8, ratio_high=0.95)
    upgraded([read, base, other, apart])
    assert (base.baseline, base.read) == ("padded_loop", "read_padded")
    assert (other.baseline, other.read) == ("padded_loop", None)
    assert apart.baseline is None, "another case's baseline is none of its own"


def test_a_sum_is_told_from_a_case() -> None:
    each, whole = (row("dpl", case=c, verdict="GO", reason="a gain") for c in ("attn_v_14b", "model_14b"))
    assert [r.scope for r in upgraded([each, whole])] == ["each", "sum"]


@pytest.mark.parametrize(("schema", "role"), [(1, "again"), (2, "variant")])
def test_only_a_file_of_schema_1_is_read_by_its_names(tmp_path: Path, schema: int, role: str) -> None:
    file = tmp_path / "l1.json"
    head = Head(mode="measure", device="x", seed=0, kernels_sha256="0" * 64, argv=[], schema=schema)
    store.write_json(file, head, [row("padded_loop_aa", notes=["hot"], rotation_bytes=1)])
    found, (one,) = store.read_json(file)
    assert found.schema == schema and one.role == role
    assert one.cold == (False if schema == 1 else None)
