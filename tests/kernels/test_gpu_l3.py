"""L3's arms on a GPU: graphs and replays, blocks that are held, load balance, partitions, whole commands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probes import cli
from probes.core.types import BadInput, Unavailable, WrongResult
from probes.device.tuning import Geometry
from probes.engine import arms as binding
from probes.engine import run
from probes.engine.bench import Spec
from probes.gpu import sampling
from probes.gpu.partition import granularity, partition
from probes.gpu.timing import Arm
from probes.l3 import plan, table
from probes.l3.arms import FusionArms, GateUp
from probes.report import store
from tests.kernels.machines import loaded, wait
from tests.kernels.test_l3_kernels import GEOMETRIES

pytestmark = pytest.mark.gpu

SIZES = [
    *(pytest.param(*size, marks=pytest.mark.small) for size in ((32, 256), (64, 16640))),
    (96, 512),
    (1024, 5120),
]
RINGS = [v for v in table.VARIANTS if v.ring]
MODEL = Path(__file__).parents[1] / "data" / "minilm-q4k-64rows.gguf"


@pytest.fixture(scope="module")
def kernels(bench: Any) -> Any:
    """L3's kernels by backend."""
    return loaded(bench, "l3")


def flags(*argv: str) -> Any:
    return cli.parser("l3").parse_args(argv)


def opened(
    bench: Any, mine: Any, nf: int, cols: int, stack: ExitStack, *argv: str
) -> tuple[FusionArms, GateUp]:
    """A matrix on the device, its sums held to the oracle."""
    args, case = flags(*argv), table.made("test", nf, cols)
    made = FusionArms(bench, args, mine)
    return made, made.open(case, table.variants(args, case), stack)


def arms_of(
    bench: Any, mine: Any, nf: int, cols: int, stack: ExitStack, *argv: str
) -> tuple[FusionArms, GateUp, list[tuple[Spec, Arm]]]:
    """Every variant's arm; none is skipped but rings where there are none."""
    made, d = opened(bench, mine, nf, cols, stack, *argv)
    args = flags(*argv)
    bound, skipped = binding.bind(
        "l3", plan, made, d, bench, d.case, table.variants(args, d.case), mine, args
    )
    old = bench.gpu.facts.compute_capability < (9, 0)
    rings = {v.name for v in RINGS} | {f"{v.name}_aa" for v in RINGS}
    assert {r.variant for r in skipped} == (rings if old else set()), skipped
    return made, d, bound


def ring_arms(
    bench: Any, mine: Any, nf: int, cols: int, stack: ExitStack, choices: Any = GEOMETRIES, rings: Any = RINGS
) -> Iterator[tuple[Any, Arm]]:
    """(plan, arm) of each ring variant in each geometry that fits, of one backend's kernels."""
    made, d = opened(bench, mine, nf, cols, stack)
    ((backend, own),) = mine.items()
    for v in rings:
        for choice in choices:
            try:
                planned = plan.ring(v, d.case, choice, bench.gpu.facts)
                planned = binding.fitted(bench, own[v.reader], planned, 0)
            except Unavailable:
                continue  # so many rows do not fit so often, or so many sets in a block
            yield planned, made.arm(d, planned, f"{v.name}@{choice} {d.case.shape} {backend}", backend)


def build(bench: Any, arm: Arm) -> None:
    """The arm's graphs, once its first launch is known to end."""
    arm.launches[0].enqueue(bench.gpu.stream)
    wait(bench.gpu.stream, arm.name)
    arm.build(bench.gpu.stream)


def again(arm: Arm) -> None:
    for _ in range(3):
        arm.recheck()
    arm.close()


def one(kernels: Any, backend: str) -> Any:
    if backend not in kernels:
        pytest.skip(f"no {backend} here")
    return {backend: kernels[backend]}


both = pytest.mark.parametrize("backend", ["cu", "numba"])


def new_enough(bench: Any) -> None:
    if bench.gpu.facts.compute_capability < (9, 0):
        pytest.skip(f"bulk copies need sm_90, this GPU is {bench.gpu.facts.arch}")


@pytest.mark.parametrize(("nf", "cols"), SIZES)
def test_every_arm_replays_alike(bench: Any, kernels: Any, few: None, nf: int, cols: int) -> None:
    """Only a GPU replays graphs: every copy, q8 words and f32 intermediates, an arm beside the others."""
    for seed in (0, 17):
        with ExitStack() as stack:
            _, _, found = arms_of(replace(bench, seed=seed), kernels, nf, cols, stack)
            for spec, arm in found:
                build(bench, arm)
                v = spec.planned.variant
                nodes = 2 if isinstance(v, table.Fusion) and v.finisher else 1
                assert arm.graphs and [g.nodes for g in arm.graphs] == [3 * nodes, 6 * nodes]
                again(arm)


@both
def test_a_wrong_intermediate_is_seen(bench: Any, kernels: Any, few: None, backend: str) -> None:
    """Only a GPU's kernels leave the intermediate that is looked at here."""
    with ExitStack() as stack:
        _, _, found = arms_of(bench, one(kernels, backend), 64, 256, stack)
        _, pair = found[0]
        want = pair.also[0].want.copy()
        want[40] ^= 1
        pair.also = (replace(pair.also[0], want=want),)
        with pytest.raises(WrongResult, match="element 40"):
            pair.build(bench.gpu.stream)


@both
def test_six_blocks_per_sm_are_held(bench: Any, few: None, backend: str) -> None:
    """Only a driver counts the blocks of an SM: six of every reader by launch bounds, and the same bits."""
    args = flags("--blocks-per-sm", "6", "--backend", backend)
    try:
        mine = run.load("l3", bench, args)
    except Unavailable as error:
        pytest.skip(str(error))
    with ExitStack() as stack:
        _, _, found = arms_of(bench, mine, 96, 5120, stack, "--blocks-per-sm", "6")
        for spec, arm in found:
            if not spec.planned.ring:  # a persistent grid holds itself
                smem = spec.planned.config.smem_bytes
                assert spec.kernel.blocks_per_sm(plan.THREADS, smem) == 6, spec.name
            build(bench, arm)
            again(arm)


@both
def test_a_traced_twin_is_as_the_timed_kernel(bench: Any, kernels: Any, few: None, backend: str) -> None:
    """Only a GPU spreads blocks over SMs: same occupancy, and an even load with as many rows as slots."""
    mine = one(kernels, backend)
    per_sm = mine[backend]["l3_form_b"].blocks_per_sm(plan.THREADS)
    with ExitStack() as stack:
        made, d, found = arms_of(bench, mine, 32 * per_sm * bench.gpu.facts.sms, 256, stack)
        for spec, _ in found:
            v = spec.planned.variant
            assert isinstance(v, table.Fusion)
            if v.ring or v.role == "again":
                continue
            traced = mine[backend][v.traced]
            assert traced.blocks_per_sm(plan.THREADS) == spec.kernel.blocks_per_sm(plan.THREADS)
            proof = made.prove(d, spec.planned, spec)
            assert proof.load_balance and proof.load_balance >= 1.0
            assert not [n for n in proof.notes if "load balance seen" in n]


# Rings


@both
@pytest.mark.parametrize(("nf", "cols"), [(96, 512), (13824, 5120)])
def test_rings_replay_alike_in_every_geometry(
    bench: Any, kernels: Any, few: None, backend: str, nf: int, cols: int
) -> None:
    """Only a GPU replays graphs: all copies, and what must be 0 at 0 again."""
    new_enough(bench)
    with ExitStack() as stack:
        for _, arm in ring_arms(bench, one(kernels, backend), nf, cols, stack):
            build(bench, arm)
            again(arm)


@both
@pytest.mark.parametrize(
    "text", ["8r1b2s4x-drawn", "16r2b2s4x-drawn", "16r1b0s-drawn", "8r2b2s2x-drawn", "4r3b0s-dealt"]
)
def test_a_thousand_replays_of_form_c_end_and_agree(
    bench: Any, kernels: Any, few: None, backend: str, text: str
) -> None:
    """Only a GPU runs blocks at once that wait for each other, a thousand times."""
    new_enough(bench)
    choice, form_c = Geometry.parse(text), [table.variant("form_c")]
    with ExitStack() as stack:
        # no multiple of the blocks in groups, whatever the GPU
        blocks = choice.blocks_per_sm * bench.gpu.facts.sms
        nf = 32 * (blocks + blocks // 4 + 1)
        ((_, arm),) = ring_arms(bench, one(kernels, backend), nf, 1024, stack, [choice], form_c)
        build(bench, arm)
        assert arm.graphs
        for _ in range(10):
            arm.poison()
            for _ in range(10):  # few enough in flight that asking for more never blocks
                for _ in range(10):
                    arm.graphs[0].replay()
                wait(bench.gpu.stream, f"form_c {text} {backend}")
            arm.check(f"form_c {text} after a hundred replays")  # the counters too
        arm.close()


@both
def test_every_ring_arm_is_right_beside_the_others(bench: Any, kernels: Any, few: None, backend: str) -> None:
    """Only a GPU times arms: pair_ring, form_c and their A/A arms by turns, on common slots."""
    new_enough(bench)
    with ExitStack() as stack:
        _, _, every = arms_of(bench, one(kernels, backend), 4096, 5120, stack)
        found = [arm for spec, arm in every if spec.planned.ring]
        assert len(found) == 4
        for arm in found:
            build(bench, arm)
        samples = sampling.survey(bench.gpu.stream, found, 2, bench.clock(), 0)
        assert all((samples[arm.name].time_s > 0).all() for arm in found)
        for arm in found:
            arm.close()


# Partitions


def part_of(bench: Any, sms: int, stack: ExitStack) -> Any:
    """The bench on so many SMs; skips where the GPU has fewer, or no partitions."""
    bench.clock()
    if bench.gpu.facts.sms < sms:
        pytest.skip(f"this GPU has {bench.gpu.facts.sms} SMs, no {sms} of them")
    try:
        return replace(bench, gpu=stack.enter_context(partition(bench.gpu, sms)))
    except Unavailable as error:
        pytest.skip(str(error))


@both
def test_the_rings_run_inside_48_sms(bench: Any, kernels: Any, few: None, backend: str) -> None:
    """Only a GPU has SMs to part."""
    new_enough(bench)
    with ExitStack() as stack:
        part = part_of(bench, 48, stack)
        for planned, arm in ring_arms(part, one(kernels, backend), 13824, 512, stack):
            assert planned.config.grid <= 48 * 4
            build(part, arm)
            again(arm)


def test_a_partition_holds_its_blocks(bench: Any, kernels: Any, few: None) -> None:
    """Only a GPU has SMs to part: bits, a timed sample and the SMs that its blocks saw."""
    sms, backend = granularity(bench.gpu.facts) * 2, next(iter(kernels))
    with ExitStack() as stack:
        part = part_of(bench, sms, stack)
        assert part.gpu.facts.slug.endswith(f"-{sms}sm")
        made, d, found = arms_of(part, one(kernels, backend), 32 * 8 * sms, 256, stack)
        for spec, arm in found:
            build(part, arm)
            made.prove(d, spec.planned, spec)  # raises where more SMs were used
        every = [arm for _, arm in found]
        samples = sampling.survey(part.gpu.stream, every, 2, part.clock(), 0)
        times = [samples[arm.name].time_s for arm in every]
        assert all(np.isfinite(t).all() and (t > 0).all() for t in times)
        for arm in every:
            arm.close()


def test_a_partition_that_cannot_be_is_refused(bench: Any) -> None:
    """Only a GPU says which partitions it has."""
    for count in (bench.gpu.facts.sms + 8, 9):
        try:
            with pytest.raises(BadInput, match=f"--sms {count}"), partition(bench.gpu, count):
                pass
        except Unavailable as error:
            pytest.skip(str(error))


# Whole commands


def test_a_models_own_q4k_tensors(tmp_path: Path) -> None:
    """Only a GPU times a model's weights, bitwise in both backends that work there."""
    pytest.importorskip("gguf")
    name, out = "blk.0.ffn_down_q4.weight", tmp_path / "l3.json"
    argv = ["--gguf", str(MODEL), "--tensors", name, name, "--windows", "2", "-q", "--json", str(out)]
    assert cli.main("l3", argv) in (0, 3)
    _, rows = store.read_json(out)
    timed = [r for r in rows if r.samples_s]
    assert {"pair", "form_a", "form_b", "form_b_staged"} <= {r.variant for r in timed}
    assert all(r.bitwise for r in timed)


@pytest.mark.parametrize("part", [[], ["--sms", "48"]], ids=["whole", "48sm"])
def test_geometries_are_measured_and_written(bench: Any, tmp_path: Path, part: list[str]) -> None:
    """Only a GPU times geometries."""
    new_enough(bench)
    if bench.gpu.facts.sms < 48:
        pytest.skip(f"this GPU has {bench.gpu.facts.sms} SMs, no 48 of them")
    out = tmp_path / "geometries.json"
    code = cli.main("l3", ["--geometries", *part, "-q", "--json", str(out)])
    _, rows = store.read_json(out)
    if all(r.skipped for r in rows):
        pytest.skip(str(rows[0].skipped))
    assert code == 0 and all(r.bitwise for r in rows if r.samples_s)
    assert {r.of for r in rows if r.samples_s} >= {v.name for v in RINGS}
    head = '[l3."gate_up_14b@48sm"]' if part else "[l3.gate_up_14b]"
    assert head in out.with_suffix(".md").read_text()
