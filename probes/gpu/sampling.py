"""Samples of arms: a survey of all of them, and blocks of two side by side, with the clock of each sample.

Every graph is replayed once before the first window. Before every change of arm one untimed replay brings the
new arm's state back, and the first sample after a synchronisation is thrown away: it comes out 1 to 2 % too
fast, since its n-node replay waits for its graph.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probes.core.types import LaunchConfig, Progress
from probes.gpu.driver import tried
from probes.gpu.kernels import Kernel, Launch
from probes.gpu.memory import Buffer
from probes.gpu.timing import Arm, replay, slope_s, timer

F64 = NDArray[np.float64]

MARK_BYTES = 24
TOLD_S = 2.0  # between two lines of progress


@dataclass(frozen=True)
class Samples:
    """Seconds per launch, f64[w, 2], and the SM clock of each sample in hertz (NaN where unknown)."""

    time_s: F64
    clock_hz: F64


@dataclass
class Blocks:
    """Blocks of two arms, in the order of time: A B B A and B A A B by turns.

    time_s: four samples each; clock_hz: each block's lowest SM clock, NaN where unknown; after: the arm that
    ran before each; retaken: blocks with a slope at or below 0, which were measured again.
    """

    time_s: list[float] = field(default_factory=list)
    clock_hz: list[float] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    retaken: int = 0

    @property
    def count(self) -> int:
        """Of whole blocks."""
        return len(self.clock_hz)


class Sampler:
    """Takes samples on one stream; `most` at a time. Use as a context manager."""

    def __init__(self, stream: Any, clock: Kernel, most: int) -> None:
        self.stream, self.clock = stream, clock
        self.marks = Buffer(2 * MARK_BYTES * most)
        self.events = [timer(stream, 3) for _ in range(most)]

    def __enter__(self) -> Sampler:
        return self

    def __exit__(self, *_: object) -> None:
        self.marks.free()

    def take(self, arms: Sequence[Arm]) -> tuple[list[float], F64]:
        """One sample of each arm in this order: seconds per launch, and clocks in hertz, f64[n]."""
        self._untimed(arms[0], thrown_away=True)
        before = arms[0]
        for k, arm in enumerate(arms):
            if arm is not before:
                self._untimed(arm)
            before = arm
            self._mark(2 * k)
            replay(self.stream, arm, self.events[k])
            self._mark(2 * k + 1)
        self.stream.sync()
        return [slope_s(arm, self.events[k]) for k, arm in enumerate(arms)], self._hertz(len(arms))

    def warm(self, arms: Sequence[Arm]) -> None:
        """Replay every graph once: its first launch takes the host longer than the GPU."""
        for arm in arms:
            self._untimed(arm, thrown_away=True)
        self.stream.sync()

    def _untimed(self, arm: Arm, thrown_away: bool = False) -> None:
        assert arm.graphs, "build() comes first"
        for graph in arm.graphs if thrown_away else arm.graphs[:1]:
            graph.replay()

    def _mark(self, k: int) -> None:
        at = (self.marks.address + MARK_BYTES * k,)
        Launch(self.clock, LaunchConfig(1, 1), at).enqueue(self.stream)

    def _hertz(self, count: int) -> F64:
        """Clock between each sample's two marks; NaN where the two ran on different SMs."""
        m = self.marks.download(np.uint64, 6 * count).reshape(-1, 2, 3)
        cycles, ns = (m[:, 1, k].astype(np.float64) - m[:, 0, k].astype(np.float64) for k in (0, 1))
        known = (m[:, 0, 2] == m[:, 1, 2]) & (ns > 0) & (cycles > 0)
        return np.where(known, cycles / np.where(known, ns, 1.0) * 1e9, np.nan)


def survey(
    stream: Any, arms: Sequence[Arm], windows: int, clock: Kernel, seed: int,
    progress: Progress = lambda line: None, what: str = "",
) -> dict[str, Samples]:  # fmt: skip
    """Time all arms in `windows` windows, each a random order and back. Every arm was built.

    A window with a slope at or below 0 is taken again, `windows` times at most; what stays so is NaN. Returns
    Samples by arm name. Raises Unavailable where the GPU has no room, Fault.
    """
    rng = np.random.default_rng(seed)
    times, clocks = np.full((2, len(arms), windows, 2), np.nan)
    spare, told = windows, time.monotonic()
    with tried(f"timing {what}".strip()), Sampler(stream, clock, 2 * len(arms)) as sampler:
        sampler.warm(arms)
        for w in range(windows):
            while True:
                out = rng.permutation(len(arms))
                order = np.concatenate([out, out[::-1]])
                found, hertz = sampler.take([arms[k] for k in order])
                bad = np.array(found) <= 0
                if not bad.any() or spare == 0:
                    break
                spare -= 1
            values = np.where(bad, np.nan, found)
            for k in range(len(arms)):
                times[k, w], clocks[k, w] = values[order == k], hertz[order == k]
            if time.monotonic() - told > TOLD_S:
                told = time.monotonic()
                progress(f"{what}: window {w + 1} of {windows}")
    return {arm.name: Samples(times[k], clocks[k]) for k, arm in enumerate(arms)}


def rounds(
    stream: Any, pairs: Sequence[tuple[Arm, Arm]], looks: Sequence[int], clock: Kernel, seed: int,
    closed: Callable[[int, Sequence[Blocks]], Collection[int]],
    progress: Progress = lambda line: None, what: str = "",
) -> list[Blocks]:  # fmt: skip
    """Time pairs of arms side by side: each round holds one block of every open pair, in a random order.

    closed: after each look, which pairs want no more blocks. A bad block is taken again, at most as often as
    there are blocks to take; a pair that would need more is closed with those that it has.
    """
    taken = [Blocks() for _ in pairs]
    rng = np.random.default_rng(seed)
    open_, told = set(range(len(pairs))), time.monotonic()
    if not pairs:
        return taken
    with tried(f"timing {what}".strip()), Sampler(stream, clock, 4 * len(pairs)) as sampler:
        for look in looks:
            while due := [k for k in sorted(open_) if taken[k].count < look]:
                order = [int(k) for k in rng.permutation(due)]
                _round(sampler, pairs, order, taken)
                open_ -= {k for k in order if taken[k].retaken > look}
                if time.monotonic() - told > TOLD_S:
                    told = time.monotonic()
                    progress(f"{what}: block {min(taken[k].count for k in due)} of {look}, {len(due)} pairs")
            open_ -= set(closed(look, taken))
    return taken


def _round(
    sampler: Sampler, pairs: Sequence[tuple[Arm, Arm]], order: Sequence[int], taken: list[Blocks]
) -> None:  # fmt: skip
    arms: list[Arm] = []
    for k in order:
        a, b = pairs[k] if taken[k].count % 2 == 0 else pairs[k][::-1]
        arms += [a, b, b, a]
    found, hertz = sampler.take(arms)
    for i, k in enumerate(order):
        own, clocks = found[4 * i : 4 * i + 4], hertz[4 * i : 4 * i + 4]
        if min(own) <= 0:
            taken[k].retaken += 1
            continue
        taken[k].time_s += own
        taken[k].clock_hz.append(float(np.min(clocks)))
        taken[k].after.append(arms[4 * i - 1].name if i else "")
