"""The rule of reports before schema 3: paired windows, bootstrap intervals and the A/A noise floor.

Every arm is timed twice per window (A B … B A), so that linear drift cancels. An arm's times are f64[w, 2]
seconds, or f64[p, w, 2] over p processes. A window's ratio is the arm's sum over the baseline's: below 1 is
faster. The same samples and seed give the same bits.

The estimate is the median over windows. Its interval is a percentile bootstrap of whole windows, widened by
t/z·sqrt(n/(n-1)): with 8 to 16 windows it holds the truth in 98.5 to 99.6 % of simulated runs (97.7 %
unwidened), also under heavy tails, spikes, drift and clock steps. One stray window in 8 can make it wide.

The noise floor is the furthest end of the intervals of A/A pairs (one kernel as two arms) in the same run. It
stands for an arm's place in the order, clock steps and neighbours. With one pair, 1 of 1000 simulated runs
calls a kernel different from itself; take two or more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from probes.core.types import BadInput
from probes.verdict.bars import Interval

F64 = NDArray[np.float64]

LEVEL = 0.99
RESAMPLES = 2000
PIECE = 1 << 20  # windows drawn at a time: some 48 MB with their ratios, times and medians
MIN_WINDOWS = 2  # fewer hold no spread at all; 12 or more are wanted for a verdict


def arm(samples_s: Sequence[float], processes: int = 1) -> F64:
    """A row's flat samples (forward, backward per window, process after process) -> f64[p, w, 2].

    Raises BadInput where the count does not divide.
    """
    flat = np.asarray(samples_s, dtype=np.float64)
    if processes < 1 or flat.size == 0 or flat.size % (2 * processes):
        raise BadInput(f"{flat.size} samples are not {processes} processes of whole windows of 2 samples")
    return _checked(flat.reshape(processes, -1, 2), "samples")


def paired_ratios(a: ArrayLike, b: ArrayLike) -> F64:
    """Ratio per window of arm `a` to baseline `b`: f64[..., w, 2] twice -> f64[..., w]."""
    x, y = (_checked(np.asarray(v, dtype=np.float64), "times") for v in (a, b))
    if x.shape != y.shape or x.ndim < 2 or x.shape[-1] != 2:
        raise BadInput(f"paired times must both be [..., windows, 2], got {x.shape} and {y.shape}")
    return np.asarray(x.sum(axis=-1) / y.sum(axis=-1), dtype=np.float64)


def interval(ratios: ArrayLike, seed: int, level: float = LEVEL, n: int = RESAMPLES) -> Interval:
    """Median over windows of f64[w] ratios, and the ends of its `level` interval.

    Of f64[p, w] over fresh processes: the mean of their medians; processes are resampled, then their windows.
    """
    r = np.atleast_2d(_checked(np.asarray(ratios, dtype=np.float64), "ratios"))
    if r.ndim != 2:
        raise BadInput(f"ratios must be one per window, got shape {r.shape}")
    return _model([(1.0, r, np.ones_like(r))], seed, level, n)


def weighted_ratio(
    parts: Sequence[tuple[float, ArrayLike, ArrayLike]], seed: int, n: int = RESAMPLES
) -> Interval:
    """Ratio of two model sums, Σ count·t_a / Σ count·t_b, from parts (count, a, b).

    `a`, `b`: f64[w, 2] or f64[p, w, 2] seconds; parts may differ in w, not in p. t_b is the baseline's median
    time, t_a is t_b times the median paired ratio. Windows are resampled part by part, processes together.
    """
    if not parts:
        raise BadInput("a model sum needs at least one part")
    triples: list[tuple[float, F64, F64]] = []
    for count, a, b in parts:
        if not (count > 0 and math.isfinite(count)):
            raise BadInput(f"a part's count must be positive, got {count}")
        base = np.asarray(b, dtype=np.float64)
        times = base.sum(axis=-1) / 2
        triples.append((float(count), np.atleast_2d(paired_ratios(a, base)), np.atleast_2d(times)))
    if len({r.shape[0] for _, r, _ in triples}) != 1:
        raise BadInput(f"parts differ in processes: {[r.shape[0] for _, r, _ in triples]}")
    return _model(triples, seed, LEVEL, n)


def floor_of(intervals: Sequence[Interval]) -> float:
    """The noise floor that A/A intervals show: the largest |end - 1|. BadInput without any."""
    if not intervals:
        raise BadInput("a noise floor needs at least one A/A pair in the same run")
    return max(abs(end - 1.0) for i in intervals for end in (i.low, i.high))


def noise_floor(aa_ratios: Sequence[ArrayLike], seed: int, n: int = RESAMPLES) -> float:
    """The same of A/A pairs' ratios, each f64[w], or f64[p, w] over processes."""
    return floor_of([interval(pair, seed, n=n) for pair in aa_ratios])


def t_quantile(level: float, df: int) -> float:
    """Two-sided Student t: P(|T| < t) = level, df >= 1. Closed-form distribution, solved by bisection."""
    if df >= 500:  # the normal quantile is 0.2 % below it at 99 %
        return NormalDist().inv_cdf(0.5 + level / 2)

    def inside(t: float) -> float:
        theta = math.atan(t / math.sqrt(df))
        s, c = math.sin(theta), math.cos(theta)
        total, term = 0.0, (c if df % 2 else 1.0)
        for k in range(1 if df % 2 else 0, df - 1, 2):
            total += term
            term *= c * c * (k + 1) / (k + 2)
        return 2 / math.pi * (theta + s * total) if df % 2 else s * total

    low, high = 0.0, 1.0
    while inside(high) < level:
        high *= 2
    for _ in range(80):
        mid = (low + high) / 2
        low, high = (mid, high) if inside(mid) < level else (low, mid)
    return high


def _model(parts: list[tuple[float, F64, F64]], seed: int, level: float, n: int) -> Interval:
    """Interval of Σ count·time·ratio / Σ count·time; each part is (count, ratios[p, w], times[p, w])."""
    if not 0 < level < 1 or n < 100:
        raise BadInput(f"level must lie in (0, 1) and n be at least 100, got {level} and {n}")
    fewest = min(r.shape[1] for _, r, _ in parts)
    if fewest < MIN_WINDOWS:
        raise BadInput(f"an interval needs at least {MIN_WINDOWS} windows, got {fewest}")
    rng = np.random.default_rng(seed)
    p = parts[0][1].shape[0]
    pick = rng.integers(0, p, size=(n, p))
    own = [_per_process(count, r, t) for count, r, t in parts]
    centre = _sum_ratio([(np.asarray(num.mean()), np.asarray(den.mean())) for num, den in own])
    within_parts, all_parts = [], []
    for count, r, t in parts:
        # windows resampled inside every process first, f64[n, p]; then whole processes by `pick`
        num, den = _resampled(count, r, t, rng, n)
        within_parts.append((num.mean(axis=1), den.mean(axis=1)))
        num, den = (np.take_along_axis(x, pick, axis=1) for x in (num, den))
        all_parts.append((num.mean(axis=1), den.mean(axis=1)))
    within = _sum_ratio(within_parts)
    boot = within if p == 1 else _sum_ratio(all_parts)
    factor = _widening(fewest, p, float(np.var(within)), float(np.var(boot)), level)
    tail = (1 - level) / 2
    low, high = np.quantile(boot, [tail, 1 - tail])
    ends = (centre - factor * max(0.0, centre - low), centre + factor * max(0.0, high - centre))
    # a ratio of times is positive: an interval so wide that it would cross 0 ends just above it
    return Interval(float(centre), float(max(ends[0], centre * 1e-6)), float(ends[1]))


def _resampled(count: float, ratios: F64, times: F64, rng: np.random.Generator, n: int) -> tuple[F64, F64]:
    """`_per_process` of n draws of every process's windows, f64[n, p] twice; PIECE values at a time.

    The generator gives the same numbers in pieces as at once, so the bits do not depend on PIECE.
    """
    p, w = ratios.shape
    rows, step = np.arange(p)[None, :, None], max(1, PIECE // (p * w))
    parts = []
    for first in range(0, n, step):
        index = rng.integers(0, w, size=(min(step, n - first), p, w))
        parts.append(_per_process(count, ratios[rows, index], times[rows, index]))
    num, den = (np.concatenate(x) for x in zip(*parts, strict=True))
    return num, den


def _per_process(count: float, ratios: F64, times: F64) -> tuple[F64, F64]:
    """(count·time·ratio, count·time), by medians over the last axis."""
    base = count * np.median(times, axis=-1)
    return np.asarray(base * np.median(ratios, axis=-1)), np.asarray(base)


def _sum_ratio(pairs: Sequence[tuple[F64, F64]]) -> F64:
    return np.asarray(sum(num for num, _ in pairs) / sum(den for _, den in pairs), dtype=np.float64)


def _widening(windows: int, processes: int, within: float, total: float, level: float) -> float:
    """t/z·sqrt(n/(n-1)) of a bootstrap that saw few windows, or few processes.

    The spread between processes has p - 1 degrees of freedom, the one inside p·(w - 1): Satterthwaite's rule
    weighs the two by their share of the bootstrap's variance.
    """
    df, n = float(processes * (windows - 1)), float(windows)
    between = max(0.0, total - within)
    if processes > 1 and between > 0:
        df = total**2 / (between**2 / (processes - 1) + within**2 / df)
        share = between / total
        n = 1 / (share / processes + (1 - share) / windows)
    z = NormalDist().inv_cdf(0.5 + level / 2)
    return t_quantile(level, max(1, int(df))) / z * math.sqrt(n / (n - 1))


def _checked(x: F64, what: str) -> F64:
    bad = ~(np.isfinite(x) & (x > 0))
    if bad.any():
        where = int(np.flatnonzero(bad.reshape(-1))[0])
        raise BadInput(f"{what} must be positive and finite, got {x.reshape(-1)[where]} at index {where}")
    return x
