"""L3's ring kernels on a GPU: the oracle's bits in every geometry, a thousand replays, 48 SMs, the sweep."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from probes import cli, l3, l3_arms, l3_launch
from probes.core.types import Unavailable
from probes.device.tuning import Geometry
from probes.engine.bench import BACKENDS
from probes.gpu import timing
from probes.gpu.partition import partition
from probes.report import store
from tests.kernels import backends

pytestmark = pytest.mark.gpu

RINGS = [v for v in l3.VARIANTS if v.ring]
RING_SIZES = [(nf, id_) for nf in (32, 64, 96, 13824) for id_ in (256, 512, 5120, 16640)]
RING_SIZES += [(480, 512)]
GEOMETRIES = [
    Geometry(rows, blocks, stages, drawn, sets)
    for rows, blocks, stages, sets in (
        (1, 4, 0, 1), (2, 3, 2, 1), (4, 3, 0, 1), (8, 1, 1, 1), (16, 1, 0, 1), (4, 3, 2, 2), (8, 2, 2, 4),
        (16, 1, 2, 3), (1, 1, 2, 2), (32, 1, 2, 1),
    )
    for drawn in (False, True)
]  # fmt: skip
DEADLINE_S = 60.0


def flags(*argv: str) -> Any:
    return cli.parser("l3").parse_args(argv)


@pytest.fixture(scope="module")
def kernels(bench: Any) -> dict[str, Any]:
    """Kernels by backend."""
    if bench.gpu.facts.compute_capability < (9, 0):
        pytest.skip(f"bulk copies need sm_90, this GPU is {bench.gpu.facts.arch}")
    return backends.built(lambda backend: bench.kernels("l3", l3.KERNELS, backend))


def of(kernels: dict[str, Any], backend: str) -> Any:
    return {backend: backends.of(kernels, backend)}


def ring_arms(
    bench: Any, mine: Any, nf: int, id_: int, stack: ExitStack, variants: Sequence[l3.Variant] = RINGS,
    geometries: Sequence[Geometry] = GEOMETRIES, most_blocks: int = 0,
) -> Iterator[Any]:  # fmt: skip
    """(plan, arm) of every variant in each geometry that fits, over one matrix, of one backend's kernels.

    most_blocks: of a grid of form_c.
    """
    facts = bench.gpu.facts
    ((backend, own),) = mine.items()
    case = l3.Case("test", nf, id_, backends=(backend,))
    d = l3_arms.data_of(bench, flags(), case, mine, stack)
    for v in variants:
        for choice in geometries:
            try:
                planned = l3_launch.planned(v, case, choice, facts)
            except Unavailable:
                continue  # so many rows do not fit so often, or so many sets in a block
            fit = l3_arms.make_room(bench, own[v.reader], planned) * facts.sms
            assert fit > 0
            if not v.finisher and planned.config.grid > min(fit, most_blocks or fit):
                continue  # form_c's blocks wait for each other: all must run at once
            name = f"{v.name}@{choice} {case.shape} {backend}"
            yield planned, l3_arms.arm_of(planned, name, own, d, stack)


def wait(stream: Any, what: str) -> None:
    """Until the stream is through. A kernel that hangs ends the session: nothing could run after it."""
    done, end = stream.record(), time.monotonic() + DEADLINE_S
    while not done.is_done:
        if time.monotonic() > end:
            pytest.exit(f"{what} hangs: not through in {DEADLINE_S:g} s", returncode=1)
        time.sleep(1e-4)


def build(bench: Any, arm: Any) -> None:
    """The arm's graphs, once its first launch is known to end."""
    arm.launches[0].enqueue(bench.gpu.stream)
    wait(bench.gpu.stream, arm.name)
    arm.build(bench.gpu.stream)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("nf", "id_"), backends.sized(RING_SIZES, [(32, 256), (480, 512)]))
def test_the_rings_equal_the_oracle_in_every_geometry(
    bench: Any, kernels: Any, few: None, backend: str, nf: int, id_: int
) -> None:
    """q8 words (and a pair's sums) to the bit, what must be 0 at 0: once, and after replays of all copies."""
    seen = set()
    with ExitStack() as stack:
        # small sizes run under sanitizers, which may leave room for one block on an SM
        most = 0 if nf == 13824 else bench.gpu.facts.sms
        for planned, arm in ring_arms(bench, of(kernels, backend), nf, id_, stack, most_blocks=most):
            build(bench, arm)
            for _ in range(3):
                arm.recheck()
            arm.close()
            seen |= {(planned.variant.name, planned.ring.drawn), planned.config.block}
    assert {(v.name, False) for v in RINGS} <= seen
    if nf == 13824:
        assert {(v.name, True) for v in RINGS} <= seen, "tickets were drawn too"
    if id_ == 5120:
        assert {160, 448} <= seen, "one set of consumers and four"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "text", ["4r3b2s-drawn", "8r2b2s4x-dealt", "2r4b0s2x-drawn", "32r1b2s3x-drawn", "1r2b3s-dealt"]
)
def test_form_c_is_right_with_any_number_of_groups(
    bench: Any, kernels: Any, few: None, backend: str, text: str
) -> None:
    """Fewer than a grid has blocks, as many, more, and no multiple: a group's parts are near or far apart."""
    choice, form_c = Geometry.parse(text), [l3.variant("form_c")]
    blocks = choice.blocks_per_sm * bench.gpu.facts.sms
    for groups in (1, 3, blocks // 2 - 1, blocks - 1, blocks, blocks + 1, 3 * blocks + blocks // 2 + 1):
        with ExitStack() as stack:
            mine = of(kernels, backend)
            ((planned, arm),) = ring_arms(bench, mine, 32 * groups, 512, stack, form_c, [choice])
            assert planned.config.grid == min(blocks, 64 * groups // choice.rows)
            build(bench, arm)
            for _ in range(3):
                arm.recheck()
            arm.close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "text", ["8r1b2s4x-drawn", "16r2b2s4x-drawn", "16r1b0s-drawn", "8r2b2s2x-drawn", "4r3b0s-dealt"]
)
def test_a_thousand_replays_of_form_c_end_and_agree(
    bench: Any, kernels: Any, few: None, backend: str, text: str
) -> None:
    choice, form_c = Geometry.parse(text), [l3.variant("form_c")]
    with ExitStack() as stack:
        # no multiple of the blocks in groups, whatever the GPU
        blocks = choice.blocks_per_sm * bench.gpu.facts.sms
        nf = 32 * (blocks + blocks // 4 + 1)
        ((_, arm),) = ring_arms(bench, of(kernels, backend), nf, 1024, stack, form_c, [choice])
        build(bench, arm)
        for _ in range(10):
            arm.poison()
            for _ in range(10):  # few enough in flight that asking for more never blocks
                for _ in range(10):
                    arm.graphs[0].replay()
                wait(bench.gpu.stream, f"form_c {text} {backend}")
            arm.check(f"form_c {text} after a hundred replays")  # the counters too
        arm.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_rings_run_inside_48_sms(bench: Any, kernels: Any, few: None, backend: str) -> None:
    mine = of(kernels, backend)
    bench.clock()
    facts = bench.gpu.facts
    if facts.sms < 48:
        pytest.skip(f"this GPU has {facts.sms} SMs, no 48 of them")
    with ExitStack() as stack:
        try:
            part = replace(bench, gpu=stack.enter_context(partition(bench.gpu, 48)))
        except Unavailable as error:
            pytest.skip(str(error))
        for planned, arm in ring_arms(part, mine, 13824, 512, stack):
            assert planned.config.grid <= 48 * 4
            build(part, arm)
            for _ in range(3):
                arm.recheck()
            arm.close()


@pytest.mark.parametrize("part", [[], ["--sms", "48"]], ids=["whole", "48sm"])
def test_geometries_are_measured_and_written(
    bench: Any, kernels: Any, tmp_path: Any, part: list[str]
) -> None:
    if bench.gpu.facts.sms < 48:
        pytest.skip(f"this GPU has {bench.gpu.facts.sms} SMs, no 48 of them")
    out = tmp_path / "geometries.json"
    code = l3.main(["--geometries", *part, "-q", "--json", str(out)])
    _, rows = store.read_json(out)
    if all(r.skipped for r in rows):
        pytest.skip(str(rows[0].skipped))
    assert code == 0 and all(r.bitwise for r in rows if r.samples_s)
    timed = {r.variant.partition("@")[0] for r in rows if r.samples_s}
    assert timed >= {v.name for v in RINGS}
    head = '[l3."gate_up_14b@48sm"]' if part else "[l3.gate_up_14b]"
    assert head in out.with_suffix(".md").read_text()


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_ring_arm_is_right_beside_the_others(bench: Any, kernels: Any, few: None, backend: str) -> None:
    """pair_ring, form_c and the A/A arm interleaved, each with counters of its own, as in a run."""
    args, case, mine = flags(), l3.Case("test", 4096, 5120), of(kernels, backend)
    names = [*(v.name for v in RINGS), "pair_ring_aa"]
    with ExitStack() as stack:
        d = l3_arms.data_of(bench, args, case, mine, stack)
        found, skipped = l3_arms.arms_of(bench, args, case, mine, names, d, stack)
        assert not skipped
        for _, arm in found:
            build(bench, arm)
        samples = timing.sample(bench.gpu.stream, [a for _, a in found], 2, bench.clock(), 0)
        assert all((samples[a.name].time_s > 0).all() for _, a in found)
        for _, arm in found:
            arm.close()
