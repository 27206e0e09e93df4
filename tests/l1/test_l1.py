"""L1 without a GPU: dispatcher, refusals, the fold, the fifth layout, prediction, verdicts out of samples."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pytest

from probes import cli
from probes.core.types import BadInput, Shape, Unavailable
from probes.device import facts as profiles
from probes.device import launch_bounds
from probes.engine import digests, predict
from probes.engine.plan import Planned
from probes.engine.probe import Case
from probes.formats import q6k, q8
from probes.formats.layouts import LAYOUTS, Layout, Piece
from probes.l1 import analysis, plan, table
from probes.verdict import bars
from tests.l1.l1_rows import judged, measured


def arguments(*argv: str) -> argparse.Namespace:
    return cli.parser("l1").parse_args(argv)


def planned(name: str, shape: Shape) -> Planned:
    """A variant's launch on the H200. Raises as `l1.plan.plan` does."""
    case = Case(id="c", shape=shape)
    return plan.plan(table.variant(name), case, profiles.load("h200"), arguments(), "cu")


@pytest.mark.parametrize(
    ("id_", "built", "env", "want"),
    [
        (13824, True, {}, "dpl_pf"),
        (13824, True, {"PROBES_Q6K_DPL": "0"}, "padded_pf"),
        (13824, True, {"PROBES_Q6K_PF": "0"}, "dpl_loop"),
        (13824, True, {"PROBES_Q6K_DPL": "0", "PROBES_Q6K_PF": "0"}, "padded_loop"),
        (13824, False, {}, "padded_pf"),
        (16384, True, {}, "dpl_pf"),
        (16640, True, {}, "dpl_loop"),
        (8192, True, {}, "dpl_loop"),
        (8448, True, {}, "dpl_pf"),
        (18944, True, {}, "dpl_loop"),
        (5120, True, {"PROBES_Q6K_DPL": "1"}, "dpl_loop"),
    ],
)
def test_the_dispatcher(id_: int, built: bool, env: dict[str, str], want: str) -> None:
    assert table.dispatch(Shape(4, id_), built, env) == want


def test_whatever_the_dispatcher_picks_may_be_launched() -> None:
    for id_ in range(256, 20481, 256):
        shape = Shape(1, id_)
        for env in table.FLIP.values():
            assert planned(table.dispatch(shape, True, env), shape).config.grid == 1


def test_pf_is_refused_outside_its_range_and_would_drop_units_there() -> None:
    shape = Shape(3, 18944)
    with pytest.raises(Unavailable, match=r"pf is right only for 256 < units <= 512; 3x18944 has 592"):
        planned("padded_pf", shape)
    with pytest.raises(Unavailable, match="has 256"):
        planned("padded_pf", Shape(3, 8192))
    # two units per thread are all that pf sums: units 512 and up never reach the result
    raw, x8 = q6k.random_raw(shape, 1), q8.random_x8(shape.id, 2)
    first = np.ascontiguousarray(raw.reshape(3, 74, 210)[:, :64].reshape(3, -1))
    assert (q6k.reference(first, x8[: 512 * 40]) != q6k.reference(raw, x8)).all()


def test_pf3_is_refused_outside_its_range() -> None:
    for lay in LAYOUTS:
        for units, allowed in ((512, False), (520, True), (592, True), (768, True), (776, False)):
            shape = Shape(3, 32 * units)
            try:
                planned(f"{lay.name}_pf3", shape)
                refused = ""
            except Unavailable as error:
                refused = str(error)
            assert (not refused) is allowed
            assert allowed or refused == f"pf3 is right only for 512 < units <= 768; {shape} has {units}"


def test_pf_and_pf3_have_bounds_of_their_own() -> None:
    found = {name: launch_bounds.min_blocks(f"l1_gpl_{name}") for name in ("loop", "pf", "pf3")}
    assert found == {name: launch_bounds.MIN_BLOCKS[name] for name in found}
    assert launch_bounds.min_blocks("l1_gpl_pf3", 5) == 5


@pytest.mark.parametrize("stride", [12095, 12088, 11344, 0, -12096])
def test_a_misaligned_or_short_stride_is_refused(monkeypatch: pytest.MonkeyPatch, stride: int) -> None:
    monkeypatch.setattr(Layout, "row_stride", lambda lay, nbe: stride)
    for form in ("loop", "ring"):
        with pytest.raises(BadInput, match=str(abs(stride))):
            planned(f"padded_{form}", Shape(2, 13824))


def test_every_form_is_planned_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    shape, stride_of = Shape(152064, 5120), Layout.row_stride
    for v in table.every():
        if v.form.refuses(shape):
            with pytest.raises(Unavailable, match=r"pf3? is right only"):
                planned(v.name, shape)
            continue
        made = planned(v.name, shape)
        persistent = v.form.stem == "l1_ring"
        assert made.config.grid == (264 if persistent else shape.od)
        assert (made.ring is not None) is persistent
        assert made.note.endswith("tuned") is persistent
        with monkeypatch.context() as patch, pytest.raises(BadInput):
            patch.setattr(Layout, "row_stride", lambda lay, nbe: stride_of(lay, nbe) + 8)
            planned(v.name, shape)


def test_cases_and_counts_are_the_models() -> None:
    assert [c.id for c in table.CASES] == [
        "ffn_down_14b", "lm_head_14b", "attn_v_14b", "ffn_down_7b", "lm_head_7b", "attn_v_7b",
    ]  # fmt: skip
    assert table.CASES[0].counts == {"14b": 24}
    assert str(table.CASES[4].shape) == "152064x3584"


def test_the_recorded_rates_fold_into_the_recorded_gain() -> None:
    assert analysis.recorded_fold() == pytest.approx(0.0427, abs=5e-5)


MIRROR = Layout(
    "mirror", "group", Piece(80, 128, 0), Piece(16, 64, 0), Piece(0, 16, 0), Piece(208, 2, 0), 210
)


@pytest.mark.toolchain
def test_a_fifth_layout_compiles_in_both_languages_from_its_row_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from kernels_cu import build
    from kernels_numba import compile as numba_compile

    five = (*LAYOUTS, MIRROR)
    monkeypatch.setattr(table, "LAYOUTS", five)
    assert f"{MIRROR.name}_loop" in [v.name for v in table.every()]
    found = numba_compile.compiled("l1", ["l1_mirror_loop"], "sm_90", layouts=five)
    assert found["l1_mirror_loop"].stat().st_size > 1000
    assert "X(mirror)" in build.layouts_header(five)
    try:
        library = build.library("l1.cu", "sm_90", layouts=five)
    except Unavailable as error:
        pytest.skip(str(error))
    assert b"l1_mirror_pf" in library.read_bytes()


def test_predicted_rows_are_marked_so_and_hold_no_verdict() -> None:
    for rows in predict.predicted("l1", profiles.load("h200"), arguments("--case", "ffn_down_14b")):
        assert {r.source for r in rows} == {"predicted", "recorded"}
        assert not [r for r in rows if r.verdict or r.samples_s or r.bitwise]
        by = {(r.variant, r.backend): r for r in rows if r.source == "predicted"}
        assert by["padded_loop", "cu"].ratio_to_baseline == 1.0
        assert by["dpl_loop", "cu"].blocks_per_sm == 6
        assert by["gpl_pf3", "cu"].skipped == "pf3 is right only for 512 < units <= 768; 5120x13824 has 432"
        assert (by["dpl_loop", "cu"].time_s or 1) < (by["padded_loop", "cu"].time_s or 0)
        assert len(by) == 2 * len(table.every()) == 48
        ring, shape = by["gpl_ring", "cu"], table.CASES[0].shape
        held = plan.tuned("h200", shape, "gpl", "ring") if shape else None
        assert held and ring.geometry == str(held)
        assert (ring.grid, ring.blocks_per_sm) == (132 * held.blocks_per_sm, 2)
        assert ring.waves == ring.grid / 264 and ring.notes[0].startswith(f"geometry {held}, ")
        assert ring.notes[0].endswith(", tuned")
        assert (by["gpl_ring", "cu"].time_s or 1) < (by["padded_ring", "cu"].time_s or 0)


def test_a_prediction_without_a_tuning_table_follows_the_default_rule() -> None:
    gb10 = profiles.load("gb10")
    for rows in predict.predicted(
        "l1", gb10, arguments("--form", "ring", "--form", "async", "--backend", "cu")
    ):
        by = {r.variant: r for r in rows if r.source == "predicted"}
        assert list(by)[:2] == ["padded_loop", "padded_ring"]
        assert all(
            r.time_s and "by the default rule" in r.notes[0] for v, r in by.items() if v != table.BASELINE
        )
        assert 0 < (by["gpl_ring"].waves or 0) <= 1.0


def test_what_cannot_be_predicted_says_why() -> None:
    (rows,) = predict.predicted(
        "l1", profiles.load("a100"), arguments("--form", "ring", "--case", "attn_v_7b")
    )
    why = {r.variant: r.skipped for r in rows if r.source == "predicted"}
    assert why["gpl_ring"] == "bulk copies need sm_90, this GPU is sm_80"
    with pytest.raises(BadInput, match="needs a GPU"):
        list(predict.predicted("l1", profiles.load("h200"), arguments("--sweep")))


def cases(*argv: str) -> list[Case]:
    return table.cases(arguments(*argv), 0, lambda symbol: {})


def test_a_gguf_files_tensors_become_one_case_per_shape() -> None:
    path = Path(__file__).parents[1] / "data" / "minilm-ffn_down-48rows.gguf"
    (case,) = cases("--gguf", str(path))
    assert (str(case.shape), case.tensors) == ("48x1536", ("blk.0.ffn_down.weight",))
    assert case.counts == {path.name: 1}
    with pytest.raises(BadInput, match=r"did you mean|there is"):
        cases("--gguf", str(path), "--tensor", "blk.0.ffn_dwn.weight")
    with pytest.raises(BadInput, match="use --tensor"):
        table.check_flags(arguments("--gguf", str(path), "--case", "ffn_down_14b"))


@pytest.mark.parametrize(
    ("dpl", "want"), [(0.83, "GO"), (0.999, "NO-GO"), (1.05, "NO-GO"), (0.984, "INCONCLUSIVE")]
)
def test_verdicts_out_of_samples(dpl: float, want: str) -> None:
    found = {r.case: r for r in judged(measured(dpl)) if r.variant == "dpl"}
    assert list(found) == ["ffn_down_14b", "lm_head_14b", "attn_v_14b", "model_14b"]
    model = found["model_14b"]
    assert model.verdict == want
    assert model.agrees == {"GO": True, "NO-GO": False, "INCONCLUSIVE": None}[want]
    assert model.ratio_to_baseline == pytest.approx(dpl, abs=0.003)
    assert model.noise_floor is not None and 0 < model.noise_floor < 0.01


def test_a_model_is_judged_only_whole_and_only_cold() -> None:
    assert {r.scope for r in judged(measured(0.8))} == {"each", "sum"}
    assert {r.scope for r in judged(measured(0.8, table.CASES[:2]))} == {"each"}
    assert {r.verdict for r in judged(measured(0.8, hot=True))} == {"INCONCLUSIVE"}


def test_a_reports_digest_covers_both_kernel_files_and_the_devices_geometry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = [("l1", "nvidia-h200"), ("l1", "gb10"), ("l1-sweep", "nvidia-h200")]
    found = [digests.report(*file) for file in files]
    assert len(set(found)) == 3
    assert digests.report("l1", "gb10") == digests.report("l1", "another")
    assert digests.report("l1-sweep", "nvidia-h200") == digests.report("l1-sweep", "gb10")
    assert digests.report("l3-48sm", "gb10") == digests.report("l3", "gb10")
    assert digests.report("l3-48sm", "gb10") != digests.report("l3-48sm", "nvidia-h200")
    for part, kernel in (
        (digests.build, "l1.cu"), (digests.build, "l1_ring.cu"), (digests.build, "harness.cu"),
        (digests.numba_compile, "l1"), (digests.numba_compile, "l1_ring"),
        (digests.numba_compile, "harness"),
    ):  # fmt: skip
        with monkeypatch.context() as patch:
            true = part.inputs
            patch.setattr(part, "inputs", lambda name, k=kernel, f=true: "edited" if name == k else f(name))
            assert [f for f, was in zip(files, found, strict=True) if digests.report(*f) == was] == [], kernel
            assert digests.report("l3", "gb10") == digests.report("l3-48sm", "gb10")


def test_the_bar_is_the_one_that_the_report_is_held_to() -> None:
    assert bars.bar("l1.dpl").bar == 0.0165


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"of": None}, "cannot be judged"),
        ({"of": "padded_warp"}, "cannot be judged"),
        ({"samples_s": [1e-5] * 27}, "expected from windows"),
        ({"time_s": 10**400}, "time_s"),
        ({"seed": -1}, "seed"),
    ],
)
def test_a_report_that_does_not_hold_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, object], word: str
) -> None:
    from probes import __main__ as main
    from probes.report import provenance, store

    head = provenance.collect(mode="measure", device="test", seed=0, kernels_sha256="0", argv=["l1"])
    path = tmp_path / "l1.json"
    store.write_json(path, head, measured(0.83))
    data = json.loads(path.read_text())
    for key, value in change.items():
        if key in data:
            data[key] = value
        else:
            for row in data["rows"]:
                row[key] = value
    path.write_text(json.dumps(data))
    assert main.main(["replay", str(path)]) == 2
    assert word in capsys.readouterr().err
