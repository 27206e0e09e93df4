"""Made-up reports as two H200 runs leave them: noise by row, placement, drift, clock episodes, contests.

Noise is 0.2 to 1 % a sample, by row; every run places every row anew (0.2 % between two runs), drifts as a
whole (1.6 %), and slows for 8 to 75 samples at a time, mostly at the same place of the order as other runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from probes.core.types import Role
from probes.engine.sides import Report
from probes.report.provenance import Head
from probes.report.rows import Row

F64 = NDArray[np.float64]
PLACED, DRIFT = 0.002, 0.016
LOOKS, LOOK_SHARE = (16, 32, 64), (0.56, 0.31, 0.13)  # of an H200's L1 contests
HIGH_HZ, LOW_HZ = 1.98e9, 1.85e9


@dataclass(frozen=True)
class Build:
    """What a build's rows are like over all its runs: role, time, noise, what it feels of a slow clock."""

    groups: int = 12
    contests: int = 4
    alone: int = 12
    reads: int = 4
    seed: int = 0
    rows: dict[tuple[int, str], tuple[Role, float, float, float]] = field(default_factory=dict)
    pairs: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        names: list[tuple[str, Role]] = [("base", "variant"), ("base_aa", "again"), ("second", "variant")]
        names += [("second_aa", "again")]
        names += [(f"arm{k}", "variant") for k in range(self.contests)]
        names += [(f"alone{k}", "variant") for k in range(self.alone)]
        names += [(f"read{k}", "read") for k in range(self.reads)]
        for g in range(self.groups):
            time_s = float(np.exp(rng.uniform(np.log(2e-6), np.log(2e-4))))
            for name, role in names:
                noise = float(np.exp(rng.uniform(np.log(0.002), np.log(0.01))))
                made = time_s * rng.uniform(0.8, 1.3), noise, rng.uniform(0.2, 1.0)
                twin = self.rows.get((g, name.removesuffix("_aa")), (role, *made))
                self.rows[g, name] = role, *twin[1:]
        pairs = [("base_aa", "base"), ("second_aa", "second")]
        object.__setattr__(self, "pairs", (*pairs, *((f"arm{k}", "base") for k in range(self.contests))))

    def names(self, group: int) -> list[str]:
        """Rows of a group."""
        return [name for g, name in self.rows if g == group]


def head(**more: object) -> Head:
    """A head as such a run has it."""
    own = {
        "mode": "measure",
        "device": "nvidia-h200",
        "seed": 0,
        "kernels_sha256": "k",
        "argv": ["-m probes.l1"],
    }
    return Head.from_json({**own, "schema": 3, "bars_sha256": "b", "complete": True, **more})


def run(build: Build, seed: int, slower: Mapping[tuple[int, str], float] | None = None) -> Report:
    """One run: `slower` holds what rows take more, as a fraction."""
    rng = np.random.default_rng((build.seed, seed))
    drift, rows = DRIFT * rng.standard_normal() / np.sqrt(2), list[Row]()
    for g in range(build.groups):
        rows += _group(build, rng, g, drift, slower or {})
    return Report(f"run{seed}.json", head(), rows)


def _episodes(rng: np.random.Generator, usual: np.random.Generator, length: int) -> F64:
    """How far the clock is down at each sample: 2 to 8 %; 7 of 8 episodes are where every run has one."""
    slow = np.zeros(length)
    for _ in range(max(1, length // 200)):
        at, span = int(usual.integers(length)), int(usual.integers(8, 76))
        deep = usual.uniform(0.02, 0.08)
        if rng.random() < 1 / 8:
            at = int(rng.integers(length))
        at += int(rng.integers(-2, 3))
        slow[max(0, at) : max(0, at + span)] = deep * rng.uniform(0.8, 1.2)
    return slow


def _group(
    build: Build, rng: np.random.Generator, g: int, drift: float, slower: Mapping[tuple[int, str], float]
) -> Iterator[Row]:
    names = build.names(g)
    order = np.random.default_rng((build.seed, g))  # the same in every run of a base seed
    level = {
        n: np.log(build.rows[g, n][1]) + drift + np.log1p(slower.get((g, n.removesuffix("_aa")), 0.0))
        + PLACED / np.sqrt(2) * rng.standard_normal() for n in names
    }  # fmt: skip

    def sample(name: str, slow: float, size: int = 1) -> F64:
        _, _, noise, feels = build.rows[g, name]
        return np.exp(level[name] + noise * rng.standard_normal(size) + feels * slow)

    slow = _episodes(rng, order, 8 * len(names)) * (g % 3 > 0)  # small shapes have none
    taken: dict[str, list[float]] = {n: [] for n in names}
    low: dict[str, list[int]] = {n: [] for n in names}
    at = 0
    for _ in range(4):
        out = order.permutation(len(names))
        for k in (*out, *out[::-1]):
            name = names[k]
            low[name] += [len(taken[name])] * bool(slow[at] > 0.03)
            taken[name] += sample(name, slow[at]).tolist()
            at += 1
    for name in names:
        role = build.rows[g, name][0]
        yield Row(
            probe="l1", case=f"case{g}", variant=name, backend="cu", source="measured", device="nvidia-h200",
            time_s=float(np.median(taken[name])), samples_s=taken[name], windows=4, processes=1, bitwise=True,
            role=role, of=name.removesuffix("_aa") if role == "again" else None, baseline="base", cold=True,
            rotation_bytes=1 << 31, sm_clock_hz=HIGH_HZ,
            throttled=len(low[name]), throttled_samples=low[name],
        )  # fmt: skip
    yield from _contests(build, rng, order, g, sample)


def _contests(
    build: Build, rng: np.random.Generator, order: np.random.Generator, g: int, sample
) -> Iterator[Row]:
    slow = _episodes(rng, order, 64 * 4 * len(build.pairs)) * (g % 3 > 0)
    for a, b in build.pairs:
        n = 32 if a.endswith("_aa") else int(rng.choice(LOOKS, p=LOOK_SHARE))
        starts = np.array(
            [i * 4 * len(build.pairs) + 4 * int(order.integers(len(build.pairs))) for i in range(64)]
        )
        down = slow[starts[:n, None] + np.arange(4)]
        first = (np.arange(n) % 2 == 0)[:, None]
        is_a = np.where(first, [True, False, False, True], [False, True, True, False])
        t = np.where(is_a, *(sample(x, down.reshape(-1), 4 * n).reshape(n, 4) for x in (a, b)))
        yield Row(
            probe="l1", case=f"case{g}", variant=f"{a}:{b}", backend="cu", source="measured", role="contest",
            device="nvidia-h200", of=a, baseline=b, bitwise=True, blocks_s=t.reshape(-1).tolist(),
            block_clock_hz=np.where(down.max(axis=1) > 0.03, LOW_HZ, HIGH_HZ).tolist(),
        )  # fmt: skip
