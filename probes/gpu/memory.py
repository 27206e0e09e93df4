"""Device memory: plain allocations, copies both ways, poison."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probes.gpu.driver import call, released

POISON = 0xFF
"""Every byte of an output before a run: as float32 a NaN, as uint32 no likely checksum."""


class Buffer:
    """A device allocation of `size` bytes. Use as a context manager, or call free()."""

    def __init__(self, size: int) -> None:
        from cuda.bindings import driver

        self.size = self.pitch = size
        self._handle = call(driver.cuMemAlloc, max(size, 16))
        self.address = int(self._handle)

    @classmethod
    def of(cls, array: NDArray[Any], copies: int = 1, align: int = 256) -> Buffer:
        """A buffer that holds `copies` of a host array, `pitch` bytes apart (copied on the device)."""
        pitch = -(-array.nbytes // align) * align
        buffer = cls(pitch * copies)
        buffer.pitch = pitch
        try:
            buffer.upload(array)
            done = 1
            while done < copies:
                step = min(done, copies - done)
                buffer._copy_within(done * pitch, 0, step * pitch)
                done += step
        except BaseException:
            buffer.free()
            raise
        return buffer

    def upload(self, array: NDArray[Any]) -> None:
        """Copy a host array to the start of the buffer."""
        from cuda.bindings import driver

        host = np.ascontiguousarray(array)
        call(driver.cuMemcpyHtoD, self.address, host.ctypes.data, host.nbytes)

    def _copy_within(self, to: int, source: int, size: int) -> None:
        from cuda.bindings import driver

        call(driver.cuMemcpyDtoD, self.address + to, self.address + source, size)

    def download(self, dtype: Any, count: int) -> NDArray[Any]:
        """The first `count` elements as a host array. Waits for the device."""
        from cuda.bindings import driver

        host = np.empty(count, dtype)
        call(driver.cuCtxSynchronize)
        call(driver.cuMemcpyDtoH, host.ctypes.data, self.address, host.nbytes)
        return host

    def poison(self) -> None:
        """Fill every byte with POISON. Waits for the device."""
        from cuda.bindings import driver

        call(driver.cuMemsetD8, self.address, POISON, self.size)
        call(driver.cuCtxSynchronize)

    def free(self) -> None:
        """Give the memory back; the buffer is of no use afterwards."""
        from cuda.bindings import driver

        if self._handle is not None:
            released(driver.cuMemFree, self._handle)
            self._handle = None

    def __enter__(self) -> Buffer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.free()


def place(stack: ExitStack, **given: NDArray[Any] | int) -> dict[str, Buffer]:
    """Buffers by name that live as long as `stack`: a copy of an array, or so many bytes."""
    keep = stack.enter_context
    return {name: keep(Buffer(x) if isinstance(x, int) else Buffer.of(x)) for name, x in given.items()}


def addresses(buffers: Mapping[str, Buffer]) -> dict[str, int]:
    """Where each buffer lies."""
    return {name: buffer.address for name, buffer in buffers.items()}
