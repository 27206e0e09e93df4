"""How sure is a gain? Blocks A B B A, order statistics, and what the placement of buffers adds. Pure.

A *block* times variant A and baseline B side by side, twice each. Its figure is r = ln(A's time / B's): below
0 is faster, and a drift over the block cancels. The estimate is the median of the blocks' r.

Its ends are order statistics, so that no distribution is assumed. A contest is looked at after 16, 32 and 64
blocks; the ends are the 3rd, 8th and 21st value from either side. They miss the true median in 0.418, 0.210
and 0.369 % of runs with independent blocks: under 1 % over all three looks.

Two arms of the same kernel differ all the same, by where their buffers lie, and no number of blocks shows
it. tau is the standard deviation of that difference over the A/A pairs of a run; each end moves out to
m -+ sqrt(h^2 + (3.3 tau)^2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from probes.core.types import BadInput
from probes.verdict.bars import Interval

F64 = NDArray[np.float64]

LOOKS: dict[int, int] = {16: 3, 32: 8, 64: 21}
"""Blocks -> from which value from either side the ends are taken."""

ONE_LOOK = 0.01
"""What an interval that is looked at once may miss: 99 %."""

LEAST = 8
"""Blocks without which there is no interval: the smallest and largest of 8 miss 0.78 %."""

PAIRS = 20
"""A/A pairs that tell tau; each one lacking counts as a pair that shows PRIOR."""

PRIOR = 0.002
"""tau of a pair that was not measured: the root mean square over 8 kernels and shapes on an H200."""

TINY = 1e-30
"""A variance that is none: it keeps figures without any noise from a division by 0."""

REACH = 3.3
"""Standard deviations that tau moves an end by: 2.58 for 99 %, times what 20 pairs leave open."""

SLOWED = 0.97
"""A sample whose SM clock is below this share of the usual one ran low."""

LOW_BLOCKS = 8
"""So many blocks at a low clock may have decided."""


class Estimate(NamedTuple):
    """ln(time / baseline's time) with the ends of its 99 % interval; below 0 is faster."""

    m: float
    low: float
    high: float

    @property
    def half(self) -> float:
        """Mean half-width."""
        return (self.high - self.low) / 2

    @property
    def ratio(self) -> Interval:
        """Of times."""
        return Interval(math.exp(self.m), math.exp(self.low), math.exp(self.high))


def quartiles(samples_s: ArrayLike) -> tuple[float, float, float]:
    """(median, 25th, 75th percentile) of times in seconds."""
    q = np.quantile(np.asarray(samples_s, dtype=np.float64), [0.5, 0.25, 0.75])
    return float(q[0]), float(q[1]), float(q[2])


def figures(samples_s: Sequence[float]) -> F64:
    """r of each block, f64[n], from samples in the order of time.

    Blocks begin with the variant and with the baseline by turns: A B B A, B A A B. Raises BadInput where the
    samples are not whole blocks of positive times.
    """
    t = np.asarray(samples_s, dtype=np.float64)
    if t.size == 0 or t.size % 4:
        raise BadInput(f"{t.size} samples are not whole blocks of 4")
    if not (np.isfinite(t) & (t > 0)).all():
        raise BadInput(f"samples must be positive and finite, got {t[~(np.isfinite(t) & (t > 0))][0]}")
    outer, inner = t.reshape(-1, 4)[:, [0, 3]].sum(axis=1), t.reshape(-1, 4)[:, [1, 2]].sum(axis=1)
    r = np.log(outer) - np.log(inner)
    return np.asarray(np.where(np.arange(r.size) % 2 == 0, r, -r), dtype=np.float64)


@cache
def miss(n: int, k: int) -> float:
    """How often the k-th value from either side of n misses the median: 2 P(Binomial(n, 1/2) < k)."""
    return 2.0 * math.fsum(math.comb(n, i) for i in range(k)) / 2.0**n if n < 1000 else _normal(n, k)


def _normal(n: int, k: int) -> float:
    return 2 * NormalDist().cdf((k - 0.5 - n / 2) / (math.sqrt(n) / 2))


@cache
def rank(n: int) -> int:
    """From which value from either side the ends of n blocks are taken; 0 where n is too few."""
    if n in LOOKS:
        return LOOKS[n]
    if n < LEAST:
        return 0
    most = ONE_LOOK if n < min(LOOKS) else miss(max(LOOKS), LOOKS[max(LOOKS)])
    k = 1
    while miss(n, k + 1) <= most:
        k += 1
    return k


def looked(n: int) -> int:
    """The last look of a contest of n blocks: what came after it was never looked at. n from pooled runs."""
    return max((x for x in LOOKS if x <= n), default=n) if n <= max(LOOKS) else n


def interval(r: ArrayLike) -> Estimate | None:
    """Median and ends of blocks' figures, f64[n]; None for fewer than LEAST."""
    values = np.sort(np.asarray(r, dtype=np.float64))
    k = rank(values.size)
    if not k:
        return None
    return Estimate(float(np.median(values)), float(values[k - 1]), float(values[values.size - k]))


@cache
def spread(n: int) -> float:
    """Standard errors of the median from it to an end of n blocks: 3.24 at 32, for normal figures."""
    end = -NormalDist().inv_cdf((rank(n) - 0.375) / (n + 0.25))  # of the rank-th value, in deviations (Blom)
    return end / (math.sqrt(math.pi / 2) / math.sqrt(n))


def tau(pairs: Sequence[tuple[Estimate, int]], least: int = PAIRS, prior: float = PRIOR) -> float:
    """Standard deviation that placement adds, from A/A pairs (estimate, blocks).

    tau^2 solves sum of m^2 / ((h / spread)^2 + tau^2) = number of pairs (Paule and Mandel), so that a pair
    counts by how well it is known; a plain mean of m^2 - (h / spread)^2 is the noisiest pairs' alone, and
    comes out 0 in half of all runs. Of pairs that lack to `least`, each counts as `prior`.
    """
    squares = [(e.m**2, (e.half / spread(n)) ** 2) for e, n in pairs]
    low, high = 0.0, max((m for m, _ in squares), default=0.0)
    for _ in range(60):
        middle = (low + high) / 2
        if math.fsum(m / max(se + middle, TINY) for m, se in squares) > len(squares):
            low = middle
        else:
            high = middle
    lacking = max(0, least - len(pairs))
    return math.sqrt((len(pairs) * low + lacking * prior**2) / max(1, len(pairs) + lacking))


def placed(e: Estimate, tau_: float) -> Estimate:
    """The same with both ends moved out by what placement adds."""
    low, high = (math.hypot(h, REACH * tau_) for h in (e.m - e.low, e.high - e.m))
    return Estimate(e.m, e.m - low, e.m + high)


def weighted(parts: Sequence[tuple[float, Estimate]]) -> Estimate:
    """Estimate of a sum of times over the baseline's, from parts (count x baseline's time, estimate).

    The ratios' mean by weight; half-widths add as independent ones do: sqrt(sum w^2 h^2).
    """
    if not parts or any(not (w > 0 and math.isfinite(w)) for w, _ in parts):
        raise BadInput(f"a sum needs parts of positive weight, got {[w for w, _ in parts]}")
    whole = math.fsum(w for w, _ in parts)
    mean = math.fsum(w * math.exp(e.m) for w, e in parts) / whole
    low, high = (
        math.sqrt(math.fsum((w * math.exp(e.m) * h) ** 2 for w, e, h in sides)) / whole / mean
        for sides in ([(w, e, e.m - e.low) for w, e in parts], [(w, e, e.high - e.m) for w, e in parts])
    )
    m = math.log(mean)
    return Estimate(m, m - low, m + high)


def usual_clock(clocks_hz: ArrayLike, sustained_hz: float | None = None) -> float:
    """The clock that blocks are held against: the device's sustained one, else the run's 90th percentile.

    0 where no clock is known.
    """
    known = np.asarray(clocks_hz, dtype=np.float64)
    known = known[known > 0]
    if sustained_hz or not known.size:
        return sustained_hz or 0.0
    return float(np.quantile(known, 0.9))


def low(clocks_hz: Sequence[float], usual_hz: float) -> NDArray[np.bool_]:
    """Which blocks ran at a low clock; an unknown clock (0) is not low."""
    c = np.asarray(clocks_hz, dtype=np.float64)
    return np.asarray((c > 0) & (c < SLOWED * usual_hz))
