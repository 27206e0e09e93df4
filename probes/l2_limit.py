"""How near L2's ring chains come to a chain that only reads their bytes, and the targets `l2.chain`.

The fastest arm that waits late counts, beside the PDL chain of plain reads (late, successor at once) of the
backend whose is faster, in the same run; the interval comes from paired samples. Reached or not: no verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from probes import l2, limits
from probes.core import report, stats, tuning, verdict
from probes.core.rows import Row
from probes.l2_judge import find, interval
from probes.l2_predict import BACKENDS

READ = "read_chain_pdl"
LATE = tuple(name for name in l2.JUDGED if l2.arm(name).kind == "late")
SEED = 0
"""Of the intervals here, which decide nothing."""

ALONE = (
    "Each kernel of the chains launched alone: a profiler lets no launch overlap another, so an arm has no "
    "meaning here, and what PDL hides at a launch's start and end shows in full. `_plain` is the kernel of "
    "the plain graph; `_late` that of the PDL arms, without the attribute, so that its wait returns at once. "
    "The plain read is of the same weights, under the profiler too. Caches are flushed before each launch: "
    "activations that a chain finds in L2 come from memory here."
)


@dataclass(frozen=True, slots=True)
class Nearest:
    """One chain's fastest late arm of one backend; `found`: the read's time over its own."""

    row: Row
    found: stats.Interval
    target: float | None

    @property
    def said(self) -> str:
        """reached, not reached, and whether the interval holds the target; '' without a target."""
        if self.target is None:
            return ""
        word = "reached" if self.found.ratio >= self.target else "not reached"
        within = self.found.low < self.target <= self.found.high
        return f"{word} (within the interval)" if within else word


def nearest(rows: Sequence[Row], case: str, backend: str) -> Nearest | None:
    """How near one chain of one backend comes, None where it or the read was not measured."""
    mine = [r for name in LATE if (r := find(rows, case, name, backend)) and r.bitwise]
    reads = [r for b in BACKENDS if (r := find(rows, case, READ, b))]
    if not mine or not reads:
        return None
    row, read = (min(some, key=lambda r: r.time_s or 0.0) for some in (mine, reads))
    return Nearest(row, interval(read, row, SEED), verdict.targets(l2.TARGETS).targets.get(case))


def section(rows: Sequence[Row], title: str, markdown: bool) -> list[str]:
    """The table of every ring chain that has a read beside it, empty where none was measured."""
    lines = []
    for case in l2.RING:
        for backend in BACKENDS:
            if n := nearest(rows, case, backend):
                each = (n.row.time_s or 0.0) / l2.launches(case)
                cells = [report.format_time(each), report.format_ratio(*n.found)]
                target = "" if n.target is None else f"{n.target:.2f}"
                lines.append([case, backend, n.row.variant, *cells, target, n.said])
    if not lines:
        return []
    heads = ["chain", "backend", "fastest late arm", "per launch", "of PDL read [low, high]", "target", ""]
    table = report.table(heads, lines, markdown, left=[*heads[:3], heads[-1]])
    return [f"{title}How near the ring chains come to PDL chains that read the same bytes\n\n{table}"]


def kernels(rows: Sequence[Row], title: str, markdown: bool) -> list[str]:
    """Each kernel alone under the profiler beside a plain read of its weights, empty without --counters."""
    seen = [r for r in rows if r.variant.startswith(l2.PROFILED) and r.profiler_time_s]
    reads: dict[tuple[str, str], float] = {}
    for r in seen:
        kernel, _, kind = r.variant.rpartition("_")
        if kind == "read" and r.profiler_time_s:
            key = r.group, kernel
            reads[key] = min(r.profiler_time_s, reads.get(key, r.profiler_time_s))
    most, ceiling = limits.reach(rows), max((r.read_ceiling_gbps or 0.0 for r in rows), default=0.0)
    found = []
    for r in seen:
        kernel, _, kind = r.variant.rpartition("_")
        if kind != "read":
            read_s = reads.get((r.group, kernel)) if r.content_bytes else 0.0
            ring = kernel.removeprefix(l2.PROFILED) in tuning.CHAINS.get(r.case, ())
            shown = replace(r, variant=r.variant.removeprefix(l2.PROFILED))
            found.append(limits.Figures(shown, r.profiler_time_s or 0.0, read_s, most, ceiling, ring))
    return limits.section(found, title, markdown, ALONE)
