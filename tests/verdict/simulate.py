"""Made-up blocks: what a contest's samples look like under noise, drift, clock episodes and placement.

Every function gives ln(sample) of `runs` contests, f64[runs, blocks, 4] in the order of time. Between two
blocks of a contest `BESIDE` others are timed, as in a round.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from probes.verdict import bars, blocks
from probes.verdict.bars import Bar
from probes.verdict.blocks import Estimate

F64 = NDArray[np.float64]
Noise = Callable[[np.random.Generator, int, int], F64]

BESIDE = 10
SIGMA = 0.005
"""Of one sample: half a per cent, as attn_v's; the larger shapes have a tenth of it."""

LOOKS = tuple(blocks.LOOKS)
MOST = LOOKS[-1]


def iid(rng: np.random.Generator, runs: int, count: int) -> F64:
    return SIGMA * rng.standard_normal((runs, count, 4))


def heavy(rng: np.random.Generator, runs: int, count: int) -> F64:
    """Student's t with two degrees of freedom: its variance is infinite."""
    return SIGMA * rng.standard_t(2, (runs, count, 4))


def drift(rng: np.random.Generator, runs: int, count: int) -> F64:
    """3 % over the contest, either way."""
    way = rng.uniform(-0.03, 0.03, (runs, 1, 1))
    return iid(rng, runs, count) + way * np.linspace(0, 1, 4 * count).reshape(1, count, 4)


def episodes(rng: np.random.Generator, runs: int, count: int) -> F64:
    """The clock drops by 1 to 8 % for 8 to 75 samples at a time, a third of the time."""
    out = iid(rng, runs, count)
    stride = 4 * (BESIDE + 1)
    whole = stride * count
    for run in range(runs):
        slow, at = np.zeros(whole), 0
        while at < whole:
            length = int(rng.integers(8, 76))
            slow[at : at + length] = rng.uniform(0.01, 0.08)
            at += length + int(rng.integers(16, 151))
        out[run] += slow.reshape(count, BESIDE + 1, 4)[:, 0]
    return out


def correlated(rng: np.random.Generator, runs: int, count: int) -> F64:
    """Autocorrelation 0.9 from sample to sample, through the other contests' samples too."""
    whole = 4 * (BESIDE + 1) * count
    steps = SIGMA * np.sqrt(1 - 0.81) * rng.standard_normal((runs, whole))
    out = np.empty((runs, whole))
    out[:, 0] = SIGMA * rng.standard_normal(runs)
    for k in range(1, whole):
        out[:, k] = 0.9 * out[:, k - 1] + steps[:, k]
    return out.reshape(runs, count, BESIDE + 1, 4)[:, :, 0]


NOISES: dict[str, Noise] = {f.__name__: f for f in (iid, heavy, drift, episodes, correlated)}


def samples(noise: F64, effect: float) -> list[float]:
    """One contest's samples, seconds, from `noise` f64[blocks, 4]; the variant is longer by exp(effect)."""
    first = np.arange(noise.shape[0])[:, None] % 2 == 0
    outer = np.array([True, False, False, True])[None]
    return list(np.exp(noise + effect * (outer == first)).reshape(-1) * 20e-6)


def taus(rng: np.random.Generator, runs: int, noise: Noise, placement: float, pairs: int = 20) -> list[float]:
    """tau as each of `runs` runs would tell it, from A/A pairs of 32 blocks."""
    bias = placement * rng.standard_normal((runs, pairs))
    made = noise(rng, runs * pairs, 32).reshape(runs, pairs, 32, 4)
    out = []
    for own, biases in zip(made, bias, strict=True):
        found = [blocks.interval(blocks.figures(samples(n, b))) for n, b in zip(own, biases, strict=True)]
        out.append(blocks.tau([(e, 32) for e in found if e]))
    return out


def looks(noise: F64, effect: float, tau: float) -> list[Estimate]:
    """What a contest says at each look."""
    r = blocks.figures(samples(noise, effect))
    found = [blocks.interval(r[:n]) for n in LOOKS]
    return [blocks.placed(e, tau) for e in found if e]


def decided(seen: list[Estimate], bar: Bar) -> str:
    """The verdict that a run ends with: the first look that decides, else the last."""
    for e in seen:
        verdict = bars.decide(e.ratio, bar, 0.0).verdict
        if verdict != "INCONCLUSIVE":
            return verdict
    return "INCONCLUSIVE"
