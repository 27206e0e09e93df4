"""L3's ring kernels before any launch: geometry, arguments, the tuning table's rows, a report's digest."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import pytest

from probes import cli
from probes.core.types import BadInput, LaunchConfig, Resources, Shape, Unavailable
from probes.device import facts as profiles
from probes.device import pipeline, tuning
from probes.device.facts import DeviceFacts
from probes.device.occupancy import occupancy
from probes.device.tuning import Geometry
from probes.engine import digests
from probes.engine.plan import Planned
from probes.engine.probe import Case
from probes.gpu import partition
from probes.l3 import plan
from probes.l3 import table as l3

GB10, H200 = profiles.load("gb10"), profiles.load("h200")
CASE = l3.CASES[0]
SHAPE = Shape(2 * 13824, 5120)
PAIR_RING, FORM_C = l3.variant("pair_ring"), l3.variant("form_c")


def flags(*argv: str) -> argparse.Namespace:
    return cli.parser("l3").parse_args(argv)


def launch(v: l3.Fusion, facts: DeviceFacts, blocks: int = 0, case: Case = CASE) -> Planned:
    """As a run plans it, with --blocks-per-sm where there are any."""
    return plan.plan(v, case, facts, flags(*(["--blocks-per-sm", str(blocks)] if blocks else [])), "cu")


def words(made: Planned, case: Case = CASE) -> int:
    """Counters of one launch."""
    return plan.counters(made, l3.nf_of(case))


def tuned(slug: str, v: l3.Fusion) -> Geometry:
    """The table's row of the built-in case."""
    found = plan.tuned(slug, SHAPE, v.name)
    assert found
    return found


def test_the_kernels_asked_for_have_no_traced_twin_of_a_ring() -> None:
    kernels = plan.kernels(flags())["l3"]
    assert {"l3_matmul_ring", "l3_form_c", "l3_swiglu_quant"} <= set(kernels)
    assert {k for k in kernels if k.endswith("_traced")} == {
        f"l3_{f}_traced" for f in ("matmul", "form_a", "form_b", "form_b_staged")
    }


def test_the_h200_s_launches_are_the_table_s() -> None:
    pair, form_c = (launch(v, H200) for v in (PAIR_RING, FORM_C))
    for made, v, others in ((pair, PAIR_RING, 1), (form_c, FORM_C, 2)):
        choice = tuned("nvidia-h200", v)
        assert choice in plan.candidates(v) and made.ring and made.together
        stages = f"{made.ring.stages} stage{'s' if made.ring.stages > 1 else ''}"
        tickets = f"tickets {'drawn' if choice.drawn else 'dealt'}"
        assert made.note == f"geometry {choice}, {stages}, tuned; a persistent grid, {tickets}"
        assert made.ring.rows == choice.rows and made.config == made.ring.config
        assert made.config.grid == 132 * choice.blocks_per_sm
        assert made.config.block == 32 * (3 * choice.sets + others)  # 80 units are three warps' worth
        assert made.ring.stages == choice.stages and made.ring.drawn == choice.drawn
        assert made.config.smem_bytes == made.ring.stages * pipeline.stage_bytes(choice.rows, 20 * 144)
    assert pair.ring and form_c.ring
    assert (words(pair), words(form_c)) == (pair.ring.drawn, 2 * 13824 + form_c.ring.drawn)


@pytest.mark.parametrize("drawn", [True, False])
def test_the_tickets_counter_lies_behind_form_c_s_words(drawn: bool) -> None:
    choice = Geometry(16, 2, 2, drawn, 4)
    pair, form_c = (plan.ring(v, CASE, choice, H200) for v in (PAIR_RING, FORM_C))
    assert (words(pair), words(form_c)) == (int(drawn), 2 * 13824 + int(drawn))
    for made, at, rows in (
        (pair, (64 if drawn else 0,), 27648),
        (form_c, (64, 64 + 8 * 13824 if drawn else 0), 13824),
    ):
        assert plan.arguments(made, CASE, 16, 32, (48,), 64) == ((16, 32, 48, *at), (20, rows, 16, 2))


def test_a_kernel_that_is_no_ring_is_launched_as_before() -> None:
    made = launch(l3.variant("form_b"), H200, 3)
    assert (made.config, made.note, made.geometry, words(made)) == (LaunchConfig(432, 256), "", "", 0)
    assert not made.ring and not made.together
    assert plan.arguments(made, CASE, 16, 32, (48,)) == ((16, 32, 48), (13824, 20))
    made = launch(l3.variant("pair"), H200)
    assert plan.arguments(made, CASE, 16, 32, (48,)) == ((16, 32, 48), (20,))


def test_a_partition_has_its_own_rows_or_the_rule_s() -> None:
    for v in (PAIR_RING, FORM_C):
        own, whole_s = (tuned(f"nvidia-h200{part}", v) for part in ("-48sm", ""))
        assert own != whole_s
        whole, part, other = (
            launch(v, facts) for facts in (H200, partition.name_of(H200, 48), partition.name_of(H200, 64))
        )
        assert part.note.startswith(f"geometry {own}, ") and ", tuned" in part.note
        assert part.geometry == str(own) and whole.geometry == str(whole_s)
        assert other.geometry == str(plan.default_choice(SHAPE, partition.name_of(H200, 64)))
        assert ", by the default rule" in other.note
        assert part.config.grid == own.blocks_per_sm * 48
        assert other.config.grid == 2 * 64 and whole.config.grid == whole_s.blocks_per_sm * 132


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
    v: l3.Fusion, groups: int, rows: int, stages: int, want: tuple[int, int]
) -> None:
    """Grid and stages of two blocks on each of 144 SMs; drawn where there are more tickets than stages."""
    choice, facts = Geometry(rows, 2, stages, drawn=True), replace(H200, sms=144)
    case = l3.made("test", 32 * groups, 256)
    made = plan.ring(v, case, choice, facts)
    assert made.ring and (made.config.grid, made.ring.stages) == want
    drawn = 64 * groups // rows > want[0] * want[1]
    assert made.ring.drawn == drawn and made.note.endswith(f"tickets {'drawn' if drawn else 'dealt'}")
    assert words(made, case) == drawn + (64 * groups if v is FORM_C else 0)
    dealt = plan.ring(v, case, replace(choice, drawn=False), facts)
    assert dealt.ring == replace(made.ring, drawn=False)


def test_sets_multiply_the_consumers_up_to_the_launch_bound() -> None:
    for sets, threads in ((1, 160), (2, 256), (3, 352), (4, 448)):
        choice = Geometry(4, 2, 2, True, sets)
        assert plan.ring(FORM_C, CASE, choice, H200).config.block == threads
        assert plan.ring(PAIR_RING, CASE, choice, H200).config.block == threads - 32
    refused = ((5, 5120, "5 x 3 consumer warps make a block of 544"), (2, 16640, "2 x 8 .* 576"))
    for sets, id_, said in refused:
        choice = Geometry(1, 1, 1, True, sets)
        with pytest.raises(Unavailable, match=f"{choice}: {said} threads, more than 448"):
            plan.ring(FORM_C, l3.made("test", 64, id_), choice, H200)
    with pytest.raises(BadInput, match="a consumer group at least, got 4r1b0s0x-drawn"):
        plan.ring(FORM_C, CASE, Geometry(4, 1, 0, True, 0), H200)
    with pytest.raises(BadInput, match="a ring needs a set of consumers"):
        pipeline.plan(80, 2880, 10, Geometry(4, 1, 0, True, 0), H200)


@pytest.mark.parametrize("v", [PAIR_RING, FORM_C], ids=str)
def test_other_shapes_and_devices_get_the_default_rule(v: l3.Fusion) -> None:
    for facts in (GB10, profiles.load("h100"), H200):
        for nf in (32, 64, 96, 13824):
            for id_ in (256, 512, 5120, 16640):
                case = l3.made("test", nf, id_)
                if (facts, case.shape) == (H200, SHAPE):
                    continue
                made = launch(v, facts, case=case)
                assert "by the default rule" in made.note and made.ring and made.ring.stages >= 1
                assert case.shape
                tickets = case.shape.od // made.ring.rows
                assert 32 % made.ring.rows == 0 and made.config.grid <= min(2 * facts.sms, tickets)
                one = pipeline.stage_bytes(made.ring.rows, case.shape.nbe * 144)
                assert (
                    made.ring.stages > 1 or made.config.grid == tickets or 2 * one > pipeline.room(1, facts)
                )
    own = tuned("h200", v)
    other = own.blocks_per_sm + 1
    held = launch(v, H200, other)
    assert held.config.grid == 132 * other and f"{other}b0s" in held.note and "blocks as asked" in held.note
    assert "tuned" in launch(v, H200, own.blocks_per_sm).note
    assert "6b0s" in launch(v, GB10, 6).note, "so many blocks fit with fewer rows"


def test_what_cannot_be_launched_says_why() -> None:
    with pytest.raises(Unavailable, match="bulk copies need sm_90, this GPU is sm_80"):
        launch(FORM_C, profiles.load("a100"))
    with pytest.raises(Unavailable, match="bytes of shared memory per block"):
        launch(FORM_C, H200, case=l3.made("test", 32, 1 << 19))
    with pytest.raises(Unavailable, match="32r4b0s-drawn: needs"):
        plan.ring(FORM_C, CASE, Geometry(32, 4, drawn=True), H200)
    for rows in (0, 3, 12, 33, 64):
        with pytest.raises(BadInput, match=f"form_c: rows are one of 1, 2, 4, 8, 16, 32, got {rows}r1b"):
            plan.ring(FORM_C, CASE, Geometry(rows, 1, drawn=True), H200)
    assert plan.ring(PAIR_RING, CASE, Geometry(3, 1), H200).config.grid == 132


@pytest.mark.parametrize("v", [PAIR_RING, FORM_C], ids=str)
@pytest.mark.parametrize("sms", [132, 48])
def test_candidates_are_some_sixteen_that_fit_an_h200(v: l3.Fusion, sms: int) -> None:
    found = plan.candidates(v)
    assert 12 <= len(found) == len(set(found)) <= 18
    texts = [str(g) for g in found]
    assert texts == [x for x in plan.CANDIDATES if v is PAIR_RING or not x.startswith("12r")]
    facts = H200 if sms == 132 else partition.name_of(H200, sms)
    assert tuned(facts.slug, v) in found
    for choice in found:  # none is refused: with 72 registers so many blocks of it fit too
        made = plan.ring(v, CASE, choice, facts)
        assert made.config.grid == sms * choice.blocks_per_sm
        fit = occupancy(Resources(72, 0, 0), made.config.block, made.config.smem_bytes, facts)
        assert fit.blocks_per_sm >= choice.blocks_per_sm


HEAD = 'devices = ["a"]\nwhere = "x"\n'


def test_tuned_rows_survive_being_written(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"pair_ring": Geometry(7, 2, 3), "form_c": Geometry(16, 1, 2, True, 4)}
    for part in ("", "48sm"):
        text = tuning.dump("l3", CASE.id, {v: {"ring": g} for v, g in rows.items()}, part)
        monkeypatch.setattr(tuning, "tables", lambda text=text: (tuning.parse(HEAD + text),))
        slug = f"a-{part}" if part else "a"
        assert {v: plan.tuned(slug, SHAPE, v) for v in rows} == rows
        assert plan.tuned("a" if part else "a-48sm", SHAPE, "form_c") is None
    monkeypatch.undo()
    assert plan.tuned("gb10", SHAPE, "form_c") is None
    assert plan.tuned("h200", Shape(2 * 64, 5120), "form_c") is None
    assert set(plan.ROWS) == {v.name for v in l3.VARIANTS if v.ring}


def test_a_partition_s_rows_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was fastest on all SMs need not be so on some of them: without a row the rule says."""
    own, part = Geometry(8, 2), Geometry(4, 3)
    text = tuning.dump("l3", CASE.id, {"pair_ring": {"ring": own}, "form_c": {"ring": own}})
    text += "\n" + tuning.dump("l3", CASE.id, {"pair_ring": {"ring": part}}, "48sm")
    monkeypatch.setattr(tuning, "tables", lambda: (tuning.parse(HEAD + text),))
    assert plan.tuned("a", SHAPE, "pair_ring") == plan.tuned("a", SHAPE, "form_c") == own
    assert plan.tuned("a-48sm", SHAPE, "pair_ring") == part
    for slug, variant in (("a-48sm", "form_c"), ("a-64sm", "pair_ring"), ("b-48sm", "pair_ring")):
        assert plan.tuned(slug, SHAPE, variant) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("form_c = {}", 'a row is { ring = "8r2b2s3x-drawn" }, got {}'),
        ("form_c = { own = 3 }", "a row is { ring = \"8r2b2s3x-drawn\" }, got {'own': 3}"),
        ('form_c = { ring = "4r3b2s-drawn", late = 4 }', "a row is .*got {'ring'.*'late': 4"),
        ('form_c = { ring = "4r3b2s-drawn", own = 1, late = 4 }', "a row is .* got {'ring'.*'own': 1"),
        ("form_c = { ring = 8 }", "a row is .*got {'ring': 8}"),
        ('form_c = { ring = "3r1b0s-drawn" }', "one of 1, 2, 4, 8, 16, 32, got 3r1b0s-drawn"),
        ('form_c = { ring = "12r1b0s-dealt" }', "one of 1, 2, 4, 8, 16, 32, got 12r1b0s-dealt"),
    ],
)
def test_a_bad_tuning_row_names_its_fault(text: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What no table may hold: tests/device/test_tuning.py."""
    table = tuning.parse(f"{HEAD}[l3.{CASE.id}]\n{text}")
    monkeypatch.setattr(tuning, "tables", lambda: (table,))
    with pytest.raises(BadInput, match=rf"\[l3.gate_up_14b\] form_c: .*{words}"):
        launch(FORM_C, replace(H200, slug="a"))


def test_a_report_s_digest_holds_its_device_s_geometries(monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = (digests.report("l3", d) for d in ("nvidia-h200", "gb10"))
    assert own != other == digests.report("l3", "") and digests.report("l3-48sm", "nvidia-h200") == own
    swept = digests.report("l3-geometries", "")
    assert digests.report("l3-geometries", "nvidia-h200") == swept == digests.report("l3-geometries", "gb10")
    assert swept not in (own, other) and swept == digests.report("l3-48sm-geometries", "")
    monkeypatch.setattr(plan, "CANDIDATES", plan.CANDIDATES[1:])
    assert digests.report("l3-geometries", "") != swept
    (table,) = (t for t in tuning.tables() if "h200" in t.devices)
    rows: dict[str, Any] = {"l3": {CASE.id: {"form_c": {"ring": Geometry(1, 1, drawn=True)}}}}
    monkeypatch.setattr(tuning, "tables", lambda: (replace(table, rows=rows),))
    assert digests.report("l3", "nvidia-h200") not in (own, other)
