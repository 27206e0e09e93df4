"""The tuning tables, what each probe takes of them, and the rule for what they do not speak of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from probes.core.types import BadInput, Shape, Unavailable
from probes.device import facts as profiles
from probes.device import tuning
from probes.device.tuning import Geometry, Table
from probes.formats.layouts import LAYOUTS, layout
from probes.l1 import plan as l1
from probes.l1 import table as l1_table
from probes.l2 import chains
from probes.l2 import table as l2_table
from probes.l3 import plan as l3
from probes.l3 import table as l3_table

H200 = profiles.load("h200")
GPL = layout("gpl")
HEAD = 'devices = ["a"]\nwhere = "x"\n'


# What the committed tables hold


def taken(slug: str, probe: str, case: str, key: str) -> dict[str, Any]:
    """A row as its own probe takes it; empty where no launch of the probe would ask for it."""
    if probe == "l1":
        shapes = {c.id: c.shape for c in l1_table.CASES}
        found = {f: l1.tuned(slug, shapes[case], key, f) for f in l1_table.RINGS} if case in shapes else {}
    elif probe == "l2":
        ring = chains.tuned(slug, case, key) if key in l2_table.MATRICES.get(case, ()) else None
        found = dict(ring.row) if ring else {}
    else:
        shapes = {c.id: c.shape for c in l3_table.CASES}
        found = {"ring": l3.tuned(slug, shapes[case], key)} if case in shapes else {}
    return {k: v for k, v in found.items() if v is not None}


def slugs(table: Table, case: str) -> list[tuple[str, str]]:
    """(slug, case) under which a row is asked for: a partition's says so behind an @."""
    own, _, part = case.partition("@")
    return [(f"{d}-{part}" if part else d, own) for d in table.devices]


COMMITTED = [
    (table, probe, case, key)
    for table in tuning.tables()
    for probe, cases in table.rows.items()
    for case, rows in cases.items()
    for key in rows
]


@pytest.mark.parametrize(
    ("table", "probe", "case", "key"), COMMITTED, ids=lambda x: x if isinstance(x, str) else x.devices[0]
)
def test_every_row_is_taken_by_its_own_probe(table: Table, probe: str, case: str, key: str) -> None:
    """A row of no such case, layout, matrix or variant would be read by nobody, and nobody would know."""
    assert len(table.where) > 50
    for slug, own in slugs(table, case):
        assert taken(slug, probe, own, key) == table.rows[probe][case][key]


def test_a_row_that_nobody_asks_for_is_seen() -> None:
    """The test above on rows that it must refuse."""
    assert taken("h200", "l1", "lm_head_14b", "gpl") and taken("h200-48sm", "l3", "gate_up_14b", "form_c")
    for probe, case, key in (
        ("l1", "nothing", "gpl"), ("l1", "lm_head_14b", "no"), ("l2", "attn_v24", "ffn_down"),
        ("l3", "gate_up_14b@fast", "form_c"), ("l3", "gate_up_14b", "form_b"),
    ):  # fmt: skip
        assert taken("h200", probe, case, key) == {}


def test_the_h200s_rows_are_candidates_that_fit() -> None:
    (table,) = (t for t in tuning.tables() if "nvidia-h200" in t.devices)
    assert "h200" in table.devices
    shapes = {c.id: c.shape for c in l1_table.CASES}
    for case, rows in table.rows["l1"].items():
        assert set(rows) == {lay.name for lay in LAYOUTS}, case
        shape = shapes[case]
        assert shape
        for name, row in rows.items():
            for form, geometry in row.items():
                assert geometry in l1.CANDIDATES and isinstance(geometry, Geometry)
                made = l1.ring(l1_table.variant(f"{name}_{form}"), shape, geometry, H200)
                assert made.config.smem_bytes <= H200.smem_per_block_max_bytes
                assert l1.tuned("nvidia-h200", shape, name, form) == geometry
    for case in l3_table.CASES:
        for v in l3_table.VARIANTS:
            if v.ring and case.shape:
                assert l3.tuned("nvidia-h200", case.shape, v.name) in l3.candidates(v)


def test_a_device_or_shape_without_a_row() -> None:
    shape = l1_table.CASES[0].shape
    assert shape and l1.tuned("nvidia-h200", shape, "gpl", "ring")
    assert l1.tuned("gb10", shape, "gpl", "ring") is None and tuning.of("gb10", "l1") == {}
    assert l1.tuned("nvidia-h200", Shape(7, 256), "gpl", "ring") is None
    assert chains.tuned("gb10", "attn_v24", "attn_v") is None


def test_a_partition_has_rows_of_its_own_alone() -> None:
    assert tuning.device_and_part("nvidia-h200-48sm") == ("nvidia-h200", "48sm")
    assert tuning.device_and_part("nvidia-h200") == ("nvidia-h200", "")
    own = tuning.row("h200-48sm", "l3", "gate_up_14b", "form_c")
    assert own and own != tuning.row("h200", "l3", "gate_up_14b", "form_c")
    assert tuning.row("h200-64sm", "l3", "gate_up_14b", "form_c") is None
    assert tuning.row("h200-48sm", "l1", "lm_head_14b", "gpl") is None


# The rule


@pytest.mark.parametrize(
    ("shape", "want"),
    [
        (Shape(152064, 5120), "8r2b0s-drawn"),
        (Shape(1024, 5120), "4r2b0s-drawn"),  # 8 rows would leave SMs without a stage
        (Shape(512, 3584), "2r2b0s-drawn"),
        (Shape(5120, 13824), "4r2b0s-drawn"),  # two stages of 8 rows do not fit twice
        (Shape(5120, 18944), "2r2b0s-drawn"),  # nor of 4
        (Shape(1, 256), "1r2b0s-drawn"),
        (Shape(4096, 200704), "1r1b0s-drawn"),  # not even one row fits twice
    ],
)
def test_the_default_rule(shape: Shape, want: str) -> None:
    geometry = l1.default_geometry(shape, GPL.row_stride(shape.nbe), H200)
    assert str(geometry) == want
    assert l1.ring(l1_table.variant("gpl_ring"), shape, geometry, H200).config.grid <= 264


def test_the_default_rule_fits_wherever_a_row_does() -> None:
    for name in ("gb10", "h100", "h200"):
        facts = profiles.load(name)
        for case in l1_table.CASES:
            for lay in LAYOUTS:
                assert case.shape
                geometry = l1.default_geometry(case.shape, lay.row_stride(case.shape.nbe), facts)
                made = l1.ring(l1_table.variant(f"{lay.name}_ring"), case.shape, geometry, facts)
                assert made.ring and made.ring.stages >= 1
    huge = Shape(8, 1 << 19)
    with pytest.raises(Unavailable, match="bytes of shared memory"):
        geometry = l1.default_geometry(huge, GPL.row_stride(huge.nbe), H200)
        l1.ring(l1_table.variant("gpl_ring"), huge, geometry, H200)


# Rows as text


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
    assert Geometry.parse("8r2b0s1x-drawn") == Geometry(8, 2, 0, True), "one group needs no word"


@pytest.mark.parametrize("part", ["", "48sm"])
def test_rows_survive_being_written(part: str) -> None:
    a, b = Geometry(4, 2, 3), Geometry(8, 1, 0, True)
    rows = {"padded": {"ring": a, "async": a}, "gpl": {"ring": b, "ahead": 3}}
    text = 'devices = ["a", "b"]\nwhere = "here"\n' + tuning.dump("l1", "attn_v_7b", rows, part)
    case = f"attn_v_7b@{part}" if part else "attn_v_7b"
    assert tuning.parse(text) == Table(("a", "b"), "here", {"l1": {case: rows}})


ROW = "a row holds ring and async, got "
ONE = "is a geometry with one consumer group, got "
DEALT = "a chain's tickets are dealt to one consumer group, got "


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[l1.attn_v_7b]\ngpl = { ring = "1r1b0s-dealt" }', rf"\[l1.attn_v_7b\] gpl: {ROW}ring"),
        ('[l1.attn_v_7b]\ngpl = { ring = "1r1b0s-dealt", late = 2 }', f"{ROW}ring, late"),
        ('[l1.attn_v_7b]\ngpl = { ring = "1r1b0s-dealt", async = 2 }', f"async {ONE}2"),
        ('[l1.attn_v_7b]\ngpl = { ring = "8r2b0s3x-drawn", async = "1r1b0s-dealt" }', f"ring {ONE}8r2b0s3x"),
        ('[l2.attn_v24]\nattn_v = { ring = "2r2b0s2x-dealt", ahead = 0 }', f"attn_v: {DEALT}2r2b0s2x-dealt"),
        ('[l2.attn_v24]\nattn_v = { ring = "2r2b0s-drawn", ahead = 0 }', f"{DEALT}2r2b0s-drawn"),
        (
            '[l2.attn_v24]\nattn_v = { ring = "2r2b0s-dealt", ahead = 0, plain = "2r2b0s2x-dealt"}',
            f"{DEALT}2r2b0s2x-dealt",
        ),
        ('[l2.attn_v24]\nattn_v = { ring = "2r2b0s-dealt" }', "a row is { ring = .*, ahead = 0 }, got"),
        ("[l2.attn_v24]\nattn_v = { ring = 2, ahead = 0 }", "a row is .*got {'ring': 2"),
        ('[l2.attn_v24]\nattn_v = { ring = "2r2b0s-dealt", ahead = 0, late = 1 }', "a row is .*'late': 1"),
        ('[l2.attn_v24]\nattn_v = { ring = "2r2b0s-dealt", ahead = "1r1b0s-dealt" }', "a row is .*'ahead'"),
        ('[l2.attn_v24]\nattn_v = { ring = "2r2b0s-dealt", ahead = 0, plain = 1 }', "a row is .*'plain': 1"),
    ],
)
def test_a_row_that_its_probe_cannot_take_names_its_fault(
    text: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L3's: tests/l3/test_l3_launch.py."""
    table = tuning.parse(HEAD + text)
    monkeypatch.setattr(tuning, "tables", lambda: (table,))
    ((probe, cases),) = table.rows.items()
    ((case, rows),) = cases.items()
    with pytest.raises(BadInput, match=words):
        taken("a", probe, case, *rows)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("l1 = 3", "t.toml: l1 holds tables, got 3"),
        ('[l1]\nl2 = "a"', r"t.toml: \[l1.l2\] holds tables, got 'a'"),
        ("[l2]\nffn_down24 = 1", r"\[l2.ffn_down24\] holds tables, got 1"),
        ("[l3]\ngate_up_14b = 1", r"\[l3.gate_up_14b\] holds tables, got 1"),
        ("[l3.gate_up_14b]\nform_c = 4", r"\[l3.gate_up_14b\] form_c holds tables, got 4"),
        ('[l3.gate_up_14b]\npair_ring = "8r2b0s-drawn"', "pair_ring holds tables, got '8r2b0s-drawn'"),
        (
            '[l1.lm_head_14b]\ngpl = { ring = "0r1b0s-dealt", async = "1r1b0s-dealt" }',
            r"\[l1.lm_head_14b\] gpl: a ring has 1 to 32 rows .*, got 0r1b0s-dealt",
        ),
        ('[l3.x]\npair_ring = { ring = "33r1b0s-dealt" }', "1 to 32 rows a stage, .*, got 33r1b0s-dealt"),
        ('[l3.x]\nform_c = { ring = "1r33b0s-dealt" }', "1 to 32 blocks per SM .*, got 1r33b0s-dealt"),
        ('[l3.x]\nform_c = { ring = "4r1b0s0x-drawn" }', "a consumer group at least, got 4r1b0s0x-drawn"),
        ('[l1.x]\ngpl = { ring = "1r1b0s-dealt", async = "bad" }', r"\[l1.x\] gpl: .*, got 'bad'"),
        ("[l2.x]\no = { ring = 1.5 }", "got '1.5'"),
        ("[l2.x]\no = { ahead = -1 }", "got '-1'"),
        ("[l2.x]\no = { ahead = true }", "got 'True'"),
        (f"[l2.x]\no = {{ ahead = {1 << 31} }}", f"got '{1 << 31}'"),
    ],
)
def test_a_row_that_no_table_may_hold_names_its_place(text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        tuning.parse(HEAD + text, "t.toml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("devices = [", "t.toml is not valid TOML"),
        ('devices = ["a"]', "t.toml: 'where' is missing"),
        ('where = "x"\n[l1]', "t.toml: 'devices' is missing"),
        ('devices = "abc"\nwhere = "y"\n[l1]', "devices is a list of slugs, got 'abc'"),
        ('devices = 5\nwhere = "y"\n[l1]', "devices is a list of slugs, got 5"),
        ('devices = [1, 2]\nwhere = "y"\n[l1]', r"devices is a list of slugs, got \[1, 2\]"),
    ],
)
def test_a_bad_head_names_its_fault(text: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        tuning.parse(text, "t.toml")


def test_a_table_that_cannot_be_read_is_a_mistake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "tuned").mkdir()
    monkeypatch.setattr(tuning.resources, "files", lambda package: tmp_path)
    for make in (lambda p: p.write_bytes(b"\xff\xfe"), lambda p: p.mkdir()):
        tuning.tables.cache_clear()
        path = tmp_path / "tuned" / "x.toml"
        path.unlink(missing_ok=True)
        make(path)
        with pytest.raises(BadInput, match="a tuning table cannot be read"):
            tuning.tables()
    tuning.tables.cache_clear()


def test_a_launch_follows_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the file to a launch: the row's own rows and blocks."""
    text = tuning.dump("l2", "attn_v24", {"attn_v": {"ring": Geometry(2, 1, 3), "ahead": 7}})
    monkeypatch.setattr(tuning, "tables", lambda: (tuning.parse(HEAD + text),))
    case = l2_table.ChainCase(id="attn_v24", chain="attn_v24")
    step = chains.steps(case, replace(H200, slug="a"))[0]
    assert step.grid == 132 and step.args[-3:] == (2, 3, 7)
