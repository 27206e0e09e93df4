"""From launches to samples: checked first, interleaved, by slope, each with its clock.

A *sample* is (time of a 2n-node graph - time of an n-node graph) / n, seconds per launch. Every replay walks
all copies. A *window* times every arm twice (ABBA).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probes.core.types import LaunchConfig, Progress, WrongResult
from probes.gpu.driver import call, tried
from probes.gpu.graph import Eager, Graph, capture
from probes.gpu.kernels import Kernel, Launch, Launches
from probes.gpu.memory import Buffer
from probes.verdict import intervals

F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Output:
    """Where an arm writes, and what must stand there, to the bit: `indices` of uint32 words, `want`."""

    buffer: Buffer
    words: int
    want: NDArray[np.uint32]
    indices: NDArray[np.int64] | None = None

    def check(self, what: str) -> NDArray[np.uint32]:
        """All words; raises WrongResult at the first that is not as wanted."""
        got: NDArray[np.uint32] = self.buffer.download(np.uint32, self.words)
        seen = got if self.indices is None else got[self.indices]
        bad = np.flatnonzero(seen != self.want)
        if bad.size:
            k = int(bad[0])
            index = k if self.indices is None else int(self.indices[k])
            many = f"{what} ({bad.size} of {self.want.size} differ)"
            raise WrongResult(many, index, _words(seen[k]), _words(self.want[k]))
        return got


def _words(bits: np.uint32) -> str:
    """A word both ways, as outputs are float32 or checksums."""
    return f"{int(bits):#010x} ({np.uint32(bits).view(np.float32)!s})"


@dataclass
class Arm:
    """One thing to time: a launch (or a step of several) per weight copy, and the checks before and after."""

    name: str
    launches: Sequence[Launch | Launches]
    output: Output
    graphs: tuple[Graph, Graph] | None = field(default=None, repr=False)
    also: tuple[Output, ...] = ()  # further outputs of a launch, checked like the first
    kept: tuple[Output, ...] = ()
    """What a launch leaves as it found it (counters that are 0): checked, never poisoned."""
    whole: bool = False  # whether the check runs every launch, since a result goes into the next one
    graph: bool = True  # whether graphs are replayed, or launches enqueued anew each time
    edges: tuple[int, int] = (0, 0)  # (programmatic, all), read back from the captured graph

    def build(self, stream: Any) -> None:
        """Check launches on a poisoned output, then make the n- and 2n-node graphs: no time is unchecked."""
        make = capture if self.graph else Eager.of
        with tried(self.name):
            self.poison()
            for launch in self.launches if self.whole else self.launches[:1]:
                launch.enqueue(stream)
            self.check(f"{self.name}, before timing")
            n = sum(launch.nodes for launch in self.launches)
            once = make(stream, self.launches)
            try:
                twice = make(stream, [*self.launches, *self.launches])
            except BaseException:
                once.close()
                raise
        self.graphs, self.edges = (once, twice), (once.programmatic, once.edges)
        if (once.nodes, twice.nodes) != (n, 2 * n):
            held = f"{once.nodes} and {twice.nodes} nodes"
            raise RuntimeError(f"{self.name}: graphs hold {held}, not {n} and {2 * n}")

    def recheck(self) -> None:
        """Poison, replay once, and check what the last copy gave."""
        assert self.graphs, "build() comes first"
        with tried(self.name):
            self.poison()
            self.graphs[0].replay()
            self.check(f"{self.name}, after timing")

    def poison(self) -> None:
        """Fill every output with what no kernel writes."""
        for output in (self.output, *self.also):
            output.buffer.poison()

    def check(self, what: str) -> None:
        """Every output to the bit, and what must be as it was. Raises WrongResult."""
        for output in (self.output, *self.also, *self.kept):
            output.check(what)

    def close(self) -> None:
        for graph in self.graphs or ():
            graph.close()
        self.graphs = None


@dataclass(frozen=True)
class Samples:
    """Seconds per launch, f64[w, 2], and the SM clock of each sample in hertz (NaN where unknown)."""

    time_s: F64
    clock_hz: F64


class _Clocks:
    """(SM cycles, nanoseconds) marks in the stream: two of them around a sample give its clock."""

    def __init__(self, kernel: Kernel, marks: int) -> None:
        self.buffer = Buffer(24 * marks)
        self.kernel, self.marks = kernel, marks

    def mark(self, stream: Any, k: int) -> None:
        Launch(self.kernel, LaunchConfig(1, 1), (self.buffer.address + 24 * k,)).enqueue(stream)

    def hertz(self) -> F64:
        """Clock of each pair of marks; NaN where the two ran on different SMs."""
        m = self.buffer.download(np.uint64, 3 * self.marks).reshape(-1, 2, 3)
        cycles, ns = (m[:, 1, k].astype(np.float64) - m[:, 0, k].astype(np.float64) for k in (0, 1))
        known = (m[:, 0, 2] == m[:, 1, 2]) & (ns > 0) & (cycles > 0)
        return np.where(known, cycles / np.where(known, ns, 1.0) * 1e9, np.nan)


def sample(
    stream: Any, arms: Sequence[Arm], windows: int, clock: Kernel, seed: int,
    progress: Progress = lambda line: None, what: str = "",
) -> dict[str, Samples]:  # fmt: skip
    """Time all arms in `windows` interleaved windows. Every arm was built, and is checked again at the end.

    Returns Samples by arm name. Raises WrongResult, Unavailable where the GPU has no room, Fault.
    """
    order = intervals.abba(len(arms), windows, seed)
    times, clocks = np.full((2, len(arms), windows, 2), np.nan)
    steps = order.shape[1]
    marks = _Clocks(clock, 2 * steps)
    with marks.buffer, tried(f"timing {what}".strip()):
        events = [_events(stream, 3) for _ in range(steps)]
        for arm in arms:  # one untimed replay each: modules loaded, clocks up
            assert arm.graphs, "build() comes first"
            arm.graphs[0].replay()
        stream.sync()
        told = time.monotonic()
        for w in range(windows):
            for step, k in enumerate(order[w]):
                marks.mark(stream, 2 * step)
                _replay(stream, arms[k], events[step])
                marks.mark(stream, 2 * step + 1)
            stream.sync()
            hertz = marks.hertz()
            seen = [0] * len(arms)
            for step, k in enumerate(order[w]):
                times[k, w, seen[k]] = _slope_s(arms[k], events[step])
                clocks[k, w, seen[k]] = hertz[step]
                seen[k] += 1
            if time.monotonic() - told > 2.0:
                told = time.monotonic()
                progress(f"{what}: window {w + 1} of {windows}")
    for arm in arms:
        arm.recheck()
    return {arm.name: Samples(times[k], clocks[k]) for k, arm in enumerate(arms)}


def _events(stream: Any, count: int) -> list[Any]:
    """`count` events that take times. Raises Unavailable where the GPU has no room for them."""
    from cuda.core import EventOptions

    with tried("timing events"):
        return [stream.device.create_event(EventOptions(timing_enabled=True)) for _ in range(count)]


def _replay(stream: Any, arm: Arm, events: Sequence[Any]) -> None:
    """Enqueue one replay of each graph between three events."""
    assert arm.graphs, "build() comes first"
    stream.record(events[0])
    for graph, event in zip(arm.graphs, events[1:], strict=True):
        graph.replay()
        stream.record(event)


def _slope_s(arm: Arm, events: Sequence[Any]) -> float:
    start, middle, end = events
    return float(((end - middle) - (middle - start)) / len(arm.launches) * 1e-3)


def replay_s(stream: Any, arm: Arm) -> float:
    """Seconds per launch of one replay of each graph, by slope: a single sample, for other harnesses."""
    events = _events(stream, 3)
    with tried(f"timing {arm.name}"):
        _replay(stream, arm, events)
        events[2].sync()
        return _slope_s(arm, events)


def event_loop_s(stream: Any, arm: Arm) -> float:
    """Seconds per launch of a plain loop of launches between two events, median of 5 rounds over all copies.

    The slope's cross-check: launch overhead hides only behind kernels of some 50 us and more.
    """
    start, end = _events(stream, 2)
    out = []
    with tried(f"timing {arm.name}"):
        for _ in range(5):
            stream.record(start)
            for launch in arm.launches:
                launch.enqueue(stream)
            stream.record(end)
            end.sync()
            out.append((end - start) * 1e-3 / len(arm.launches))
    return float(np.median(out))


MOST_NODES = 768  # of a graph: more copies would not make it colder


def rotation(stored_bytes: int, l2_bytes: int, free_bytes: int) -> int:
    """Copies of a weight to rotate over so that every launch reads cold memory.

    4 GiB of copies where memory allows (a sixth of what is free at most), never less than
    max(4 x L2, 1 GiB) where it does not, and no more than MOST_NODES beyond that floor.
    """
    floor, most = max(4 * l2_bytes, 1 << 30), free_bytes // 6
    want = max(min(4 << 30, most), min(floor, most))
    copies = -(-want // stored_bytes)
    if copies > MOST_NODES:
        copies = max(MOST_NODES, -(-floor // stored_bytes))
    return max(1, min(copies, most // stored_bytes))


def synchronize() -> None:
    """Wait for everything on the current context."""
    call("cuCtxSynchronize")
