"""What stands for a GPU in L1's tests: buffers in host memory, kernels in NumPy, a graph that replays them.

Times are made up. Arms, plans, arguments, checks, rows, the sweep and what the report says of it are real.
"""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from probes import bench as bench_module
from probes import l1, l1_arms, l1_ring
from probes.bench import Bench
from probes.core.types import Resources, Shape
from probes.device import facts as profiles
from probes.device import pipeline
from probes.device.occupancy import occupancy
from probes.formats import checksum, q6k
from probes.formats.layouts import layout
from probes.formats.packing import unpack
from probes.gpu import counters, timing
from probes.gpu.kernels import Launch
from probes.gpu.timing import Samples
from probes.report.rows import Row

CASES = (
    l1.Case("ffn_down_14b", Shape(40, 10240), {"14b": 2}),
    l1.Case("attn_v_14b", Shape(24, 512), {"14b": 3}),
    l1.Case("ffn_down_7b", Shape(24, 18944), {"7b": 1}),
)
FACTS = replace(profiles.load("h200"), sms=2, l2_bytes=1024, slug="two-sms")


class HostBuffer:
    """A device buffer in host memory."""

    def __init__(self, size: int) -> None:
        self.size = self.pitch = size
        self._raw = np.zeros(size + 256, np.uint8)
        self._at = -self._raw.ctypes.data % 256
        self.address = self._raw.ctypes.data + self._at

    @classmethod
    def of(cls, array: Any, copies: int = 1, align: int = 256) -> HostBuffer:
        pitch = -(-array.nbytes // align) * align
        buffer = cls(pitch * copies)
        buffer.pitch = pitch
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        for k in range(copies):
            buffer._raw[buffer._at + k * pitch :][: flat.size] = flat
        return buffer

    def download(self, dtype: Any, count: int, offset: int = 0) -> Any:
        return self._raw[self._at + offset :][: count * np.dtype(dtype).itemsize].view(dtype).copy()

    def poison(self) -> None:
        self._raw[self._at : self._at + self.size] = 0xFF

    def __enter__(self) -> HostBuffer:
        return self

    def __exit__(self, *error: object) -> None:
        self.poison()


def at(address: int, kind: Any, count: int) -> Any:
    """Host memory as an array."""
    return np.frombuffer((ctypes.c_uint8 * (count * np.dtype(kind).itemsize)).from_address(address), kind)


class HostKernel:
    """A kernel with made-up resources."""

    def __init__(self, name: str, backend: Any) -> None:
        self.name, self.backend = name, backend
        self.resources = Resources(96 if name.endswith(("ring", "async")) else 40, 32)

    def blocks_per_sm(self, block: int, smem_bytes: int = 0) -> int:
        return occupancy(self.resources, block, smem_bytes, FACTS).blocks_per_sm

    def allow_smem(self, smem_bytes: int) -> None:
        pass


class HostGraph:
    def __init__(self, stream: Any, launches: Any) -> None:
        self.launches = list(launches)
        self.nodes = len(self.launches)

    def replay(self) -> None:
        for launch in self.launches:
            launch.enqueue(None)

    def close(self) -> None:
        pass


def enqueue(self: Launch, stream: Any) -> None:
    """What each kernel does with its own arguments, which must be the ones that its form takes."""
    assert all(isinstance(a, (int, ctypes.c_int32, ctypes.c_int64)) for a in self.args)
    args = [a if isinstance(a, int) else a.value for a in self.args]
    if self.kernel.name == "harness_read":
        data, out, words = args
        xors = checksum.read_xors(at(data, np.uint8, 16 * words))
        at(out, np.uint32, self.config.grid)[:] = xors
        return
    _, lay, form = self.kernel.name.split("_")
    w, x8, out, *rest = args
    if form in ("ring", "async"):
        counter, nbe, stride, od, rows, stages = rest
        assert self.config.smem_bytes == stages * pipeline.stage_bytes(rows, stride)
        assert self.config.block == 32 * (pipeline.consumer_warps(nbe * 8) + 1)
        assert not counter or at(counter, np.uint32, 1)[0] == 0
    else:
        (nbe, stride), od = rest, self.config.grid
    packed = at(w, np.uint8, od * stride).reshape(od, stride)
    x = at(x8, np.uint8, nbe * 320)
    if form == "stream":
        at(out, np.uint32, od)[:] = checksum.stream_sums(packed, layout(lay), nbe, x)
    else:
        at(out, np.float32, od)[:] = q6k.reference(unpack(packed, layout(lay), nbe), x)


def seconds(name: str) -> float:
    """A made-up time: rings at the bytes' own speed, two rows per fill the best of them; async behind."""
    variant = name.split("/")[0]
    slow = 1.0 if variant.startswith(("dpl", "gpl", "read_dpl", "dispatch_dpl")) else 224 / 210
    if variant.startswith("read_"):
        return 1e-5 * slow
    if "_ring" in variant or "_async" in variant:
        here = 1.0 if "@2r" in variant else 1.05 if "@" in variant else 1.0
        return (1.3e-5 if "_async" in variant else 1.1e-5) * slow * here
    return 1.6e-5 * slow


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A bench whose GPU is this machine, and cases small enough for it."""

    def sample(stream: Any, arms: Any, windows: int, clock: Any, seed: int, *rest: Any) -> dict[str, Samples]:
        rng, out = np.random.default_rng(seed), {}
        for arm in arms:
            noise = 1 + 1e-4 * rng.standard_normal((windows, 2))
            out[arm.name] = Samples(seconds(arm.name) * noise, np.full((windows, 2), 1.9e9))
            arm.recheck()
        return out

    monkeypatch.setattr(l1, "CASES", CASES)
    for module in (l1_arms, bench_module):
        monkeypatch.setattr(module, "Buffer", HostBuffer)
    monkeypatch.setattr(l1_ring, "make_room", lambda kernel, smem: None)
    monkeypatch.setattr(counters, "window", nullcontext)
    monkeypatch.setattr(timing, "rotation", lambda *a: 2)
    monkeypatch.setattr(timing, "capture", HostGraph)
    monkeypatch.setattr(timing, "sample", sample)
    monkeypatch.setattr(Launch, "enqueue", enqueue)
    monkeypatch.setattr(Bench, "clock", lambda self: None)
    monkeypatch.setattr(Bench, "ceiling_arms", lambda self, case, backends: [])
    files: list[str] = []

    def kernels(self: Bench, stem: str, names: Any, backend: Any, blocks: int = 0) -> dict[str, HostKernel]:
        files.append(stem)
        return {n: HostKernel(n, backend) for n in names}

    monkeypatch.setattr(Bench, "kernels", kernels)
    gpu = SimpleNamespace(
        facts=FACTS, stream=SimpleNamespace(sync=lambda: None), free_bytes=lambda: (1 << 33, 1 << 33)
    )
    made = Bench(gpu, 0, 8, lambda line: None)
    made.files = files  # type: ignore[attr-defined]
    return made


def samples(rng: np.random.Generator, mean: float, windows: int = 14) -> list[float]:
    return [float(t) for t in mean * (1 + 0.002 * rng.standard_normal(2 * windows))]


def measured(dpl: float, cases: tuple[l1.Case, ...] = l1.CASES[:3], hot: bool = False) -> list[Row]:
    """Rows as a GPU run leaves them, with dpl at `dpl` times padded's time."""
    rng = np.random.default_rng(4)
    rows = []
    for case in cases:
        base = l1.content_bytes(case.shape) / 2.5e12
        form = l1.dispatch(case.shape, True, {}).split("_")[1]
        times = {l1.BASELINE: base, l1.AA: base, "dispatch_padded": base, "dispatch_dpl": dpl * base}
        times |= {f"padded_{form}": base, f"dpl_{form}": dpl * base}
        for variant, mean in times.items():
            rows.append(
                Row(
                    probe="l1", case=case.id, variant=variant, backend="cu", source="measured", device="test",
                    shape=[case.shape.od, case.shape.id], time_s=mean, samples_s=samples(rng, mean),
                    windows=14, processes=1, counts=dict(case.counts), bitwise=True,
                    notes=["hot: little memory"] if hot else [],
                )
            )  # fmt: skip
    return rows
