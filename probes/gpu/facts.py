"""Open a GPU: what it is, as DeviceFacts, and who else is on it.

Counts come from the driver's device properties; what no driver tells (a unified-memory GPU's bandwidth), from
a matching profile.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from probes.core import environment, packages
from probes.core.types import BadInput, Fault, Unavailable
from probes.device import facts as profiles
from probes.device.facts import DeviceFacts
from probes.gpu import carveout, sms
from probes.gpu.driver import advised, call, tried


@dataclass(frozen=True)
class Gpu:
    """An open GPU: its facts, a stream, and the cuda.core device behind them."""

    facts: DeviceFacts
    index: int
    driver: str
    dev: Any
    stream: Any

    environment: list[str] = field(default_factory=list)
    """What of variables, tools and limits changes what is measured: for a report's head."""
    host_memory: bool = False  # whether the GPU's memory is the host's (GB10, Jetson)

    def free_bytes(self) -> tuple[int, int]:
        """(free, total) device memory in bytes.

        Where it is the host's, free is MemAvailable: the driver's own figure leaves out the page cache, and
        said 5 GiB where 115 could be had.
        """
        free, total = call("cuMemGetInfo")
        if self.host_memory:
            import psutil

            free = min(psutil.virtual_memory().available, total)
        return int(free), int(total)


@dataclass(frozen=True)
class Presence:
    """How many GPUs answer and, for 0, why; `broken`: there is a driver, and it does not work."""

    count: int
    why: str = ""
    broken: bool = False


def look() -> Presence:
    """Whether there is a driver that works, and a GPU. Makes no context."""
    try:
        from cuda.bindings import driver
    except ModuleNotFoundError:
        return Presence(0, "package cuda-bindings is not installed")
    except Exception as error:  # of any kind: what a package raises as it loads
        return Presence(0, packages.failed(error) or f"cuda-bindings does not load ({error})", True)
    try:
        (result,) = driver.cuInit(0)
    except RuntimeError as error:
        return Presence(0, f"no NVIDIA driver ({error})")
    count = 0
    if result == driver.CUresult.CUDA_SUCCESS:
        result, count = driver.cuDeviceGetCount()
    if result != driver.CUresult.CUDA_SUCCESS:
        return Presence(0, advised(result.name, f"the NVIDIA driver answered {result.name}"), True)
    return Presence(int(count)) if count else Presence(0, "the driver sees no GPU", True)


def open_gpu(index: int = 0) -> Gpu:
    """Make GPU `index` current and describe it.

    Raises Unavailable without a driver or GPU, BadInput for an index that is not there.
    """
    found = look()
    if not found.count:
        needs = "this needs an NVIDIA GPU (the probes predict without: --mode predict)"
        raise Unavailable(f"cannot measure: {found.why}; {needs}")
    if not 0 <= index < found.count:
        there = f"this machine has {found.count} (0 to {found.count - 1})"
        raise BadInput(f"there is no device {index}; {there}")
    told = environment.settle(os.environ, read="numba" in sys.modules)
    with tried(f"opening GPU {index}"):
        from cuda.core import Device

        dev = Device(index)
        dev.set_current()
        p, facts = dev.properties, _facts(dev)
        stream = dev.create_stream()
    told += _attached() + carveout.reset()
    version = call("cuDriverGetVersion")
    _, total = call("cuMemGetInfo")
    tables = bool(p.pageable_memory_access_uses_host_page_tables)
    host_memory = in_host_memory(bool(p.integrated), tables, int(total))
    return Gpu(facts, index, f"CUDA {version // 1000}.{version % 1000 // 10}", dev, stream, told, host_memory)


def in_host_memory(integrated: bool, host_tables: bool, total: int) -> bool:
    """Whether a GPU's `total` bytes are the host's: an integrated GPU, or one that says so by its size."""
    import psutil

    # a GH200 uses the host's page tables, too, and has HBM of its own, less than the host's memory
    return integrated or (host_tables and abs(total - psutil.virtual_memory().total) < total // 20)


def _attached() -> list[str]:
    """Tools that follow this process; empty where /proc is absent."""
    try:
        maps, status = (Path(f"/proc/self/{name}").read_text(errors="replace") for name in ("maps", "status"))
    except OSError:
        return []
    return environment.tools(maps) + environment.tracer(status)


def _facts(dev: Any) -> DeviceFacts:
    """The facts of a cuda.core device whose context is current."""
    p, cc = dev.properties, dev.compute_capability
    profile = profiles.find(dev.name)
    count = sms.here(p.multiprocessor_count)
    nominal = 2.0 * max(0, p.memory_clock_rate) * 1e3 * p.global_memory_bus_width / 8
    facts = DeviceFacts(
        name=dev.name, arch=f"sm_{cc[0]}{cc[1]}", sms=count,
        slug=sms.place(dev.name, count, sms.of_chip(dev.name, p.multiprocessor_count)),
        regs_per_sm=p.max_registers_per_multiprocessor,
        smem_per_sm_bytes=p.max_shared_memory_per_multiprocessor,
        smem_per_block_max_bytes=p.max_shared_memory_per_block_optin,
        smem_reserved_per_block_bytes=p.reserved_shared_memory_per_block,
        max_threads_per_sm=p.max_threads_per_multiprocessor,
        max_blocks_per_sm=p.max_blocks_per_multiprocessor,
        max_warps_per_sm=p.max_threads_per_multiprocessor // p.warp_size,
        l2_bytes=p.l2_cache_size, dram_bps=nominal, sm_clock_hz=p.clock_rate * 1e3 or None,
        sources={"*": "the driver's device properties"},
    )  # fmt: skip
    if not profile:
        return facts
    # a MIG slice has its part of the L2 and, behind it, the same part of the DRAM
    part = min(1.0, facts.l2_bytes / profile.l2_bytes) if sms.is_mig(dev.name) else 1.0
    return replace(
        facts, dram_bps=profile.dram_bps * part, dram_fetch_bytes=profile.dram_fetch_bytes,
        dram_latency_s=profile.dram_latency_s, launch_s=profile.launch_s,
        sources={**facts.sources, "dram": f"profile {profile.slug}"},
    )  # fmt: skip


def driver_version() -> str:
    """The display driver's version by NVML, '' where NVML is absent or does not know."""
    try:
        import pynvml

        pynvml.nvmlInit()
        version = pynvml.nvmlSystemGetDriverVersion()
    except (ImportError, OSError) as error:
        return f"unknown ({type(error).__name__})"
    except pynvml.NVMLError as error:
        return f"unknown ({error})"
    return str(version.decode() if isinstance(version, bytes) else version)


BUSY_PERCENT = 20  # GPU use above which something else is at work


def _busy_percent(read: Callable[[], int], patience_s: float = 1.5) -> int:
    """NVML's use of the GPU; it looks back about a second, so what we did ourselves is given time to pass."""
    until = time.monotonic() + patience_s
    while (use := read()) > BUSY_PERCENT and time.monotonic() < until:
        time.sleep(0.1)
    return use


def _bus_id(index: int) -> str:
    """PCI bus id of CUDA device `index`: NVML counts GPUs in another order, CUDA_VISIBLE_DEVICES aside."""
    text: bytes = call("cuDeviceGetPCIBusId", 32, call("cuDeviceGet", index))
    return text.split(b"\0")[0].decode()


def _others(pids: Sequence[int], own: int, own_context: bool) -> int:
    """How many of NVML's process ids are not ours: in a container one may be ours under another id."""
    count = sum(pid != own for pid in pids)
    return count - 1 if own_context and count and own not in pids else count


def neighbours(index: int = 0, own_context: bool = False) -> list[str]:
    """Notes on what may disturb a measurement: other processes on the GPU, a busy host, no NVML to see them.

    own_context: whether this process has opened the GPU.
    """
    notes: list[str] = []
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByPciBusId(_bus_id(index).encode())
        pids = [p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
        if others := _others(pids, os.getpid(), own_context):
            notes.append(f"{others} other process(es) on the GPU")
        use = _busy_percent(lambda: int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu))
        if use > BUSY_PERCENT:
            notes.append(f"the GPU was {use} % busy beside the run")
    except (ImportError, OSError) as error:
        notes.append(f"no NVML: other GPU processes cannot be seen ({type(error).__name__})")
    except (pynvml.NVMLError, Unavailable, Fault) as error:
        notes.append(f"NVML: {error}")
    import psutil

    if (load := psutil.cpu_percent(interval=0.1)) > 50.0:
        notes.append(f"the host was {load:.0f} % busy beside the run")
    return notes
