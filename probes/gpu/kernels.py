"""A compiled kernel of either backend, bound to the device: resources, occupancy, launches.

One launcher starts both twins: a Numba kernel comes as a cubin, a C++ one as the CUkernel that its
library exports, and both take the same arguments in the same order.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from probes.core.types import Backend, Binary, LaunchConfig, Resources
from probes.gpu.driver import call, fail, tried


@dataclass(frozen=True)
class Kernel:
    """A launchable kernel. `_keep` holds the library that it came from."""

    name: str
    backend: Backend
    resources: Resources
    handle: Any
    _keep: object

    def blocks_per_sm(self, block: int, smem_bytes: int = 0) -> int:
        """Blocks of `block` threads that one SM holds at a time, by the driver's own account."""
        with tried(f"occupancy of {self.name}"):
            return int(self.handle.occupancy.max_active_blocks_per_multiprocessor(block, smem_bytes))

    def allow_smem(self, smem_bytes: int) -> None:
        """Let launches ask for `smem_bytes` of dynamic shared memory (needed above 48 KiB)."""
        from cuda.bindings import driver

        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        device = call(driver.cuCtxGetDevice)
        call(
            driver.cuKernelSetAttribute,
            attribute,
            smem_bytes,
            driver.CUkernel(int(self.handle.handle)),
            device,
        )

    def make_room(self, smem_bytes: int) -> None:
        """The same, and shared memory before L1: for kernels that keep their data there."""
        self.allow_smem(smem_bytes)
        self.prefer_smem(100)

    def prefer_smem(self, percent: int) -> None:
        """How much of an SM's L1 is to be shared memory while the kernel runs; -1 leaves it to the driver."""
        from cuda.bindings import driver

        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
        handle = driver.CUkernel(int(self.handle.handle))
        call(driver.cuKernelSetAttribute, attribute, percent, handle, call(driver.cuCtxGetDevice))


def bind(binary: Binary) -> Kernel:
    """Load a binary into the current context. Raises Unavailable: no room, not for this GPU, damaged."""
    from cuda.core import Kernel as CoreKernel
    from cuda.core import ObjectCode

    with tried(f"loading {binary.name}"):
        if binary.cubin:
            code = ObjectCode.from_cubin(binary.cubin)
            handle = code.get_kernel(binary.entry)
            keep: object = code
        else:
            handle = CoreKernel.from_handle(binary.handle)
            keep = binary.keepalive
        a = handle.attributes
        resources = Resources(int(a.num_regs), int(a.shared_size_bytes), int(a.local_size_bytes))
    return Kernel(binary.name, binary.backend, resources, handle, keep)


def absent(name: str, backend: Backend) -> Kernel:
    """A kernel that this GPU has no instructions for: it has a name and no code."""
    return Kernel(name, backend, Resources(0, 0, 0), None, None)


@dataclass(frozen=True)
class Launch:
    """One launch: kernel, geometry, arguments. Pointers are ints, 32-bit integers are c_int32."""

    kernel: Kernel
    config: LaunchConfig
    args: tuple[Any, ...]

    def enqueue(self, stream: Any) -> None:
        """Put the launch into a stream (or into the graph that the stream is capturing)."""
        from cuda.core import launch

        try:
            launch(stream, self.core_config(), self.kernel.handle, *self.args)
        except Exception as error:  # no `tried` here: a launch is timed, and takes a few microseconds
            fail(f"launching {self.kernel.name}", error)

    def core_config(self) -> Any:
        """The launch configuration as cuda.core wants it."""
        from cuda.core import LaunchConfig as CoreConfig

        c = self.config
        return CoreConfig(
            grid=c.grid, block=c.block, shmem_size=c.smem_bytes, programmatic_stream_serialization=c.pdl
        )

    @property
    def nodes(self) -> int:
        """Nodes that one enqueue adds to a graph."""
        return 1


@dataclass(frozen=True)
class Step:
    """Several launches in order that count as one: a pair of kernels, a chain."""

    launches: tuple[Launch, ...]

    def enqueue(self, stream: Any) -> None:
        """Put all launches into a stream, as `Launch.enqueue`."""
        for launch in self.launches:
            launch.enqueue(stream)

    @property
    def nodes(self) -> int:
        """Nodes that one enqueue adds to a graph."""
        return len(self.launches)


def int32(value: int) -> ctypes.c_int32:
    """A 32-bit integer argument."""
    return ctypes.c_int32(value)


def int64(value: int) -> ctypes.c_int64:
    """A 64-bit integer argument."""
    return ctypes.c_int64(value)
