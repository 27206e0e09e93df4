"""Open a GPU: what it is, in the same DeviceFacts as a profile, and who else is on it.

Counts come from the driver's device properties. What no driver tells (the nominal bandwidth of a
unified-memory GPU, say) is taken from the device's profile where one matches, else left out.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from probes.core.types import BadInput, Unavailable
from probes.device import facts as profiles
from probes.device.facts import DeviceFacts


@dataclass(frozen=True)
class Gpu:
    """An open GPU: its facts, a stream, and the cuda.core device behind them."""

    facts: DeviceFacts
    index: int
    driver: str
    dev: Any
    stream: Any

    def free_bytes(self) -> tuple[int, int]:
        """(free, total) device memory in bytes, from the driver: it knows unified memory too."""
        from cuda.bindings import driver as cuda_driver

        from probes.gpu.driver import call

        free, total = call(cuda_driver.cuMemGetInfo)
        return int(free), int(total)


def present() -> bool:
    """True where a driver and at least one GPU answer."""
    return _count()[0] > 0


def _count() -> tuple[int, str]:
    """Number of GPUs, and why it is 0."""
    try:
        from cuda.bindings import driver
    except ImportError:
        return 0, "package cuda-bindings is not installed"
    try:
        (result,) = driver.cuInit(0)
        if result != driver.CUresult.CUDA_SUCCESS:
            return 0, f"the NVIDIA driver answered {result.name}"
        _, count = driver.cuDeviceGetCount()
    except RuntimeError as error:
        return 0, f"no NVIDIA driver ({error})"
    return int(count), "the driver sees no GPU"


def why_absent() -> str:
    """One phrase on why no GPU can be used, '' where one can."""
    count, why = _count()
    return "" if count else why


def slug_of(name: str) -> str:
    """'NVIDIA H200' -> 'nvidia-h200': the folder of a device's reports."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def open_gpu(index: int = 0) -> Gpu:
    """Make GPU `index` current and describe it.

    Raises Unavailable without a driver or GPU, BadInput for an index that is not there.
    """
    count, why = _count()
    if not count:
        raise Unavailable(
            f"cannot measure: {why}; this needs an NVIDIA GPU (the probes predict without: --mode predict)"
        )
    if not 0 <= index < count:
        raise BadInput(f"there is no device {index}; this machine has {count} (0 to {count - 1})")
    from cuda.bindings import driver
    from cuda.core import Device

    from probes.gpu.driver import call

    dev = Device(index)
    dev.set_current()
    p = dev.properties
    cc = dev.compute_capability
    profile = profiles.find(dev.name)
    warps = p.max_threads_per_multiprocessor // p.warp_size
    nominal = (
        2.0 * p.memory_clock_rate * 1e3 * p.global_memory_bus_width / 8 if p.memory_clock_rate > 0 else 0.0
    )
    facts = DeviceFacts(
        name=dev.name,
        slug=slug_of(dev.name),
        arch=f"sm_{cc[0]}{cc[1]}",
        sms=p.multiprocessor_count,
        regs_per_sm=p.max_registers_per_multiprocessor,
        smem_per_sm_bytes=p.max_shared_memory_per_multiprocessor,
        smem_per_block_max_bytes=p.max_shared_memory_per_block_optin,
        smem_reserved_per_block_bytes=p.reserved_shared_memory_per_block,
        max_threads_per_sm=p.max_threads_per_multiprocessor,
        max_blocks_per_sm=p.max_blocks_per_multiprocessor,
        max_warps_per_sm=warps,
        l2_bytes=p.l2_cache_size,
        dram_bps=profile.dram_bps if profile else nominal,
        sm_clock_hz=p.clock_rate * 1e3 or None,
        sources={"*": "the driver's device properties"},
    )
    if profile:
        facts = replace(
            facts,
            dram_fetch_bytes=profile.dram_fetch_bytes,
            dram_latency_s=profile.dram_latency_s,
            launch_s=profile.launch_s,
            sources={"*": "the driver's device properties", "dram": f"profile {profile.slug}"},
        )
    version = call(driver.cuDriverGetVersion)
    return Gpu(facts, index, f"CUDA {version // 1000}.{version % 1000 // 10}", dev, dev.create_stream())


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


BUSY_PERCENT = 20
"""GPU use above which something else is at work."""


def _busy_percent(read: Callable[[], int], patience_s: float = 1.5) -> int:
    """NVML's use of the GPU; it looks back about a second, so what we did ourselves is given time to pass."""
    until = time.monotonic() + patience_s
    while (use := read()) > BUSY_PERCENT and time.monotonic() < until:
        time.sleep(0.1)
    return use


def _bus_id(index: int) -> str:
    """PCI bus id of CUDA device `index`: NVML counts GPUs in another order, CUDA_VISIBLE_DEVICES aside."""
    from cuda.bindings import driver

    from probes.gpu.driver import call

    device = call(driver.cuDeviceGet, index)
    text: bytes = call(driver.cuDeviceGetPCIBusId, 32, device)
    return text.split(b"\0")[0].decode()


def _others(pids: Sequence[int], own: int, own_context: bool) -> int:
    """How many of NVML's process ids are not ours.

    In a container NVML shows our process under another id; where we hold a context and none of the ids is
    ours, one of them is.
    """
    count = sum(pid != own for pid in pids)
    return count - 1 if own_context and count and own not in pids else count


def neighbours(index: int = 0, own_context: bool = False) -> list[str]:
    """Notes on what may disturb a measurement: other processes on the GPU, a busy host.

    own_context: whether this process has opened the GPU. Empty where nothing was seen; NVML or psutil being
    absent is itself a note.
    """
    notes: list[str] = []
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByPciBusId(_bus_id(index).encode())
        pids = [p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
        others = _others(pids, os.getpid(), own_context)
        if others:
            notes.append(f"{others} other process(es) on the GPU")
        use = _busy_percent(lambda: int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu))
        if use > BUSY_PERCENT:
            notes.append(f"the GPU was {use} % busy beside the run")
    except ImportError:
        notes.append("NVML not installed: other GPU processes cannot be seen")
    except pynvml.NVMLError as error:
        notes.append(f"NVML: {error}")
    import psutil

    load = psutil.cpu_percent(interval=0.1)
    if load > 50.0:
        notes.append(f"the host was {load:.0f} % busy beside the run")
    return notes
