"""How near L1 comes to memory's limit: each case's fastest kernel, the targets `l1.limit`, and what is left.

A kernel counts if it gives the matrix product to the bit: every variant but `stream`, which only reads. The
fraction is that of a plain read of as many bytes in the same run; its interval comes from paired samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from probes import l1, limits
from probes.core import report, stats, tuning, verdict
from probes.core.rows import Row
from probes.core.types import Backend
from probes.l1_judge import BACKENDS, find, times

BAR = "l1.limit"
SEED = 0
"""Of the intervals here, which decide nothing."""


@dataclass(frozen=True, slots=True)
class Nearest:
    """One case's fastest kernel of one backend, and how it stands."""

    row: Row
    ratio: stats.Interval
    """Its time over that of padded as the recorded dispatcher runs it."""
    fraction: float
    """Time of the plain read of as many bytes over its time."""
    low: float
    high: float
    target: float | None

    @property
    def said(self) -> str:
        """reached, not reached, and whether the interval holds the target; '' without a target."""
        if self.target is None:
            return ""
        word = "reached" if self.fraction >= self.target else "not reached"
        return f"{word} (within the interval)" if self.low < self.target <= self.high else word


def nearest(rows: Sequence[Row], case: str, backend: Backend) -> Nearest | None:
    """The fastest kernel of one case and backend, None where it, padded or the read was not measured."""
    names = {name for name, _, form in l1.variants() if form.name != "stream"}
    mine = [
        r for r in rows if (r.case, r.backend) == (case, backend) and r.samples_s and r.bitwise and r.time_s
    ]
    best = min((r for r in mine if r.variant in names), key=lambda r: r.time_s or 0.0, default=None)
    padded = find(rows, case, "dispatch_padded", backend)
    if best is None or padded is None or not best.fraction_of_same_bytes_read:
        return None
    variant = l1.READ_OF[best.variant.partition("_")[0]]
    reads = [r for b in BACKENDS if (r := find(rows, case, variant, b))]
    if not reads:
        return None
    read = min(reads, key=lambda r: r.time_s or 0.0)
    ratio = stats.weighted_ratio([(1, times(best), times(padded))], SEED)
    found = stats.weighted_ratio([(1, times(read), times(best))], SEED)
    target = verdict.targets(BAR).targets.get(case)
    return Nearest(best, ratio, best.fraction_of_same_bytes_read, found.low, found.high, target)


def section(rows: Sequence[Row], title: str, markdown: bool) -> list[str]:
    """The table of every case, empty where nothing was measured."""
    lines = []
    for case in dict.fromkeys(r.case for r in rows):
        for backend in BACKENDS:
            if found := nearest(rows, case, backend):
                lines.append(_line(found))
    if not lines:
        return []
    heads = ["case", "backend", "fastest", "time", "over padded as dispatched"]
    heads += ["of same-bytes read [low, high]", "target", ""]
    table = report.table(heads, lines, markdown, left=[*heads[:3], heads[-1]])
    return [f"{title}What beats the recorded kernels here: the fastest that is right to the bit\n\n{table}"]


def _line(found: Nearest) -> list[str]:
    row, ratio = found.row, found.ratio
    return [
        row.case,
        row.backend,
        row.variant,
        report.format_time(row.time_s),
        report.format_ratio(ratio.ratio, ratio.low, ratio.high),
        report.format_ratio(found.fraction, found.low, found.high),
        "" if found.target is None else f"{found.target:.2f}",
        found.said,
    ]


def left(rows: Sequence[Row], title: str, markdown: bool) -> list[str]:
    """What the profiler shows of the forms past the record and of each case's fastest kernel."""
    found = []
    for case in dict.fromkeys(r.case for r in rows):
        best = {near.row.variant for b in BACKENDS if (near := nearest(rows, case, b))}
        shown = {
            name: form.name in tuning.FORMS
            for name, _, form in l1.variants()
            if form.name not in l1.RECORDED or name in best
        }
        mine = limits.of_variants(rows, shown)
        found += [f for f in mine if f.row.case == case]
    return limits.section(found, title, markdown)
