"""How near a kernel comes to a plain read of the same bytes, and what keeps it from that.

A probe chooses the rows and the read beside each. Nothing here decides verdicts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from probes.engine.judge import compared
from probes.report import tables
from probes.report.rows import Row

MEMORY = 0.90  # of the DRAM rate that the large read reaches: from here on memory itself is the limit
ISSUE = 0.60  # of the schedulers' active cycles: from here on instructions are the limit
ENDS_S = 5e-6  # what start and end of a launch take at most, and never more than the plain read itself


def keeps(
    share: float | None, issue: float | None, time_s: float, read_s: float | None, ring: bool = False
) -> str:
    """What keeps a kernel from a plain read's time, in a few words; '' where the figures do not tell.

    The arguments are as in `Figures`. Latency is told by exclusion, so all figures are needed.
    """
    if read_s and time_s <= read_s:
        return "nothing"
    if share is not None and share >= MEMORY:
        return "memory"
    if issue is not None and issue >= ISSUE:
        return "issue slots"
    if share is None or issue is None or read_s is None:
        return ""
    if time_s - read_s <= min(ENDS_S, read_s or ENDS_S):
        return "start and end of the launch"
    return "stages wait for their sums" if ring else "latency"


@dataclass(frozen=True, slots=True)
class Nearest:
    """The fastest of some rows; `found`: the time of the fastest read of its bytes over its own."""

    row: Row
    found: tuple[float, float | None, float | None]
    fraction: float
    target: float | None

    @property
    def said(self) -> str:
        """reached, not reached, and whether the interval holds the target; '' without a target."""
        if self.target is None:
            return ""
        word = "reached" if self.fraction >= self.target else "not reached"
        _, low, high = self.found
        within = low is not None and high is not None and low < self.target <= high
        return f"{word} (within the interval)" if within else word

    @property
    def cells(self) -> list[str]:
        """The target and what is said of it."""
        return ["" if self.target is None else f"{self.target:.2f}", self.said]


def nearest(
    rows: Sequence[Row], reads: Sequence[Row], target: float | None, medians: bool = False
) -> Nearest | None:
    """How near the fastest of `rows` comes, by paired samples or (medians) as its row says; None: unknown."""
    if not rows or not reads:
        return None
    row, read = (min(some, key=lambda r: r.time_s or 0.0) for some in (rows, reads))
    found, stated = compared(read, row), row.fraction_of_same_bytes_read
    return Nearest(row, found, stated if medians and stated is not None else found[0], target)


@dataclass(frozen=True, slots=True)
class Figures:
    """One kernel as the profiler saw it, and the plain read beside it."""

    row: Row
    time_s: float  # ours where there is one, else the profiler's; the read's is of the same clock
    read_s: float | None  # 0 for a kernel without weights, None where no read was measured
    reach: float | None  # DRAM throughput over its peak that the large read reaches
    ceiling_gbps: float | None
    ring: bool = False  # whether copies fill its shared memory

    @property
    def gbps(self) -> float:
        """DRAM bytes by the profiler over its time."""
        return (self.row.dram_bytes_read or 0) / (self.row.profiler_time_s or 1.0) / 1e9

    @property
    def of_ceiling(self) -> float | None:
        """`gbps` over the large read's rate."""
        return self.gbps / self.ceiling_gbps if self.ceiling_gbps else None

    @property
    def share(self) -> float | None:
        """Of what the large read reaches: by the profiler's rate, else by bytes over time."""
        own = self.row.profiler_dram_fraction
        return own / self.reach if own is not None and self.reach else self.of_ceiling

    @property
    def in_flight(self) -> int | None:
        """Bytes of shared memory of all blocks that copies fill; None for what is no ring."""
        return self.row.grid * (self.row.smem_bytes or 0) if self.ring and self.row.grid else None

    @property
    def keeps(self) -> str:
        return keeps(self.share, self.row.profiler_issue_fraction, self.time_s, self.read_s, self.ring)


def reach(rows: Sequence[Row]) -> float | None:
    """DRAM throughput over its peak of a run's large reads, None where none was profiled."""
    known = [r.profiler_dram_fraction for r in rows if r.role == "ceiling"]
    return max((x for x in known if x is not None), default=None)


def of_variants(rows: Sequence[Row], shown: Mapping[str, bool]) -> list[Figures]:
    """Figures of the timed and profiled rows among `shown`: variant, and whether it is a ring."""
    most = reach(rows)
    return [
        Figures(r, r.time_s, r.same_bytes_read_s, most, r.read_ceiling_gbps, shown[r.variant])
        for r in rows
        if r.variant in shown and r.time_s and r.dram_bytes_read is not None and r.profiler_time_s
    ]


def table(found: Sequence[Figures], markdown: bool) -> str:
    heads = ["case", "variant", "backend", "DRAM GB/s", "of ceiling", "DRAM", "issue", "in flight at most"]
    heads += ["time", "by the profiler", "beyond a plain read", "of same-bytes read", "kept from 1.00 by"]
    return tables.table(heads, [_cells(f) for f in found], markdown, left=[*heads[:3], heads[-1]])


def _cells(f: Figures) -> list[str]:
    r, percent = f.row, tables.format_percent
    return [
        r.group, r.variant, r.backend, f"{f.gbps:.0f}", percent(f.of_ceiling),
        percent(r.profiler_dram_fraction), percent(r.profiler_issue_fraction),
        tables.format_bytes(f.in_flight), tables.format_time(r.time_s), tables.format_time(r.profiler_time_s),
        tables.format_time(f.time_s - f.read_s if f.read_s else None),
        percent(f.read_s / f.time_s if f.read_s else None), f.keeps,
    ]  # fmt: skip


def section(found: Sequence[Figures], title: str, markdown: bool, head: str = "") -> list[str]:
    """The table and what its columns mean; empty where nothing was profiled. head: what to say first."""
    if not found:
        return []
    most, percent = found[0].reach, tables.format_percent
    reached = f", which the large read brings to {percent(most)}" if most else ""
    first = f"{head}\n\n" if head else ""
    return [
        f"{title}What is left to a plain read of the same bytes\n\n{first}{table(found, markdown)}\n\n"
        "By the profiler, of one cold launch (of a step of two kernels, both added up): DRAM GB/s are its "
        "bytes over its time, of ceiling the same over the large read's rate by our clock; DRAM is the "
        f"throughput over its peak{reached}; issue is the share of cycles in which a scheduler had an "
        "instruction to give. In flight at most is about the shared memory of all blocks, which copies fill. "
        "Kept from 1.00 by is a rule of thumb, the first that fits: nothing, where the plain read takes no "
        f"less; memory, from {percent(MEMORY, 0)} of the large read's DRAM rate on; issue slots, from "
        f"{percent(ISSUE, 0)} on; start and end of the launch (with what a second kernel takes), where they "
        f"are {ENDS_S * 1e6:.0f} µs at most, and no more than the read (which needs no activations before "
        "its first byte counts, nor sums after its last one); else stages that wait while others are summed, "
        "or, without stages, latency."
    ]
