"""L3's ring kernels before any launch: geometry, arguments, the tuning table's rows, a report's digest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes import cli, l3, l3_launch
from probes.core import device, ring, tuning
from probes.core.occupancy import occupancy
from probes.core.tuning import GateUp, Geometry
from probes.core.types import BadInput, LaunchConfig, Resources, Unavailable
from probes.gpu import partition

GB10, H200 = device.load("gb10"), device.load("h200")
CASE = l3.CASES[0]
PAIR_RING, FORM_C = l3.variant("pair_ring"), l3.variant("form_c")


def test_the_kernels_asked_for_have_no_traced_twin_of_a_ring() -> None:
    assert {"l3_matmul_ring", "l3_form_c", "l3_swiglu_quant"} <= set(l3.KERNELS)
    assert {k for k in l3.KERNELS if k.endswith("_traced")} == {
        f"l3_{f}_traced" for f in ("matmul", "form_a", "form_b", "form_b_staged")
    }


def test_the_h200_s_launches_are_the_table_s() -> None:
    pair, form_c = (l3_launch.plan(v, CASE, H200) for v in (PAIR_RING, FORM_C))
    for made, v, each, others in ((pair, PAIR_RING, 1, 1), (form_c, FORM_C, 2, 2)):
        choice = tuning.l3("nvidia-h200", CASE.shape, v.name)
        assert choice in l3_launch.candidates(v) and made.ring
        assert made.note.startswith(f"geometry {choice}, ") and ", tuned; a persistent grid" in made.note
        assert made.ring.rows == choice.ring.rows and made.config == made.ring.config
        assert made.config.grid == 132 * choice.ring.blocks_per_sm
        assert made.config.block == 32 * (3 * choice.ring.sets + others)  # 80 units are three warps' worth
        assert made.ring.stages == choice.ring.stages
        one = ring.stage_bytes(each * choice.ring.rows, 20 * 144)
        assert made.config.smem_bytes == made.ring.stages * one
    assert (pair.counters, form_c.counters) == (1, 2 * 13824 + 1)
    asked, grid = tuning.l3("nvidia-h200", CASE.shape, "form_c"), form_c.config.grid
    assert (form_c.own, form_c.late, form_c.shared) == (asked.own, asked.late, asked.own * grid * 32)
    own = f"own {asked.own} group{'s' if asked.own > 1 else ''} a block"
    assert form_c.note.endswith(f"{own}, {432 - asked.own * grid} groups shared, {asked.late} fills late")
    assert pair.ring and form_c.ring
    numbers = [a.value for a in pair.args(16, 32, (48,), 64)[4:]]
    assert pair.args(16, 32, (48,), 64)[:4] == (16, 32, 48, 64)
    assert numbers == [20, 27648, pair.ring.rows, pair.ring.stages]
    assert form_c.args(16, 32, (48,), 64)[:4] == (16, 32, 48, 64)
    numbers = [a.value for a in form_c.args(16, 32, (48,), 64)[4:]]
    assert numbers == [13824, 20, form_c.ring.rows, form_c.ring.stages, asked.own, asked.late]


def test_a_kernel_that_is_no_ring_is_launched_as_before() -> None:
    made = l3_launch.plan(l3.variant("form_b"), CASE, H200, 3)
    assert (made.config, made.note, made.counters) == (LaunchConfig(432, 256), "", 0)
    assert [getattr(a, "value", a) for a in made.args(16, 32, (48,))] == [16, 32, 48, 13824, 20]
    made = l3_launch.plan(l3.variant("pair"), CASE, H200)
    assert [getattr(a, "value", a) for a in made.args(16, 32, (48,))] == [16, 32, 48, 20]


def test_a_partition_has_its_own_rows_or_its_gpu_s() -> None:
    for v in (PAIR_RING, FORM_C):
        own, whole_s = (tuning.l3(f"nvidia-h200{part}", CASE.shape, v.name) for part in ("-48sm", ""))
        assert own != whole_s
        whole, part, other = (
            l3_launch.plan(v, CASE, facts)
            for facts in (H200, partition.name_of(H200, 48), partition.name_of(H200, 64))
        )
        assert part.note.startswith(f"geometry {own}, ") and ", tuned" in part.note
        assert str(own) not in whole.note and other.note.split(";")[0] == whole.note.split(";")[0]
        assert part.config.grid == own.ring.blocks_per_sm * 48
        assert other.config.grid * 132 == whole.config.grid * 64
        assert other.config.smem_bytes == whole.config.smem_bytes


@pytest.mark.parametrize(
    ("groups", "sms", "want"),
    [
        (3, 132, (3, 1, 0)),  # fewer groups than slots: a block each
        (264, 132, (264, 1, 0)),
        (265, 132, (264, 1, 1)),
        (527, 132, (264, 1, 263)),
        (528, 132, (264, 2, 0)),
        (432, 48, (96, 4, 48)),
    ],
)
def test_groups_that_a_block_owns_and_what_is_left(groups: int, sms: int, want: tuple[int, int, int]) -> None:
    """As many as asked for, or as every block can have."""
    facts, case = replace(H200, sms=sms), l3.Case("test", 32 * groups, 512)
    ring_, (grid, most, left) = Geometry(4, 2, 2, drawn=True), want
    for asked in range(most):
        made = l3_launch.planned(FORM_C, case, GateUp(ring_, asked, 1), facts)
        assert made.own == asked and case.nf - made.shared == 32 * (left + (most - asked) * grid)
    made = l3_launch.planned(FORM_C, case, GateUp(ring_, 99, 1), facts)
    own = most
    assert (made.config.grid, made.own) == (grid, own)
    assert case.nf - made.shared == 32 * left and made.counters == 64 * groups + 1
    assert made.late == (1 if left else 0), "nothing is drawn where nothing is left"
    assert f"own {own} group{'s' if own > 1 else ''} a block, {left} groups shared" in made.note


def test_no_more_fills_are_late_than_a_block_has() -> None:
    for rows, asked, late in ((4, 4, 4), (4, 8, 8), (4, 9, 8), (16, 9, 2)):
        choice = GateUp(Geometry(rows, 2, 1, drawn=True), 1, asked)
        made = l3_launch.planned(FORM_C, CASE, choice, H200)  # one group each, 168 of 432 left
        assert made.late == late == made.args(16, 32, (48,), 64)[-1].value
        assert made.note.endswith(f"168 groups shared, {late} fills late")


@pytest.mark.parametrize(
    ("groups", "rows", "stages", "want"),
    [(3, 16, 0, 2), (3, 4, 0, 8), (3, 4, 3, 3), (432, 16, 0, 6), (432, 4, 0, 24)],
)
def test_stages_are_no_more_than_a_block_has_fills(groups: int, rows: int, stages: int, want: int) -> None:
    """144 SMs: a group for each of three blocks, or three each for all."""
    choice, facts = GateUp(Geometry(rows, 1, stages, drawn=True), 3, 0), replace(H200, sms=144)
    made = l3_launch.planned(FORM_C, l3.Case("test", 32 * groups, 256), choice, facts)
    assert made.ring and made.ring.stages == want


def test_sets_multiply_the_consumers_up_to_the_launch_bound() -> None:
    for sets, threads in ((1, 160), (2, 256), (3, 352), (4, 448)):
        choice = GateUp(Geometry(4, 2, 2, True, sets), 1, 0)
        assert l3_launch.planned(FORM_C, CASE, choice, H200).config.block == threads
        made = l3_launch.planned(PAIR_RING, CASE, GateUp(choice.ring), H200)
        assert made.config.block == threads - 32
    refused = ((5, 5120, "5 x 3 consumer warps make a block of 544"), (2, 16640, "2 x 8 .* 576"))
    for sets, id_, said in refused:
        choice = GateUp(Geometry(1, 1, 1, True, sets), 1, 0)
        with pytest.raises(Unavailable, match=f"{choice.ring}: {said} threads, more than 448"):
            l3_launch.planned(FORM_C, l3.Case("test", 64, id_), choice, H200)
    with pytest.raises(BadInput, match="a set of consumers at least, got 4r1b0s0x-drawn"):
        l3_launch.planned(FORM_C, CASE, GateUp(Geometry(4, 1, 0, True, 0), 1, 0), H200)
    with pytest.raises(BadInput, match="a ring needs a set of consumers"):
        ring.plan(80, 2880, 10, Geometry(4, 1, 0, True, 0), H200)


@pytest.mark.parametrize("v", [PAIR_RING, FORM_C], ids=str)
def test_other_shapes_and_devices_get_the_default_rule(v: l3.Variant) -> None:
    for facts in (GB10, device.load("h100"), H200):
        for nf in (32, 64, 96, 13824):
            for id_ in (256, 512, 5120, 16640):
                case = l3.Case("test", nf, id_)
                if (facts, case.shape) == (H200, CASE.shape):
                    continue
                made = l3_launch.plan(v, case, facts)
                assert "by the default rule" in made.note and made.ring and made.ring.stages >= 1
                assert 32 % made.ring.rows == 0 and made.config.grid <= 2 * facts.sms
                if v is FORM_C:
                    assert made.config.grid <= nf // 32 and made.own == 1
                    assert made.late == (32 // made.ring.rows if made.shared < nf else 0), "it draws first"
    own = tuning.l3("h200", CASE.shape, v.name)
    other = own.ring.blocks_per_sm + 1
    held = l3_launch.plan(v, CASE, H200, other)
    assert held.config.grid == 132 * other and f"{other}b0s" in held.note and "blocks as asked" in held.note
    assert own and "tuned" in l3_launch.plan(v, CASE, H200, own.ring.blocks_per_sm).note
    assert "6b0s" in l3_launch.plan(v, CASE, GB10, 6).note, "so many blocks fit with fewer rows"


def test_what_cannot_be_launched_says_why() -> None:
    with pytest.raises(Unavailable, match="bulk copies need sm_90, this GPU is sm_80"):
        l3_launch.plan(FORM_C, CASE, device.load("a100"))
    with pytest.raises(Unavailable, match="bytes of shared memory per block"):
        l3_launch.plan(FORM_C, l3.Case("test", 32, 1 << 18), H200)
    with pytest.raises(Unavailable, match="16r4b0s-drawn: needs"):
        l3_launch.planned(FORM_C, CASE, GateUp(Geometry(16, 4, drawn=True), 1, 0), H200)
    with pytest.raises(BadInput, match="form_c: shared fills are drawn, got 4r2b0s-dealt"):
        l3_launch.planned(FORM_C, CASE, GateUp(Geometry(4, 2), 1, 0), H200)
    for rows in (3, 32):
        with pytest.raises(BadInput, match=f"form_c: rows are one of 1, 2, 4, 8, 16, got {rows}r1b"):
            l3_launch.planned(FORM_C, CASE, GateUp(Geometry(rows, 1, drawn=True), 1, 0), H200)
    assert l3_launch.planned(PAIR_RING, CASE, GateUp(Geometry(3, 1)), H200).config.grid == 132


@pytest.mark.parametrize("v", [PAIR_RING, FORM_C], ids=str)
@pytest.mark.parametrize("sms", [132, 48])
def test_candidates_are_some_sixteen_that_fit_an_h200(v: l3.Variant, sms: int) -> None:
    found = l3_launch.candidates(v)
    assert 12 <= len(found) == len(set(found)) <= 18
    facts = H200 if sms == 132 else partition.name_of(H200, sms)
    assert tuning.l3(facts.slug, CASE.shape, v.name) in found
    for choice in found:  # none is refused: with 72 registers so many blocks of it fit too
        made = l3_launch.planned(v, CASE, choice, facts)
        assert made.config.grid == min(CASE.nf // 32, sms * choice.ring.blocks_per_sm) or v is PAIR_RING
        fit = occupancy(Resources(72, 0, 0), made.config.block, made.config.smem_bytes, facts)
        assert fit.blocks_per_sm >= choice.ring.blocks_per_sm


HEAD = 'devices = ["a"]\nwhere = "x"\n[l1]\n'


def test_tuned_rows_survive_being_written() -> None:
    rows = {"pair_ring": GateUp(Geometry(7, 2, 3)), "form_c": GateUp(Geometry(16, 1, 2, True, 4), 3, 2)}
    assert tuning.parse(HEAD + tuning.dump_l3(CASE.id, rows)).l3 == {CASE.id: rows}
    assert tuning.parse(HEAD + tuning.dump_l3(CASE.id, rows, "48sm")).l3 == {f"{CASE.id}@48sm": rows}
    for row, text in zip(rows.values(), ("7r2b3s-dealt", "16r1b2s4x-drawn-own3-late2"), strict=True):
        assert str(row) == text and GateUp.parse(text) == row
    assert str(GateUp(Geometry(1, 1, drawn=True), 0, 0)) == "1r1b0s-drawn-own0-late0"
    for text in (
        "4r1b0s-drawn-own1-late", "4r1b0s-drawn-own1-late-1", "4r1b0s-drawn-own-late4", "4r1b0s-drawn-own1",
        "4r1b0s-drawn-late4", "4r1b0s-own1-late4", "4r1b0sx-drawn",
    ):  # fmt: skip
        with pytest.raises(BadInput, match=f"got '{text.partition('-own')[0]}"):
            GateUp.parse(text)
    assert {c.id: c.shape for c in l3.CASES} == tuning.GATE_UPS
    assert set(tuning.GATE_UP_ROWS) == {v.name for v in l3.VARIANTS if v.ring}
    assert tuning.l3("gb10", CASE.shape, "form_c") is None
    assert tuning.l3("h200", l3.Case("test", 64, 5120).shape, "form_c") is None


def test_a_partition_s_rows_are_looked_up_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    own, part = GateUp(Geometry(8, 2)), GateUp(Geometry(4, 3))
    text = tuning.dump_l3(CASE.id, {"pair_ring": own, "form_c": GateUp(Geometry(4, 1, drawn=True), 1, 1)})
    text += "\n" + tuning.dump_l3(CASE.id, {"pair_ring": part}, "48sm")
    monkeypatch.setattr(tuning, "tables", lambda: (tuning.parse(HEAD + text),))
    assert tuning.l3("a-48sm", CASE.shape, "pair_ring") == part
    assert tuning.l3("a-48sm", CASE.shape, "form_c") == tuning.l3("a", CASE.shape, "form_c") is not None
    assert tuning.l3("a-64sm", CASE.shape, "pair_ring") == tuning.l3("a", CASE.shape, "pair_ring") == own
    assert tuning.l3("b-48sm", CASE.shape, "pair_ring") is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[l3.nothing]\nform_c = {}", "t.toml: \\[l3.nothing\\] form_c: there is no such case"),
        ('[l3."gate_up_14b@fast"]\nform_c = {}', "gate_up_14b@fast\\] form_c: there is no such case"),
        ("form_b = {}", "no such case or variant"),
        ("form_c = 4", 'a row is { ring = "4r3b2s-drawn", own = 1, late = 4 }, got 4'),
        ('form_c = { ring = "4r3b2s-drawn" }', "a row is .*own = 1, late = 4"),
        ('form_c = { ring = "4r3b2s-drawn", late = 4 }', "a row is .*own = 1, late = 4"),
        ('pair_ring = "8r2b0s-drawn"', 'a row is { ring = "8r2b2s3x-drawn" }, got'),
        ('pair_ring = { ring = "8r2b0s-drawn", late = 4 }', "a row is"),
        ('form_c = { ring = "fast", own = 1, late = 0 }', "got 'fast'"),
        ('form_c = { ring = "3r1b0s-drawn", own = 1, late = 0 }', "one of 1, 2, 4, 8, 16, got 3r1b0s-drawn"),
        ('form_c = { ring = "4r1b0s-dealt", own = 1, late = 0 }', "shared fills are drawn, got 4r1b"),
        ('form_c = { ring = "4r1b0s-drawn", own = 1, late = -1 }', "late counts fills, got -1"),
        ('form_c = { ring = "4r1b0s-drawn", own = 1, late = true }', "late counts fills, got True"),
        ('form_c = { ring = "4r1b0s-drawn", own = -1, late = 1 }', "own counts groups, got -1"),
        ('form_c = { ring = "4r1b0s-drawn", own = 1.0, late = 1 }', "own counts groups, got 1.0"),
        ('pair_ring = { ring = "33r1b0s-dealt" }', "got 33r1b0s-dealt"),
        ('pair_ring = { ring = "4r1b0s0x-dealt" }', "a set of consumers at least, got 4r1b0s0x"),
    ],
)
def test_a_bad_tuning_row_names_its_fault(text: str, words: str) -> None:
    head = HEAD if text.startswith("[") else f"{HEAD}[l3.{CASE.id}]\n"
    with pytest.raises(BadInput, match=words):
        tuning.parse(head + text, "t.toml")


def test_a_report_s_digest_holds_its_device_s_geometries(monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = (l3.report_digest("l3", d) for d in ("nvidia-h200", "gb10"))
    assert own != other == l3.digest() and l3.report_digest("l3-48sm", "nvidia-h200") == own
    assert cli.digest("l3-geometries", "nvidia-h200") == l3.report_digest("l3-geometries", "gb10")
    assert l3.report_digest("l3-geometries", "") not in (own, other)
    assert l3.report_digest("l3-geometries", "") == l3.report_digest("l3-48sm-geometries", "")
    swept = l3.report_digest("l3-geometries", "")
    fewer = {name: texts[1:] for name, texts in l3_launch.CANDIDATES.items()}
    monkeypatch.setattr(l3_launch, "CANDIDATES", fewer)
    assert l3.report_digest("l3-geometries", "") != swept
    table = tuning.table("h200")
    assert table is not None
    changed = replace(table, l3={CASE.id: {"form_c": GateUp(Geometry(1, 1, drawn=True), 0)}})
    monkeypatch.setattr(tuning, "tables", lambda: (changed,))
    assert l3.report_digest("l3", "nvidia-h200") not in (own, other)
