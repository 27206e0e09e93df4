"""`cuda.core` and NVML over tests.host_gpu, and the loader that stands in the place of both backends'."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pynvml

from probes.core.types import Binary, Unavailable
from probes.device.occupancy import occupancy
from tests.host_gpu import TICKS, HostGpu, Launched

TYPES = {"p": int, "i": ctypes.c_int32, "q": ctypes.c_int64, "f": ctypes.c_float}
"""An argument's letter in HostKernel.args."""
UNSUPPORTED = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"


@dataclass
class Function:
    gpu: HostGpu
    name: str
    backend: str
    handle: int
    most_smem: int = 0
    carveout: int = -1

    @property
    def occupancy(self) -> Any:
        self.gpu.refuse("occupancy")
        return SimpleNamespace(max_active_blocks_per_multiprocessor=self.blocks)

    def blocks(self, block: int, smem: int) -> int:
        own = self.gpu.kernel(self.name).resources
        if smem > max(self.most_smem, 48 * 1024 - own.smem_bytes):
            return 0
        return occupancy(own, block, smem, self.gpu.facts).blocks_per_sm

    @property
    def attributes(self) -> Any:
        own = self.gpu.kernel(self.name).resources
        return SimpleNamespace(
            num_regs=own.registers, shared_size_bytes=own.smem_bytes, local_size_bytes=own.spill_bytes
        )


@dataclass
class Event:
    gpu: HostGpu
    options: Any
    at_s: float | None = None

    def __sub__(self, other: Event) -> float:
        if not (self.options.timing_enabled and other.options.timing_enabled):
            raise RuntimeError("both Events must be created with timing enabled")
        if self.at_s is None or other.at_s is None:
            raise RuntimeError("one or both events have not been reached; sync first")
        return 1e3 * (self.at_s - other.at_s)

    def sync(self) -> None:
        self.gpu.refuse("sync")
        self.gpu.drain()


@dataclass
class Stream:
    """Work in order, done when somebody waits for it."""

    gpu: HostGpu
    device: Any
    sms: int
    waiting: list[Callable[[], None]] = field(default_factory=list)
    captured: list[Launched] | None = None

    def __post_init__(self) -> None:
        self.handle = next(TICKS)
        self.gpu.streams[self.handle] = self

    def put(self, node: Launched) -> None:
        if self.captured is not None:
            self.captured.append(replace(node, eager=False))
        else:
            self.waiting.append(partial(self.gpu.execute, node, 1.0))

    def drain(self) -> None:
        while self.waiting:
            self.waiting.pop(0)()

    def sync(self) -> None:
        self.gpu.refuse("sync", UNSUPPORTED if self.captured is not None else None)
        self.drain()

    def record(self, event: Event) -> Event:
        self.gpu.refuse("record")
        event.at_s = None
        self.waiting.append(lambda: setattr(event, "at_s", self.gpu.now))
        return event


class Device:
    """cuda.core.Device, current or not."""

    def __init__(self, gpu: HostGpu, index: int) -> None:
        gpu.refuse("Device")
        f, self._gpu = gpu.facts, gpu
        self.device_id, self.name, self.compute_capability = index, f.name, f.compute_capability
        self.properties = SimpleNamespace(
            multiprocessor_count=f.sms, max_registers_per_multiprocessor=f.regs_per_sm, warp_size=32,
            max_shared_memory_per_multiprocessor=f.smem_per_sm_bytes,
            max_shared_memory_per_block_optin=f.smem_per_block_max_bytes,
            reserved_shared_memory_per_block=f.smem_reserved_per_block_bytes,
            max_threads_per_multiprocessor=f.max_threads_per_sm, l2_cache_size=f.l2_bytes,
            max_blocks_per_multiprocessor=f.max_blocks_per_sm, clock_rate=int((f.sm_clock_hz or 0) / 1e3),
            memory_clock_rate=int(f.dram_bps / 2e3 / 128), global_memory_bus_width=1024,
            integrated=gpu.integrated, pageable_memory_access_uses_host_page_tables=False,
        )  # fmt: skip

    def set_current(self) -> None:
        self._gpu.refuse("set_current")

    def create_stream(self, sms: int = 0) -> Stream:
        self._gpu.refuse("create_stream")
        return Stream(self._gpu, self, sms or self._gpu.facts.sms)

    def create_event(self, options: Any) -> Event:
        self._gpu.refuse("create_event")
        return Event(self._gpu, options)

    @property
    def resources(self) -> Any:
        self._gpu.refuse("resources")
        return SimpleNamespace(sm=self._part(self._gpu.facts.sms))

    def _part(self, sms: int) -> Any:
        def split(options: Any) -> tuple[list[Any], Any]:
            self._gpu.refuse("split")
            return [self._part(options.count)], self._part(sms - options.count)

        unit = self._gpu.partition_unit
        return SimpleNamespace(sm_count=sms, coscheduled_alignment=unit, min_partition_size=unit, split=split)

    def create_context(self, options: Any) -> Any:
        self._gpu.refuse("create_context")
        sms = options.resources[0].sm_count
        return SimpleNamespace(handle=sms, create_stream=partial(self.create_stream, sms))


def launch(gpu: HostGpu, stream: Stream, config: Any, kernel: Any, *args: Any) -> None:
    """cuda.core.launch. Arguments of a wrong number or type fail here; a GPU would take them as they come."""
    gpu.refuse("launch")
    types, block = gpu.kernel(kernel.name).args, config.block[0]
    told = "".join(next(k for k, t in TYPES.items() if type(a) is t) for a in args)
    assert told == types, f"{kernel.name} takes {types}, not {told}"
    if config.grid[0] < 1 or not kernel.blocks(block, config.shmem_size):
        gpu.refuse("launch", "CUDA_ERROR_INVALID_VALUE")
    values = tuple(a if isinstance(a, int) else a.value for a in args)
    stream.put(
        Launched(
            kernel.name, kernel.backend, config.grid[0], block, config.shmem_size,
            config.programmatic_stream_serialization, values, stream.sms, kernel.carveout,
        )
    )  # fmt: skip


def nvml(gpu: HostGpu) -> Any:
    """pynvml, as far as probes.gpu.facts asks it."""
    return SimpleNamespace(
        NVMLError=pynvml.NVMLError, nvmlInit=partial(gpu.answer, "nvmlInit"),
        nvmlSystemGetDriverVersion=lambda: "580.1",
        nvmlDeviceGetHandleByPciBusId=lambda bus: 0,
        nvmlDeviceGetComputeRunningProcesses=lambda dev: [SimpleNamespace(pid=p) for p in gpu.others],
        nvmlDeviceGetUtilizationRates=lambda dev: SimpleNamespace(gpu=0),
    )  # fmt: skip


def load(
    gpu: HostGpu, backend: Any, probe: str, names: Any, arch: str, bound: int, tell: Any
) -> dict[str, Binary]:
    """In the place of a backend's own loader."""
    if why := gpu.missing.get(backend):
        raise Unavailable(why)
    gpu.loaded.append((backend, probe, tuple(names), bound))
    out = {}
    for name in names:
        gpu.kernel(name)
        made = Function(gpu, name, backend, next(TICKS))
        gpu.bound[made.handle] = made
        if backend == "cu":
            out[name] = Binary(name, backend, handle=made.handle)
        else:
            out[name] = Binary(name, backend, entry=name, cubin=str(made.handle).encode())
    return out
