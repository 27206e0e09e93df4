"""What is timed: an arm, its graphs, and the checks that stand before and behind every time.

One *sample* of an arm is (time of a 2n-node graph - time of an n-node graph) / n, seconds per launch: what a
replay costs once falls out. Every replay walks all copies of the weights. `gpu.sampling` takes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probes.core.types import WrongResult
from probes.gpu.driver import call, tried
from probes.gpu.graph import Eager, Graph, capture
from probes.gpu.kernels import Launch, Launches
from probes.gpu.memory import Buffer, Region


@dataclass(frozen=True)
class Output:
    """Where an arm writes, and what must stand there, to the bit: `indices` of uint32 words, `want`.

    A buffer may hold several slots, `buffer.pitch` bytes apart, which launches write by turns.
    """

    buffer: Buffer
    words: int
    want: NDArray[np.uint32]
    indices: NDArray[np.int64] | None = None
    slots: int = 1

    def check(self, what: str, slots: int = 1) -> NDArray[np.uint32]:
        """The first slot's words. Raises WrongResult at the first word of `slots` slots that is wrong."""
        step = self.buffer.pitch // 4
        got: NDArray[np.uint32] = self.buffer.download(np.uint32, step * (slots - 1) + self.words)
        for slot in range(slots):
            words = got[slot * step : slot * step + self.words]
            seen = words if self.indices is None else words[self.indices]
            bad = np.flatnonzero(seen != self.want)
            if bad.size:
                k = int(bad[0])
                index = k if self.indices is None else int(self.indices[k])
                which = f", slot {slot}" if slot else ""
                many = f"{what}{which} ({bad.size} of {self.want.size} differ)"
                raise WrongResult(many, index, _words(seen[k]), _words(self.want[k]))
        return got[: self.words]


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
    stale: tuple[Region, ...] = ()
    """What a launch writes before it reads it (a row of the KV cache): poisoned, that no old value passes."""
    whole: bool = False  # whether the check runs every launch, since a result goes into the next one
    extra: int = 0  # launches at the end that are not counted: a slowdown planted on purpose
    graph: bool = True  # whether graphs are replayed, or launches enqueued anew each time
    edges: tuple[int, int] = (0, 0)  # (programmatic, all), read back from the captured graph

    def reads(self, which: Sequence[bool]) -> list[int]:
        """Addresses that its launches read weights from: the first argument of those in a step that do."""
        return [
            int(one.args[0])
            for step in self.launches[: len(self.launches) - self.extra]
            for one, read in zip(
                step.launches if isinstance(step, Launches) else (step,), which, strict=False
            )
            if read
        ]

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
            self.check(f"{self.name}, after timing", every=True)

    def poison(self) -> None:
        """Fill every output with what no kernel writes, and so what a launch must write before it reads."""
        for output in (self.output, *self.also):
            output.buffer.poison()
        for region in self.stale:
            region.poison()

    def check(self, what: str, every: bool = False) -> None:
        """Every output to the bit, and what must be as it was. Raises WrongResult.

        every: in all slots, once every copy was launched; else in the first launch's.
        """
        for output in (self.output, *self.also, *self.kept):
            output.check(what, output.slots if every else 1)

    def close(self) -> None:
        for graph in self.graphs or ():
            graph.close()
        self.graphs = None


def timer(stream: Any, count: int) -> list[Any]:
    """`count` events that take times. Raises Unavailable where the GPU has no room for them."""
    from cuda.core import EventOptions

    with tried("timing events"):
        return [stream.device.create_event(EventOptions(timing_enabled=True)) for _ in range(count)]


def replay(stream: Any, arm: Arm, events: Sequence[Any]) -> None:
    """Enqueue one replay of each graph between three events."""
    assert arm.graphs, "build() comes first"
    stream.record(events[0])
    for graph, event in zip(arm.graphs, events[1:], strict=True):
        graph.replay()
        stream.record(event)


def slope_s(arm: Arm, events: Sequence[Any]) -> float:
    """Seconds per launch: what the 2n-node graph takes longer than the n-node graph, over n."""
    start, middle, end = events
    counted = len(arm.launches) - arm.extra
    return float(((end - middle) - (middle - start)) / counted * 1e-3)


def replay_s(stream: Any, arm: Arm) -> float:
    """Seconds per launch of one replay of each graph, by slope: a single sample, for other harnesses."""
    taken = timer(stream, 3)
    with tried(f"timing {arm.name}"):
        replay(stream, arm, taken)
        taken[2].sync()
        return slope_s(arm, taken)


def event_loop_s(stream: Any, arm: Arm) -> float:
    """Seconds per launch of a plain loop of launches between two events, median of 5 rounds over all copies.

    The slope's cross-check: launch overhead hides only behind kernels of some 50 us and more.
    """
    start, end = timer(stream, 2)
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


ROTATION = 2 << 30  # 34 times the L2 of an H200, and half the time of 4 GiB
MOST_NODES = 768  # of a graph: more copies would not make it colder


def rotation(stored_bytes: int, l2_bytes: int, free_bytes: int) -> int:
    """Copies of a weight to rotate over so that every launch reads cold memory.

    ROTATION bytes of copies where memory allows (a sixth of what is free at most), never less than
    max(4 x L2, 1 GiB) where it does not, and no more than MOST_NODES beyond that floor.
    """
    floor, most = max(4 * l2_bytes, 1 << 30), free_bytes // 6
    want = max(min(max(ROTATION, floor), most), min(floor, most))
    copies = -(-want // stored_bytes)
    if copies > MOST_NODES:
        copies = max(MOST_NODES, -(-floor // stored_bytes))
    return max(1, min(copies, most // stored_bytes))


def synchronize() -> None:
    """Wait for everything on the current context."""
    call("cuCtxSynchronize")
