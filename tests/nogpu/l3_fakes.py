"""What stands for a GPU in L3's tests: buffers in host memory, and the real C++ kernels on host fibers.

Times are made up. Arms, arguments, launches, the check of every output, rows and verdicts are real.
"""

from __future__ import annotations

import argparse
import ctypes
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from probes import cli, l3, l3_arms, l3_measure
from probes.bench import Bench, resource_row
from probes.core.types import Resources, Unavailable
from probes.device import facts as profiles
from probes.device.occupancy import occupancy
from probes.gpu import counters, timing

ONE_BLOCK = Resources(200, 320, 0)
RING = Resources(72, 0, 0)
"""So few registers that a ring's blocks fit all at once."""
RINGS = {v.reader: v.name for v in l3.VARIANTS if v.ring}
GPU = replace(profiles.load("h200"), sms=2, slug="two-sms")


class HostBuffer:
    """probes.gpu.memory.Buffer in host memory."""

    def __init__(self, size: int) -> None:
        self.size = self.pitch = size
        self.bytes = np.zeros(size + 16, np.uint8)
        self.address = self.bytes.ctypes.data

    @classmethod
    def of(cls, array: np.ndarray, copies: int = 1) -> HostBuffer:
        out = cls(array.nbytes * copies)
        out.pitch = array.nbytes
        out.bytes[:-16] = np.tile(array.reshape(-1).view(np.uint8), copies)
        return out

    def download(self, dtype: Any, count: int, offset: int = 0) -> np.ndarray:
        return self.bytes[offset:].view(np.uint8)[: count * np.dtype(dtype).itemsize].view(dtype).copy()

    def poison(self) -> None:
        self.bytes[:] = 0xFF

    def __enter__(self) -> HostBuffer:
        return self

    def __exit__(self, *error: object) -> None:
        self.bytes[:] = 0xFF  # what is used after it was given back shows


@dataclass(frozen=True)
class HostKernel:
    """A kernel that runs on fibers; its resources are made up."""

    name: str
    lib: Any
    resources: Resources = ONE_BLOCK
    backend = "cu"

    def blocks_per_sm(self, block: int, smem_bytes: int = 0) -> int:
        return occupancy(self.resources, block, smem_bytes, GPU).blocks_per_sm

    def allow_smem(self, smem_bytes: int) -> None:
        pass

    make_room = allow_smem


@dataclass(frozen=True)
class HostLaunch:
    """probes.gpu.kernels.Launch on the host."""

    kernel: HostKernel
    config: Any
    args: tuple[Any, ...]
    nodes = 1

    def enqueue(self, stream: Any) -> None:
        stream.append(self.kernel.name)
        args = [a if isinstance(a, ctypes.c_int32) else ctypes.c_void_p(a) for a in self.args]
        run = getattr(self.kernel.lib, self.kernel.name.replace("l3_", "run_"))
        if l3.variant(RINGS.get(self.kernel.name, "pair")).ring:
            c = self.config
            assert run(*args, c.grid, c.block, ctypes.c_int64(c.smem_bytes), 0) == 0, "a fault of the ring"
        else:
            run(*args, self.config.grid, 0)


class HostStream(list[str]):
    def sync(self) -> None:
        pass


@dataclass
class HostBench(Bench):
    """A bench that checks every arm, runs every launch of it and gives rows with made-up times."""

    lib: Any = None
    alive: list[Any] = field(default_factory=list)
    """Host memory that launches only know by its address."""
    ring: Resources = RING

    def kernels(self, probe: str, names: Any, backend: Any, min_blocks: int = 0) -> dict[str, Any]:
        if backend == "numba":
            raise Unavailable("no Numba on the host")
        return {n: HostKernel(n, self.lib, self.ring if n in RINGS else ONE_BLOCK) for n in names}

    def harness(self, name: str, backend: Any) -> Any:
        return HostKernel(name, self.lib)

    def clock(self) -> Any:
        return None

    def ceiling_arms(self, case: str, backends: Any) -> list[Any]:
        return []

    def read_arm(self, name: str, *rest: Any) -> Any:
        launch = SimpleNamespace(enqueue=lambda stream: stream.append(name), nodes=1)
        return SimpleNamespace(name=name, launches=[launch], poison=lambda: None, check=lambda what: None)

    def measure(self, probe: str, arms: Any, baseline: Any, case: str) -> list[Any]:
        rows = []
        for spec, arm in arms:
            for launch in arm.launches:
                arm.poison()
                launch.enqueue(self.gpu.stream)
                arm.check(spec.name)
            row = resource_row(probe, spec, self.gpu)
            row.time_s = (row.waves or 1.0) * 1e-4 if spec.variant.startswith("form_b") else 1e-4
            row.time_s *= 0.9 if "@4r" in spec.variant else 1.0  # the best of a sweep over geometries
            row.samples_s, row.windows, row.processes = [row.time_s] * 2 * self.windows, self.windows, 1
            rows.append(row)
        return rows


@pytest.fixture
def bench(l3_on_host: Any, monkeypatch: pytest.MonkeyPatch) -> HostBench:
    for module in (l3_arms, l3_measure):
        monkeypatch.setattr(module, "Buffer", HostBuffer)
        monkeypatch.setattr(module, "Launch", HostLaunch)
    monkeypatch.setattr(counters, "window", nullcontext)
    monkeypatch.setattr(timing, "rotation", lambda *a: 2)
    gpu: Any = argparse.Namespace(facts=GPU, stream=HostStream(), free_bytes=lambda: (1 << 34, 1 << 34))
    return HostBench(gpu, seed=0, windows=2, progress=lambda line: None, lib=l3_on_host)


def flags(*argv: str) -> argparse.Namespace:
    return cli.parser("l3").parse_args(argv)
