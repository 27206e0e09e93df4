"""Made-up rows of L1, as a GPU run leaves them: for tests of what is judged, not of what is measured."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from probes.engine import judge
from probes.engine.probe import Case
from probes.l1 import analysis, table
from probes.report.rows import Row
from probes.verdict.blocks import quartiles
from tests.block_rows import paired


def samples(rng: np.random.Generator, mean: float, windows: int = 14) -> list[float]:
    return [float(t) for t in mean * (1 + 0.002 * rng.standard_normal(2 * windows))]


def measured(dpl: float, cases: tuple[Case, ...] = table.CASES[:3], hot: bool = False) -> list[Row]:
    """Rows as a GPU run leaves them, with dpl at `dpl` times padded's time."""
    rng = np.random.default_rng(4)
    rows = []
    for case in cases:
        assert case.shape
        base = table.content_bytes(case.shape) / 2.5e12
        form = table.dispatch(case.shape, True, {}).split("_")[1]
        times = {table.BASELINE: base, "padded_loop_aa": base, "dispatch_padded": base}
        times |= {"dispatch_dpl": dpl * base, f"padded_{form}": base, f"dpl_{form}": dpl * base}
        named = {"padded_loop_aa": ("again", table.BASELINE)}
        named |= {f"dispatch_{lay}": ("choice", f"{lay}_{form}") for lay in ("padded", "dpl")}
        for variant, mean in times.items():
            role, of = named.get(variant, ("variant", None))
            rows.append(
                Row(
                    probe="l1", case=case.id, variant=variant, backend="cu", source="measured", device="test",
                    shape=[case.shape.od, case.shape.id], time_s=mean, samples_s=samples(rng, mean),
                    windows=14, processes=1, counts=dict(case.counts), bitwise=True, role=role, of=of,
                    baseline=table.BASELINE, cold=not hot,
                )
            )  # fmt: skip
    out = paired(rows, table.CONTESTS, analysis, noise=0.002)
    for row in rows:
        row.time_s, row.time_s_p25, row.time_s_p75 = quartiles(row.samples_s)
    judge.relate(out)
    return out


def judged(rows: Sequence[Row]) -> list[Row]:
    """L1's verdicts out of rows."""
    return judge.judge(rows, table.CONTESTS, analysis)
