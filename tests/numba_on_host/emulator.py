"""The Numba kernels' own Python, run on the host: one thread per CUDA thread, NumPy scalars for arithmetic.

Memory is a Pointer into a NumPy array, so an index outside it raises, and so does a write to one that is
read-only. Warps and blocks meet at real barriers. `ring.launch` runs kernels on it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

U32, F32 = np.uint32, np.float32


class Pointer:
    """A typed pointer: `p[i]` counts elements, loads count bytes."""

    def __init__(self, array: NDArray[Any], offset: int = 0) -> None:
        self.array, self.offset = array.reshape(-1), offset

    def __getitem__(self, i: Any) -> Any:
        return self.array[self._at(i)]

    def __setitem__(self, i: Any, value: Any) -> None:
        self.array[self._at(i)] = value

    def _at(self, i: Any) -> int:
        k = self.offset + int(i)
        assert 0 <= k < self.array.size, f"element {k} of {self.array.size}"
        return k

    def words(self, offset: Any, count: int, kind: Any) -> tuple[Any, ...]:
        size = np.dtype(kind).itemsize
        raw = self.array.view(np.uint8)
        first = self.offset * self.array.itemsize + int(offset)
        assert first % (count * size) == 0, f"{count * size} bytes at {first} are not aligned"
        assert 0 <= first <= raw.size - count * size, f"byte {first} of {raw.size}"
        return tuple(np.uint32(x) for x in raw[first : first + count * size].view(kind))


def _dp4a(a: Any, b: Any, c: Any, first: Any = np.int8) -> Any:
    x, y = (np.array([v], U32).view(kind).astype(np.int64) for v, kind in ((a, first), (b, np.int8)))
    return np.int32(int(c) + int((x * y).sum()))


def _float(bits: Any) -> Any:
    return np.array([bits], U32).view(F32)[0]


def _bits(value: Any) -> Any:
    return np.array([value], F32).view(U32)[0]


OPS = SimpleNamespace(
    jit=lambda f: f,
    mul=lambda a, b: F32(a) * F32(b),
    add=lambda a, b: F32(a) + F32(b),
    sub=lambda a, b: F32(a) - F32(b),
    kept=lambda p: p,
    anew=lambda n: n,
    fused=lambda a, b, c: F32(np.float64(a) * np.float64(b) + np.float64(c)),
    divide=lambda a, b: F32(a) / F32(b),
    square_root=lambda x: np.sqrt(F32(x)),
    dp4a=_dp4a,
    dp4a_unsigned=lambda a, b, c: _dp4a(a, b, c, np.uint8),
    first_byte=lambda w: F32(np.array([w], U32).view(np.int8)[0]),
    second_byte=lambda w: F32(np.array([w], U32).view(np.int8)[1]),
    float_of_half=lambda h: np.array([h], np.uint16).view(np.float16).astype(F32)[0],
    half_of_float=lambda x: np.uint32(np.array([x], F32).astype(np.float16).view(np.uint16)[0]),
    round_to_int=lambda x: np.int32(np.rint(F32(x))),
    float_of_bits=_float,
    bits_of_float=_bits,
    advance=lambda p, n: Pointer(p.array, p.offset + int(n)),
    shift_right=lambda w, n: np.uint32(w) >> np.uint32(n),
    load16=lambda p, offset: p.words(offset, 4, "<u4"),
    load8=lambda p, offset: p.words(offset, 2, "<u4"),
    load4=lambda p, offset: p.words(offset, 1, "<u4"),
    load2=lambda p, offset: p.words(offset, 1, "<u2")[0],
    smid=lambda: np.uint32(0),
    clock64=lambda: np.uint64(0),
    globaltimer=lambda: np.uint64(time.monotonic_ns()),
)

GATE = SimpleNamespace(
    begin=lambda flags, stamps: None, tail=lambda flags: None, late_wait=lambda: None,
    prefetch=lambda p, n: None, end=lambda flags, stamps: None,
)  # fmt: skip
"""The parts of kernels_numba.pdl that only a GPU has."""


class Turnstile:
    """Closed until it is opened, once; whoever passes lets the next one through."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.open = self._lock.release

    def passed(self, timeout: float = -1) -> bool:
        """Wait until it is open, or so many seconds; whether it is."""
        if not self._lock.acquire(timeout=timeout):
            return False
        self._lock.release()
        return True


class Meeting:
    """threading.Barrier in a third of its time: shuffles are most of what a kernel does here."""

    def __init__(self, threads: int, timeout: float = -1) -> None:
        self._threads, self._timeout = threads, timeout
        self._lock, self._gate, self._missing, self._broken = threading.Lock(), Turnstile(), threads, False

    def wait(self) -> None:
        with self._lock:
            gate = self._gate
            self._missing -= 1
            if not self._missing and not self._broken:
                self._missing, self._gate = self._threads, Turnstile()
                gate.open()
                return
        if not self._broken and not gate.passed(self._timeout):
            self.abort()
        if self._broken:
            raise threading.BrokenBarrierError

    def abort(self) -> None:
        """End every wait, now and later, with an error."""
        with self._lock:
            if not self._broken:
                self._broken = True
                self._gate.open()


class Cuda:
    """As much of numba.cuda as the kernels use."""

    def __init__(self, grid: int, block: int) -> None:
        self.gridDim = SimpleNamespace(x=grid)
        self._own = threading.local()
        self._warps = [Meeting(min(32, block)) for _ in range(-(-block // 32))]
        self._all = Meeting(block)
        self._boxes = np.zeros((2, block), object)
        self._shared: dict[int, Any] = {}
        self._lock = threading.Lock()
        self.shared = SimpleNamespace(array=self._shared_array)
        self.local = SimpleNamespace(array=lambda n, kind: np.zeros(n, str(kind)))

    @property
    def threadIdx(self) -> Any:
        return self._own.thread_index

    @property
    def blockIdx(self) -> Any:
        return self._own.block_index

    def syncthreads(self) -> None:
        self._all.wait()

    def _shared_array(self, n: int, kind: Any, alignment: int = 4) -> Any:
        """The k-th array that a thread asks for is the block's k-th."""
        k = self._own.arrays
        self._own.arrays += 1
        with self._lock:
            return self._shared.setdefault(k, np.zeros(n, str(kind)))

    def _exchange(self, value: Any, source: int) -> Any:
        t = self._own.thread
        box = self._boxes[self._own.turn & 1]
        self._own.turn += 1
        box[t] = value
        self._warps[t // 32].wait()
        return box[t // 32 * 32 + source]

    def shfl_xor_sync(self, mask: int, value: Any, lane: int) -> Any:
        return self._exchange(value, (self._own.thread % 32) ^ lane)

    def shfl_down_sync(self, mask: int, value: Any, delta: int) -> Any:
        lane = self._own.thread % 32
        return self._exchange(value, lane + delta if lane + delta < 32 else lane)

    def run(self, kernel: Callable[..., None], args: tuple[Any, ...], block: int, threads: int) -> None:
        """One block to its end; the first error of any thread is raised."""
        errors: list[BaseException] = []
        self._shared.clear()

        def thread(t: int) -> None:
            self._own.thread, self._own.turn, self._own.arrays = t, 0, 0
            self._own.thread_index, self._own.block_index = SimpleNamespace(x=t), SimpleNamespace(x=block)
            try:
                with np.errstate(over="ignore", divide="ignore"):
                    kernel(*args)
            except threading.BrokenBarrierError:
                pass
            except BaseException as error:
                errors.append(error)
                for barrier in (*self._warps, self._all):
                    barrier.abort()

        pool = [threading.Thread(target=thread, args=(t,)) for t in range(threads)]
        for p in pool:
            p.start()
        for p in pool:
            p.join()
        if errors:
            raise errors[0]
