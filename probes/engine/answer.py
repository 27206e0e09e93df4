"""A probe's answer in a few lines: each contest's lever, and best against best, by case or model. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from probes.core.types import Backend
from probes.engine import probe
from probes.engine.probe import Contest
from probes.report.rows import Row


@dataclass
class Line:
    """One lever of one contest: its verdict row in each language."""

    probe: str
    case: str
    lever: str
    by: dict[Backend, Row] = field(default_factory=dict)

    @property
    def first(self) -> Row:
        """The row of the first language that has one."""
        return next(iter(self.by.values()))


def levers(contest: Contest) -> Sequence[str]:
    """What an answer speaks of: a flip's own lever, and every side of best against best."""
    return contest.variants if contest.sides else contest.variants[:1]


def lines(name: str, rows: Sequence[Row]) -> list[Line]:
    """A probe's lines in the order of its contests: sums over a model where there are such, else cases."""
    judged = [r for r in rows if r.probe == name and r.verdict]
    whole = {r.variant for r in judged if r.scope == "sum"}
    out: dict[tuple[str, str], Line] = {}
    for contest in probe.table(name).CONTESTS:
        for lever in levers(contest):
            for row in judged:
                held = row.variant == lever and (row.scope == "sum" or lever not in whole)
                if held and (not contest.cases or row.case in contest.cases):
                    line = out.setdefault((lever, row.group), Line(name, row.group, lever))
                    line.by[row.backend] = row
    return list(out.values())


def change(row: Row) -> str:
    """`-13.2 % [-14.8, -12.5]`: the change of time with its ends; below 0 is faster."""
    if row.ratio_to_baseline is None or row.ratio_low is None or row.ratio_high is None:
        return ""
    middle, low, high = (100 * (x - 1) for x in (row.ratio_to_baseline, row.ratio_low, row.ratio_high))
    return f"{middle:+.1f} % [{low:+.1f}, {high:+.1f}]"


def against(line: Line) -> str:
    """What a line's lever is held against; where the languages' best differ, both."""
    chosen = [f"{r.of} over {r.baseline}" if r.of else r.baseline or "" for r in line.by.values()]
    return " / ".join(dict.fromkeys(chosen))
