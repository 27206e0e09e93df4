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
from probes.engine.plan import Planned, described, occupy
from probes.engine.probe import Case
from probes.gpu import timing
from probes.gpu.driver import tried
from probes.gpu.facts import Gpu
from probes.gpu.kernels import Kernel, absent, bind
from probes.gpu.timing import Arm, Samples
from probes.report.rows import Row
from probes.verdict import intervals

if TYPE_CHECKING:
    from probes.engine.reads import Source

Loader = Callable[[str, Sequence[str], str, int, Progress], dict[str, Binary]]
LOADERS: dict[Backend, Loader] = {
    "cu": lambda stem, *rest: build.binaries(f"{stem}.cu", *rest),
    "numba": numba_compile.binaries,
}
COMPILE = compile_all
HARNESS = ("harness_read", "harness_read_32k", "harness_read_4k", "harness_read_bulk", "harness_clock")
SLOWED = 0.97  # of the case's median SM clock: a sample below it is counted as throttled


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


@dataclass
class Bench:
    """One open GPU with the harness' kernels. `reserved`: what the large reads read, once it was taken."""

    gpu: Gpu
    seed: int
    windows: int
    progress: Progress
    backends: Sequence[Backend] = BACKENDS
    skipped: dict[Backend, str] = field(default_factory=dict)
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

    def measure(self, probe: str, arms: Sequence[tuple[Spec, Arm]], what: str) -> list[Row]:
        """Check, time and check again; one Row per arm, in order. Raises WrongResult."""
        stream, all_arms = self.gpu.stream, [arm for _, arm in arms]
        with tried(f"{probe} {what}"), ExitStack() as stack:
            for arm in all_arms:
                stack.callback(arm.close)
                arm.build(stream)
            sampled = timing.sample(
                stream, all_arms, self.windows, self.clock(), self.seed, self.progress, what
            )
            loops = {
                arm.name: timing.event_loop_s(stream, arm)
                for arm in all_arms
                if float(np.median(sampled[arm.name].time_s)) >= 50e-6
            }
            usual = _median([s.clock_hz for s in sampled.values()]) or float("nan")
            rows = [self._row(probe, s, sampled[s.name], usual, loops.get(s.name)) for s, _ in arms]
            judge.relate(rows, self.seed)
        return rows

    def _row(self, probe: str, spec: Spec, samples: Samples, usual_hz: float, loop_s: float | None) -> Row:
        """Everything that one arm's own samples and resources say."""
        row, v = self.row(probe, spec), spec.planned.variant
        row.samples_s = samples.time_s.reshape(-1).tolist()
        row.time_s, row.time_s_p25, row.time_s_p75 = intervals.quartiles(row.samples_s)
        row.content_gbps = row.content_bytes / row.time_s / 1e9 if row.content_bytes else None
        row.bitwise, row.sm_clock_hz = True, _median([samples.clock_hz])
        row.throttled_samples = np.flatnonzero(samples.clock_hz < SLOWED * usual_hz).tolist()
        row.throttled = len(row.throttled_samples)
        row.windows, row.processes, row.event_loop_time_s = samples.time_s.shape[0], 1, loop_s
        row.baseline, row.read = v.baseline or None, spec.planned.read or None
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


def _median(clocks_hz: Sequence[NDArray[np.float64]]) -> float | None:
    """Of the clocks that are known, None where none is."""
    clocks = np.concatenate(clocks_hz, axis=None)
    return float(np.nanmedian(clocks)) if np.isfinite(clocks).any() else None


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
