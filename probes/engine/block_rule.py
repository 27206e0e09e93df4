"""The rule by which blocks decide: a pair's interval, what placement adds, and the clock. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from probes.engine.probe import Contest
from probes.report.rows import Row
from probes.verdict import bars, blocks
from probes.verdict.bars import Bar, Interval, Verdict
from probes.verdict.blocks import Estimate


@dataclass(frozen=True)
class Part:
    """What was found of a variant and its baseline in one group, or of a sum of such."""

    row: Row
    base: Row
    found: Interval | None  # None: too little was measured
    noise: float = 0.0  # what the same kernel differs by from itself
    stop: str | None = None  # what keeps it from a verdict
    usual: Interval | None = None  # of the blocks at the usual clock alone, where some ran low
    low: str = ""  # how many ran low
    estimate: Estimate | None = None
    usual_estimate: Estimate | None = None


def placement(rows: Sequence[Row]) -> float:
    """tau of a run, from the A/A pairs among its rows."""
    repeats = {(r.group, r.variant) for r in rows if r.role == "again"}
    return tau_of([r for r in rows if r.role == "contest" and (r.group, r.of) in repeats])


def tau_of(pairs: Sequence[Row]) -> float:
    """tau from the rows of A/A pairs."""
    found = [(e, len(seen(row))) for row in pairs if (e := blocks.interval(seen(row)))]
    return blocks.tau(found)


def seen(pair: Row) -> NDArray[np.float64]:
    """Figures of a pair's blocks up to its last look; what came after it decided nothing."""
    if not pair.blocks_s:
        return np.empty(0)
    r = blocks.figures(pair.blocks_s)
    return r[: blocks.looked(r.size)]


@dataclass(frozen=True)
class BlockRule:
    """The rule of schema 3.

    tau: what placement adds; usual_hz: the clock that blocks are held against; clock: what a reader must know
    of the run's clock as a whole.
    """

    tau: float
    usual_hz: float
    clock: str = ""
    every_case_answers: ClassVar[bool] = False

    def part(self, rows: Sequence[Row], contest: Contest, row: Row, base: Row) -> Part | None:
        """By the blocks of the two."""
        want = (row.group, row.backend, row.variant, base.variant)
        mine = [r for r in rows if r.role == "contest" and (r.group, r.backend, r.of, r.baseline) == want]
        return self.of(mine[0], row, base) if mine else None

    def of(self, pair: Row, row: Row, base: Row) -> Part:
        """What a pair's blocks say."""
        r = seen(pair)
        n = r.size
        stop = pair.missing[0] if pair.missing else None
        if (e := blocks.interval(r)) is None:
            return Part(row, base, None, stop=stop or f"{n} blocks are too few for an interval")
        slow = blocks.low(pair.block_clock_hz[:n] or [0.0] * n, self.usual_hz)
        count = int(slow.sum())
        usual = blocks.interval(r[~slow]) if count >= blocks.LOW_BLOCKS else None
        low = f"{count} of {n} blocks ran at a low clock" if count >= blocks.LOW_BLOCKS else ""
        return self._part(
            row, base, blocks.placed(e, self.tau), usual and blocks.placed(usual, self.tau), stop, low
        )

    def _part(
        self, row: Row, base: Row, e: Estimate, usual: Estimate | None, stop: str | None, low: str
    ) -> Part:  # fmt: skip
        noise = math.expm1(blocks.REACH * self.tau)
        return Part(row, base, e.ratio, noise, stop, usual and usual.ratio, low, e, usual)

    def sum(self, parts: Sequence[tuple[int, Part]]) -> Part:
        """Weighed by the baseline's times."""
        first = parts[0][1]
        stops = [p.stop for _, p in parts if p.stop]
        weights = [n * (p.base.time_s or 0.0) for n, p in parts]
        known = [(w, p.estimate) for w, (_, p) in zip(weights, parts, strict=True) if p.estimate]
        if len(known) < len(parts):
            return Part(first.row, first.base, None, stop=stops[0])
        usual = [p.usual_estimate or p.estimate for _, p in parts]
        some = any(p.usual_estimate for _, p in parts)
        alone = blocks.weighted([(w, e) for w, e in zip(weights, usual, strict=True) if e]) if some else None
        low = next((p.low for _, p in parts if p.low), "")
        return self._part(
            first.row, first.base, blocks.weighted(known), alone, stops[0] if stops else None, low
        )

    def decide(self, part: Part, bar: Bar, why: str | None) -> Verdict:
        """Low end at or above the bar: GO. High end below it: NO-GO. Else, or with a doubt: INCONCLUSIVE."""
        why = part.stop or why
        if part.found is None:
            return Verdict("INCONCLUSIVE", why or "too little was measured")
        decided = bars.decide(part.found, bar, part.noise, why)
        if not why and part.usual:
            other = bars.decide(part.usual, bar, part.noise, None)
            if other.verdict != decided.verdict:
                told = f"the clock decides: {part.low}, and the others alone say {other.verdict}"
                return bars.decide(part.found, bar, part.noise, told)
        told = "; ".join(filter(None, [part.low, self.clock]))
        return Verdict(decided.verdict, f"{decided.reason} ({told})") if told else decided


def rule(rows: Sequence[Row], highest_hz: float | None = None) -> BlockRule:
    """The rule of a run's rows. highest_hz: the device's highest SM clock, where it is known."""
    usual = blocks.usual_clock([c for r in rows for c in r.block_clock_hz])
    return BlockRule(placement(rows), usual, clock_note(usual, highest_hz))


def clock_note(usual_hz: float, highest_hz: float | None) -> str:
    """What is odd about a run's clock, '' where nothing is."""
    if not usual_hz:
        return "the SM clock is unknown"
    if highest_hz and usual_hz < blocks.SLOWED * highest_hz:
        return f"the whole run's SM clock was {100 * usual_hz / highest_hz:.0f} % of the device's highest"
    return ""
