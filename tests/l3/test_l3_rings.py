"""L3's ring arms and --geometries on the stand-in GPU."""

from __future__ import annotations

import argparse
import ctypes
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest

from probes import cli
from probes.core.types import Resources, Shape, WrongResult
from probes.device import tuning
from probes.device.tuning import Geometry
from probes.engine import arms as binding
from probes.engine import reads, sweep
from probes.engine import run as engine
from probes.engine.bench import Bench
from probes.engine.probe import report
from probes.gpu.timing import Arm
from probes.l3 import arms as l3_arms
from probes.l3 import plan
from probes.l3 import table as l3
from tests.host_gpu import TWO_SMS, HostGpu
from tests.host_kernels import RING
from tests.host_run import Commands, Ran

ONE_BLOCK = Resources(200, 320)
"""So many registers that one block of five warps fits on an SM."""
CU = ("--backend", "cu", "--windows", "2")


def flags(*argv: str) -> argparse.Namespace:
    return cli.parser("l3").parse_args([*argv, "--backend", "cu"])


def rings_of_one_block(gpu: HostGpu) -> None:
    for name in ("l3_matmul_ring", "l3_form_c"):
        gpu.kernels[name] = replace(gpu.kernels[name], resources=ONE_BLOCK)


def test_form_c_alone_brings_its_baselines(l3_gpu: HostGpu, commands: Commands) -> None:
    done = commands("l3", *CU, "--nf", "64", "--variant", "form_c")
    assert [r.variant for r in done.rows if not r.skipped and r.role != "contest"] == [
        "pair", "pair_ring", "form_c", "pair_aa", "pair_ring_aa", "form_c_aa",
        *(f.of(x) for x in ("read_large", "read_gate_up") for f in reads.FORMS),
    ]  # fmt: skip
    side_by_side = {r.variant for r in done.rows if r.role == "contest"}
    assert {"form_c:pair_ring", "pair_ring_aa:pair_ring", "form_c_aa:form_c"} <= side_by_side
    form_c, best = done.verdicts
    assert (form_c.variant, best.variant, best.of) == ("form_c", "fused_best", "form_c")
    assert form_c.ratio_to_baseline == pytest.approx(1.0, abs=1e-3)


def made(bench: Bench, nf: int, cols: int = 5120) -> dict[str, Arm]:
    """The ring variants' arms by name, over nf gate rows."""
    args, case, stack = flags(), l3.made("test", nf, cols), ExitStack()
    kernels = engine.load("l3", bench, args)
    arms = l3_arms.make(bench, args, kernels, stack)
    variants = [v for v in l3.variants(args, case) if v.name in ("pair_ring", "form_c", "pair_ring_aa")]
    material = arms.open(case, variants, stack)
    bound, skipped = binding.bind("l3", plan, arms, material, bench, case, variants, kernels, args)
    assert not skipped
    return {spec.planned.variant.name: arm for spec, arm in bound}


def test_slots_of_outputs_and_counters_are_common_and_one_a_copy(l3_gpu: HostGpu, host_bench: Bench) -> None:
    """Where an arm's words lie would be a part of its time: what arms write lies in the same places."""
    arms = made(host_bench, 160)
    assert {n: a.kept[0].words for n, a in arms.items()} == {
        "pair_ring": 1, "pair_ring_aa": 1, "form_c": 2 * 160 + 1,
    }  # fmt: skip
    where, outputs = {}, {}
    for name, arm in arms.items():
        steps = [getattr(x, "launches", [x]) for x in arm.launches]
        assert len({s[0].args[:1] for s in steps}) == 2, "a launch per copy of the weights"
        kept = arm.kept[0]
        where[name] = [s[0].args[3] for s in steps]
        assert where[name] == [kept.buffer.address + k * kept.buffer.pitch for k in range(kept.slots)]
        outputs[name] = [s[-1].args[2 if name == "form_c" else 1] for s in steps]
        q8 = arm.output
        assert outputs[name] == [q8.buffer.address + k * q8.buffer.pitch for k in range(q8.slots)]
        assert all(o.slots == 2 and 4 * o.words <= o.buffer.pitch for o in (*arm.also, q8, kept))
    assert where["pair_ring"] == where["pair_ring_aa"] and not {*where["form_c"]} & {*where["pair_ring"]}
    assert outputs["pair_ring"] == outputs["pair_ring_aa"] == outputs["form_c"]
    readers = [x.launches[0] for x in arms["pair_ring"].launches]
    assert [a.value for a in readers[0].args[4:]] == [20, 320, 8, 4], "nbe, the matrix' rows, rows, stages"
    fused = arms["form_c"].launches[0].args
    assert fused[4] == where["form_c"][0] + 8 * 160, "the tickets' counter lies behind the words"
    assert [a.value for a in fused[5:]] == [20, 160, 8, 4], "nbe, nf, rows, stages"


@pytest.mark.parametrize("name", ["pair_ring", "form_c"])
def test_a_slot_that_a_launch_misses_is_seen(l3_gpu: HostGpu, host_bench: Bench, name: str) -> None:
    arm = made(host_bench, 160)[name]
    arm.poison()
    arm.launches[0].enqueue(host_bench.gpu.stream)
    arm.check(name)
    with pytest.raises(WrongResult, match=f"{name}, slot 1 .*element 0 is '0xffffffff"):
        arm.check(name, every=True)
    arm.launches[1].enqueue(host_bench.gpu.stream)
    arm.check(name, every=True)


def test_dealt_tickets_need_no_counter(l3_gpu: HostGpu, host_bench: Bench) -> None:
    arms = made(host_bench, 32)  # so few rows that every ticket is in a stage from the start
    (launch, _), (kept,) = arms["pair_ring"].launches[0].launches, arms["form_c"].kept
    assert arms["pair_ring"].kept == () and launch.args[3] == 0
    assert kept.words == 64 and arms["form_c"].launches[0].args[3:5] == (kept.buffer.address, 0)


@pytest.mark.parametrize(("name", "word"), [("pair_ring", 0), ("form_c", 7), ("form_c", 320)])
def test_a_word_that_is_not_0_again_is_seen(
    l3_gpu: HostGpu, host_bench: Bench, monkeypatch: pytest.MonkeyPatch, name: str, word: int
) -> None:
    arm = made(host_bench, 160)[name]
    arm.poison()
    arm.launches[0].enqueue(host_bench.gpu.stream)
    arm.check(name)
    assert not arm.kept[0].buffer.download(np.uint32, arm.kept[0].words).any(), "poison left it alone"
    ctypes.c_uint32.from_address(arm.kept[0].buffer.address + 4 * word).value = 1
    with pytest.raises(WrongResult, match=f"{name}.*element {word} is '0x00000001"):
        arm.check(name)


@pytest.mark.sampled(4, "")
@pytest.mark.parametrize("name", ["pair_ring", "form_c"])
@pytest.mark.parametrize("sets", [1, 2, 4])
@pytest.mark.parametrize("rows", [4, 8, 32])
def test_sets_and_rows_give_the_right_bits(
    l3_on_fibers: HostGpu, host_bench: Bench, name: str, sets: int, rows: int
) -> None:
    """The C++ kernels themselves, launched as it is planned: 11 groups on four blocks."""
    v, case, stack, bench = l3.variant(name), l3.made("test", 352, 512), ExitStack(), host_bench
    kernels = engine.load("l3", bench, flags())
    arms = l3_arms.make(bench, flags(), kernels, stack)
    planned = plan.ring(v, case, Geometry(rows, 2, 2, True, sets), TWO_SMS)
    assert planned.config.block == 32 * (sets + (1 if v.finisher else 2))
    planned = binding.fitted(bench, kernels["cu"][v.reader], planned, 0)
    arm = arms.arm(arms.open(case, [v], stack), planned, name, "cu")
    arm.poison()
    for launch in arm.launches:
        launch.enqueue(bench.gpu.stream)
    arm.check(name, every=True)


def test_an_older_gpu_skips_the_rings_with_the_reason(l3_gpu: HostGpu, commands: Commands) -> None:
    l3_gpu.facts = replace(TWO_SMS, arch="sm_86")
    rows = commands("l3", *CU, "--nf", "32").rows
    skipped = {r.variant: r for r in rows if r.skipped}
    assert set(skipped) == {"pair_ring", "form_c", "pair_ring_aa", "form_c_aa"}
    assert {r.skipped for r in skipped.values()} == {"bulk copies need sm_90, this GPU is sm_86"}
    assert all(r.shape == [64, 5120] for r in skipped.values())
    assert {"pair", "form_b"} <= {r.variant for r in rows if r.samples_s}


def test_a_ring_whose_blocks_do_not_fit_at_once_is_skipped(l3_gpu: HostGpu, commands: Commands) -> None:
    """200 registers, five warps: one block of form_c fits each of the two SMs, and its grid has four."""
    rings_of_one_block(l3_gpu)
    done = commands("l3", *CU, "--nf", "96")
    why = {r.variant: r for r in done.rows if r.skipped}
    said = "of its 4 blocks 2 fit at once, and a ring is planned for all"
    assert {v: r.skipped for v, r in why.items()} == {"form_c": said, "form_c_aa": said}
    assert why["form_c"].registers == ONE_BLOCK.registers != RING.registers
    assert all(r.skipped for r in done.verdicts if r.variant == "form_c")


def test_blocks_per_sm_replaces_a_ring_s_own(l3_gpu: HostGpu, commands: Commands) -> None:
    by = commands("l3", *CU, "--nf", "96", "--blocks-per-sm", "1").by()
    for name in ("pair_ring", "form_c"):
        assert by[name].grid == 2 and by[name].waves == 1.0
        assert by[name].notes[0].startswith("geometry 8r1b0s-drawn, ")
        assert "blocks as asked" in by[name].notes[0]
    assert by["pair"].blocks_per_sm == 1


def again(done: Ran, device: str) -> str:
    """The report of the same rows, as if they came from another device and the real shape."""
    for row in done.rows:
        row.device, row.shape = device, [2 * 13824, 5120]
    return "\n".join(report("l3").sections(done.rows, False))


def test_geometries_names_every_candidate_once_and_what_to_write(
    small_l3: HostGpu, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = commands("l3", "--geometries")
    rows = done.rows
    rings = [r for r in rows if not r.variant.startswith("read_")]
    want = {f"{v.name}@{c}" for v in l3.VARIANTS if v.ring for c in plan.candidates(v)}
    assert {r.variant for r in rings} == want and len(rings) == len(want)
    assert {r.backend for r in rows} == {"cu"}
    assert {r.windows for r in rows if r.samples_s} == {sweep.WINDOWS}
    # 44 tickets at least: more than the stages of any grid on 2 SMs, so no two launches are the same
    assert [r.skipped for r in rings if r.skipped] == []
    chosen = {name: {"ring": Geometry.parse("4r4b4s-drawn")} for name in ("pair_ring", "form_c")}
    text = tuning.dump("l3", "gate_up_14b", chosen)
    assert tuning.parse(f'devices = ["x"]\nwhere = "a test"\n{text}').rows == {"l3": {"gate_up_14b": chosen}}
    assert f"```toml\n{text}\n```" in done.report and "(no row)" in done.report
    assert (done.code, done.verdicts) == (0, []) and sweep.swept(rows)
    monkeypatch.undo()  # the real shape, whose rows the H200's table holds
    held = [str(plan.tuned(f"nvidia-h200{part}", Shape(27648, 5120), "form_c")) for part in ("", "-48sm")]
    section = again(done, "nvidia-h200")
    assert held[0] in section and "[l3.gate_up_14b]" in section
    section = again(done, "nvidia-h200-48sm")
    lines = text.partition("\n")[2]
    assert held[1] in section and f'[l3."gate_up_14b@48sm"]\n{lines}' in section


def test_geometries_that_do_not_fit_say_why(
    small_l3: HostGpu, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 registers: one block of five warps fits, and not one of fourteen."""
    monkeypatch.setattr(l3, "CASES", (l3.made("gate_up_14b", 32, 5120),))
    rings_of_one_block(small_l3)
    rows = commands("l3", "--geometries", "--variant", "form_c").rows
    why = {r.variant: r.skipped for r in rows if r.skipped}
    assert why["form_c@8r1b8s4x-drawn"] == "only 0 blocks of it fit on an SM"
    assert why["form_c@8r4b2s-drawn"] == "only 1 blocks of it fit on an SM"


def test_geometries_of_one_variant(
    small_l3: HostGpu, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(l3, "CASES", (l3.made("gate_up_14b", 96, 256),))
    texts = (
        "16r1b0s-drawn", "16r1b6s-drawn", "16r1b0s-dealt", "16r1b3s-drawn", "16r1b3s-dealt", "16r2b3s-dealt",
        "12r1b0s-drawn",
    )  # fmt: skip
    monkeypatch.setattr(plan, "CANDIDATES", texts)
    rows = commands("l3", "--geometries", "--variant", "form_c").rows
    # 12 tickets on two blocks: six stages hold all, and then none is drawn; 12 rows divide no group
    assert {r.variant: r.skipped for r in rows if "@" in r.variant} == {
        "form_c@16r1b0s-drawn": None,
        "form_c@16r1b6s-drawn": "the same launch as form_c@16r1b0s-drawn",
        "form_c@16r1b0s-dealt": "the same launch as form_c@16r1b0s-drawn",
        "form_c@16r1b3s-drawn": None,
        "form_c@16r1b3s-dealt": None,
        "form_c@16r2b3s-dealt": None,
    }
    refused = commands("l3", "--geometries", "--variant", "pair")
    assert refused.code == 2 and "--geometries is of pair_ring and form_c" in refused.err


def test_a_partition_gets_a_grid_of_its_own(l3_gpu: HostGpu, commands: Commands) -> None:
    done = commands("l3", *CU, "--sms", "1", "--nf", "96", "--variant", "form_c")
    grids = {r.variant: r.grid for r in done.rows if r.samples_s}
    assert (grids["pair_ring"], grids["form_c"], grids["pair_ring_aa"]) == (2, 2, 2)
    assert {r.device for r in done.rows} == {"two-sms-1sm"}
    assert {x.sms for x in l3_gpu.of("l3_*")} == {1}, "everything runs on the partition's stream"
    assert l3_gpu.contexts == [], "its context is current no longer"


def test_geometries_of_a_partition_are_written_for_it(small_l3: HostGpu, commands: Commands) -> None:
    done = commands("l3", "--geometries", "--sms", "1")
    assert {r.device for r in done.rows} == {"two-sms-1sm"}
    grids = {r.grid for r in done.rows if r.samples_s and r.variant.startswith("form_c@4r4b")}
    assert grids == {4}
    assert '[l3."gate_up_14b@1sm"]' in done.report


def test_geometries_without_partitions_are_skipped_with_the_reason(
    small_l3: HostGpu, commands: Commands
) -> None:
    small_l3.fail["resources"] = "CUDA_ERROR_NOT_SUPPORTED"
    done = commands("l3", "--geometries", "--sms", "1")
    assert done.rows and all("cannot do that (SM partitions: " in (r.skipped or "") for r in done.rows)
    assert done.verdicts == []
