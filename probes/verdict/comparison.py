"""Did a row change between two runs? Paired log-ratios, drift, what a new process adds, and Holm. Pure.

Two runs of one base seed take their samples in the same order, so sample k of the one stands beside sample k
of the other: d_k = ln(new / old). Clock episodes fall on the same places in both runs and mostly cancel. A
row's change is the Hodges-Lehmann estimate of its d. Its standard error comes from order statistics (of 8 the
2nd and 7th), so that one wild sample widens nothing, and is drawn towards what is usual in its group.

What is common to all rows is drift: the median change of rows that nobody changed (reads, A/A arms). What
those differ by among themselves beyond their own noise is what another process adds to any row, PRIOR at
least. Where reads and A/A arms disagree, half of their gap widens every interval; or, where the kernels
differ, the reads alone count: an A/A arm may have been changed.

FASTER, SLOWER: beyond the margin, by a test whose level is Holm's over all rows. SAME: the row's own 99 %
interval lies within the margin. Else UNCLEAR.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from statistics import NormalDist, median
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from probes.verdict import blocks

Answer = Literal["FASTER", "SLOWER", "SAME", "UNCLEAR"]
NORMAL = NormalDist()

ALPHA = 0.05
"""How often a comparison, all rows together, may claim a row that lies on the margin."""

LEAST = 8
"""Places without which a row has no interval."""

MOST = 256
"""Places that an estimate is made of: of more, neighbours are averaged."""

INNER = 0.071
"""What the order statistics behind a standard error may miss: the 2nd and 7th of 8 miss 7.03 %."""

PRIOR = blocks.PRIOR
"""Standard deviation of an unchanged row between two processes, at least."""

EFFICIENCY = 0.87
"""Standard error of the estimate over a median's: 0.82 for normal noise; with this one 1 % are missed."""

BORROWED = 12
"""Places that its group counts for in a row's standard error."""

PEERS = 4
"""Rows of a group, or unchanged rows, without which they tell nothing."""

REACH = 3.3
"""Standard errors that two classes of unchanged rows must lie apart to disagree."""

UNKNOWN = 0.053
"""Where no drift is known: 3.3 times the 1.6 % that runs of one build drifted by on an H200."""

MEDIAN = 1.2533
"""Standard error of a median over that of a mean."""


class Moved(NamedTuple):
    """ln(new time / old time): estimate, standard error, places, degrees of freedom."""

    m: float
    se: float
    n: int
    df: float


class Drift(NamedTuple):
    """What all rows moved by, from `rows` unchanged ones. spread: sd that another process adds to one row.

    slack: what the intervals are wider by, since it is not known (`why`: no-controls, controls-disagree).
    reads, again: medians of the two classes.
    """

    m: float = 0.0
    se: float = 0.0
    spread: float = 0.0
    slack: float = 0.0
    rows: int = 0
    why: str = ""
    reads: float | None = None
    again: float | None = None


class Change(NamedTuple):
    """A row's change, as logarithms: estimate, ends of its 99 % interval, p of lying within the margin."""

    m: float
    low: float
    high: float
    p: float


def moved(differences: ArrayLike) -> Moved | None:
    """What differences of log times by place, f64[n], say; None for fewer than LEAST."""
    d = np.asarray(differences, dtype=np.float64)
    if d.size < LEAST:
        return None
    if d.size > MOST:
        d = np.array([part.mean() for part in np.array_split(d, MOST)])
    i, j = _walsh(d.size)
    k, ordered = _rank(d.size), np.sort(d)
    half = float(ordered[d.size - k] - ordered[k - 1]) / 2
    return Moved(float(np.median((d[i] + d[j]) / 2)), EFFICIENCY * half / _errors(d.size), d.size, d.size - 1)


@cache
def _walsh(n: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    i, j = np.triu_indices(n)
    return i, j


@cache
def _rank(n: int) -> int:
    k = 1
    while blocks.miss(n, k + 1) <= INNER:
        k += 1
    return k


@cache
def _errors(n: int) -> float:
    """Standard errors from the median to the order statistics of `_rank`."""
    return NORMAL.inv_cdf(1 - blocks.miss(n, _rank(n)) / 2)


def settled(group: Sequence[Moved]) -> list[Moved]:
    """Rows of one group, each standard error drawn towards the usual one as by BORROWED places."""
    if len(group) < PEERS:
        return list(group)
    usual = median(s.n * s.se**2 for s in group)
    return [
        Moved(
            s.m, math.sqrt((s.n * s.n * s.se**2 + BORROWED * usual) / (s.n + BORROWED) / s.n),
            s.n, s.n + BORROWED - 1,
        )
        for s in group
    ]  # fmt: skip


def drift(reads: Sequence[Moved], again: Sequence[Moved], same_kernels: bool) -> Drift:
    """What all rows moved by, from plain reads and A/A arms that both runs hold."""
    every = [*reads, *again]
    if len(every) < PEERS:
        return Drift(slack=UNKNOWN, rows=len(every), why="no-controls")
    own, of_again = (median(s.m for s in x) if len(x) >= PEERS else None for x in (reads, again))
    m, used, slack, why = median(s.m for s in every), every, 0.0, ""
    off = [s.m - m for s in every]
    if own is not None and of_again is not None:
        gap = abs(own - of_again)
        if gap > REACH * math.hypot(_se(reads, own), _se(again, of_again)):
            if same_kernels:
                m, slack, why = (own + of_again) / 2, gap / 2, "controls-disagree"
                off = [*(s.m - own for s in reads), *(s.m - of_again for s in again)]
            else:
                m, used, why = own, list(reads), "reads-alone"
                off = [s.m - own for s in reads]
    noise = median(s.se for s in used) ** 2
    spread = math.sqrt(max(0.0, _sd(off) ** 2 - noise))
    se = MEDIAN * math.sqrt(max(spread, PRIOR) ** 2 + noise) / math.sqrt(len(used))
    return Drift(m, se, spread, slack, len(used), why, own, of_again)


def _sd(values: Sequence[float]) -> float:
    """From the median absolute deviation."""
    middle = median(values)
    return 1.4826 * median(abs(v - middle) for v in values)


def _se(rows: Sequence[Moved], middle: float) -> float:
    """Of the median of a class."""
    return MEDIAN * max(_sd([s.m for s in rows]), PRIOR) / math.sqrt(len(rows))


def change(s: Moved, by: Drift, placed: float, margin: float) -> Change:
    """A row's change without the drift. placed: sd that another process adds at least; margin: a fraction."""
    spread = max(by.spread, placed)
    own, others = s.se**2, spread**2 + by.se**2
    se = math.sqrt(own + others)
    df = se**4 / (own**2 / s.df + others**2 / max(by.rows, blocks.PAIRS)) if se else s.df
    m = s.m - by.m
    half = student(0.005, df) * se + by.slack
    over = abs(m) - math.log1p(margin) - by.slack
    p = 1.0 if over <= 0 else tail(over / se, df) if se else 0.0
    return Change(m, m - half, m + half, p)


def tail(t: float, df: float) -> float:
    """P(T > t) of Student's t, t >= 0; Wallace's transformation to the normal, within 1 % of z."""
    return NORMAL.cdf(-(8 * df + 1) / (8 * df + 3) * math.sqrt(df * math.log1p(t * t / df)))


def student(p: float, df: float) -> float:
    """The t whose `tail` is p."""
    a = -NORMAL.inv_cdf(p) * (8 * df + 3) / (8 * df + 1)
    return math.sqrt(df * math.expm1(a * a / df))


def holm(ps: Sequence[float], alpha: float = ALPHA) -> list[bool]:
    """Which hypotheses are rejected: the k-th smallest p of n is held against alpha / (n - k)."""
    out = [False] * len(ps)
    for k, i in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        if ps[i] > alpha / (len(ps) - k):
            break
        out[i] = True
    return out


def answer(c: Change, claimed: bool, margin: float) -> tuple[Answer, str]:
    """What a change says, and the code of why. claimed: Holm rejects that it lies within the margin."""
    edge = math.log1p(margin)
    if claimed:
        return ("SLOWER" if c.m > 0 else "FASTER"), "beyond-margin"
    if -edge <= c.low and c.high <= edge:
        return "SAME", "within-margin"
    if c.low > edge or c.high < -edge:
        return "UNCLEAR", "beyond-margin-alone"
    return "UNCLEAR", "straddles-margin"


def contradicts(said: Answer, usual: float, margin: float) -> bool:
    """Whether samples at the usual clock alone (their change, without the drift) say otherwise."""
    edge = math.log1p(margin)
    if said == "SAME":
        return abs(usual) > edge
    return said != "UNCLEAR" and (usual if said == "SLOWER" else -usual) <= edge
