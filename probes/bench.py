"""The measuring bench that every probe stands on: kernels of both backends, read ceilings, rows.

A probe hands it arms (what to launch, what must come out); it gives back rows with times, clocks,
resources, occupancy and ratios. The join of the GPU floor and the kernel packages is here: one row
of BACKENDS each.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probes.compiling import Wanted, compile_all
from probes.core import checksum, ring, stats
from probes.core.occupancy import occupancy, tail_fraction, waves
from probes.core.rows import Row
from probes.core.types import Backend, Binary, LaunchConfig, Progress, Shape, Unavailable
from probes.gpu import timing
from probes.gpu.facts import Gpu
from probes.gpu.kernels import Kernel, Launch, absent, bind, int64
from probes.gpu.memory import Buffer
from probes.gpu.timing import Arm, Output, Samples

Loader = Callable[[str, Sequence[str], str, int, Progress], dict[str, Binary]]


def _cu(
    probe: str, names: Sequence[str], arch: str, min_blocks: int, progress: Progress
) -> dict[str, Binary]:
    build = importlib.import_module("kernels_cu.build")
    found: dict[str, Binary] = build.binaries(f"{probe}.cu", names, arch, min_blocks, progress)
    return found


def _numba(
    probe: str, names: Sequence[str], arch: str, min_blocks: int, progress: Progress
) -> dict[str, Binary]:
    compiler = importlib.import_module("kernels_numba.compile")
    found: dict[str, Binary] = compiler.binaries(probe, names, arch, min_blocks, progress)
    return found


BACKENDS: dict[Backend, Loader] = {"cu": _cu, "numba": _numba}
"""The one place that names the kernel packages. C++ decides a verdict; Numba stands beside it."""

HARNESS = ("harness_read", "harness_clock")
"""Kernels that every run needs."""

SLOWED = 0.97
"""A sample whose SM clock was below this share of the case's median is counted as throttled."""


@dataclass(frozen=True)
class Spec:
    """What a row says of an arm besides its times."""

    case: str
    variant: str
    backend: Backend
    kernel: Kernel
    config: LaunchConfig
    shape: Shape | None = None
    content_bytes: int | None = None
    traffic_bytes: int | None = None
    rotation_bytes: int | None = None
    same_bytes: str = ""
    """Name of the read arm that moves as many bytes, '' for none."""
    note: str = ""
    """What the row says beside its figures, '' for nothing."""

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
    backends: Sequence[Backend] = ("cu", "numba")
    """Those that the run asks for."""
    skipped: dict[Backend, str] = field(default_factory=dict)
    _asked: list[Wanted] = field(default_factory=list)
    _failed: dict[Backend, str] = field(default_factory=dict)
    _harness: dict[tuple[Backend, str], Kernel] = field(default_factory=dict)
    _ceiling: tuple[Buffer, Buffer, NDArray[np.uint32], int] | None = None

    def ask(self, probe: str, names: Iterable[str], min_blocks: int = 0) -> None:
        """Say what `kernels` will be asked for: all of it is then compiled at once, at the first call."""
        here = tuple(n for n in names if self.gpu.facts.compute_capability >= ring.since(n))
        self._asked.append(Wanted(probe, here, min_blocks))

    def kernels(
        self, probe: str, names: Iterable[str], backend: Backend, min_blocks: int = 0
    ) -> dict[str, Kernel]:
        """The named kernels of one backend, bound to the GPU. Raises Unavailable (no nvcc, say).

        What this GPU has no instructions for is there too, and cannot be launched: a plan refuses it before.
        """
        facts, asked = self.gpu.facts, list(names)
        if self._asked:
            wanted, self._asked = [*self._asked, Wanted("harness", HARNESS)], []
            self._failed = compile_all(wanted, facts.arch, self.backends, self.progress)
        if backend in self._failed:
            raise Unavailable(self._failed[backend])
        lacks = [n for n in asked if facts.compute_capability < ring.since(n)]
        here = [n for n in asked if n not in lacks]
        found = BACKENDS[backend](probe, here, facts.arch, min_blocks, self.progress) if here else {}
        return {n: bind(b) for n, b in found.items()} | {n: absent(n, backend) for n in lacks}

    def harness(self, name: str, backend: Backend) -> Kernel:
        """One of the harness' own kernels, loaded once."""
        key = (backend, name)
        if key not in self._harness:
            self._harness[key] = self.kernels("harness", [name], backend)[name]
        return self._harness[key]

    def clock(self) -> Kernel:
        """The clock kernel of whichever backend works here."""
        for backend in BACKENDS:
            if backend not in self.skipped:
                return self.harness("harness_clock", backend)
        raise Unavailable(
            "no backend works here: " + "; ".join(f"{b}: {why}" for b, why in self.skipped.items())
        )

    def read_arm(
        self,
        name: str,
        backend: Backend,
        data: Buffer,
        out: Buffer,
        size: int,
        copies: int,
        want: NDArray[np.uint32],
    ) -> Arm:
        """A plain read of `size` bytes of each of `copies` copies; `want`: the XOR of each 16 KiB tile."""
        kernel, config = self.harness("harness_read", backend), read_config(size)
        launches = [
            Launch(kernel, config, (data.address + k * data.pitch, out.address, int64(size // 16)))
            for k in range(copies)
        ]
        return Arm(name, launches, Output(out, config.grid, want))

    def reserve(self) -> tuple[Buffer, Buffer, NDArray[np.uint32], int]:
        """The large read's data, output, wanted XORs and bytes per launch; taken before any weights are."""
        if self._ceiling is None:
            free, _ = self.gpu.free_bytes()
            size = min(1 << 30, free // 8 >> 26 << 26)
            if size == 0:
                raise Unavailable(
                    f"the GPU has only {free >> 20} MiB free; a read ceiling needs 1 GiB or more"
                )
            seed = np.random.SFC64(self.seed).random_raw(1 << 23).view(np.uint8)
            data = Buffer.of(seed, 4 * size // seed.nbytes)
            want = np.tile(checksum.read_xors(seed), size // seed.nbytes)
            self._ceiling = data, Buffer(4 * want.size), want, size
        return self._ceiling

    def ceiling_arms(self, case: str, backends: Sequence[Backend]) -> list[tuple[Spec, Arm]]:
        """The large read, 1 GiB a launch where memory allows, of each backend."""
        data, out, want, size = self.reserve()
        rows = []
        for backend in backends:
            kernel = self.harness("harness_read", backend)
            config = LaunchConfig(want.size, 256)
            launches = [
                Launch(kernel, config, (data.address + k * size, out.address, int64(size // 16)))
                for k in range(4)
            ]
            spec = Spec(
                case, "read_large", backend, kernel, config,
                content_bytes=size, traffic_bytes=size, rotation_bytes=4 * size,
            )  # fmt: skip
            rows.append((spec, Arm(spec.name, launches, Output(out, want.size, want))))
        return rows

    def measure(
        self, probe: str, arms: Sequence[tuple[Spec, Arm]], baseline: dict[Backend, str], case: str
    ) -> list[Row]:
        """Check, time and check again; one Row per arm, in order. `baseline`: arm name by backend."""
        stream = self.gpu.stream
        try:
            for _, arm in arms:
                arm.build(stream)
            sampled = timing.sample(
                stream, [arm for _, arm in arms], self.windows, self.clock(), self.seed, self.progress, case
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
        by_name = dict(zip((spec.name for spec, _ in arms), rows, strict=True))
        ceiling = max((r.content_gbps or 0.0 for r in rows if r.variant == "read_large"), default=0.0)
        for (spec, _), row in zip(arms, rows, strict=True):
            if ceiling and row.content_gbps:
                row.read_ceiling_gbps = ceiling
                row.fraction_of_ceiling = row.content_gbps / ceiling
            reads = [by_name[n].time_s for b in BACKENDS if (n := f"{spec.same_bytes}/{b}") in by_name]
            fastest = min((t for t in reads if t), default=None)
            if fastest and row.time_s:
                row.same_bytes_read_s = fastest
                row.fraction_of_same_bytes_read = fastest / row.time_s
            base = baseline.get(spec.backend, "")
            if base in sampled and not row.variant.startswith("read_"):
                ratios = stats.paired_ratios(sampled[spec.name].time_s, sampled[base].time_s)
                found = stats.interval(ratios, self.seed)
                row.ratio_to_baseline = found.ratio
                if spec.name != base:
                    row.ratio_low, row.ratio_high = found.low, found.high
        return rows

    def _row(self, probe: str, spec: Spec, samples: Samples, usual_hz: float, loop_s: float | None) -> Row:
        """Everything that one arm's own samples and resources say."""
        flat = samples.time_s.reshape(-1)
        median, p25, p75 = stats.quartiles(flat)
        clocks = samples.clock_hz.reshape(-1)
        slow = [int(k) for k in np.flatnonzero(clocks < SLOWED * usual_hz)]
        own = float(np.nanmedian(clocks)) if np.isfinite(clocks).any() else None
        row = resource_row(probe, spec, self.gpu)
        row.time_s, row.time_s_p25, row.time_s_p75 = median, p25, p75
        row.samples_s = [float(t) for t in flat]
        row.content_gbps = spec.content_bytes / median / 1e9 if spec.content_bytes else None
        row.bitwise = True
        row.sm_clock_hz, row.throttled, row.throttled_samples = own, len(slow), slow
        row.windows, row.processes = samples.time_s.shape[0], 1
        row.event_loop_time_s = loop_s
        if spec.variant == "read_large" and (spec.content_bytes or 0) < 1 << 30:
            row.notes.append("less than 1 GiB: the GPU had no room for more")
        hot = spec.rotation_bytes is not None and spec.rotation_bytes < max(
            4 * self.gpu.facts.l2_bytes, 1 << 30
        )
        if hot:
            row.notes.append("hot: too little memory to rotate over cold copies")
        return row


def read_config(size: int) -> LaunchConfig:
    """Geometry of a plain read of `size` bytes: one block per 16 KiB tile."""
    return LaunchConfig(-(-size // checksum.READ_TILE_BYTES), 256)


def resource_row(probe: str, spec: Spec, gpu: Gpu) -> Row:
    """A row with what is known before a launch: resources, occupancy by the driver, waves."""
    facts = gpu.facts
    res, config = spec.kernel.resources, spec.config
    blocks = spec.kernel.blocks_per_sm(config.block, config.smem_bytes)
    limits = occupancy(res, config.block, config.smem_bytes, facts)
    w = waves(config.grid, facts.sms, blocks) if blocks else None
    return Row(
        probe=probe,
        case=spec.case,
        variant=spec.variant,
        backend=spec.backend,
        source="measured",
        device=facts.slug,
        shape=[spec.shape.od, spec.shape.id] if spec.shape else None,
        content_bytes=spec.content_bytes,
        traffic_bytes=spec.traffic_bytes,
        registers=res.registers,
        spill_bytes=res.spill_bytes,
        smem_bytes=res.smem_bytes + config.smem_bytes,
        blocks_per_sm=blocks,
        waves=w,
        tail_fraction=tail_fraction(w) if w else None,
        limiter=limits.limiter,
        rotation_bytes=spec.rotation_bytes,
        l2_bytes=facts.l2_bytes,
        notes=[spec.note] if spec.note else [],
    )


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


def seeded_rows(od: int, seed: int, least: int = 4096) -> NDArray[np.int64]:
    """Rows that the oracle checks: all of them up to `least`, else a seeded sample that keeps both ends."""
    if od <= least + least // 4:
        return np.arange(od, dtype=np.int64)
    inner = np.random.default_rng(seed).choice(od - 2, least - 2, replace=False) + 1
    return np.sort(np.concatenate([[0, od - 1], inner])).astype(np.int64)


def bits(array: NDArray[Any]) -> NDArray[np.uint32]:
    """float32 or uint32 results as words, for comparing to the bit."""
    words: NDArray[np.uint32] = np.ascontiguousarray(array).view(np.uint32)
    return words
