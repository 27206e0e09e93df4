"""L3's ring kernels before any launch: geometry, arguments, the tuning table's rows, a report's digest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes import cli, l3, l3_launch
from probes.core.types import BadInput, LaunchConfig, Resources, Unavailable
from probes.device import facts as profiles
from probes.device import pipeline, tuning
from probes.device.occupancy import occupancy
from probes.device.tuning import Geometry
from probes.gpu import partition

GB10, H200 = profiles.load("gb10"), profiles.load("h200")
CASE = l3.CASES[0]
PAIR_RING, FORM_C = l3.variant("pair_ring"), l3.variant("form_c")


def test_the_kernels_asked_for_have_no_traced_twin_of_a_ring() -> None:
    assert {"l3_matmul_ring", "l3_form_c", "l3_swiglu_quant"} <= set(l3.KERNELS)
    assert {k for k in l3.KERNELS if k.endswith("_traced")} == {
        f"l3_{f}_traced" for f in ("matmul", "form_a", "form_b", "form_b_staged")
    }


def test_the_h200_s_launches_are_the_table_s() -> None:
    pair, form_c = (l3_launch.plan(v, CASE, H200) for v in (PAIR_RING, FORM_C))
    for made, v, others in ((pair, PAIR_RING, 1), (form_c, FORM_C, 2)):
        choice = tuning.l3("nvidia-h200", CASE.shape, v.name)
        assert choice in l3_launch.candidates(v) and made.ring
        stages = f"{made.ring.stages} stage{'s' if made.ring.stages > 1 else ''}"
        tickets = f"tickets {'drawn' if choice.drawn else 'dealt'}"
        assert made.note == f"geometry {choice}, {stages}, tuned; a persistent grid, {tickets}"
        assert made.ring.rows == choice.rows and made.config == made.ring.config
        assert made.config.grid == 132 * choice.blocks_per_sm
        assert made.config.block == 32 * (3 * choice.sets + others)  # 80 units are three warps' worth
        assert made.ring.stages == choice.stages and made.ring.drawn == choice.drawn
        assert made.config.smem_bytes == made.ring.stages * pipeline.stage_bytes(choice.rows, 20 * 144)
    assert pair.ring and form_c.ring
    assert (pair.counters, form_c.counters) == (pair.ring.drawn, 2 * 13824 + form_c.ring.drawn)


@pytest.mark.parametrize("drawn", [True, False])
def test_the_tickets_counter_lies_behind_form_c_s_words(drawn: bool) -> None:
    choice = Geometry(16, 2, 2, drawn, 4)
    pair, form_c = (l3_launch.planned(v, CASE, choice, H200) for v in (PAIR_RING, FORM_C))
    assert (pair.counters, form_c.counters) == (int(drawn), 2 * 13824 + int(drawn))
    for made, words, rows in (
        (pair, [64 if drawn else 0], 27648),
        (form_c, [64, 64 + 8 * 13824 if drawn else 0], 13824),
    ):
        args = made.args(16, 32, (48,), 64)
        assert list(args[:-4]) == [16, 32, 48, *words]
        assert [a.value for a in args[-4:]] == [20, rows, 16, 2]


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
        assert part.config.grid == own.blocks_per_sm * 48
        assert other.config.grid * 132 == whole.config.grid * 64
        assert other.config.smem_bytes == whole.config.smem_bytes


@pytest.mark.parametrize("v", [PAIR_RING, FORM_C], ids=str)
@pytest.mark.parametrize(
    ("groups", "rows", "stages", "want"),
    [
        (1, 32, 0, (2, 1)),  # fewer tickets than slots: a block each
        (4, 1, 0, (256, 1)),
        (4, 1, 3, (256, 1)),
        (5, 1, 0, (288, 2)),
        (13, 1, 3, (288, 3)),
        (432, 32, 0, (288, 3)),
        (432, 16, 0, (288, 6)),
        (432, 16, 4, (288, 4)),
        (432, 4, 0, (288, 24)),
    ],
)
def test_a_block_has_a_ticket_and_no_more_stages_than_tickets(
    v: l3.Variant, groups: int, rows: int, stages: int, want: tuple[int, int]
) -> None:
    """Grid and stages of two blocks on each of 144 SMs; drawn where there are more tickets than stages."""
    choice, facts = Geometry(rows, 2, stages, drawn=True), replace(H200, sms=144)
    made = l3_launch.planned(v, l3.Case("test", 32 * groups, 256), choice, facts)
    assert made.ring and (made.config.grid, made.ring.stages) == want
    drawn = 64 * groups // rows > want[0] * want[1]
    assert made.ring.drawn == drawn and made.note.endswith(f"tickets {'drawn' if drawn else 'dealt'}")
    assert made.counters == drawn + (64 * groups if v is FORM_C else 0)
    dealt = l3_launch.planned(v, made.case, replace(choice, drawn=False), facts)
    assert dealt.ring == replace(made.ring, drawn=False)


def test_sets_multiply_the_consumers_up_to_the_launch_bound() -> None:
    for sets, threads in ((1, 160), (2, 256), (3, 352), (4, 448)):
        choice = Geometry(4, 2, 2, True, sets)
        assert l3_launch.planned(FORM_C, CASE, choice, H200).config.block == threads
        assert l3_launch.planned(PAIR_RING, CASE, choice, H200).config.block == threads - 32
    refused = ((5, 5120, "5 x 3 consumer warps make a block of 544"), (2, 16640, "2 x 8 .* 576"))
    for sets, id_, said in refused:
        choice = Geometry(1, 1, 1, True, sets)
        with pytest.raises(Unavailable, match=f"{choice}: {said} threads, more than 448"):
            l3_launch.planned(FORM_C, l3.Case("test", 64, id_), choice, H200)
    with pytest.raises(BadInput, match="a set of consumers at least, got 4r1b0s0x-drawn"):
        l3_launch.planned(FORM_C, CASE, Geometry(4, 1, 0, True, 0), H200)
    with pytest.raises(BadInput, match="a ring needs a set of consumers"):
        pipeline.plan(80, 2880, 10, Geometry(4, 1, 0, True, 0), H200)


@pytest.mark.parametrize("v", [PAIR_RING, FORM_C], ids=str)
def test_other_shapes_and_devices_get_the_default_rule(v: l3.Variant) -> None:
    for facts in (GB10, profiles.load("h100"), H200):
        for nf in (32, 64, 96, 13824):
            for id_ in (256, 512, 5120, 16640):
                case = l3.Case("test", nf, id_)
                if (facts, case.shape) == (H200, CASE.shape):
                    continue
                made = l3_launch.plan(v, case, facts)
                assert "by the default rule" in made.note and made.ring and made.ring.stages >= 1
                tickets = case.shape.od // made.ring.rows
                assert 32 % made.ring.rows == 0 and made.config.grid <= min(2 * facts.sms, tickets)
                one = pipeline.stage_bytes(made.ring.rows, case.shape.nbe * 144)
                assert (
                    made.ring.stages > 1 or made.config.grid == tickets or 2 * one > pipeline.room(1, facts)
                )
    own = tuning.l3("h200", CASE.shape, v.name)
    other = own.blocks_per_sm + 1
    held = l3_launch.plan(v, CASE, H200, other)
    assert held.config.grid == 132 * other and f"{other}b0s" in held.note and "blocks as asked" in held.note
    assert own and "tuned" in l3_launch.plan(v, CASE, H200, own.blocks_per_sm).note
    assert "6b0s" in l3_launch.plan(v, CASE, GB10, 6).note, "so many blocks fit with fewer rows"


def test_what_cannot_be_launched_says_why() -> None:
    with pytest.raises(Unavailable, match="bulk copies need sm_90, this GPU is sm_80"):
        l3_launch.plan(FORM_C, CASE, profiles.load("a100"))
    with pytest.raises(Unavailable, match="bytes of shared memory per block"):
        l3_launch.plan(FORM_C, l3.Case("test", 32, 1 << 19), H200)
    with pytest.raises(Unavailable, match="32r4b0s-drawn: needs"):
        l3_launch.planned(FORM_C, CASE, Geometry(32, 4, drawn=True), H200)
    for rows in (0, 3, 12, 33, 64):
        with pytest.raises(BadInput, match=f"form_c: rows are one of 1, 2, 4, 8, 16, 32, got {rows}r1b"):
            l3_launch.planned(FORM_C, CASE, Geometry(rows, 1, drawn=True), H200)
    assert l3_launch.planned(PAIR_RING, CASE, Geometry(3, 1), H200).config.grid == 132


@pytest.mark.parametrize("v", [PAIR_RING, FORM_C], ids=str)
@pytest.mark.parametrize("sms", [132, 48])
def test_candidates_are_some_sixteen_that_fit_an_h200(v: l3.Variant, sms: int) -> None:
    found = l3_launch.candidates(v)
    assert 12 <= len(found) == len(set(found)) <= 18
    texts = [str(g) for g in found]
    assert texts == [x for x in l3_launch.CANDIDATES if v is PAIR_RING or not x.startswith("12r")]
    facts = H200 if sms == 132 else partition.name_of(H200, sms)
    assert tuning.l3(facts.slug, CASE.shape, v.name) in found
    for choice in found:  # none is refused: with 72 registers so many blocks of it fit too
        made = l3_launch.planned(v, CASE, choice, facts)
        assert made.config.grid == sms * choice.blocks_per_sm
        fit = occupancy(Resources(72, 0, 0), made.config.block, made.config.smem_bytes, facts)
        assert fit.blocks_per_sm >= choice.blocks_per_sm


HEAD = 'devices = ["a"]\nwhere = "x"\n[l1]\n'


def test_tuned_rows_survive_being_written() -> None:
    rows = {"pair_ring": Geometry(7, 2, 3), "form_c": Geometry(16, 1, 2, True, 4)}
    assert tuning.parse(HEAD + tuning.dump_l3(CASE.id, rows)).l3 == {CASE.id: rows}
    assert tuning.parse(HEAD + tuning.dump_l3(CASE.id, rows, "48sm")).l3 == {f"{CASE.id}@48sm": rows}
    assert {c.id: c.shape for c in l3.CASES} == tuning.GATE_UPS
    assert set(tuning.GATE_UP_ROWS) == {v.name for v in l3.VARIANTS if v.ring}
    assert tuning.l3("gb10", CASE.shape, "form_c") is None
    assert tuning.l3("h200", l3.Case("test", 64, 5120).shape, "form_c") is None


def test_a_partition_s_rows_are_looked_up_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    own, part = Geometry(8, 2), Geometry(4, 3)
    text = tuning.dump_l3(CASE.id, {"pair_ring": own, "form_c": Geometry(4, 1, drawn=True)})
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
        ("form_c = 4", 'a row is { ring = "8r2b2s3x-drawn" }, got 4'),
        ("form_c = {}", 'a row is { ring = "8r2b2s3x-drawn" }, got {}'),
        ('pair_ring = "8r2b0s-drawn"', 'a row is { ring = "8r2b2s3x-drawn" }, got'),
        ('pair_ring = { ring = "8r2b0s-drawn", late = 4 }', "a row is"),
        ('form_c = { ring = "4r3b2s-drawn", own = 1, late = 4 }', "a row is .* got {'ring'.*'own': 1"),
        ('form_c = { ring = "fast" }', "got 'fast'"),
        ("form_c = { ring = 8 }", "got '?8"),
        ('form_c = { ring = "3r1b0s-drawn" }', "one of 1, 2, 4, 8, 16, 32, got 3r1b0s-drawn"),
        ('form_c = { ring = "12r1b0s-dealt" }', "one of 1, 2, 4, 8, 16, 32, got 12r1b0s-dealt"),
        ('pair_ring = { ring = "33r1b0s-dealt" }', "got 33r1b0s-dealt"),
        ('pair_ring = { ring = "4r1b0s0x-dealt" }', "a set of consumers at least, got 4r1b0s0x"),
        ('form_c = { ring = "4r1b0s0x-drawn" }', "a set of consumers at least, got 4r1b0s0x"),
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
    monkeypatch.setattr(l3_launch, "CANDIDATES", l3_launch.CANDIDATES[1:])
    assert l3.report_digest("l3-geometries", "") != swept
    table = tuning.table("h200")
    assert table is not None
    changed = replace(table, l3={CASE.id: {"form_c": Geometry(1, 1, drawn=True)}})
    monkeypatch.setattr(tuning, "tables", lambda: (changed,))
    assert l3.report_digest("l3", "nvidia-h200") not in (own, other)
