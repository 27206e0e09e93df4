"""The bench: kernels of both backends, and arms that become rows. The plain reads beside them: reads.py.

An arm comes with a `Spec`. GPU and kernel packages meet in LOADERS, which has a row per backend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kernels_cu import build
from kernels_numba import compile as numba_compile
from probes.core.types import BACKENDS, Backend, Binary, Progress, Unavailable
from probes.device import pipeline
from probes.engine import judge
from probes.engine.compiling import Asked, compile_all
from probes.engine.contests import Contests
from probes.engine.plan import Planned, described, occupy
from probes.engine.probe import Case
from probes.gpu import sampling, timing
from probes.gpu.driver import tried
from probes.gpu.facts import Gpu
from probes.gpu.kernels import Kernel, absent, bind
from probes.gpu.sampling import Samples
from probes.gpu.timing import Arm
from probes.report.rows import Row
from probes.verdict import blocks

if TYPE_CHECKING:
    from probes.engine.reads import Source

Loader = Callable[[str, Sequence[str], str, int, Progress], dict[str, Binary]]
LOADERS: dict[Backend, Loader] = {
    "cu": lambda stem, *rest: build.binaries(f"{stem}.cu", *rest),
    "numba": numba_compile.binaries,
}
COMPILE = compile_all
HARNESS = ("harness_read", "harness_read_32k", "harness_read_4k", "harness_read_bulk", "harness_clock")
LOOPED_S = 50e-6  # from this time on launch overhead hides, and a plain event loop must agree


@dataclass(frozen=True)
class Spec:
    """What a row says of an arm besides its times."""

    case: Case
    planned: Planned
    kernel: Kernel
    rotation_bytes: int | None = None

    @property
    def backend(self) -> Backend:
        """The kernel's."""
        return self.kernel.backend

    @property
    def name(self) -> str:
        """The arm's name inside a case."""
        return f"{self.planned.variant.name}/{self.backend}"

    def rotates(self, arm: Arm) -> None:
        """RuntimeError where launches that claim a rotation do not all read a copy of their own."""
        read = arm.reads(self.planned.weights)
        if self.rotation_bytes is not None and not 0 < len(read) == len(set(read)):
            raise RuntimeError(f"{arm.name}: {len(read)} launches read {len(set(read))} copies of weights")


@dataclass
class Bench:
    """One open GPU with the harness' kernels. `reserved`: what the large reads read, once it was taken."""

    gpu: Gpu
    seed: int
    windows: int
    progress: Progress
    backends: Sequence[Backend] = BACKENDS
    looks: Sequence[int] = tuple(blocks.LOOKS)
    skipped: dict[Backend, str] = field(default_factory=dict)
    repeats: list[Row] = field(default_factory=list)  # the A/A pairs of the cases before
    _failed: dict[Backend, str] = field(default_factory=dict)
    _harness: dict[tuple[Backend, str], Kernel] = field(default_factory=dict)
    reserved: Source | None = None

    def compile(self, wanted: Mapping[str, Sequence[str]], min_blocks: int = 0) -> None:
        """Compile what the cache lacks of all that will be asked for, the harness' kernels too, at once."""
        asked = [Asked(s, tuple(filter(self._able, names)), min_blocks) for s, names in wanted.items()]
        asked.append(Asked("harness", tuple(filter(self._able, HARNESS))))
        self._failed = COMPILE(asked, self.gpu.facts.arch, self.backends, self.progress)

    def _able(self, name: str) -> bool:
        return self.gpu.facts.compute_capability >= pipeline.since(name)

    def kernels(
        self, stem: str, names: Sequence[str], backend: Backend, min_blocks: int = 0
    ) -> dict[str, Kernel]:
        """The named kernels of one file and backend, bound to the GPU. Raises Unavailable (no nvcc, say).

        What this GPU has no instructions for is there too, and cannot be launched: a plan refuses it before.
        """
        if backend in self._failed:
            raise Unavailable(self._failed[backend])
        out = {n: absent(n, backend) for n in names if not self._able(n)}
        here = [n for n in names if n not in out]
        arch = self.gpu.facts.arch
        found = LOADERS[backend](stem, here, arch, min_blocks, self.progress) if here else {}
        return {n: bind(b) for n, b in found.items()} | out

    def harness(self, name: str, backend: Backend) -> Kernel:
        """One of the harness' own kernels, loaded once."""
        key = (backend, name)
        if key not in self._harness:
            self._harness[key] = self.kernels("harness", [name], backend)[name]
        return self._harness[key]

    def clock(self) -> Kernel:
        """The clock kernel of whichever backend works here."""
        for backend in LOADERS:
            if backend not in self.skipped:
                return self.harness("harness_clock", backend)
        why = "; ".join(f"{b}: {said}" for b, said in self.skipped.items())
        raise Unavailable(f"no backend works here: {why}")

    def measure(
        self, probe: str, arms: Sequence[tuple[Spec, Arm]], what: str, contests: bool = True
    ) -> list[Row]:
        """Check, survey, time the contests' pairs side by side, and check again. Raises WrongResult.

        What leaves the GPU in another state comes last: launches without a graph, then plain event loops. One
        Row per arm, in order, then one per pair.
        """
        graphs, eager = ([x for x in arms if x[1].graph is want] for want in (True, False))
        with tried(f"{probe} {what}"), ExitStack() as stack:
            for spec, arm in arms:
                stack.callback(arm.close)
                arm.build(self.gpu.stream)
                spec.rotates(arm)
            rows = self._survey(probe, graphs, what)
            mine = [rows[s.name] for s, _ in graphs]
            pairs = self._contests(probe, mine, {s.name: a for s, a in graphs}, what) if contests else []
            rows |= self._survey(probe, eager, what)
            for spec, arm in arms:
                if (rows[spec.name].time_s or 0.0) >= LOOPED_S:
                    rows[spec.name].event_loop_time_s = timing.event_loop_s(self.gpu.stream, arm)
                arm.recheck()
            ordered = [*(rows[s.name] for s, _ in arms), *pairs]
            judge.relate(ordered)
        return ordered

    def _survey(self, probe: str, arms: Sequence[tuple[Spec, Arm]], what: str) -> dict[str, Row]:
        """Windows of all these arms, and the row that each makes, by the arm's name."""
        if not arms:
            return {}
        mine = [arm for _, arm in arms]
        found = sampling.survey(
            self.gpu.stream, mine, self.windows, self.clock(), self.seed, self.progress, what
        )
        usual = blocks.usual_clock([c for s in found.values() for c in s.clock_hz.reshape(-1)])
        return {s.name: self._row(probe, s, found[s.name], usual) for s, _ in arms}

    def _contests(self, probe: str, rows: Sequence[Row], arms: Mapping[str, Arm], what: str) -> list[Row]:
        """A row for each pair that a contest wants, timed in blocks until it is decided or out of looks."""
        contests = Contests(probe, rows, self.repeats)
        pairs = [
            (arms[f"{p.variant}/{p.backend}"], arms[f"{p.baseline}/{p.backend}"]) for p in contests.pairs
        ]
        taken = sampling.rounds(
            self.gpu.stream, pairs, self.looks, self.clock(), self.seed + 1, contests.closed, self.progress,
            what,
        )  # fmt: skip
        return contests.rows(taken)

    def _row(self, probe: str, spec: Spec, samples: Samples, usual_hz: float) -> Row:
        """Everything that one arm's own samples and resources say."""
        row, v = self.row(probe, spec), spec.planned.variant
        times = samples.time_s.reshape(-1)
        known = times[np.isfinite(times)]
        if bad := times.size - known.size:
            told = f"{bad} of {times.size} samples had a slope at or below 0: another process on the GPU?"
            row.notes.append(told)
            row.skipped = None if known.size else told
        row.baseline, row.read = v.baseline or None, spec.planned.read or None
        if not known.size:
            return row
        row.samples_s, row.windows, row.processes = (
            known.tolist(),
            None if bad else samples.time_s.shape[0],
            1,
        )
        row.time_s, row.time_s_p25, row.time_s_p75 = blocks.quartiles(known)
        row.content_gbps = row.content_bytes / row.time_s / 1e9 if row.content_bytes else None
        row.bitwise, row.sm_clock_hz = True, _median(samples.clock_hz) or None
        clocks = samples.clock_hz.reshape(-1)[np.isfinite(times)]
        row.throttled_samples = np.flatnonzero(clocks < blocks.SLOWED * usual_hz).tolist()
        row.throttled = len(row.throttled_samples)
        return row

    def row(self, probe: str, spec: Spec) -> Row:
        """A row with what is known before a launch: resources, occupancy by the driver, coldness."""
        planned, facts = spec.planned, self.gpu.facts
        row = described(probe, spec.case, planned, spec.backend, "measured", facts)
        row.rotation_bytes = spec.rotation_bytes
        if spec.rotation_bytes is not None:
            row.cold = spec.rotation_bytes >= max(4 * facts.l2_bytes, 1 << 30)
            if not row.cold:
                row.notes.append("hot: too little memory to rotate over cold copies")
        if not planned.chain:
            blocks = spec.kernel.blocks_per_sm(planned.config.block, planned.config.smem_bytes)
            occupy(row, spec.kernel.resources, planned.config, facts, blocks)
        return row


def _median(values: NDArray[np.float64]) -> float:
    """Of those that are known; 0 where none is."""
    known = values[np.isfinite(values)]
    return float(np.median(known)) if known.size else 0.0


def cap_smem(kernel: Kernel, block: int, blocks: int, gpu: Gpu) -> int:
    """Bytes of dynamic shared memory that hold a kernel to `blocks` blocks per SM; 0 if none are needed."""
    if kernel.blocks_per_sm(block) <= blocks:
        return 0
    f, own = gpu.facts, kernel.resources.smem_bytes
    per_block = f.smem_per_sm_bytes // (blocks + 1) - f.smem_reserved_per_block_bytes - own
    smem = min(max(0, per_block) + 128, f.smem_per_block_max_bytes - own) // 128 * 128
    kernel.allow_smem(smem)
    while kernel.blocks_per_sm(block, smem) > blocks and smem + 128 <= f.smem_per_block_max_bytes:
        smem += 128
        kernel.allow_smem(smem)
    return smem
