"""L3's ring arms and --geometries without a GPU, on the stand-ins of l3_fakes.py."""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from probes import l3, l3_arms, l3_geometries, l3_launch, l3_measure, l3_report, points
from probes.core.types import BadInput, Shape, Unavailable, WrongResult
from probes.device import tuning
from probes.device.tuning import Geometry
from probes.gpu import partition as partition_module
from tests.nogpu import l3_fakes
from tests.nogpu.l3_fakes import GPU, ONE_BLOCK, RING, HostBench, flags

bench = l3_fakes.bench


def test_form_c_alone_brings_its_baselines(bench: HostBench) -> None:
    (rows,) = l3_measure.measure(bench, flags("--nf", "64", "--variant", "form_c"))
    assert [r.variant for r in rows if not r.skipped] == [
        "pair", "pair_ring", "form_c", "pair_aa", "pair_ring_aa", l3_measure.READ,
    ]  # fmt: skip
    judged = l3_report.judge(rows, 0)
    assert [(r.variant, r.ratio_to_baseline) for r in judged] == [("form_c", 1.0)]


def made(bench: HostBench, nf: int, id_: int = 5120) -> dict[str, Any]:
    """The ring variants' arms by name, over nf gate rows."""
    args, case, stack = flags(), l3.Case("test", nf, id_), ExitStack()
    kernels = l3_measure.load_kernels(bench, args)
    d = l3_arms.data_of(bench, args, case, kernels, stack)
    bench.alive.append(d)
    names = ["pair_ring", "form_c", "pair_ring_aa"]
    arms, skipped = l3_arms.arms_of(bench, args, case, kernels, names, d, stack)
    assert not skipped
    return {spec.variant: arm for spec, arm in arms}


def test_every_arm_has_counters_of_its_own(bench: HostBench) -> None:
    arms = made(bench, 160)
    assert {n: a.kept[0].words for n, a in arms.items()} == {
        "pair_ring": 1, "pair_ring_aa": 1, "form_c": 2 * 160 + 1,
    }  # fmt: skip
    where = {}
    for name, arm in arms.items():
        readers = [getattr(x, "launches", [x])[0] for x in arm.launches]
        assert len({r.args[:1] for r in readers}) == 2, "a launch per copy of the weights"
        (where[name],) = {r.args[3] for r in readers}
        assert where[name] == arm.kept[0].buffer.address
    assert len(set(where.values())) == 3
    assert [a.value for a in readers[0].args[4:]] == [20, 320, 8, 4], "nbe, the matrix' rows, rows, stages"
    fused = arms["form_c"].launches[0].args
    assert fused[4] == where["form_c"] + 8 * 160, "the tickets' counter lies behind the words"
    assert [a.value for a in fused[5:]] == [20, 160, 8, 4], "nbe, nf, rows, stages"


def test_dealt_tickets_need_no_counter(bench: HostBench) -> None:
    arms = made(bench, 32)  # so few rows that every ticket is in a stage from the start
    (launch, _), (kept,) = arms["pair_ring"].launches[0].launches, arms["form_c"].kept
    assert arms["pair_ring"].kept == () and launch.args[3] == 0
    assert kept.words == 64 and arms["form_c"].launches[0].args[3:5] == (kept.buffer.address, 0)


@pytest.mark.parametrize(("name", "word"), [("pair_ring", 0), ("form_c", 7), ("form_c", 320)])
def test_a_word_that_is_not_0_again_is_seen(
    bench: HostBench, monkeypatch: pytest.MonkeyPatch, name: str, word: int
) -> None:
    arm = made(bench, 160)[name]
    arm.poison()
    arm.launches[0].enqueue(bench.gpu.stream)
    arm.check(name)
    assert not arm.kept[0].buffer.download(np.uint32, arm.kept[0].words).any(), "poison left it alone"
    ctypes.c_uint32.from_address(arm.kept[0].buffer.address + 4 * word).value = 1
    with pytest.raises(WrongResult, match=f"{name}.*element {word} is '0x00000001"):
        arm.check(name)


@pytest.mark.parametrize("name", ["pair_ring", "form_c"])
@pytest.mark.parametrize("sets", [1, 2, 4])
@pytest.mark.parametrize("rows", [4, 8, 32])
def test_sets_and_rows_give_the_right_bits(bench: HostBench, name: str, sets: int, rows: int) -> None:
    """The launch as it is planned, of 11 groups on four blocks."""
    v, case, stack = l3.variant(name), l3.Case("test", 352, 512), ExitStack()
    kernels = l3_measure.load_kernels(bench, flags())
    bench.alive.append(d := l3_arms.data_of(bench, flags(), case, kernels, stack))
    choice = Geometry(rows, 2, 2, True, sets)
    planned = l3_launch.planned(v, case, choice, GPU)
    assert planned.config.block == 32 * (sets + (1 if v.finisher else 2))
    arm = l3_arms.arm_of(planned, name, kernels["cu"], d, stack)
    for launch in arm.launches:
        arm.poison()
        launch.enqueue(bench.gpu.stream)
        arm.check(name)


def test_an_older_gpu_skips_the_rings_with_the_reason(bench: HostBench) -> None:
    bench.gpu.facts = replace(GPU, arch="sm_86")
    (rows,) = l3_measure.measure(bench, flags("--nf", "32"))
    skipped = {r.variant: r for r in rows if r.skipped and r.backend == "cu"}
    assert set(skipped) == {"pair_ring", "form_c", "pair_ring_aa"}
    assert {r.skipped for r in skipped.values()} == {"bulk copies need sm_90, this GPU is sm_86"}
    assert all(r.registers == RING.registers and r.shape == [64, 5120] for r in skipped.values())
    assert {"pair", "form_b"} <= {r.variant for r in rows if r.samples_s}


def test_a_ring_whose_blocks_do_not_fit_at_once_is_skipped(bench: HostBench) -> None:
    """200 registers, five warps: one block of form_c fits each of the two SMs, and its grid has four."""
    bench.ring = ONE_BLOCK
    (rows,) = l3_measure.measure(bench, flags("--nf", "96"))
    why = {r.variant: r.skipped for r in rows if r.skipped and r.backend == "cu"}
    assert why == {"form_c": "of its 4 blocks 2 fit at once, and a ring is planned for all"}
    assert all(r.skipped for r in l3_report.judge(rows, 0) if r.variant == "form_c")


def test_blocks_per_sm_replaces_a_ring_s_own(bench: HostBench) -> None:
    args = flags("--nf", "96", "--blocks-per-sm", "1")
    by = {r.variant: r for rows in l3_measure.measure(bench, args) for r in rows if r.backend == "cu"}
    for name in ("pair_ring", "form_c"):
        assert by[name].grid == 2 and by[name].waves == 1.0
        assert by[name].notes[0].startswith("geometry 8r1b0s-drawn, ")
        assert "blocks as asked" in by[name].notes[0]
    assert by["pair"].blocks_per_sm == 1


@pytest.fixture
def small(bench: HostBench, monkeypatch: pytest.MonkeyPatch) -> HostBench:
    """A bench whose built-in shape is small."""
    monkeypatch.setattr(l3, "CASES", (l3.Case("gate_up_14b", 352, 512),))
    return bench


def test_geometries_names_every_candidate_once_and_what_to_write(small: HostBench) -> None:
    (rows,) = l3_measure.measure(small, flags("--geometries"))
    rings = [r for r in rows if not r.variant.startswith("read_")]
    want = {f"{v.name}@{c}" for v in l3_geometries.RINGS for c in l3_launch.candidates(v)}
    assert {r.variant for r in rings} == want and len(rings) == len(want)
    assert {r.backend for r in rows} == {"cu"}
    assert {r.windows for r in rows if r.samples_s} == {points.WINDOWS}
    # 44 tickets at least: more than the stages of any grid on 2 SMs, so no two launches are the same
    assert [r.skipped for r in rings if r.skipped] == []
    chosen = l3_geometries.chosen(rows, "gate_up_14b")
    assert {k: str(c) for k, c in chosen.items()} == dict.fromkeys(("pair_ring", "form_c"), "4r4b4s-drawn")
    text = tuning.dump_l3("gate_up_14b", chosen)
    head = 'devices = ["x"]\nwhere = "a test"\n[l1]\n'
    assert tuning.parse(head + text).l3 == {"gate_up_14b": chosen}
    (section,) = l3_report.sections(rows, True)
    assert f"```toml\n{text}\n```" in section and "(no row)" in section
    assert l3_report.judge(rows, 0) == [] and points.is_sweep(rows)
    for row in rows:
        row.device, row.shape = "nvidia-h200", [2 * 13824, 5120]
    (section,) = l3_report.sections(rows, False)
    held = [str(tuning.l3(f"nvidia-h200{part}", Shape(27648, 5120), "form_c")) for part in ("", "-48sm")]
    assert held[0] in section and "[l3.gate_up_14b]" in section
    for row in rows:
        row.device = "nvidia-h200-48sm"
    (section,) = l3_report.sections(rows, False)
    lines = text.partition("\n")[2]
    assert held[1] in section and f'[l3."gate_up_14b@48sm"]\n{lines}' in section


def test_geometries_that_do_not_fit_say_why(bench: HostBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """200 registers: one block of five warps fits, and not one of fourteen."""
    monkeypatch.setattr(l3, "CASES", (l3.Case("gate_up_14b", 32, 5120),))
    bench.ring = ONE_BLOCK
    (rows,) = l3_measure.measure(bench, flags("--geometries", "--variant", "form_c"))
    why = {r.variant: r.skipped for r in rows if r.skipped}
    assert why["form_c@8r1b8s4x-drawn"] == "only 0 blocks of it fit on an SM"
    assert why["form_c@8r4b2s-drawn"] == "only 1 blocks of it fit on an SM"


def test_geometries_of_one_variant(bench: HostBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(l3, "CASES", (l3.Case("gate_up_14b", 96, 256),))
    texts = (
        "16r1b0s-drawn", "16r1b6s-drawn", "16r1b0s-dealt", "16r1b3s-drawn", "16r1b3s-dealt", "16r2b3s-dealt",
        "12r1b0s-drawn",
    )  # fmt: skip
    monkeypatch.setattr(l3_launch, "CANDIDATES", texts)
    (rows,) = l3_measure.measure(bench, flags("--geometries", "--variant", "form_c"))
    # 12 tickets on two blocks: six stages hold all, and then none is drawn; 12 rows divide no group
    assert {r.variant: r.skipped for r in rows if "@" in r.variant} == {
        "form_c@16r1b0s-drawn": None,
        "form_c@16r1b6s-drawn": "the same launch as form_c@16r1b0s-drawn",
        "form_c@16r1b0s-dealt": "the same launch as form_c@16r1b0s-drawn",
        "form_c@16r1b3s-drawn": None,
        "form_c@16r1b3s-dealt": None,
        "form_c@16r2b3s-dealt": None,
    }
    with pytest.raises(BadInput, match="--geometries is of pair_ring and form_c"):
        list(l3_measure.measure(bench, flags("--geometries", "--variant", "pair")))


@contextmanager
def cut(gpu: Any, count: int) -> Iterator[Any]:
    """A partition of the host's GPU."""
    yield argparse.Namespace(**{**vars(gpu), "facts": partition_module.name_of(GPU, count)})


def test_a_partition_gets_a_grid_of_its_own(bench: HostBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(l3_measure, "partition", cut)
    (rows,) = l3_measure.measure(bench, flags("--sms", "1", "--nf", "96", "--variant", "form_c"))
    grids = {r.variant: r.grid for r in rows if r.samples_s}
    assert (grids["pair_ring"], grids["form_c"], grids["pair_ring_aa"]) == (2, 2, 2)


def test_geometries_of_a_partition_are_written_for_it(
    small: HostBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(l3_measure, "partition", cut)
    (rows,) = l3_measure.measure(small, flags("--geometries", "--sms", "1"))
    assert {r.device for r in rows} == {"two-sms-1sm"}
    grids = {r.grid for r in rows if r.samples_s and r.variant.startswith("form_c@4r4b")}
    assert grids == {4}
    (section,) = l3_report.sections(rows, True)
    assert '[l3."gate_up_14b@1sm"]' in section


def test_geometries_without_partitions_are_skipped_with_the_reason(
    small: HostBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def none(gpu: Any, count: int) -> Iterator[Any]:
        raise Unavailable("no partitions here")
        yield gpu

    monkeypatch.setattr(l3_measure, "partition", none)
    (rows,) = l3_measure.measure(small, flags("--geometries", "--sms", "48"))
    assert rows and {r.skipped for r in rows} == {"no partitions here"}
    assert l3_report.judge(rows, 0) == []
