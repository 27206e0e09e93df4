"""L3's measuring part without a GPU: its arms launch the real C++ kernels, built for the host."""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from probes import cli, l3, l3_measure, l3_report, l3_waves
from probes.bench import Bench, resource_row
from probes.core import device
from probes.core.occupancy import occupancy
from probes.core.types import Resources, Unavailable, WrongResult
from probes.gpu import timing

ONE_BLOCK = Resources(200, 320, 0)
GPU = replace(device.load("h200"), sms=2, slug="two-sms")


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

    def blocks_per_sm(self, block: int, smem_bytes: int = 0) -> int:
        return occupancy(self.resources, block, smem_bytes, GPU).blocks_per_sm

    def allow_smem(self, smem_bytes: int) -> None:
        pass


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
        run(*args, self.config.grid, 0)


class HostStream(list[str]):
    def sync(self) -> None:
        pass


@dataclass
class HostBench(Bench):
    """A bench that checks every arm, runs every launch of it and gives rows with made-up times."""

    lib: Any = None

    def kernels(self, probe: str, names: Any, backend: Any, min_blocks: int = 0) -> dict[str, Any]:
        if backend == "numba":
            raise Unavailable("no Numba on the host")
        return {n: HostKernel(n, self.lib) for n in names}

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
            row.samples_s, row.windows, row.processes = [row.time_s] * 2 * self.windows, self.windows, 1
            rows.append(row)
        return rows


@pytest.fixture
def bench(l3_on_host: Any, monkeypatch: pytest.MonkeyPatch) -> HostBench:
    monkeypatch.setattr(l3_measure, "Buffer", HostBuffer)
    monkeypatch.setattr(l3_measure, "Launch", HostLaunch)
    monkeypatch.setattr(timing, "rotation", lambda *a: 2)
    gpu: Any = argparse.Namespace(facts=GPU, stream=HostStream(), free_bytes=lambda: (1 << 34, 1 << 34))
    return HostBench(gpu, seed=0, windows=2, progress=lambda line: None, lib=l3_on_host)


def flags(*argv: str) -> argparse.Namespace:
    return cli.parser("l3").parse_args(argv)


def test_every_arm_of_a_case_gives_the_oracle_s_bits(bench: HostBench) -> None:
    (rows,) = l3_measure.measure(bench, flags("--nf", "96"))
    by_name = {r.variant: r for r in rows if not r.skipped}
    assert [*by_name] == [*(v.name for v in l3.VARIANTS), *l3.AA, l3_measure.READ]
    assert {n: r.grid for n, r in by_name.items() if n in ("pair", "form_a", "form_b", "form_b_staged")} == {
        "pair": 192, "form_a": 96, "form_b": 3, "form_b_staged": 3,
    }  # fmt: skip
    assert by_name["form_b"].content_bytes == 192 * 20 * 144
    assert by_name["form_b"].waves == 1.5
    assert by_name["form_b"].load_balance == 2.0  # three blocks, all on one of two SMs
    assert "its blocks used 1 of 2 SMs" in by_name["form_b"].notes
    assert by_name["pair"].notes[0] == "then l3_swiglu_quant: 1 blocks, 200 registers"
    assert [r.skipped for r in rows if r.backend == "numba"] == ["no Numba on the host"]


def test_a_wrong_bit_is_found_in_the_middle_too(bench: HostBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """An f32 intermediate is held to the oracle like the q8 words: here a first kernel never runs."""
    real = HostLaunch.enqueue

    def lazy(self: HostLaunch, stream: Any) -> None:
        if self.kernel.name != "l3_form_a":
            real(self, stream)

    monkeypatch.setattr(HostLaunch, "enqueue", lazy)
    with pytest.raises(WrongResult, match="form_a/cu"):
        list(l3_measure.measure(bench, flags("--nf", "32", "--variant", "form_a")))


def test_once_launches_each_kernel_once_and_names_it_once(bench: HostBench) -> None:
    (rows,) = l3_measure.measure(bench, flags("--nf", "32", "--once"))
    names = {"pair": 2, "form_a": 2, "form_b": 1, "form_b_staged": 1, "pair_aa": 2, "form_b_aa": 1}
    found = [r.variant for r in rows]
    assert found == [*(name for name, count in names.items() for _ in range(count)), l3_measure.READ]
    assert len(bench.gpu.stream) == len(found)


def test_the_sweep_checks_and_times_every_point(bench: HostBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(l3_waves, "grids", lambda slots, own, quick: sorted({1, slots, *own, 2 * slots}))
    steps = list(l3_measure.measure(bench, flags("--nf", "96", "--sweep", "--variant", "form_b")))
    rows = [r for step in steps for r in step]
    found = l3_waves.points(rows, "cu")
    assert [p.grid for p in found] == [1, 2, 3, 4]
    assert [p.waves for p in found] == [0.5, 1.0, 1.5, 2.0]
    assert all(p.load_balance for p in found)
    taken = l3_waves.parts(found, 3)
    assert taken and taken.wave_part == pytest.approx(0.0)  # the made-up times grow with the waves
    assert any("Time against waves, cu" in s for s in l3_report.sections(rows, True))


def test_match_waves_picks_the_grid(bench: HostBench) -> None:
    (rows,) = l3_measure.measure(bench, flags("--match-waves", "1.5", "--variant", "form_b"))
    row = next(r for r in rows if r.variant == "form_b")
    assert (row.case, row.grid, row.waves) == ("gate_up_nf96", 3, 1.5)


def test_a_gpu_without_partitions_is_skipped_with_the_reason(
    bench: HostBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def none(gpu: Any, count: int) -> Iterator[Any]:
        raise Unavailable("this GPU or driver cannot make SM partitions: CUDA_ERROR_NOT_SUPPORTED")
        yield gpu

    monkeypatch.setattr(l3_measure, "partition", none)
    (rows,) = l3_measure.measure(bench, flags("--sms", "48"))
    assert [r.variant for r in rows] == [v.name for v in l3.VARIANTS]
    assert all("cannot make SM partitions" in (r.skipped or "") for r in rows)
    assert l3_report.judge(rows, 0) == []
