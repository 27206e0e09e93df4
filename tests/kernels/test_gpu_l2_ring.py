"""L2's ring kernels on a GPU: the oracle's bits in every geometry and kind, every chain and arm, the race."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from probes.l2_ring import Matrix

from probes import cli, l2, l2_chains, l2_launch, l2_make, l2_ring
from probes.core.types import LaunchConfig, Shape, Unavailable
from probes.device.tuning import ChainRing, Geometry
from probes.engine.bench import BACKENDS
from probes.formats import layer as decode_layer
from probes.formats import q4k, q6k, q8
from probes.formats.layouts import layout
from probes.formats.packing import pack
from probes.gpu.graph import capture
from probes.gpu.kernels import Launch, int32
from probes.gpu.memory import Buffer
from tests.kernels.backends import built, of, sized

pytestmark = pytest.mark.gpu

SLEEP_NS = 300_000
MATRICES = [
    Matrix("m", form, shape)
    for form in ("q4k", "q6k")
    for shape in (Shape(5, 256), Shape(1023, 5120), Shape(517, 13824), Shape(64, 8448), Shape(600, 2048))
]
SMALL = [m for m in MATRICES if m.shape in (Shape(5, 256), Shape(64, 8448), Shape(600, 2048))]
CHOICES = [
    ChainRing(Geometry(1, 1)), ChainRing(Geometry(2, 2), 2), ChainRing(Geometry(4, 1, 2), 4),
    ChainRing(Geometry(3, 1, 1), 9), ChainRing(Geometry(8, 1), 1),
]  # fmt: skip


@pytest.fixture(scope="module")
def kernels(bench: Any) -> dict[str, Any]:
    """Kernels by backend."""
    if bench.gpu.facts.compute_capability < (9, 0):
        pytest.skip(f"{l2.NEEDS}, this GPU is {bench.gpu.facts.arch}")
    return built(lambda backend: bench.kernels("l2", [*l2_chains.kernel_names(), "l2_sleeper"], backend))


class Placed:
    """A matrix and its activations on the device, with what its rows must give."""

    def __init__(self, bench: Any, m: Matrix, stack: ExitStack) -> None:
        self.bench, self.m = bench, m
        self.raw = decode_layer.weights(m.shape, 3, "q4_K" if m.form == "q4k" else "q6_K")
        self.x8 = l2_ring.activations(m, 4)
        stored = self.raw if m.form == "q4k" else pack(self.raw, layout("dpl"))
        self.w = stack.enter_context(Buffer.of(stored))
        self.x, self.next = (stack.enter_context(Buffer.of(self.x8)) for _ in range(2))
        self.out = stack.enter_context(Buffer(4 * m.shape.od))

    def want(self, x8: Any) -> Any:
        return (q4k if self.m.form == "q4k" else q6k).reference(self.raw, x8)

    def launch(self, mine: Any, kind: str, choice: ChainRing, flags: int, hand_on: bool, pdl: bool) -> Launch:
        names = ("w", "x", "next" if hand_on else l2_chains.NULL, "out")
        step = l2_ring.step_of(self.m, names, choice, self.bench.gpu.facts, l2_ring.SHARE)
        kernel = mine[step.entry_point(kind)]
        kernel.make_room(step.smem_bytes)
        pointers = (self.w.address, self.x.address, self.next.address if hand_on else 0, self.out.address)
        ints = [int32(int(a)) for a in step.args[4:]]
        config = LaunchConfig(step.grid, step.block, step.smem_bytes, pdl)
        return Launch(kernel, config, (*pointers, *ints, int32(flags), 0))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["plain", "entry", "late"])
@pytest.mark.parametrize("m", sized(MATRICES, SMALL), ids=lambda m: f"{m.form}-{m.shape}")
def test_a_ring_equals_the_oracle_and_hands_its_activations_on(
    bench: Any, kernels: Any, backend: str, kind: str, m: Matrix
) -> None:
    mine = of(kernels, backend)
    with ExitStack() as stack:
        placed = Placed(bench, m, stack)
        want, ran = placed.want(placed.x8), 0
        for number, choice in enumerate(CHOICES):
            for hand_on in (False, True):
                flags = (0, l2_chains.TRIGGER, l2_chains.TAIL)[number % 3]
                try:
                    launch = placed.launch(mine, kind, choice, flags, hand_on, pdl=kind != "plain")
                except Unavailable:
                    continue
                placed.out.poison()
                placed.next.poison()
                launch.enqueue(bench.gpu.stream)
                ran += 1
                what = f"{backend} {kind} {choice}"
                l2_launch.compare(placed.out.download(np.float32, want.size), want, what)
                handed = l2_ring.rotate(placed.x8, 1) if hand_on else np.full_like(placed.x8, 0xFF)
                l2_launch.compare(placed.next.download(np.uint8, placed.x8.size), handed, what)
        assert ran >= 4


@pytest.mark.parametrize("case", [l2.Case("ffn_down24"), l2.Case("attn_v24"), l2.Case("decode13_ring", 128)])
def test_every_arm_of_a_ring_chain_is_right_in_both_languages(
    bench: Any, kernels: Any, case: l2.Case
) -> None:
    both = {b: k for b, k in kernels.items() if not isinstance(k, Unavailable)}
    args = cli.parser("l2").parse_args([])
    with ExitStack() as stack:
        found = l2_make.Chains(bench, args, both, stack).of(case, stack)
        arms = l2_launch.arms_of(found, l2.arms(args, case.id))
        assert len(arms) == len(both) * (8 + (len(l2.READS) if case.id != "decode13_ring" else 0))
        for _, arm in arms:
            arm.build(bench.gpu.stream)  # eagerly, on poisoned outputs
            arm.recheck()  # and by the graph
            arm.close()


@pytest.mark.parametrize("case", [l2.Case("attn_v24"), l2.Case("decode13_ring", 128)], ids=lambda c: c.id)
def test_the_successor_s_ring_fills_under_its_predecessor(bench: Any, kernels: Any, case: l2.Case) -> None:
    both = {b: k for b, k in kernels.items() if not isinstance(k, Unavailable)}
    with ExitStack() as stack:
        found = l2_make.Chains(bench, cli.parser("l2").parse_args([]), both, stack).of(case, stack)
        for chain in found:
            for step in chain.steps:
                kernel = chain.kernels[step.entry_point("late")]
                if step.smem_bytes:
                    assert kernel.blocks_per_sm(step.block, step.smem_bytes) >= l2_ring.SHARE
            for name in ("pdl_late_tail", "pdl_late_trigger"):
                told = l2_launch.machine_code(bench, chain, l2.arm(name))
                assert not told.startswith(l2.MISSING), told


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("in_graph", [False, True], ids=["stream", "graph"])
@pytest.mark.parametrize("m", MATRICES[1:6:4], ids=lambda m: m.form)
def test_a_ring_without_its_wait_multiplies_what_was_there_before(
    bench: Any, kernels: Any, backend: str, in_graph: bool, m: Matrix
) -> None:
    """The producer lets the ring start, sleeps, then writes the activations: late and entry wait for them."""
    mine = of(kernels, backend)
    with ExitStack() as stack:
        placed = Placed(bench, m, stack)
        old, new = placed.x8, q8.quantise(np.linspace(-2, 3, m.shape.id).astype(np.float32))
        source = stack.enter_context(Buffer.of(new))
        args = (source.address, placed.x.address, int32(new.size // 4), int32(SLEEP_NS))
        producer = Launch(mine["l2_sleeper"], LaunchConfig(1, 256), args)
        for kind, seen in (("entry", new), ("late", new), ("plain", old)):
            choice = ChainRing(Geometry(2, 1), 1)
            consumer = placed.launch(mine, kind, choice, l2_chains.TAIL, False, pdl=True)
            for launch in (producer, consumer):  # once each, so that both are loaded
                launch.enqueue(bench.gpu.stream)
                bench.gpu.stream.sync()
            placed.x.upload(old)
            placed.out.poison()
            if in_graph:
                graph = capture(bench.gpu.stream, [producer, consumer])
                assert (graph.nodes, graph.edges, graph.programmatic) == (2, 1, 1)
                graph.replay()
                bench.gpu.stream.sync()
                graph.close()
            else:
                producer.enqueue(bench.gpu.stream)
                consumer.enqueue(bench.gpu.stream)
            got = placed.out.download(np.float32, m.shape.od)
            l2_launch.compare(got, placed.want(seen), f"{backend} {kind}: a race that was not there, or one")
