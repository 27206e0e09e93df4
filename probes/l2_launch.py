"""A chain bound to device buffers: its launches in any arm, graphs or eager, and the proofs of overlap."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from probes import l2, l2_chains, sass
from probes.bench import Bench, Spec
from probes.core.stats import F64
from probes.core.types import Backend, LaunchConfig, Unavailable, WrongResult
from probes.gpu.graph import Graph, capture
from probes.gpu.kernels import Kernel, Launch, Step, int32
from probes.gpu.memory import Buffer
from probes.gpu.timing import Arm, Output

NO_PREFERENCE, ALL_SHARED = -1, 100
"""Per cent of an SM's L1 that a kernel wants as shared memory."""

REPLAYS = 200
"""Replays of an arm's graph that must all give the eager launches' words, as recorded."""


@dataclass
class Chain:
    """One chain of one backend. `copies` holds the buffers' addresses by name, per weight copy (or layer)."""

    case: l2.Case
    backend: Backend
    kernels: dict[str, Kernel]
    steps: tuple[l2_chains.Step, ...]
    copies: list[dict[str, int]]
    output: Output
    smem: dict[str, int] = field(default_factory=dict)
    """Dynamic shared memory by kernel, where blocks per SM are held down."""
    content_bytes: int | None = None
    rotation_bytes: int | None = None
    results: list[Buffer] = field(default_factory=list)
    """Where the result lies after each copy, if not always in the output's buffer."""
    reads: Chain | None = None
    """A chain that only reads the same bytes."""
    plain_steps: tuple[l2_chains.Step, ...] = ()
    """The steps of plain launches, where they have a geometry of their own."""

    def steps_of(self, arm: l2.Arm) -> tuple[l2_chains.Step, ...]:
        """What an arm launches."""
        return self.plain_steps if self.plain_steps and arm.kind == "plain" else self.steps

    def config(self, step: l2_chains.Step, pdl: bool = False) -> LaunchConfig:
        """The launch configuration of one step."""
        smem = step.smem_bytes or self.smem.get(step.kernel, 0)
        return LaunchConfig(step.grid, step.block, smem, pdl)

    def result(self, copies: int) -> Buffer:
        """The buffer that holds the result once the first `copies` copies were run."""
        return self.results[copies - 1] if self.results else self.output.buffer

    def launches(self, arm: l2.Arm, stamps: int = 0, copies: int | None = None) -> list[Step]:
        """The arm's launches, a Step per copy; `stamps`: address of two 64-bit words per launch, 0: none."""
        pdl, stamp = l2.dispatch(arm), l2_chains.STAMP if stamps else 0
        out, k = [], 0
        for addresses in self.copies[:copies]:
            chain = []
            for step in self.steps_of(arm):
                args = [_argument(a, addresses) for a in step.args]
                end = (int32(step.flags(arm.trigger) | stamp), stamps + 16 * k if stamps else 0)
                kernel = self.kernels[step.entry_point(arm.kind)]
                chain.append(Launch(kernel, self.config(step, pdl), (*args, *end)))
                k += 1
            out.append(Step(tuple(chain)))
        return out


def _argument(value: str | int | float, addresses: dict[str, int]) -> Any:
    if isinstance(value, str):
        return 0 if value == l2_chains.NULL else addresses[value]
    return ctypes.c_float(value) if isinstance(value, float) else int32(value)


def make_room(bench: Bench, chain: Chain, stack: ExitStack) -> None:
    """Give the kernels of a ring chain all shared memory, until the stack closes.

    An SM splits its L1 anew only when it is empty: a kernel with another split could not start beside a ring.
    So every kernel of the chain asks for the same one, in every arm. Raises Unavailable where not even one
    launch fits on the SMs at once.
    """
    for step in dict.fromkeys([*chain.steps, *chain.plain_steps]):
        for kind in ("plain", "entry", "late"):
            kernel = chain.kernels[step.entry_point(kind)]
            kernel.prefer_smem(ALL_SHARED)
            stack.callback(kernel.prefer_smem, NO_PREFERENCE)
            if not step.smem_bytes:
                continue
            kernel.allow_smem(bench.gpu.facts.smem_per_block_max_bytes - kernel.resources.smem_bytes)
            fit = kernel.blocks_per_sm(step.block, step.smem_bytes)
            if fit * bench.gpu.facts.sms < step.grid:
                raise Unavailable(f"{step.grid} blocks of {kernel.name}, of which {fit} fit on an SM")


def arms_of(found: Sequence[Chain], chosen: Sequence[l2.Arm]) -> list[tuple[Spec, Arm]]:
    """Every arm of every backend's chain, in the report's order; then the chains that only read."""
    out = [arm_of(chain, a, a.name) for chain in found for a in chosen]
    reads = [chain.reads for chain in found if chain.reads]
    return [*out, *(arm_of(chain, l2.arm(of), name) for chain in reads for name, of in l2.READS.items())]


def arm_of(chain: Chain, a: l2.Arm, name: str) -> tuple[Spec, Arm]:
    """A chain launched as one arm, under a name of its own."""
    step = chain.steps_of(a)[0]
    spec = Spec(
        chain.case.id, name, chain.backend, chain.kernels[step.entry_point(a.kind)], chain.config(step),
        content_bytes=chain.content_bytes, traffic_bytes=chain.content_bytes,
        rotation_bytes=chain.rotation_bytes,
        same_bytes="" if not chain.reads else "read_chain_pdl" if a.pdl else "read_chain",
    )  # fmt: skip
    return spec, ChainArm(spec.name, chain.launches(a), chain.output, graph=a.graph)


class Eager(Graph):
    """Launches one after another, with a graph's face: nothing is captured, every replay launches anew."""

    def __init__(self, stream: Any, steps: Sequence[Launch | Step]) -> None:
        from cuda.core import LaunchConfig as CoreConfig

        flat = [x for s in steps for x in (s.launches if isinstance(s, Step) else (s,))]
        super().__init__(len(flat), None, stream)
        self._ready = [
            (
                CoreConfig(
                    grid=x.config.grid, block=x.config.block, shmem_size=x.config.smem_bytes,
                    programmatic_stream_serialization=x.config.pdl,
                ),
                x.kernel.handle,
                x.args,
            )
            for x in flat
        ]  # fmt: skip

    def replay(self) -> None:
        """Enqueue every launch."""
        from cuda.core import launch

        for config, handle, args in self._ready:
            launch(self._stream, config, handle, *args)


@dataclass
class ChainArm(Arm):
    """An arm whose check runs every copy, since a layer's result goes into the next one."""

    graph: bool = True
    edges: tuple[int, int] = (0, 0)
    """(programmatic, all) edges, read back from the captured graph."""

    def build(self, stream: Any) -> None:
        """Check all launches on poisoned outputs, eagerly, then make the n- and 2n-node graphs."""
        self.poison()
        for step in self.launches:
            step.enqueue(stream)
        self.check(f"{self.name}, eager")
        twofold = [*self.launches, *self.launches]
        if not self.graph:
            self.graphs = Eager(stream, self.launches), Eager(stream, twofold)
            return
        n = sum(step.nodes for step in self.launches)
        self.graphs = once, twice = capture(stream, self.launches), capture(stream, twofold)
        if (once.nodes, twice.nodes) != (n, 2 * n):
            raise RuntimeError(
                f"{self.name}: graphs hold {once.nodes} and {twice.nodes} nodes, not {n}, {2 * n}"
            )
        self.edges = once.programmatic, once.edges


@dataclass(frozen=True)
class Overlap:
    """Seconds by which each launch started before its predecessor's end, f64[interfaces]; below 0: a gap."""

    seconds: F64
    step_s: float
    """The timer's own step."""

    @property
    def median_s(self) -> float:
        """Over the interfaces."""
        return float(np.median(self.seconds))

    def text(self, steps: Sequence[l2_chains.Step]) -> str:
        """One line: how many interfaces overlap, and by how much each of a chain of several kernels."""
        n = self.seconds.size
        line = f"{int((self.seconds > 0).sum())} of {n} launches started before their predecessor's end"
        if len({s.name for s in steps}) > 1:
            by = [
                f"{s.name} {1e6 * float(np.median(self.seconds[(k - 1) % len(steps) :: len(steps)])):+.2f}"
                for k, s in enumerate(steps)
                if self.seconds[(k - 1) % len(steps) :: len(steps)].size
            ]
            line += f" (us: {', '.join(by)})"
        return f"{line}; timer step {1e9 * self.step_s:.0f} ns"


def overlap(bench: Bench, chain: Chain, arm: l2.Arm, copies: int = 2, replays: int = 15) -> Overlap:
    """Medians over replays of a stamped graph of the same kernels."""
    count = len(chain.steps) * min(copies, len(chain.copies))
    clean = np.tile(np.array([2**64 - 1, 0], np.uint64), count)
    seen = []
    with Buffer.of(clean) as stamps:
        steps = chain.launches(arm, stamps.address, copies)
        graph = capture(bench.gpu.stream, steps) if arm.graph else Eager(bench.gpu.stream, steps)
        try:
            for _ in range(replays):
                stamps.upload(clean)
                graph.replay()
                bench.gpu.stream.sync()
                seen.append(stamps.download(np.uint64, 2 * count).reshape(count, 2))
        finally:
            graph.close()
    words = np.stack(seen[1:])  # the first one warmed up
    if (words == clean.reshape(count, 2)).any():
        raise RuntimeError(f"{chain.case.id} {arm.name}/{chain.backend}: a kernel left no time stamp")
    ns = words.astype(np.int64)
    early = np.median(ns[:, :-1, 1] - ns[:, 1:, 0], axis=0) * 1e-9
    ticks = np.unique(ns)
    return Overlap(early, float(np.diff(ticks).min()) * 1e-9 if ticks.size > 1 else 0.0)


def stable(bench: Bench, chain: Chain, arm: l2.Arm, want: Output, copies: int, replays: int = REPLAYS) -> str:
    """Capture and instantiate in one go, replay, and hold every replay to `want`. Raises WrongResult."""
    graph = capture(bench.gpu.stream, chain.launches(arm, copies=copies))
    try:
        for k in range(replays):
            want.buffer.poison()
            graph.replay()
            bench.gpu.stream.sync()
            want.check(f"{chain.case.id} {arm.name}/{chain.backend}, replay {k + 1} of {replays}")
    finally:
        graph.close()
    return f"{replays} replays equal to eager launches"


def machine_code(bench: Bench, chain: Chain, arm: l2.Arm) -> str:
    """One line on the waits in the SASS of the arm's kernels; begins with MISSING where one is not there."""
    names = list(dict.fromkeys(s.entry_point(arm.kind) for s in chain.steps))
    try:
        found = sass.kernels("l2", names, chain.backend, bench.gpu.facts.arch)
    except Unavailable as error:
        return f"SASS not checked: {error}"
    waits = [n for n in names if sass.first(found[n], sass.WAIT) >= 0]
    if arm.kind == "plain":
        return "SASS: no wait" if not waits else f"{l2.MISSING}plain kernels wait: {', '.join(waits)}"
    if len(waits) < len(names):
        return f"{l2.MISSING}no wait in the SASS of {', '.join(n for n in names if n not in waits)}"
    return f"SASS: a wait in each of {len(names)} kernels"


def compare(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any], what: str) -> None:
    """Raise WrongResult at the first byte that differs."""
    a, b = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (got, want))
    bad = np.flatnonzero(a != b)
    if bad.size:
        k = int(bad[0])
        raise WrongResult(f"{what} ({bad.size} of {b.size} bytes differ), byte", k, int(a[k]), int(b[k]))
