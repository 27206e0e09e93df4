"""Rows that were timed together -> ratios; contests -> verdict rows. Pure: nothing here knows a GPU.

A contest's variants are held against its baseline group by group, each pair in blocks of its own
(`block_rule`); reports from before schema 3 are judged by `old_rule`. A sum over a model weighs each case by
how often a decode step runs it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import fsum
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from probes.core.types import BACKENDS, Backend
from probes.engine.block_rule import Part, rule, seen
from probes.engine.probe import AnalysisPart, Contest
from probes.report import tables
from probes.report.rows import Row
from probes.verdict import bars, blocks, record
from probes.verdict.bars import Bar, Interval, Verdict

COLD = "the weights were not cold"


class Pair(NamedTuple):
    """Two arms of one group and backend to be timed side by side: a variant and what it is held against."""

    variant: str
    baseline: str
    backend: Backend
    again: bool = False  # the same kernel twice

    @property
    def name(self) -> str:
        """The row's variant."""
        return f"{self.variant}:{self.baseline}"


class Rule(Protocol):
    """How samples decide."""

    every_case_answers: ClassVar[bool]  # whether a case of several answers the record too

    # What a group's rows say of a variant; None where nothing was measured that could decide.
    def part(self, rows: Sequence[Row], contest: Contest, row: Row, base: Row) -> Part | None: ...
    # Of a model's parts, each with its launches per decode step.
    def sum(self, parts: Sequence[tuple[int, Part]]) -> Part: ...
    # A part held against a bar.
    def decide(self, part: Part, bar: Bar, why: str | None) -> Verdict: ...


class Rows(list[Row]):
    """Rows that no longer change: what is asked of them again and again is looked up once."""

    @cached_property
    def timed(self) -> dict[tuple[str, str, str], Row]:
        """The first row with samples of each (group, variant, backend)."""
        return {(r.group, r.variant, r.backend): r for r in reversed(self) if r.samples_s}

    @cached_property
    def pairs(self) -> dict[tuple[str, str, str | None, str | None], Row]:
        """The first contest row of each (group, backend, of, baseline)."""
        wanted = (r for r in reversed(self) if r.role == "contest")
        return {(r.group, r.backend, r.of, r.baseline): r for r in wanted}

    def by_group(self) -> dict[str, Rows]:
        """The rows of each group, in the order in which the groups begin."""
        out: dict[str, Rows] = {}
        for row in self:
            out.setdefault(row.group, Rows()).append(row)
        return out


def find(rows: Sequence[Row], group: str, variant: str, backend: str) -> Row | None:
    """The timed row of one variant, None where there is none."""
    want = (group, variant, backend)
    if isinstance(rows, Rows):
        return rows.timed.get(want)
    return next((r for r in rows if r.samples_s and (r.group, r.variant, r.backend) == want), None)


def over(a: Row, b: Row) -> Interval | None:
    """Time of a over time of b, from the windows that both were timed in; None where those are too few."""
    if len(a.samples_s) != len(b.samples_s) or not a.samples_s:
        return None
    e = blocks.interval(np.log(a.samples_s) - np.log(b.samples_s))
    return e.ratio if e else None


def compared(a: Row, b: Row) -> tuple[float, float | None, float | None]:
    """The same with its ends, or the ratio of the two medians where windows are too few for ends."""
    return over(a, b) or ((a.time_s or math.nan) / (b.time_s or math.nan), None, None)


def family(rows: Sequence[Row], row: Row) -> list[Row]:
    """The timed reads among `rows` that `row` is held against: its `read`, and further forms `of` that."""
    return [r for r in rows if r.role == "read" and r.time_s and row.read and row.read in (r.variant, r.of)]


def relate(rows: Sequence[Row]) -> None:
    """Ceilings, shares of a plain read and ratios of rows that were timed together, from their samples.

    Where a pair has blocks of its own, its ratio is theirs.
    """
    groups = Rows(r for r in rows if r.samples_s and r.time_s).by_group()
    for peers in groups.values():
        reads_of = _families(peers)
        ceiling = max((r.content_gbps or 0.0 for r in peers if r.role == "ceiling"), default=0.0)
        for row in peers:
            assert row.time_s, "timed rows alone are here"
            if ceiling and row.content_gbps:
                row.read_ceiling_gbps, row.fraction_of_ceiling = ceiling, row.content_gbps / ceiling
            if read_s := reads_of.get(row.read or ""):
                row.same_bytes_read_s, row.fraction_of_same_bytes_read = read_s, read_s / row.time_s
            base = find(peers, row.group, row.baseline, row.backend) if row.baseline else None
            if base is row:
                row.ratio_to_baseline = 1.0
            elif base and base.time_s:
                row.ratio_to_baseline = row.time_s / base.time_s
                if found := over(row, base):
                    row.ratio_to_baseline, row.ratio_low, row.ratio_high = found
    every = Rows(rows)
    for pair in every:
        if pair.role == "contest" and (e := blocks.interval(seen(pair))):
            like = find(every, pair.group, pair.of or "", pair.backend)
            for row in (pair, like) if like and like.baseline == pair.baseline else (pair,):
                row.ratio_to_baseline, row.ratio_low, row.ratio_high = e.ratio


def _families(peers: Sequence[Row]) -> dict[str, float]:
    """A read's name -> seconds of the fastest timed read by that name, or `of` it: what `family` finds."""
    out: dict[str, float] = {}
    for r in peers:
        if r.role == "read" and r.time_s:
            for name in {r.variant, r.of} - {None, ""}:
                out[str(name)] = min(r.time_s, out.get(str(name), r.time_s))
    return out


def both(rows: Sequence[Row], contest: Contest, variant: str) -> tuple[Row, Row] | None:
    """A variant and its contest's baseline in the group and backend of `rows`, None where one is missing.

    A side of best against best is the fastest of its rows, as the tables' windows timed them.
    """
    if not rows:
        return None
    row, base = (_side(rows, contest, name) for name in (variant, contest.baseline))
    return (row, base) if row and base else None


def _side(rows: Sequence[Row], contest: Contest, name: str) -> Row | None:
    group, backend = rows[0].group, rows[0].backend
    among = contest.sides.get(name, (name,))
    found = [r for n in among if (r := find(rows, group, n, backend)) and (r.bitwise or len(among) == 1)]
    return min(found, key=lambda r: r.time_s or math.inf, default=None)


def _pair(
    rows: Sequence[Row], contest: Contest, variant: str, analysis: AnalysisPart
) -> tuple[Row, Row] | None:
    return (both if variant in contest.sides else analysis.pair)(rows, contest, variant)


def _again(rows: Sequence[Row], contest: Contest, backend: str) -> list[tuple[Row, Row]]:
    """The A/A pairs of a contest in the one group of `rows`."""
    found = []
    for name, of in contest.again:
        again = find(rows, rows[0].group, name, backend) if rows else None
        first = find(rows, rows[0].group, of or (again.of or ""), backend) if again else None
        if again and again.role == "again" and first and first.role != "again":
            found.append((again, first))
    return found


def pairs(
    rows: Sequence[Row], contests: Sequence[Contest], analysis: AnalysisPart
) -> dict[Pair, list[Contest]]:
    """The pairs that one group's rows are to be timed in, and the contests that each is for."""
    out: dict[Pair, list[Contest]] = {}
    timed = [r for r in rows if r.samples_s and r.role != "verdict"]
    of = {b: Rows(r for r in timed if r.backend == b) for b in dict.fromkeys(r.backend for r in timed)}
    for contest in contests:
        if not timed or (contest.cases and timed[0].case not in contest.cases):
            continue
        for backend, mine in of.items():
            found = [p for v in contest.variants if (p := _pair(mine, contest, v, analysis))]
            for a, b in found:
                if a is not b:
                    out.setdefault(Pair(a.variant, b.variant, backend), []).append(contest)
            for a, b in _again(mine, contest, backend) if found else ():
                out.setdefault(Pair(a.variant, b.variant, backend, True), []).append(contest)
    return out


def judge(
    rows: Sequence[Row], contests: Sequence[Contest], analysis: AnalysisPart, by: Rule | None = None
) -> list[Row]:  # fmt: skip
    """Verdict rows of every contest, variant and backend. The same rows give the same verdicts."""
    measured = [r for r in rows if r.source == "measured" and r.role != "verdict"]
    by = by or rule(measured)
    timed = [r for r in measured if r.samples_s or r.role == "contest"]
    order = [(c, v, b) for c in contests for v in c.variants for b in BACKENDS]
    order.sort(key=lambda x: x[0].over != "all" and BACKENDS.index(x[2]))
    of = {b: Rows(r for r in timed if r.backend == b) for b in BACKENDS}
    groups = {b: of[b].by_group() for b in BACKENDS}
    out: list[Row] = []
    for contest, variant, b in order:
        out += _Judged(of[b], groups[b], contest, variant, analysis, by).rows()
    return out


def blocked(row: Row, base: Row, analysis: AnalysisPart) -> str | None:
    """What keeps a pair from a verdict: a missing proof, warm weights, a doubt, or what the probe knows."""
    if row.missing:
        return row.missing[0]
    if row.cold is False or base.cold is False:
        return COLD
    for r in (row, base):
        if stops := r.blocking():
            return f"{r.variant} is {stops[0]}"
    return analysis.blocked(row, base)


@dataclass(frozen=True)
class _Judged:
    """One variant of a contest in one backend."""

    all: Rows
    groups: dict[str, Rows]
    contest: Contest
    variant: str
    analysis: AnalysisPart
    by: Rule
    bar: Bar = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bar", bars.bar(self.contest.bar))

    def rows(self) -> list[Row]:
        """Its verdicts: each case's and, for a sum, each model's; or one for all groups together."""
        cases, parts = self.contest.cases, list[Part]()
        for mine in self.groups.values():
            if not any(not r.sweep and (not cases or r.case in cases) for r in mine):
                continue
            pair = _pair(mine, self.contest, self.variant, self.analysis)
            if pair and (part := self.by.part(mine, self.contest, *pair)):
                parts.append(part)
        if self.contest.over == "all":
            wanted = [p for p in parts if p.row.group in (self.contest.groups or {p.row.group})]
            return [self._together(wanted)] if wanted else []
        out = [self._each(part) for part in parts]
        return out + (self._sums(parts) if self.contest.over == "sum" else [])

    def _decide(self, part: Part) -> Verdict:
        return self.by.decide(part, self.bar, blocked(part.row, part.base, self.analysis))

    def _row(self, part: Part, case: str, scope: str, decided: Verdict, why: Sequence[str]) -> Row:
        like, found = part.row, part.found
        # a case of several, or another size, is not what the record asked
        asked = scope != "each" or (self.contest.over, self.contest.recorded_case) == ("each", case)
        asked = asked or self.by.every_case_answers
        said = (
            record.figure(like.probe, self.contest.recorded_case, self.variant, "verdict") if asked else None
        )
        recorded = str(said.value) if said else None
        row = Row(
            probe=like.probe, case=case, variant=self.variant, backend=like.backend, source="measured",
            device=like.device, noise_floor=part.noise if found else None, role="verdict", scope=scope,
            of=like.variant if like.variant != self.variant else None, baseline=part.base.variant,
            recorded=recorded, verdict=decided.verdict, agrees=bars.agree(decided.verdict, recorded),
            reason=". ".join(filter(None, [decided.reason, *why])),
        )  # fmt: skip
        if found:
            row.ratio_to_baseline, row.ratio_low, row.ratio_high = found
        return row

    def _each(self, part: Part) -> Row:
        said = (
            [self.analysis.why(self.all, self.contest, part.row, part.base, part.found)] if part.found else []
        )
        return self._row(part, part.row.case, "each", self._decide(part), said)

    def _sums(self, parts: Sequence[Part]) -> list[Row]:
        models: dict[str, list[tuple[int, Part]]] = {}
        for part in parts:
            for model, count in (part.row.counts or {}).items():
                models.setdefault(model, []).append((count, part))
        out = []
        for model, own in models.items():
            if not self.contest.whole.get(model, frozenset()) <= {p.row.case for _, p in own}:
                continue
            whole = self.by.sum(own)
            before = fsum(n * (p.base.time_s or 0.0) for n, p in own)
            saved = fsum(n * ((p.base.time_s or 0.0) - (p.row.time_s or 0.0)) for n, p in own)
            why = f"{tables.format_time(saved)} saved of {tables.format_time(before)} per decode step"
            stops = [w for _, p in own if (w := blocked(p.row, p.base, self.analysis))]
            decided = self.by.decide(whole, self.bar, stops[0] if stops else None)
            out.append(self._row(whole, f"model_{model}", "sum", decided, [why]))
        return out

    def _together(self, parts: Sequence[Part]) -> Row:
        """One verdict over all wanted groups; its figures are of the group where the variant does worst."""
        by_group = {part.row.group: part for part in parts}
        verdicts: list[tuple[str, Verdict]] = []
        for group, name in (self.contest.groups or dict.fromkeys(by_group, "")).items():
            part = by_group.get(group)
            verdicts.append((name, self._decide(part) if part else Verdict("INCONCLUSIVE", "not measured")))
        decided = bars.all_of(verdicts) if len(verdicts) > 1 else verdicts[0][1]
        worst = max(parts, key=lambda p: p.found.ratio if p.found else 0.0)
        why = self.analysis.why_all(self.all, self.contest, worst.row, worst.base)
        row = self._row(worst, worst.row.case, "all", decided, why)
        row.noise_floor = max(p.noise for p in parts) if worst.found else None
        row.overlap_s = worst.row.overlap_s
        return row
