"""L3 without a GPU: flags, geometry, tensors of a file, prediction, the command line."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes import cli
from probes.core.types import BadInput, Resources, Shape
from probes.device import facts as profiles
from probes.device import occupancy, resources
from probes.engine import predict
from probes.engine import run as engine
from probes.engine.probe import Case
from probes.formats import q4k
from probes.gpu import partition
from probes.l3 import data, plan
from probes.l3 import table as l3
from probes.report import store, tables
from probes.report.rows import Row
from probes.verdict import record
from tests.formats.bounds import q4k_bound

GB10, H200 = profiles.load("gb10"), profiles.load("h200")


def flags(*argv: str) -> argparse.Namespace:
    return cli.parser("l3").parse_args(argv)


def cases(*argv: str, blocks: dict[Any, int] | None = None) -> list[Case]:
    """A run's cases on 132 SMs; `blocks`: form_b's per SM in each backend."""
    args = flags(*argv)
    l3.check_flags(args)
    return l3.cases(args, 132, lambda symbol: {"l3_form_b": blocks or {}}[symbol])


# Flags and geometry


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--nf", "100"], "--nf must be a positive multiple of 32 (the values of a q8 block), got 100"),
        (["--nf", "-32"], "got -32"),
        (["--nf", "536870944"], "--nf is 536870912 at most, got 536870944"),
        (["--nf", "64", "--match-waves", "1"], "--nf and --match-waves each say how large"),
        (["--match-waves", "nan"], "--match-waves must be above 0 and at most 16, got nan"),
        (["--match-waves", "17"], "got 17"),
        (["--tensors", "a", "b"], "give --gguf FILE too"),
        (["--gguf", "x.gguf"], "--gguf needs --tensors GATE UP"),
        (["--gguf", "x.gguf", "--tensors", "a", "b", "--sweep"], "does not go with --gguf"),
        (["--case", "gate_up"], "did you mean gate_up_14b"),
        (["--case", "gate_up_14b", "--nf", "64"], "does not go with --nf"),
        (["--sms", "0"], "--sms must be at least 1, got 0"),
        (["--geometries", "--sweep"], "in one go: it does not go with --sweep"),
        (["--geometries", "--nf", "64"], "does not go with --nf"),
        (["--geometries", "--match-waves", "1"], "does not go with --match-waves"),
        (["--geometries", "--gguf", "x.gguf", "--tensors", "a", "b"], "does not go with --gguf"),
        (["--geometries", "--sms", "0"], "--sms must be at least 1, got 0"),
        (["--geometries", "--counters"], "does not go with --counters"),
        (["--geometries", "--blocks-per-sm", "2"], "does not go with --blocks-per-sm"),
        (["--geometries", "--processes", "2"], "does not go with --processes"),
        (["--geometries", "--variant", "form_b"], "--geometries is of pair_ring and form_c"),
    ],
)
def test_bad_flags_are_refused_in_one_line(argv: list[str], said: str) -> None:
    with pytest.raises(BadInput) as error:
        cases(*argv)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (200, "--sms 200 is more than the GPU's 132 SMs"),
        (50, "a multiple of 8 SMs, 8 at least; try 48 or 56"),
        (4, "try 8"),
        (0, "at least 1, got 0"),
    ],
)
def test_a_partition_that_the_gpu_cannot_make_is_refused(count: int, said: str) -> None:
    with pytest.raises(BadInput) as error:
        partition.check(count, 132, 8, 8)
    assert said in str(error.value)


def test_partitions_that_the_gpu_can_make() -> None:
    for count in (8, 48, 128):
        partition.check(count, 132, 8, 8)
    part = partition.name_of(H200, 48)
    assert (part.sms, part.slug, part.regs_per_sm) == (
        48,
        f"{H200.slug}-48sm",
        65536,
    )
    assert (partition.granularity(H200), partition.granularity(GB10)) == (8, 8)
    assert partition.granularity(profiles.load("a100")) == 2


def test_the_record_s_geometry() -> None:
    case = l3.CASES[0]
    nf = l3.nf_of(case)
    assert [(v.name, plan.config(v, nf).grid) for v in l3.VARIANTS if not v.ring] == [
        ("pair", 27648), ("form_a", 13824), ("form_b", 432), ("form_b_staged", 432),
    ]  # fmt: skip
    assert occupancy.waves(432, 48, 6) == 1.5
    assert l3.content_bytes(case) == 27648 * 5120 // 256 * q4k.BLOCK
    pair = (
        record.figure("l3", case.id, "pair", "time_s"),
        record.figure("l3", case.id, "pair", "content_gbps"),
    )
    assert pair[0] and pair[1]
    assert l3.content_bytes(case) / pair[0].number / 1e9 == pytest.approx(pair[1].number, abs=0.2)
    assert nf == plan.finish_config(nf).grid * plan.THREADS == 13824


@given(waves=st.floats(0.05, 16), sms=st.integers(1, 200), blocks=st.integers(1, 8))
def test_nf_for_waves_is_the_nearest(waves: float, sms: int, blocks: int) -> None:
    nf = l3.nf_for_waves(waves, sms, blocks)
    assert nf % 32 == 0 and nf >= 32
    if waves * sms * blocks >= 1:
        assert abs(nf / 32 / (sms * blocks) - waves) <= 0.5 / (sms * blocks) + 1e-9


def test_backends_with_other_occupancy_get_a_size_each() -> None:
    both = cases("--match-waves", "1.5", blocks={"cu": 5, "numba": 5})
    assert [(l3.nf_of(c), c.backends) for c in both] == [(32 * 990, ("cu", "numba"))]
    apart = cases("--match-waves", "1.5", blocks={"cu": 5, "numba": 6})
    assert [(l3.nf_of(c), c.backends) for c in apart] == [(32 * 990, ("cu",)), (32 * 1188, ("numba",))]


def test_runs_of_other_geometry_have_files_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert l3.stem(flags()) == l3.stem(flags("--sweep")) == "l3"
    assert l3.stem(flags("--sms", "48", "--blocks-per-sm", "6")) == "l3-48sm-6blocks"
    assert l3.stem(flags("--match-waves", "1.5")) == "l3-waves1.5"
    assert l3.stem(flags("--geometries")) == "l3-geometries"
    assert l3.stem(flags("--geometries", "--sms", "48")) == "l3-48sm-geometries"
    monkeypatch.chdir(tmp_path)
    rows, text = engine.places("l3", flags("--sms", "48", "--record"), "nvidia-h200")
    assert (rows, text) == (Path("out/nvidia-h200/l3-48sm.json"), Path("out/nvidia-h200/l3-48sm.md"))


def test_a_child_gets_the_same_flags() -> None:
    from probes.engine.processes import child_argv

    argv = ["--sms", "48", "--match-waves", "1.5", "--variant", "form_b", "--sweep", "--windows", "4"]
    argv += ["--blocks", "32"]
    again = cli.parser("l3").parse_args(child_argv("l3", flags(*argv), Path("x.json")))
    for name in ("sms", "match_waves", "variant", "sweep", "windows", "blocks", "nf", "tensors", "seed"):
        assert getattr(again, name) == getattr(flags(*argv), name)
    third = cli.parser("l3").parse_args(child_argv("l3", flags(*argv), Path("x.json"), 2))
    assert third.seed == again.seed + 2, "or all would share one order's bias"


def write_gguf(path: Path, shapes: dict[str, tuple[int, int]]) -> Path:
    from gguf import GGMLQuantizationType, GGUFWriter

    writer = GGUFWriter(path, "test")
    for k, (name, (od, id_)) in enumerate(shapes.items()):
        writer.add_tensor(name, q4k.random_raw(Shape(od, id_), k), raw_dtype=GGMLQuantizationType.Q4_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_gate_and_up_of_a_file(tmp_path: Path) -> None:
    shapes = {"gate": (64, 512), "up": (64, 512), "down": (512, 256), "odd": (48, 512)}
    path = write_gguf(tmp_path / "m.gguf", shapes)
    raw, shape = data.read_gate_up(path, "gate", "up")
    assert raw.shape == (128, 288) and shape == Shape(64, 512)
    assert np.array_equal(data.read_gate_up(path, "gate", "gate")[0][64:], raw[:64])
    with pytest.raises(BadInput, match="one shape, got gate of 64x512 and down of 512x256"):
        data.read_gate_up(path, "gate", "down")
    with pytest.raises(BadInput, match="odd has 48 rows; L3 needs a multiple of 32"):
        data.read_gate_up(path, "odd", "odd")
    with pytest.raises(BadInput, match="did you mean 'gate'"):
        data.read_gate_up(path, "gat", "up")
    found = cases("--gguf", str(path), "--tensors", "gate", "up")
    assert [(c.id, c.shape, c.tensors) for c in found] == [("gate", Shape(128, 512), ("gate", "up"))]
    with pytest.raises(BadInput, match="odd has 48 rows; L3 needs a multiple of 32"):
        cases("--gguf", str(path), "--tensors", "odd", "odd")


# Prediction


def predicted(*argv: str, facts: profiles.DeviceFacts = GB10) -> list[Row]:
    return [r for rows in predict.predicted("l3", facts, flags(*argv)) for r in rows]


def test_the_recorded_row_stands_beside_the_predicted_ones() -> None:
    rows = predicted()
    said = next(r for r in rows if r.source == "recorded" and r.variant == "form_b")
    assert (said.grid, said.blocks_per_sm, said.waves, said.ratio_to_baseline) == (432, 6, 1.5, 1.282)
    mine = next(r for r in rows if r.source == "predicted" and (r.variant, r.backend) == ("form_b", "cu"))
    assert mine.registers and 44 < mine.registers <= 48
    assert (mine.blocks_per_sm, mine.waves) == (5, 1.8)
    times = {(r.variant, r.backend): r.time_s for r in rows if r.source == "predicted"}
    for r in (r for r in rows if r.source == "predicted"):
        pair = times["pair", r.backend]
        assert r.time_s and pair and r.ratio_to_baseline == r.time_s / pair and not r.samples_s
    text = tables.case_table(rows)
    assert "+28.2 % against the pair" in text and "~" in text


def test_a_layer_has_rows_that_the_kernels_can_name() -> None:
    """Of a file too, which no flag speaks of."""
    assert l3.made("x", l3.MOST_NF, 256).shape == Shape(2 * l3.MOST_NF, 256)
    for nf in (0, -32, 33, l3.MOST_NF + 32):
        with pytest.raises(BadInput, match=f"nf .*, got {nf}$"):
            l3.made("x", nf, 256)


def test_six_blocks_per_sm_give_the_recorded_geometry() -> None:
    for r in predicted("--blocks-per-sm", "6"):
        if r.source == "predicted" and r.variant.startswith("form_b"):
            assert (r.blocks_per_sm, r.waves, r.tail_fraction) == (6, 1.5, 0.25)
            assert r.registers and r.registers <= 40 and r.spill_bytes is not None
    skipped = predicted("--blocks-per-sm", "7")
    assert all("l3_" in (r.skipped or "") for r in skipped if r.source == "predicted")
    assert {r.variant for r in skipped if r.source == "predicted"} == {v.name for v in l3.VARIANTS}


def test_a_predicted_partition_has_waves_but_no_time() -> None:
    rows = [r for r in predicted("--sms", "48", facts=H200) if r.source == "predicted"]
    assert {r.device for r in rows} == {f"{H200.slug}-48sm"}
    assert all(r.time_s is None for r in rows)
    assert {r.waves for r in rows if r.variant == "form_b"} == {432 / (48 * 5)}
    with pytest.raises(BadInput, match="more than the GPU's 48 SMs"):
        predicted("--sms", "56")


def test_as_many_sms_as_the_gpu_has_are_the_gpu() -> None:
    assert predicted("--sms", "48") == predicted()


def test_matched_waves_are_predicted_too() -> None:
    rows = [r for r in predicted("--match-waves", "1.5", facts=H200) if r.variant == "form_b"]
    assert {r.waves for r in rows} == {1.5}


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel compiled to 72 registers and 32 bytes, as far as predictions know."""
    monkeypatch.setattr(resources, "recorded_resources", lambda backend, name, arch: Resources(72, 32, 0))


def test_the_ring_variants_are_predicted(compiled: None) -> None:
    rows = {(r.variant, r.backend): r for r in predicted(facts=H200) if r.source == "predicted"}
    for name, others in (("pair_ring", 1), ("form_c", 2)):
        held = plan.tuned("h200", Shape(2 * 13824, 5120), name)
        assert held
        warps = 3 * held.sets + others
        row = rows[name, "cu"]
        made = plan.plan(l3.variant(name), l3.CASES[0], H200, flags(), "cu")
        assert not row.skipped and row.grid == made.config.grid and made.config.block == 32 * warps
        assert row.smem_bytes == 32 + made.config.smem_bytes and row.waves and row.blocks_per_sm
        assert row.waves == row.grid / (132 * row.blocks_per_sm) <= 1.0
        assert row.notes[0] == made.note and row.notes[-1].startswith("binds: dram")
        assert row.time_s == pytest.approx(rows["pair", "cu"].time_s, rel=0.3)
        assert row.geometry == str(held) and row.baseline is None
    (row,) = (r for r in predicted("--sms", "48", "--variant", "form_c", "--backend", "cu", facts=H200)
              if r.variant == "form_c")  # fmt: skip
    held = plan.tuned("h200-48sm", Shape(2 * 13824, 5120), "form_c")
    assert held and row.time_s is None and row.grid == 48 * held.blocks_per_sm
    assert row.waves == row.grid / (48 * row.blocks_per_sm)
    assert row.notes[0].startswith(f"geometry {held}, ") and ", tuned" in row.notes[0]


def test_a_prediction_says_why_a_ring_does_not_run(compiled: None) -> None:
    rows = predicted("--variant", "form_c", facts=profiles.load("a100"))
    said = {r.variant: r.skipped for r in rows if r.source == "predicted"}
    assert said["pair"] is None
    assert said["pair_ring"] == said["form_c"] == "bulk copies need sm_90, this GPU is sm_80"


# The command line


def run(capsys: Any, tmp_path: Path, *argv: str) -> tuple[int, str, str]:
    code = cli.main("l3", ["--out", str(tmp_path), *argv])
    out, err = capsys.readouterr()
    return code, out, err


def test_predicting_says_that_nothing_was_measured(capsys: Any, tmp_path: Path) -> None:
    code, out, _ = run(capsys, tmp_path, "--mode", "predict")
    assert code == 0
    assert out.startswith("Nothing was measured: predicted for gb10")
    head, rows = store.read_json(tmp_path / "l3.json")
    assert head.mode == "predict" and not any(r.source == "measured" for r in rows)
    assert "The loss taken apart" in (tmp_path / "l3.md").read_text()


def test_bad_input_is_one_line_and_exit_code_2(capsys: Any, tmp_path: Path) -> None:
    code, _, err = run(capsys, tmp_path, "--mode", "predict", "--nf", "33")
    assert code == 2
    assert err.strip().splitlines()[-1].startswith("error: --nf must be a positive multiple of 32")
    code, _, err = run(capsys, tmp_path, "--mode", "predict", "--blocks-per-sm", "2")
    assert code == 2 and err.strip().splitlines()[-1] == (
        "error: --blocks-per-sm 2 compiles l3 anew and needs a GPU; l3 alone is recorded for it, with 6"
    )


def test_the_listing_names_every_variant(capsys: Any) -> None:
    assert cli.main("l3", ["--list"]) == 0
    out = capsys.readouterr().out
    for word in ("gate_up_14b", "pair", "form_a", "form_b", "form_b_staged", "l3.fused"):
        assert word in out
    assert "l3_matmul_ring then l3_swiglu_quant" in out and "pair_ring again" in out
    assert "form_c         l3_form_c" in out and "l3.row_grained" in out


def test_geometries_are_not_predicted(capsys: Any, tmp_path: Path) -> None:
    code, _, err = run(capsys, tmp_path, "--mode", "predict", "--geometries")
    assert code == 2
    said = "error: --geometries (--tune) measures geometries, and this run would predict: it needs a GPU"
    assert err.strip().splitlines() == [said]
    code, _, err = run(capsys, tmp_path, "--mode", "predict", "--geometries", "--sweep")
    assert code == 2 and err.strip().endswith("it does not go with --sweep")


REAL = Path(__file__).parents[1] / "data" / "minilm-q4k-64rows.gguf"
TENSOR = "blk.0.ffn_down_q4.weight"


def test_real_q4k_tensors_give_the_product_that_float64_gives() -> None:
    """Gate and up from a model's own bytes: the oracle stays within the derived bound."""
    from probes.formats import q8

    (case,) = cases("--gguf", str(REAL), "--tensors", TENSOR, TENSOR)
    assert case.shape == Shape(2 * 64, 1536)
    raw, _ = data.read_gate_up(REAL, TENSOR, TENSOR)
    x8 = q8.random_x8(1536, 3)
    rows = np.arange(128)
    exact, bound = q4k_bound(raw, x8, rows)
    assert (np.abs(q4k.reference(raw, x8).astype(np.float64) - exact) <= bound).all()
    np.testing.assert_array_equal(raw[:64], raw[64:])
