"""A compiled kernel of either backend, bound to the device: resources, occupancy, launches.

One launcher starts both twins: a Numba kernel comes as a cubin, a C++ one as the CUkernel that its
library exports, and both take the same arguments in the same order.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, ClassVar

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
        self._set("MAX_DYNAMIC_SHARED_SIZE_BYTES", smem_bytes)

    def make_room(self, smem_bytes: int) -> None:
        """The same, and shared memory before L1: for kernels that keep their data there."""
        self.allow_smem(smem_bytes)
        self.prefer_smem(100)

    def prefer_smem(self, percent: int) -> None:
        """How much of an SM's L1 is to be shared memory while the kernel runs; -1 leaves it to the driver."""
        self._set("PREFERRED_SHARED_MEMORY_CARVEOUT", percent)

    def _set(self, name: str, value: int) -> None:
        from cuda.bindings import driver

        attribute = getattr(driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        handle = driver.CUkernel(int(self.handle.handle))
        call("cuKernelSetAttribute", attribute, value, handle, call("cuCtxGetDevice"))


def bind(binary: Binary) -> Kernel:
    """Load a binary into the current context. Raises Unavailable: no room, not for this GPU, damaged."""
    from cuda.core import Kernel as CoreKernel
    from cuda.core import ObjectCode

    with tried(f"loading {binary.name}"):
        keep: Any = ObjectCode.from_cubin(binary.cubin) if binary.cubin else binary.keepalive
        handle = keep.get_kernel(binary.entry) if binary.cubin else CoreKernel.from_handle(binary.handle)
        a = handle.attributes
        resources = Resources(int(a.num_regs), int(a.shared_size_bytes), int(a.local_size_bytes))
    return Kernel(binary.name, binary.backend, resources, handle, keep)


def absent(name: str, backend: Backend) -> Kernel:
    """A kernel that this GPU has no instructions for: it has a name and no code."""
    return Kernel(name, backend, Resources(0, 0, 0), None, None)


@dataclass(frozen=True)
class Launch:
    """One launch: kernel, geometry, arguments. Pointers are ints, integers are int32 or int64."""

    kernel: Kernel
    config: LaunchConfig
    args: tuple[Any, ...]
    nodes: ClassVar[int] = 1

    def enqueue(self, stream: Any) -> None:
        """Put the launch into a stream (or into the graph that the stream is capturing)."""
        from cuda.core import launch

        try:
            launch(stream, self.core_config(), self.kernel.handle, *self.args)
        except Exception as error:  # no `tried` here: a launch is timed, and takes a few microseconds
            fail(f"launching {self.kernel.name}", error)

    def core_config(self) -> Any:
        """`config` as cuda.core wants it."""
        from cuda.core import LaunchConfig as CoreConfig

        c = self.config
        return CoreConfig(
            grid=c.grid, block=c.block, shmem_size=c.smem_bytes, programmatic_stream_serialization=c.pdl
        )


@dataclass(frozen=True)
class Launches:
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


int32, int64 = ctypes.c_int32, ctypes.c_int64
