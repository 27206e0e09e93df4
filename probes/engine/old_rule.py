"""The rule by which reports of schema 1 and 2 were judged: windows, a bootstrap, and a floor that gates.

It stays so that those reports replay to what they said. Runs of today are judged by `engine.judge`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from typing import ClassVar

from probes.engine.block_rule import Part
from probes.engine.judge import find
from probes.engine.probe import Contest
from probes.report.rows import Row
from probes.verdict import bars, windows
from probes.verdict.bars import Bar, Interval, Verdict

EARLIER_S = 50e-9
"""A start this much earlier than the baseline's was no accident of the timer."""


def _apart(row: Row, base: Row) -> str | None:
    """A chain whose launches were looked at and do not overlap decided nothing then, by its start."""
    if row.overlap_s is None or row.overlap_s > 0:
        return None
    told = f"no overlap seen: launches start {-row.overlap_s * 1e6:.2f} us after their predecessor's end"
    if base.overlap_s is not None and row.overlap_s - base.overlap_s >= EARLIER_S:
        return f"{told}, {(row.overlap_s - base.overlap_s) * 1e6:.2f} us earlier than in the plain graph"
    return f"{told}, no earlier than in the plain graph"


def _times(row: Row) -> windows.F64:
    """A row's samples by process and window."""
    return windows.arm(row.samples_s, row.processes or 1)


@dataclass(frozen=True)
class Windows:
    """See the module. seed: of the bootstrap."""

    seed: int
    every_case_answers: ClassVar[bool] = True

    def part(self, rows: Sequence[Row], contest: Contest, row: Row, base: Row) -> Part | None:
        """None where no A/A pair was timed."""
        floors = []
        for name, of in contest.again:
            again = find(rows, row.group, name, row.backend)
            first = find(rows, row.group, of or (again.of if again and again.of else ""), row.backend)
            if again and first:
                floors.append(self._over([(1, again, first)]))
        return Part(row, base, self._over([(1, row, base)]), windows.floor_of(floors)) if floors else None

    def _over(self, parts: Sequence[tuple[int, Row, Row]]) -> Interval:
        return windows.weighted_ratio([(n, _times(a), _times(b)) for n, a, b in parts], self.seed)

    def sum(self, parts: Sequence[tuple[int, Part]]) -> Part:
        """Each case's ratio strays by its floor at most, so the sum's by their mean, weighted by time."""
        found = self._over([(n, p.row, p.base) for n, p in parts])
        weights = [n * (p.base.time_s or 0.0) for n, p in parts]
        noise = fsum(w * p.noise for w, (_, p) in zip(weights, parts, strict=True)) / fsum(weights)
        return Part(parts[0][1].row, parts[0][1].base, found, noise)

    def decide(self, part: Part, bar: Bar, why: str | None) -> Verdict:
        """The floor gates, and so does an overlap that is not there."""
        assert part.found, "windows always give an interval"
        return bars.judge_ratio(*part.found, part.noise, bar, why or _apart(part.row, part.base))
