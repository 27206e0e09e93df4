"""Two sides held against each other, row by row: rows matched, drift taken out, each answered. Pure.

A row's samples are paired by place: a survey's by their index, a contest's block by block. A row's own change
is its time's; a lever's (a pair of arms timed side by side) is that of the ratio of the two.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from statistics import median

import numpy as np

from probes.core.types import BadInput
from probes.engine.sides import READS, Places, Report, Side, arm_of, less, mean, ratio_of
from probes.report import store
from probes.report.rows import Row
from probes.verdict import blocks, comparison
from probes.verdict.comparison import Answer, Change, Drift, Moved

USUAL_PLACES = 4
"""Places at the usual clock without which they alone say nothing."""


@dataclass
class Matched:
    """What became of one row: its time, or (a lever) its time over its baseline's beside it."""

    row: Row
    kind: str  # time, lever
    old: float | None = None  # seconds; of a lever the ratio
    new: float | None = None
    found: Change | None = None
    answer: Answer = "UNCLEAR"
    reason: str = ""
    places: int = 0
    processes: int = 0

    @property
    def baseline(self) -> str:
        """What the row is held against within its run."""
        return self.row.baseline or self.row.variant

    @property
    def id(self) -> str:
        """As the row's."""
        return self.row.id


@dataclass
class _Seen:
    """A matched row before it is judged."""

    line: Matched
    places: Places
    share: float  # of what another process adds to a pair of single ones
    doubt: str
    clocks: tuple[float, float] = (0.0, 0.0)
    shift: Moved | None = None


@dataclass
class Comparison:
    """Every matched row's line, what is in one side only, and what was taken out."""

    lines: list[Matched]
    only_old: list[str]
    only_new: list[str]
    drift: Drift
    levers: Drift
    tau: float
    margin: float
    same_kernels: bool
    notes: list[str] = field(default_factory=list)

    def count(self, answer: Answer) -> int:
        """Lines of this answer."""
        return sum(x.answer == answer for x in self.lines)

    def exit_code(self, fail_on: str) -> int:
        """4 where a row is SLOWER, but for levers whose baseline gained; 5 for UNCLEAR, where asked for."""
        if any(x.answer == "SLOWER" and x.reason != "baseline-faster" for x in self.lines):
            return 4
        return 5 if fail_on == "unclear" and self.count("UNCLEAR") else 0


def permit(old: Sequence[Report], new: Sequence[Report], across: Collection[str]) -> None:
    """BadInput for files that may not be held against each other, naming the flag that permits it."""
    every, first = [*old, *new], old[0]

    def differ(what: str, a: object, b: object, name: str) -> None:
        if what not in across:
            told = f"{first.name} has {a}, {name} has {b}"
            raise BadInput(f"the files differ in {what}: {told}; --across {what} permits it")

    for r in every:
        if r.head.device != first.head.device:
            differ("devices", first.head.device, r.head.device, r.name)
    if not _common(old, new):
        x, y = (" and ".join(sorted({r.probe for s in side for r in s.rows})) or "no" for side in (old, new))
        raise BadInput(f"the two sides have no timed row in common: {x} rows against {y} rows")
    seeds = [sorted({r.head.seed for r in side}) for side in (old, new)]
    if seeds[0] != seeds[1]:
        differ("seeds", " and ".join(map(str, seeds[0])), " and ".join(map(str, seeds[1])), new[0].name)
    for r in every:
        for name in sorted(r.timed.keys() & first.timed.keys()):
            a, b = first.timed[name].rotation_bytes, r.timed[name].rotation_bytes
            if a != b:
                differ("rotations", f"{a} bytes for {name}", b, r.name)
        if r.head.bars_sha256 != first.head.bars_sha256:
            differ("bars", first.head.bars_sha256[:12] or "none", r.head.bars_sha256[:12] or "none", r.name)


def _common(old: Sequence[Report], new: Sequence[Report]) -> bool:
    def names(side: Sequence[Report]) -> set[str]:
        return {i for r in side for i in (*r.timed, *r.pairs)}

    return bool(names(old) & names(new))


def compare(old: Sequence[Report], new: Sequence[Report], margin: float) -> Comparison:
    """Every row of both sides judged. margin: a fraction, 0.01 for 1 %."""
    a, b = Side(old), Side(new)
    kernels = {r.head.kernels_sha256 for r in (*old, *new)}
    times = [_time(a, b, i) for i in a.timed if i in b.timed]
    levers = [_lever(a, b, i) for i in a.pairs if i in b.pairs]
    _settle(times)
    _settle(levers)
    drift = comparison.drift(
        [s.shift for s in times if s.shift and s.line.row.role in READS],
        [s.shift for s in times if s.shift and s.line.row.role == "again"],
        len(kernels) == 1,
    )
    twins = {(r.group, r.variant) for rows in a.timed.values() for r in rows if r.role == "again"}
    own = [s.shift for s in levers if s.shift and (s.line.row.group, s.line.row.of) in twins]
    spread = comparison.drift([], own, True).spread if len(own) >= comparison.PEERS else 0.0
    still = Drift(spread=spread, rows=len(own))
    tau = max(a.tau, b.tau)
    _judge(times, levers, (drift, still), tau, margin)
    out = Comparison(
        [s.line for s in (*times, *levers)], _only(a, b), _only(b, a), drift, still, tau, margin,
        len(kernels) == 1,
    )  # fmt: skip
    out.notes += _notes(a, b)
    return out


def _only(x: Side, y: Side) -> list[str]:
    """Rows of x that y has none of."""
    return sorted(i for i in (*x.timed, *x.pairs) if i not in y.timed and i not in y.pairs)


def _notes(a: Side, b: Side) -> list[str]:
    """What a reader must know of the two sides."""
    out, clocks = [], (a.clock_hz, b.clock_hz)
    for name, own, other in (("old", *clocks), ("new", *clocks[::-1])):
        if 0 < own < blocks.SLOWED * other:
            against = f"{own / 1e9:.2f} GHz against {other / 1e9:.2f}"
            out.append(f"the {name} side ran at a low clock throughout: {against}")
    for r in (*a.reports, *b.reports):
        if r.head.rows_sha256 and r.head.rows_sha256 != store.rows_sha256(r.rows):
            out.append(f"{r.name}: the rows are not those that the run wrote (rows_sha256)")
    return out


def _time(a: Side, b: Side, name: str) -> _Seen:
    """A row's samples and its blocks' by place, new less old."""
    olds, news = a.timed[name], b.timed[name]
    own = [float(np.median([t for r in x for t in r.samples_s])) for x in (olds, news)]
    line = Matched(news[0], "time", own[0], own[1])
    if _identical(olds, news) and all(
        _identical(a.pairs[i], b.pairs.get(i, [])) for i, _ in a.arms.get(name, ())
    ):
        line.reason = "identical"
    parts = [less(b.survey(name), a.survey(name))]
    both = [(i, k) for i, k in a.arms.get(name, ()) if (i, k) in b.arms.get(name, ())]
    if both:  # one value a round: the pairs of a round share its clock
        parts.append(mean([less(b.paired(i, arm_of(k)), a.paired(i, arm_of(k))) for i, k in both]))
    seen = Places(np.concatenate([p.values for p in parts]), np.concatenate([p.low for p in parts]))
    clocks = [median(c) if (c := [r.sm_clock_hz for r in x if r.sm_clock_hz]) else 0.0 for x in (olds, news)]
    return _seen(
        line, seen, olds, news, (a.count(a.timed, name), b.count(b.timed, name)), (clocks[0], clocks[1])
    )


def _lever(a: Side, b: Side, name: str) -> _Seen:
    """A pair's ratio block by block, new less old: free of drift."""
    olds, news = a.pairs[name], b.pairs[name]
    line = Matched(news[0], "lever")
    own = [x.paired(name, ratio_of) for x in (a, b)]
    if all(p.values.size for p in own):
        line.old, line.new = (math.exp(float(np.median(p.values))) for p in own)
    if line.old and _identical(olds, news):
        line.reason = "identical"
    counts = a.count(a.pairs, name), b.count(b.pairs, name)
    return _seen(line, less(own[1], own[0]), olds, news, counts)


def _identical(olds: Sequence[Row], news: Sequence[Row]) -> bool:
    return [(r.samples_s, r.blocks_s) for r in olds] == [(r.samples_s, r.blocks_s) for r in news]


def _seen(
    line: Matched, places: Places, olds: Sequence[Row], news: Sequence[Row], counts: tuple[int, int],
    clocks: tuple[float, float] = (0.0, 0.0),
) -> _Seen:  # fmt: skip
    line.places, line.processes = places.values.size, min(counts)
    doubt = next((d for r in (*olds, *news) if (d := _doubt(r))), "")
    share = math.sqrt((1 / counts[0] + 1 / counts[1]) / 2)
    return _Seen(line, places, share, doubt, clocks, comparison.moved(places.values))


def _doubt(row: Row) -> str:
    """The code of what no answer stands beside, '' where there is nothing."""
    if row.bitwise is False:
        return "doubt:not-bitwise"
    if row.missing:
        return "doubt:bad-blocks" if row.role == "contest" else "doubt:missing-proof"
    if row.cold is False:
        return "doubt:hot"
    return next(
        ("doubt:hot" if s.startswith("not cold") else "doubt:above-a-read" for s in row.blocking()), ""
    )


def _settle(seen: Sequence[_Seen]) -> None:
    """Each standard error drawn towards those of its group and backend."""

    def key(s: _Seen) -> tuple[str, str, str]:
        return s.line.row.probe, s.line.row.group, s.line.row.backend

    known = sorted((s for s in seen if s.shift), key=key)
    for _, some in groupby(known, key):
        group = list(some)
        for s, own in zip(group, comparison.settled([s.shift for s in group if s.shift]), strict=True):
            s.shift = own


def _judge(
    times: Sequence[_Seen], levers: Sequence[_Seen], by: tuple[Drift, Drift], tau: float, margin: float
) -> None:
    """Fill in every line's answer and reason."""
    open_: list[tuple[_Seen, Drift]] = []
    for seen, drift, adds in ((times, by[0], tau), (levers, by[1], math.sqrt(2) * tau)):
        for s in seen:
            if s.shift:
                least = max(comparison.PRIOR, adds) * s.share
                s.line.found = comparison.change(s.shift, drift, least, margin)
            if s.line.reason == "identical":
                s.line.answer = "SAME"
            elif s.doubt:
                s.line.reason = s.doubt
            elif not s.shift:
                s.line.reason = "blocks-missing" if s.line.kind == "lever" else "too-few-samples"
            else:
                open_.append((s, drift))
    claimed = comparison.holm([s.line.found.p for s, _ in open_ if s.line.found])
    for (s, drift), yes in zip(open_, claimed, strict=True):
        assert s.line.found, "what has a shift has a change"
        s.line.answer, s.line.reason = comparison.answer(s.line.found, yes, margin)
        if s.line.answer == "UNCLEAR" and drift.slack:
            s.line.reason = drift.why
        elif _clock_decides(s, drift, margin):
            s.line.answer, s.line.reason = "UNCLEAR", "low-clock"
    said = {s.line.id: s.line.answer for s in times}
    for s in levers:
        row = s.line.row
        arm, base = (f"{row.probe}/{row.group}/{x}/{row.backend}" for x in (row.of, row.baseline))
        if s.line.answer == "SLOWER" and said.get(base) == "FASTER" and said.get(arm) != "SLOWER":
            s.line.reason = "baseline-faster"


def _clock_decides(s: _Seen, drift: Drift, margin: float) -> bool:
    """Whether places at the usual clock alone say otherwise, or one side's clock explains a claim."""
    low = int(s.places.low.sum())
    usual = s.places.values[~s.places.low]
    enough = low >= max(2, s.places.low.size // 8) and usual.size >= USUAL_PLACES
    if enough and comparison.contradicts(s.line.answer, float(np.median(usual)) - drift.m, margin):
        return True
    old, new = s.clocks
    if s.line.answer == "SLOWER":
        return 0 < new < blocks.SLOWED * old
    return s.line.answer == "FASTER" and 0 < old < blocks.SLOWED * new
