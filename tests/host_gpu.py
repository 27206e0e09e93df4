"""A GPU that is none: the driver below probes.gpu, in host memory and on a clock of its own.

The fixture `host_gpu` puts it in the place of `cuda.bindings.driver`, `cuda.core` and NVML, and a loader of
its kernels in the place of both backends. Everything of probes.gpu then runs as on a GPU: buffers, binding,
launches, capture, graphs, events, slopes, clocks, partitions, the profiler's window.

What a GPU would do only later is done only when somebody waits for it: a missing wait shows. A kernel is a
row of `tests.host_kernels`, found by its name; it reads and writes through `Running`, which refuses what is
no live allocation. A launch takes the time that `seconds` says. Knobs are the attributes of `HostGpu`.
"""

from __future__ import annotations

import fnmatch
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import count
from typing import Any

import numpy as np
from cuda.bindings.driver import CUresult
from cuda.core._utils.cuda_utils import CUDAError
from cuda.core._utils.driver_cu_result_explanations import DRIVER_CU_RESULT_EXPLANATIONS as WORDS

from probes.core.types import Resources
from probes.device import facts as profiles
from probes.device.facts import DeviceFacts

H200 = profiles.load("h200")
TWO_SMS = replace(H200, name="Two SMs", slug="two-sms", sms=2, l2_bytes=1024, sm_clock_hz=1.9e9)
GUARD, UNTOUCHED, JUNK = 256, 0x5A, 0xA7
HASHED = 1 << 20
"""Allocations up to so many bytes are known by their content, larger ones by when they were written."""
TICKS = count(1)
USUAL = Resources(32)


class Refused(Exception):
    """What the driver answers in place of success."""


@dataclass(frozen=True)
class HostKernel:
    """Types of the arguments (letters of host_core.TYPES), what it does, what it costs.

    before: looks at every launch first, and gives the arguments that `run` works with.
    """

    args: str
    run: Callable[..., None]
    resources: Resources = USUAL
    before: Callable[..., tuple[Any, ...]] = lambda x, *args: args


_POOL: dict[int, list[Any]] = {}
"""Host memory of large allocations that were given back: touching new pages takes a second for 256 MiB."""


class Allocation:
    """Device memory with guards that no kernel may touch. New memory holds junk."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._raw = (_POOL.get(size) or [np.empty(size + 2 * GUARD + 256, np.uint8)]).pop()
        at = -self._raw.ctypes.data % 256 + GUARD
        self._guards = self._raw[:at], self._raw[at + size :]
        for guard in self._guards:
            guard[:] = UNTOUCHED
        self.bytes = self._raw[at : at + size]
        self.bytes[:HASHED] = JUNK
        self.address = self.bytes.ctypes.data
        self._token: object = None

    def check(self) -> None:
        assert all((g == UNTOUCHED).all() for g in self._guards), f"a write past {self.size} bytes"

    def retire(self) -> None:
        self.check()
        if self.size > HASHED:
            _POOL.setdefault(self.size, []).append(self._raw)

    def written(self, token: object = None) -> None:
        self._token = token

    def token(self) -> object:
        """Equal for equal content."""
        if self._token is None:
            small = self.size <= HASHED
            self._token = blake2b(self.bytes, digest_size=16).digest() if small else next(TICKS)
        return self._token


@dataclass
class Launched:
    """One launch as it was asked for; once it ran, what it read and when it ran."""

    kernel: str
    backend: str
    grid: int
    block: int
    smem: int
    pdl: bool
    args: tuple[Any, ...]
    sms: int
    carveout: int = -1
    eager: bool = True
    profiled: bool = False
    read_bytes: int = 0
    start_s: float = 0.0
    end_s: float = 0.0


@dataclass
class Running:
    """What a kernel sees of the GPU while it runs."""

    gpu: HostGpu
    launch: Launched
    inputs: dict[int, tuple[Allocation, object]] = field(default_factory=dict)
    outputs: list[tuple[int, int]] = field(default_factory=list)
    stamps: int = 0
    repeats: bool = True
    """Whether equal arguments and equal inputs give equal outputs: not where the time is one of them."""

    def read(self, address: int, kind: Any, n: int) -> Any:
        mine = self.gpu.allocation(address)
        self.inputs.setdefault(mine.address, (mine, mine.token()))
        found = self.gpu.at(address, kind, n)
        self.launch.read_bytes += found.nbytes
        found.flags.writeable = False
        return found

    def write(self, address: int, kind: Any, n: int) -> Any:
        """An array to fill, all of it."""
        found = self.gpu.at(address, kind, n)
        self.outputs.append((address, found.nbytes))
        return found

    def update(self, address: int, kind: Any, n: int) -> Any:
        """An array to change in places."""
        self.read(address, kind, n)
        return self.write(address, kind, n)

    def clock(self) -> tuple[int, int]:
        """(cycles, nanoseconds)."""
        self.repeats = False
        return int(self.gpu.cycles), round(1e9 * self.gpu.now)

    def anywhere(self) -> None:
        """The kernel goes by addresses alone, and may have changed everything."""
        self.repeats = False
        for mine in self.gpu.memory.values():
            mine.written()


@dataclass
class HostGpu:
    """The knobs, and what was done."""

    facts: DeviceFacts = TWO_SMS
    devices: int = 1
    total: int = 1 << 30
    free: int = 600 << 20
    integrated: bool = False
    fail: dict[str, Any] = field(default_factory=dict)
    """What a call (cuMemAlloc, launch) answers instead: a result's name, an exception, or (that, after n)."""
    missing: dict[str, str] = field(default_factory=dict)
    """Why a backend cannot be loaded."""
    kernels: dict[str, HostKernel] = field(default_factory=dict)
    seconds: Callable[[Launched], float] = lambda x: 1e-6 + x.read_bytes / 4e12
    replay_s: float = 5e-6
    """What a replay costs once."""
    noise: float = 5e-5
    """Standard deviation of a replay's time, as a share."""
    gap: Callable[[Launched], float] = lambda x: 4e-7
    """Seconds from the end of the launch before to this one's start; below 0 they overlap."""
    clock: Callable[[float], float] = lambda now: 1.0
    """The SM clock's share of its usual value, by time; launches take longer by it."""
    disturbed: Callable[[int], float] = lambda k: 0.0
    """What a neighbour adds to the k-th replay, seconds."""
    extra_nodes: int = 0
    lost_edges: int = 0
    """By how much a graph lies about its nodes; how many of its programmatic edges it lost."""
    partition_unit: int = 1
    smid: Callable[[int], int] | None = None
    others: tuple[int, ...] = ()
    """Other processes on the GPU, by id."""

    calls: Counter[str] = field(default_factory=Counter)
    """How often each was asked for, by the names of `fail`."""
    launched: list[Launched] = field(default_factory=list)
    loaded: list[tuple[str, str, tuple[str, ...], int]] = field(default_factory=list)
    memory: dict[int, Allocation] = field(default_factory=dict)
    bound: dict[int, Any] = field(default_factory=dict)
    streams: dict[int, Any] = field(default_factory=dict)
    contexts: list[int] = field(default_factory=list)
    """SMs of each context with a limit (a partition, MPS), the current one last."""
    limits: dict[Any, int] = field(default_factory=dict)
    graphs: int = 0
    """Graphs and instantiated graphs that nobody gave back."""
    replays: int = 0
    now: float = 1.0
    cycles: float = 0.0
    profiling: bool = False

    def __post_init__(self) -> None:
        self._bases: list[int] = []
        self._wrong: list[list[Any]] = []
        self._known: dict[Any, list[Any]] = {}
        self._random = np.random.default_rng(0)

    # for tests

    def at(self, address: int, kind: Any, n: int) -> Any:
        """Device memory as an array. A test fails where that is no live allocation's."""
        mine, kind = self.allocation(address), np.dtype(kind)
        start = address - mine.address
        end = start + n * kind.itemsize
        assert end <= mine.size, f"{n} x {kind} at {start} of {mine.size} bytes"
        assert address % kind.itemsize == 0, f"{kind} at an address that is {address % kind.itemsize} off"
        return mine.bytes[start:end].view(kind)

    def wrong(self, pattern: str, after: int = 0, change: Callable[[Running], None] | None = None) -> None:
        """Kernels of these names go wrong from their `after`-th launch on: a bit, or what `change` does."""
        self._wrong.append([pattern, after, change or self._flip])

    def kernel(self, name: str) -> HostKernel:
        assert name in self.kernels, f"tests.host_kernels has no {name}"
        return self.kernels[name]

    def of(self, pattern: str) -> list[Launched]:
        """What was launched under such names, in order."""
        return [x for x in self.launched if fnmatch.fnmatchcase(x.kernel, pattern)]

    def end_process(self) -> None:
        """Whatever was not given back is taken back, once it is seen that no kernel wrote past it."""
        for mine in self.memory.values():
            mine.retire()
        self.memory.clear()
        self.streams.clear()
        self._known.clear()
        self._bases, self.graphs = [], 0

    # the machine

    def allocation(self, address: int) -> Allocation:
        k = bisect_right(self._bases, address) - 1
        mine = self.memory[self._bases[k]] if k >= 0 else None
        assert mine and address < mine.address + max(1, mine.size), f"{address:#x} is no device memory"
        return mine

    def allocate(self, size: int) -> int:
        if size < 1:
            raise Refused("CUDA_ERROR_INVALID_VALUE")
        if size > self.free - sum(a.size for a in self.memory.values()):
            raise Refused("CUDA_ERROR_OUT_OF_MEMORY")
        mine = Allocation(size)
        self.memory[mine.address] = mine
        self._bases = sorted(self.memory)
        return mine.address

    def release(self, address: int) -> None:
        self.drain()
        if address not in self.memory:
            raise Refused("CUDA_ERROR_INVALID_VALUE")
        self.memory.pop(address).retire()
        self._bases = sorted(self.memory)

    def drain(self) -> None:
        for stream in self.streams.values():
            stream.drain()

    def answer(self, call: str) -> Any:
        """What `fail` wants of this call; None for success."""
        self.calls[call] += 1
        found = self.fail.get(call)
        if isinstance(found, tuple):
            found, left = found
            if left:
                self.fail[call] = found, left - 1
                return None
        if isinstance(found, Exception):
            raise found
        return found

    def refuse(self, call: str, also: str | None = None) -> None:
        """What cuda.core raises where `fail`, or the caller, wants it: the result, and what explains it."""
        if found := self.answer(call) or also:
            raise CUDAError(f"{found}: {WORDS.get(int(getattr(CUresult, found)), 'no words')}")

    def spend(self, seconds: float) -> None:
        share = self.clock(self.now)
        self.now += seconds / share
        self.cycles += seconds * (self.facts.sm_clock_hz or 1e9)

    def execute(self, asked: Launched, jitter: float) -> None:
        x = Running(self, replace(asked, profiled=self.profiling))
        before = self.now
        self.launched.append(x.launch)
        self._compute(x)
        self.spend(self.seconds(x.launch) * jitter)
        x.launch.start_s, x.launch.end_s = before + self.gap(x.launch), self.now
        if x.stamps:
            stamp = self.at(x.stamps, np.uint64, 2)
            stamp[0] = min(int(stamp[0]), round(1e9 * x.launch.start_s))
            stamp[1] = max(int(stamp[1]), round(1e9 * x.launch.end_s))
        for fault in self._wrong:
            if fnmatch.fnmatchcase(asked.kernel, fault[0]):
                if fault[1] <= 0:
                    fault[2](x)
                    for address, _ in x.outputs:
                        self.allocation(address).written()
                fault[1] -= 1

    def _compute(self, x: Running) -> None:
        """Run the kernel, or write again what it wrote from equal inputs."""
        asked = x.launch
        kernel = self.kernel(asked.kernel)
        args = kernel.before(x, *asked.args)
        key = (kernel.run, asked.grid, asked.block, asked.smem, args, asked.carveout, asked.sms)
        known = self._known.setdefault(key, [])
        for inputs, size, written in known:
            if all(self.memory.get(a.address) is a and a.token() == token for a, token in inputs):
                asked.read_bytes = size
                for address, data, token in written:
                    mine = self.allocation(address)
                    self.at(address, np.uint8, data.size)[:] = data
                    mine.written(token if data.size == mine.size else None)
                    x.outputs.append((address, data.size))
                return
        kernel.run(x, *args)
        for address, _ in x.outputs:
            self.allocation(address).written()
        if x.repeats:
            data = [(a, self.at(a, np.uint8, n).copy(), self.allocation(a).token()) for a, n in x.outputs]
            known[3:] = []
            known.insert(0, (list(x.inputs.values()), asked.read_bytes, data))

    def _flip(self, x: Running) -> None:
        self.at(x.outputs[-1][0], np.uint32, 1)[0] ^= 1

    def replay(self, nodes: list[Launched]) -> None:
        self.spend(self.replay_s + self.disturbed(self.replays))
        self.replays += 1
        jitter = 1 + self.noise * self._random.standard_normal()
        for node in nodes:
            self.execute(node, jitter)
