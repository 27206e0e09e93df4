"""The tuning tables and the rule for what they do not speak of."""

from __future__ import annotations

from pathlib import Path

import pytest

from probes import l1, l1_ring
from probes.core.types import BadInput, Shape, Unavailable
from probes.device import facts as profiles
from probes.device import tuning
from probes.device.tuning import Geometry
from probes.formats.layouts import LAYOUTS, layout

H200 = profiles.load("h200")
GPL = layout("gpl")


def test_the_h200s_rows_are_candidates_that_fit() -> None:
    table = tuning.table("nvidia-h200")
    assert table is not None and table is tuning.table("h200")
    assert len(table.where) > 50
    for case, rows in table.l1.items():
        assert set(rows) == {lay.name for lay in LAYOUTS}, case
        shape = tuning.CASES[case]
        for name, tuned in rows.items():
            lay = layout(name)
            for form, geometry in tuned.items():
                assert geometry in l1_ring.CANDIDATES
                made = l1_ring.plan(shape, lay, lay.row_stride(shape.nbe), geometry, H200, form)
                assert made.config.smem_bytes <= H200.smem_per_block_max_bytes
            assert tuning.l1("nvidia-h200", shape, name) == tuned


def test_a_device_or_shape_without_a_row() -> None:
    shape = l1.CASES[0].shape
    assert tuning.l1("gb10", shape, "gpl") is None and tuning.table("gb10") is None
    assert tuning.l1("nvidia-h200", Shape(7, 256), "gpl") is None


@pytest.mark.parametrize(
    ("shape", "want"),
    [
        (Shape(152064, 5120), "8r2b0s-drawn"),
        (Shape(1024, 5120), "4r2b0s-drawn"),  # 8 rows would leave SMs without a fill
        (Shape(512, 3584), "2r2b0s-drawn"),
        (Shape(5120, 13824), "4r2b0s-drawn"),  # two stages of 8 rows do not fit twice
        (Shape(5120, 18944), "2r2b0s-drawn"),  # nor of 4
        (Shape(1, 256), "1r2b0s-drawn"),
        (Shape(4096, 200704), "1r1b0s-drawn"),  # not even one row fits twice
    ],
)
def test_the_default_rule(shape: Shape, want: str) -> None:
    stride = GPL.row_stride(shape.nbe)
    geometry = l1_ring.default_geometry(shape, stride, H200)
    assert str(geometry) == want
    assert l1_ring.plan(shape, GPL, stride, geometry, H200).config.grid <= 264


def test_the_default_rule_fits_wherever_a_row_does() -> None:
    for name in ("gb10", "h100", "h200"):
        facts = profiles.load(name)
        for case in l1.CASES:
            for lay in LAYOUTS:
                stride = lay.row_stride(case.shape.nbe)
                geometry = l1_ring.default_geometry(case.shape, stride, facts)
                assert l1_ring.plan(case.shape, lay, stride, geometry, facts).stages >= 1
    huge = Shape(8, 1 << 19)
    stride = GPL.row_stride(huge.nbe)
    with pytest.raises(Unavailable, match="bytes of shared memory"):
        l1_ring.plan(huge, GPL, stride, l1_ring.default_geometry(huge, stride, H200), H200)


@pytest.mark.parametrize(
    ("text", "geometry"),
    [
        ("8r2b0s-drawn", Geometry(8, 2, 0, True)),
        ("1r4b3s-dealt", Geometry(1, 4, 3)),
        ("8r2b2s3x-drawn", Geometry(8, 2, 2, True, 3)),
        ("16r1b10s4x-dealt", Geometry(16, 1, 10, False, 4)),
    ],
)
def test_a_geometry_is_its_text(text: str, geometry: Geometry) -> None:
    assert str(geometry) == text and Geometry.parse(text) == geometry
    assert Geometry.parse("8r2b0s1x-drawn") == Geometry(8, 2, 0, True), "one set needs no word"


def test_rows_survive_being_written() -> None:
    a, b = Geometry(4, 2, 3), Geometry(8, 1, 0, True)
    rows = {"padded": {"ring": a, "async": a}, "gpl": {"ring": b, "async": a}}
    text = 'devices = ["a", "b"]\nwhere = "here"\n' + tuning.dump("attn_v_7b", rows)
    assert tuning.parse(text) == tuning.Table(("a", "b"), "here", {"attn_v_7b": rows})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("devices = [", "not valid TOML"),
        ('devices = ["a"]\nwhere = "x"', "'l1' is missing"),
        ('[l1.nothing]\ngpl = { ring = "1r1b0s-dealt", async = "1r1b0s-dealt" }', "no such case"),
        ('[l1.attn_v_7b]\nno = { ring = "1r1b0s-dealt", async = "1r1b0s-dealt" }', "no such case or layout"),
        ('[l1.attn_v_7b]\ngpl = { ring = "1r1b0s-dealt" }', "a row is"),
        ('[l1.attn_v_7b]\ngpl = { ring = "1r1b0s-dealt", async = 2 }', "got '2'"),
        ('[l1.attn_v_7b]\ngpl = { ring = "fast", async = "1r1b0s-dealt" }', "got 'fast'"),
        (
            '[l1.attn_v_7b]\ngpl = { ring = "8r2b0s3x-drawn", async = "1r1b0s-dealt" }',
            "one set of consumers, got 8r2b",
        ),
        (
            '[l1]\n[l2.ffn_down24]\nffn_down = { ring = "2r2b0s2x-dealt", ahead = 0 }',
            "ffn_down: this kernel's block has one set of consumers, got 2r2b0s2x-dealt",
        ),
        (
            '[l1]\n[l2.ffn_down24]\nffn_down = { ring = "2r2b0s-dealt", ahead = 0, plain = "2r2b0s2x-dealt"}',
            "one set of consumers, got 2r2b0s2x-dealt",
        ),
    ],
)
def test_a_bad_table_names_its_fault(text: str, words: str) -> None:
    if text.startswith("[l1"):
        text = f'devices = ["a"]\nwhere = "x"\n{text}'
    with pytest.raises(BadInput, match=words):
        tuning.parse(text, "t.toml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("l1 = 3", "l1 holds a table per case, got 3"),
        ('[l1]\nl2 = "a"', r"\[l1.l2\] holds rows, got 'a'"),
        ("[l1]\n[l2]\nffn_down24 = 1", r"\[l2.ffn_down24\] holds rows, got 1"),
        ("[l1]\n[l3]\ngate_up_14b = 1", r"\[l3.gate_up_14b\] holds rows, got 1"),
        (
            '[l1.lm_head_14b]\ngpl = { ring = "0r1b0s-dealt", async = "1r1b0s-dealt" }',
            r"\[l1.lm_head_14b\] gpl: a ring has 1 to 32",
        ),
        (
            '[l1.lm_head_14b]\ngpl = { ring = "1r1b0s-dealt", async = "bad" }',
            r"\[l1.lm_head_14b\] gpl: .*got 'bad'",
        ),
    ],
)
def test_what_stands_in_a_wrong_place_is_named(text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        tuning.parse(f'devices = ["x"]\nwhere = "y"\n{text}')


def test_a_table_that_cannot_be_read_is_a_mistake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "tuning").mkdir()
    monkeypatch.setattr(tuning.resources, "files", lambda package: tmp_path)
    for make in (lambda p: p.write_bytes(b"\xff\xfe"), lambda p: p.mkdir()):
        tuning.tables.cache_clear()
        path = tmp_path / "tuning" / "x.toml"
        path.unlink(missing_ok=True)
        make(path)
        with pytest.raises(BadInput, match="a tuning table cannot be read"):
            tuning.tables()
    tuning.tables.cache_clear()


def test_devices_are_a_list_of_slugs() -> None:
    for wrong in ('"abc"', "5", "[1, 2]"):
        with pytest.raises(BadInput, match="devices is a list of slugs"):
            tuning.parse(f'devices = {wrong}\nwhere = "y"\n[l1]\n')
