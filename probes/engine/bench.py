"""The measuring bench: kernels of both backends, the reads beside them, and arms that become rows.

An arm comes with a `Spec`: the plan it was made of, its kernel, and how many bytes its weights rotate over.
The join of the GPU floor and the kernel packages is here: one row of LOADERS each.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from probes.core.types import BACKENDS, Backend, Binary, LaunchConfig, Progress, Unavailable
from probes.device import pipeline
from probes.engine import judge
from probes.engine.compiling import Wanted, compile_all
from probes.engine.plan import Planned, described, occupy
from probes.engine.probe import Case, Variant
from probes.formats import checksum
from probes.gpu import timing
from probes.gpu.driver import tried
from probes.gpu.facts import Gpu
from probes.gpu.kernels import Kernel, Launch, absent, bind, int64
from probes.gpu.memory import Buffer
from probes.gpu.timing import Arm, Output, Samples
from probes.report.rows import Row
from probes.verdict import intervals

Loader = Callable[[str, Sequence[str], str, int, Progress], dict[str, Binary]]


def _cu(stem: str, names: Sequence[str], arch: str, min_blocks: int, progress: Progress) -> dict[str, Binary]:
    build = importlib.import_module("kernels_cu.build")
    found: dict[str, Binary] = build.binaries(f"{stem}.cu", names, arch, min_blocks, progress)
    return found


def _numba(
    stem: str, names: Sequence[str], arch: str, min_blocks: int, progress: Progress
) -> dict[str, Binary]:
    compiler = importlib.import_module("kernels_numba.compile")
    found: dict[str, Binary] = compiler.binaries(stem, names, arch, min_blocks, progress)
    return found


LOADERS: dict[Backend, Loader] = {"cu": _cu, "numba": _numba}
COMPILE = compile_all
"""The one place that names the kernel packages, and what compiles their kernels beforehand."""

HARNESS = ("harness_read", "harness_clock")
"""Kernels that every run needs."""

SLOWED = 0.97
"""A sample whose SM clock was below this share of the case's median is counted as throttled."""

LARGE = "read_large"
"""The large read's row: the ceiling of its case."""

LEAST_READ_BYTES = 1 << 30
"""A ceiling is read over at least so many bytes."""


@dataclass(frozen=True)
class Spec:
    """What a row says of an arm besides its times."""

    case: Case
    planned: Planned
    kernel: Kernel
    rotation_bytes: int | None = None

    @property
    def variant(self) -> str:
        """The variant's name."""
        return self.planned.variant.name

    @property
    def backend(self) -> Backend:
        """The kernel's language."""
        return self.kernel.backend

    @property
    def name(self) -> str:
        """The arm's name inside a case."""
        return f"{self.variant}/{self.backend}"


@dataclass
class Bench:
    """One open GPU with the harness' kernels and the buffer of the read ceiling."""

    gpu: Gpu
    seed: int
    windows: int
    progress: Progress
    backends: Sequence[Backend] = BACKENDS
    """Those that the run asks for."""
    skipped: dict[Backend, str] = field(default_factory=dict)
    _failed: dict[Backend, str] = field(default_factory=dict)
    _harness: dict[tuple[Backend, str], Kernel] = field(default_factory=dict)
    _ceiling: tuple[Buffer, Buffer, NDArray[np.uint32], int] | None = None

    def compile(self, wanted: Mapping[str, Sequence[str]], min_blocks: int = 0) -> None:
        """Compile what the cache lacks of all that will be asked for, the harness' kernels too, at once."""
        arch = self.gpu.facts.arch
        able = {s: tuple(n for n in names if self._able(n)) for s, names in wanted.items()}
        asked = [Wanted(stem, names, min_blocks) for stem, names in able.items()]
        self._failed = COMPILE([*asked, Wanted("harness", HARNESS)], arch, self.backends, self.progress)

    def _able(self, name: str) -> bool:
        """Whether this GPU has the instructions of a kernel by this name."""
        return self.gpu.facts.compute_capability >= pipeline.since(name)

    def kernels(
        self, stem: str, names: Iterable[str], backend: Backend, min_blocks: int = 0
    ) -> dict[str, Kernel]:
        """The named kernels of one file and backend, bound to the GPU. Raises Unavailable (no nvcc, say).

        What this GPU has no instructions for is there too, and cannot be launched: a plan refuses it before.
        """
        if backend in self._failed:
            raise Unavailable(self._failed[backend])
        asked = list(names)
        lacks = [n for n in asked if not self._able(n)]
        here = [n for n in asked if n not in lacks]
        arch = self.gpu.facts.arch
        found = LOADERS[backend](stem, here, arch, min_blocks, self.progress) if here else {}
        return {n: bind(b) for n, b in found.items()} | {n: absent(n, backend) for n in lacks}

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
        raise Unavailable(
            "no backend works here: " + "; ".join(f"{b}: {why}" for b, why in self.skipped.items())
        )

    def read(
        self, case: Case, name: str, backend: Backend, data: Buffer, size: int, copies: int, out: Buffer,
        want: NDArray[np.uint32],
    ) -> tuple[Spec, Arm]:  # fmt: skip
        """A plain read of `size` bytes of each of `copies` copies; `want`: the XOR of each 16 KiB tile."""
        kernel, config = self.harness("harness_read", backend), read_config(size)
        launches = [
            Launch(kernel, config, (data.address + k * data.pitch, out.address, int64(size // 16)))
            for k in range(copies)
        ]
        v = Variant(name=name, role="ceiling" if name == LARGE else "read")
        planned = Planned(
            variant=v, kernel=kernel.name, config=config, content_bytes=size, traffic_bytes=size
        )
        spec = Spec(case, planned, kernel, size * copies)
        return spec, Arm(spec.name, launches, Output(out, config.grid, want))

    def reserve(self) -> tuple[Buffer, Buffer, NDArray[np.uint32], int]:
        """The large read's data, output, wanted XORs and bytes per launch; taken before any weights are."""
        if self._ceiling is None:
            free, _ = self.gpu.free_bytes()
            size = min(LEAST_READ_BYTES, free // 8 >> 26 << 26)
            if size == 0:
                raise Unavailable(
                    f"the GPU has only {free >> 20} MiB free; a read ceiling needs 1 GiB or more"
                )
            seed = np.random.SFC64(self.seed).random_raw(1 << 23).view(np.uint8)
            data = Buffer.of(seed, 4 * size // seed.nbytes)
            data.pitch = size
            want = np.tile(checksum.read_xors(seed), size // seed.nbytes)
            self._ceiling = data, Buffer(4 * want.size), want, size
        return self._ceiling

    def ceilings(self, case: Case, backends: Sequence[Backend]) -> list[tuple[Spec, Arm]]:
        """The large read, 1 GiB a launch where memory allows, of each backend."""
        data, out, want, size = self.reserve()
        return [self.read(case, LARGE, b, data, size, 4, out, want) for b in backends]

    def measure(self, probe: str, arms: Sequence[tuple[Spec, Arm]], what: str) -> list[Row]:
        """Check, time and check again; one Row per arm, in order. Raises WrongResult."""
        with tried(f"{probe} {what}"):
            return self._measured(probe, arms, what)

    def _measured(self, probe: str, arms: Sequence[tuple[Spec, Arm]], what: str) -> list[Row]:
        stream = self.gpu.stream
        try:
            for _, arm in arms:
                arm.build(stream)
            sampled = timing.sample(
                stream, [arm for _, arm in arms], self.windows, self.clock(), self.seed, self.progress, what
            )
            loops = {
                arm.name: timing.event_loop_s(stream, arm)
                for _, arm in arms
                if float(np.median(sampled[arm.name].time_s)) >= 50e-6
            }
        finally:
            for _, arm in arms:
                arm.close()
        clocks = np.concatenate([s.clock_hz.reshape(-1) for s in sampled.values()])
        usual = float(np.nanmedian(clocks)) if np.isfinite(clocks).any() else float("nan")
        rows = [self._row(probe, spec, sampled[spec.name], usual, loops.get(spec.name)) for spec, _ in arms]
        judge.relate(rows, self.seed)
        return rows

    def _row(self, probe: str, spec: Spec, samples: Samples, usual_hz: float, loop_s: float | None) -> Row:
        """Everything that one arm's own samples and resources say."""
        flat = samples.time_s.reshape(-1)
        median, p25, p75 = intervals.quartiles(flat)
        clocks = samples.clock_hz.reshape(-1)
        slow = [int(k) for k in np.flatnonzero(clocks < SLOWED * usual_hz)]
        own = float(np.nanmedian(clocks)) if np.isfinite(clocks).any() else None
        row = self.row(probe, spec)
        row.time_s, row.time_s_p25, row.time_s_p75 = median, p25, p75
        row.samples_s = [float(t) for t in flat]
        row.content_gbps = row.content_bytes / median / 1e9 if row.content_bytes else None
        row.bitwise = True
        row.sm_clock_hz, row.throttled, row.throttled_samples = own, len(slow), slow
        row.windows, row.processes = samples.time_s.shape[0], 1
        row.event_loop_time_s = loop_s
        v = spec.planned.variant
        row.baseline, row.read = v.baseline or None, spec.planned.read or None
        if v.role == "ceiling" and (spec.planned.content_bytes or 0) < LEAST_READ_BYTES:
            row.notes.append("less than 1 GiB: the GPU had no room for more")
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


def read_config(size: int) -> LaunchConfig:
    """Geometry of a plain read of `size` bytes: one block per 16 KiB tile."""
    return LaunchConfig(-(-size // checksum.READ_TILE_BYTES), 256)


def working(bench: Bench, wanted: Sequence[Backend] | None) -> list[Backend]:
    """The backends that the flags ask for, C++ first."""
    return [b for b in BACKENDS if b in LOADERS and (not wanted or b in wanted)]


def cap_smem(kernel: Kernel, block: int, blocks: int, gpu: Gpu) -> int:
    """Bytes of dynamic shared memory that hold a kernel to `blocks` blocks per SM; 0 if none are needed."""
    if kernel.blocks_per_sm(block) <= blocks:
        return 0
    f = gpu.facts
    per_block = (
        f.smem_per_sm_bytes // (blocks + 1) - f.smem_reserved_per_block_bytes - kernel.resources.smem_bytes
    )
    smem = min(max(0, per_block) + 128, f.smem_per_block_max_bytes - kernel.resources.smem_bytes) // 128 * 128
    kernel.allow_smem(smem)
    while kernel.blocks_per_sm(block, smem) > blocks and smem + 128 <= f.smem_per_block_max_bytes:
        smem += 128
        kernel.allow_smem(smem)
    return smem
