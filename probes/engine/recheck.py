"""What a report says beside its samples, held against them: every figure, role and pair that follows.

Pure. A file that was edited by hand shows here; one that was made up as a whole cannot.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from probes.core.types import BACKENDS
from probes.engine import judge, probe
from probes.report.provenance import Head
from probes.report.rows import Row
from probes.verdict import blocks

SAME = 1e-9
"""Relative: figures are written in full."""

APART = 0.25
"""How far the medians of a row's windows and of its blocks may lie apart: clock episodes move either."""

TIMES = ("time_s", "time_s_p25", "time_s_p75", "content_gbps")
RATIOS = (
    "read_ceiling_gbps", "fraction_of_ceiling", "same_bytes_read_s", "fraction_of_same_bytes_read",
    "ratio_to_baseline", "ratio_low", "ratio_high",
)  # fmt: skip
DECIDED = ("ratio_to_baseline", "ratio_low", "ratio_high", "noise_floor", "overlap_s")
WORDS = ("verdict", "recorded", "agrees", "reason", "scope", "of", "baseline")


def figures(rows: Sequence[Row]) -> list[str]:
    """Figures of measured rows that do not follow from their samples."""
    mine = [r for r in rows if r.source == "measured" and r.role != "verdict"]
    again = [_timed(r) for r in mine]
    judge.relate(again)
    out = []
    for said, found in zip(mine, again, strict=True):
        out += [
            f"{said.id}: {n}" for n in (*TIMES, *RATIOS) if not _same(getattr(said, n), getattr(found, n))
        ]
        least = max(4 * said.l2_bytes, 1 << 30) if said.l2_bytes else 0
        if said.cold is not None and least and said.cold != ((said.rotation_bytes or 0) >= least):
            out.append(f"{said.id}: cold, by its rotation_bytes")
        if len(said.throttled_samples) != (said.throttled or 0):
            out.append(f"{said.id}: throttled")
    return out


def _timed(row: Row) -> Row:
    """A copy with the figures of its own samples alone."""
    made = replace(row)
    for name in RATIOS:
        setattr(made, name, None)
    if row.samples_s:
        made.time_s, made.time_s_p25, made.time_s_p75 = blocks.quartiles(row.samples_s)
        made.content_gbps = row.content_bytes / made.time_s / 1e9 if row.content_bytes else None
    return made


def samples(head: Head, rows: Sequence[Row]) -> list[str]:
    """Samples that cannot be a run's: copied, lacking, or at odds with each other."""
    out, seen = [], dict[tuple[float, ...], str]()
    measured = judge.Rows(r for r in rows if r.source == "measured" and r.role != "verdict")
    for row in measured:
        whole = [tuple(row.blocks_s[k : k + 4]) for k in range(0, len(row.blocks_s), 4)]
        for each in ([tuple(row.samples_s)] if row.samples_s else []) + whole:
            if each in seen and len(set(each)) > 1:
                out.append(f"{row.id}: samples that {seen[each]} has too")
                break
            seen[each] = row.id
        if row.role == "contest":
            out += _at_odds(row, measured)
    return out + _lacking(head, measured)


def _at_odds(pair: Row, rows: Sequence[Row]) -> list[str]:
    """Medians of a pair's blocks that are far from its rows' windows."""
    out = []
    t = [pair.blocks_s[k : k + 4] for k in range(0, len(pair.blocks_s), 4)]
    outer = [x for k, b in enumerate(t) for x in (b[::3] if k % 2 == 0 else b[1:3])]
    inner = [x for k, b in enumerate(t) for x in (b[1:3] if k % 2 == 0 else b[::3])]
    for name, own in ((pair.of, outer), (pair.baseline, inner)):
        row = judge.find(rows, pair.group, name or "", pair.backend)
        if row is None:
            out.append(f"{pair.id}: {name} has no samples")
        elif own and abs(math.log(median(own) / median(row.samples_s))) > APART:
            out.append(f"{pair.id}: its blocks' times of {name} are not its windows'")
    return out


def _lacking(head: Head, rows: Sequence[Row]) -> list[str]:
    """Pairs that the rows call for and that are not there, and backends without a row."""
    out = []
    for name in dict.fromkeys(r.probe for r in rows):
        if name not in probe.names():
            continue
        mine = [r for r in rows if r.probe == name]
        there = {(r.group, r.backend, r.variant) for r in mine if r.role == "contest"}
        for group, own in judge.Rows(r for r in mine if not r.sweep).by_group().items():
            wanted = judge.pairs(own, probe.table(name).CONTESTS, probe.analysis(name))
            out += [
                f"{name}/{group}/{p.name}/{p.backend}: no blocks"
                for p in wanted if (group, p.backend, p.name) not in there
            ]  # fmt: skip
        if "--backend" not in head.argv and any(r.samples_s for r in mine):
            out += [f"{name}: no row of {b}" for b in BACKENDS if all(r.backend != b for r in mine)]
    return out


def verdicts(said: Sequence[Row], again: Sequence[Row]) -> list[str]:
    """Verdict rows that say something else than the file's, are lost, or are new."""
    before, now = ({r.id: r for r in some} for some in (said, again))
    out = [
        f"{i} was {before[i].verdict} in the file and cannot be judged from its rows"
        for i in before.keys() - now.keys()
    ]
    out += [f"{i} is {now[i].verdict}, and the file has no such row" for i in now.keys() - before.keys()]
    for i in before.keys() & now.keys():
        if before[i].verdict != now[i].verdict:
            out.append(f"{i} was {before[i].verdict} in the file")
            continue
        other = [n for n in DECIDED if not _same(getattr(before[i], n), getattr(now[i], n))]
        other += [n for n in WORDS if getattr(before[i], n) != getattr(now[i], n)]
        out += [f"{i}: another {', '.join(other)} than in the file"] if other else []
    return sorted(out)


def decisions(said: Sequence[Row], again: Sequence[Row]) -> list[str]:
    """The same of verdicts and their figures alone: the words around them have changed since."""
    return verdicts(
        *(
            [replace(r, reason=None, of=None, baseline=None, scope=None) for r in some]
            for some in (said, again)
        )
    )


def _same(a: float | None, b: float | None) -> bool:
    if a is None or b is None:
        return a is b
    return math.isclose(a, b, rel_tol=SAME)
