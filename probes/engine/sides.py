"""One side of a comparison: reports pooled as processes, and their samples by place. Pure.

What a side holds of several processes or files is averaged place by place, each file moved by its own drift
from the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from probes.core.types import BadInput
from probes.engine import block_rule
from probes.report.provenance import Head
from probes.report.rows import Row
from probes.verdict import blocks

F64 = NDArray[np.float64]

BLOCKS_SCHEMA = 3
"""From this schema on contests have blocks of their own."""

SHORTEST_S, LONGEST_S = 1e-10, 1e5
"""No sample is shorter or longer."""

READS = ("read", "ceiling")
"""Roles of rows that only the harness' own kernels run in."""


@dataclass
class Report:
    """One file: its head, and its rows by what they are for."""

    name: str
    head: Head
    rows: Sequence[Row]

    def __post_init__(self) -> None:
        if self.head.schema < BLOCKS_SCHEMA:
            raise BadInput(
                f"{self.name} is of schema {self.head.schema}, before contests had blocks of their own: "
                f"measure it anew, schema {BLOCKS_SCHEMA} is needed"
            )
        if self.head.mode != "measure":
            raise BadInput(f"{self.name} was predicted: it holds no samples to compare")
        for row in self.rows:
            if bad := [t for t in (*row.samples_s, *row.blocks_s) if not SHORTEST_S <= t <= LONGEST_S]:
                raise BadInput(f"{self.name}: {row.id} has a sample of {bad[0]} s, which no launch takes")

    def _by_id(self, wanted: Callable[[Row], bool]) -> dict[str, Row]:
        found: dict[str, Row] = {}
        for row in self.rows:
            if wanted(row) and found.setdefault(row.id, row) is not row:
                raise BadInput(f"{self.name} has two rows {row.id}: one of them is of another run")
        return found

    @cached_property
    def timed(self) -> dict[str, Row]:
        """Rows with samples of their own."""
        return self._by_id(lambda r: bool(r.samples_s) and r.role not in ("verdict", "contest"))

    @cached_property
    def pairs(self) -> dict[str, Row]:
        """Rows of two arms side by side."""
        return self._by_id(lambda r: r.role == "contest")

    @cached_property
    def levels(self) -> dict[str, float]:
        """Median log time of each row that nobody changes: reads and A/A arms."""
        return {i: float(np.median(np.log(r.samples_s))) for i, r in self.timed.items() if _control(r)}

    @cached_property
    def usual_hz(self) -> float:
        """What its blocks' clocks are held against."""
        return blocks.usual_clock([c for r in self.rows for c in r.block_clock_hz])


def _control(row: Row) -> bool:
    return row.role in (*READS, "again")


@dataclass(frozen=True)
class Places:
    """Values by place, and which of them were taken at a low clock."""

    values: F64
    low: NDArray[np.bool_]


def mean(parts: Sequence[Places]) -> Places:
    """Place by place over those that have it; low where one was."""
    if len(parts) == 1:
        return parts[0]
    longest = max((p.values.size for p in parts), default=0)
    if not longest:
        return Places(np.empty(0), np.empty(0, dtype=np.bool_))
    padded = np.full((len(parts), longest), np.nan)
    low = np.zeros(longest, dtype=np.bool_)
    for own, p in zip(padded, parts, strict=True):
        own[: p.values.size] = p.values
        low[: p.low.size] |= p.low
    return Places(np.nanmean(padded, axis=0), low)


def less(new: Places, old: Places) -> Places:
    """At the places that both have."""
    n = min(new.values.size, old.values.size)
    return Places(new.values[:n] - old.values[:n], new.low[:n] | old.low[:n])


class Side:
    """The files of one side, pooled as processes."""

    def __init__(self, reports: Sequence[Report]) -> None:
        self.reports = list(reports)
        first = self.reports[0].levels
        self.moved = [
            median([r.levels[i] - first[i] for i in r.levels.keys() & first.keys()] or [0.0])
            for r in self.reports
        ]

    @cached_property
    def timed(self) -> dict[str, list[Row]]:
        """Rows by id, of each file that has it."""
        return _joined(r.timed for r in self.reports)

    @cached_property
    def pairs(self) -> dict[str, list[Row]]:
        """Pair rows by id, of each file that has it."""
        return _joined(r.pairs for r in self.reports)

    @cached_property
    def tau(self) -> float:
        """What placement adds, by the A/A pairs of its worst file."""
        return max(block_rule.placement(r.rows) for r in self.reports)

    @cached_property
    def clock_hz(self) -> float:
        """Median SM clock of its rows, 0 where none is known."""
        known = [r.sm_clock_hz for rows in self.timed.values() for r in rows if r.sm_clock_hz]
        return median(known) if known else 0.0

    @cached_property
    def arms(self) -> dict[str, list[tuple[str, int]]]:
        """Row's id -> the pairs that time it, and as which of the two."""
        out: dict[str, list[tuple[str, int]]] = {}
        for name, (pair, *_) in self.pairs.items():
            for k, arm in enumerate((pair.of, pair.baseline)):
                out.setdefault(f"{pair.probe}/{pair.group}/{arm}/{pair.backend}", []).append((name, k))
        return out

    def survey(self, name: str) -> Places:
        """Log times of a row's own samples by place."""
        parts = []
        for report, moved in zip(self.reports, self.moved, strict=True):
            if (row := report.timed.get(name)) is None:
                continue
            t, low = np.log(row.samples_s) - moved, np.zeros(len(row.samples_s), dtype=np.bool_)
            low[[k for k in row.throttled_samples if 0 <= k < low.size]] = True
            many = row.processes or 1
            if many < 1 or t.size % many:
                many = 1
            parts += [Places(a, b) for a, b in zip(np.split(t, many), np.split(low, many), strict=True)]
        return mean(parts)

    def paired(self, name: str, of: Callable[[F64, float], F64]) -> Places:
        """What `of` makes of a pair's log times f64[blocks, 4] and its file's drift, by place."""
        parts = []
        for report, moved in zip(self.reports, self.moved, strict=True):
            row = report.pairs.get(name)
            if row is None or not row.blocks_s:
                continue
            n = len(row.blocks_s) // 4
            t = np.log(row.blocks_s).reshape(n, 4)
            parts.append(Places(of(t, moved), blocks.low(row.block_clock_hz or [0.0] * n, report.usual_hz)))
        return mean(parts)

    def count(self, rows: Mapping[str, list[Row]], name: str) -> int:
        """Processes behind a row."""
        return sum(max(1, min(r.processes or 1, len(r.samples_s))) for r in rows[name])


def _joined(each: Iterable[Mapping[str, Row]]) -> dict[str, list[Row]]:
    out: dict[str, list[Row]] = {}
    for rows in each:
        for name, row in rows.items():
            out.setdefault(name, []).append(row)
    return out


def arm_of(k: int) -> Callable[[F64, float], F64]:
    """Mean log time of one arm in each block: A's for k = 0, the baseline's for k = 1."""

    def of(t: F64, moved: float) -> F64:
        outer, inner = t[:, [0, 3]].mean(axis=1), t[:, [1, 2]].mean(axis=1)
        first = np.arange(len(t)) % 2 == k
        return np.asarray(np.where(first, outer, inner) - moved, dtype=np.float64)

    return of


def ratio_of(t: F64, moved: float) -> F64:
    """ln of A's time over the baseline's in each block; no drift shows in it."""
    return blocks.figures([float(x) for x in np.exp(t).reshape(-1)])


def read(paths: Sequence[Path], load: Callable[[Path], tuple[Head, list[Row]]]) -> list[Report]:
    """Each file as a Report. Raises BadInput."""
    return [Report(p.name, *load(p)) for p in paths]
