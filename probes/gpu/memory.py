"""Device memory: plain allocations, copies both ways, poison."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from probes.gpu.driver import call, released

POISON = 0xFF  # every byte of an output before a run: as float32 a NaN, as uint32 no likely checksum


class Buffer:
    """A device allocation of `size` bytes. Use as a context manager, or call free()."""

    def __init__(self, size: int) -> None:
        self.size = self.pitch = size
        self._handle = call("cuMemAlloc", max(size, 16))
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
            while done < copies:  # twice as many each time
                step = min(done, copies - done)
                call("cuMemcpyDtoD", buffer.address + done * pitch, buffer.address, step * pitch)
                done += step
        except BaseException:
            buffer.free()
            raise
        return buffer

    @classmethod
    def slots(cls, size: int, count: int, align: int = 256) -> Buffer:
        """Room for `count` times `size` bytes, `pitch` bytes apart."""
        pitch = -(-size // align) * align
        buffer = cls(pitch * count)
        buffer.pitch = pitch
        return buffer

    def copied(self) -> Buffer:
        """The same bytes at another address, copied on the device."""
        buffer = Buffer(self.size)
        buffer.pitch = self.pitch
        try:
            call("cuMemcpyDtoD", buffer.address, self.address, self.size)
        except BaseException:
            buffer.free()
            raise
        return buffer

    def upload(self, array: NDArray[Any]) -> None:
        """Copy a host array to the start of the buffer."""
        host = np.ascontiguousarray(array)
        call("cuMemcpyHtoD", self.address, host.ctypes.data, host.nbytes)

    def download(self, dtype: Any, count: int) -> NDArray[Any]:
        """The first `count` elements as a host array. Waits for the device."""
        host = np.empty(count, dtype)
        call("cuCtxSynchronize")
        call("cuMemcpyDtoH", host.ctypes.data, self.address, host.nbytes)
        return host

    def poison(self) -> None:
        """Fill every byte with POISON. Waits for the device."""
        call("cuMemsetD8", self.address, POISON, self.size)
        call("cuCtxSynchronize")

    def zero(self) -> None:
        """Fill every byte with 0."""
        call("cuMemsetD8", self.address, 0, self.size)

    def free(self) -> None:
        """Give the memory back; the buffer is of no use afterwards."""
        if self._handle is not None:
            released("cuMemFree", self._handle)
            self._handle = None

    def __enter__(self) -> Buffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.free()


class Region(NamedTuple):
    """Rows of `width` bytes, `pitch` bytes apart, somewhere in device memory."""

    address: int
    pitch: int
    width: int
    height: int

    def poison(self) -> None:
        """Fill every byte of its rows with POISON."""
        call("cuMemsetD2D8", self.address, self.pitch, POISON, self.width, self.height)


def place(stack: ExitStack, **given: NDArray[Any] | int) -> dict[str, Buffer]:
    """Buffers by name that live as long as `stack`: a copy of an array, or so many bytes."""
    keep = stack.enter_context
    return {name: keep(Buffer(x) if isinstance(x, int) else Buffer.of(x)) for name, x in given.items()}


def addresses(buffers: Mapping[str, Buffer]) -> dict[str, int]:
    """Where each buffer lies."""
    return {name: buffer.address for name, buffer in buffers.items()}
