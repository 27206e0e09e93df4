"""Made-up blocks: the rows that contests leave of pairs timed side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from probes.engine import judge
from probes.engine.probe import Contest
from probes.report.rows import Row

BLOCKS = 64


def blocks(
    time_s: float, base_s: float, rng: np.random.Generator, noise: float = 0.001, count: int = BLOCKS
) -> list[float]:
    """Samples of `count` blocks in the order of time: A B B A, B A A B by turns."""
    turns = np.array([[time_s, base_s, base_s, time_s], [base_s, time_s, time_s, base_s]])
    samples = np.resize(turns, (count, 4)) * (1 + noise * rng.standard_normal((count, 4)))
    return [float(t) for t in samples.reshape(-1)]


def paired(
    rows: Sequence[Row], contests: Sequence[Contest], analysis: Any, noise: float = 0.001, count: int = BLOCKS
) -> list[Row]:
    """The rows, and one for each pair that a contest wants, by the two rows' times."""
    rng, out = np.random.default_rng(3), list(rows)
    for group in dict.fromkeys(r.group for r in rows):
        mine = [r for r in rows if r.group == group]
        for pair in judge.pairs(mine, contests, analysis):
            a, b = (judge.find(mine, group, n, pair.backend) for n in (pair.variant, pair.baseline))
            assert a and b and a.time_s and b.time_s, "a pair is made of timed rows"
            out.append(
                Row(
                    probe=a.probe, case=a.case, variant=pair.name, backend=a.backend, source="measured",
                    device=a.device, shape=a.shape, kv=a.kv, counts=a.counts, bitwise=True, role="contest",
                    of=a.variant, baseline=b.variant, blocks_s=blocks(a.time_s, b.time_s, rng, noise, count),
                    block_clock_hz=[0.0] * count, retaken=0,
                )
            )  # fmt: skip
    return out
