"""Made-up rows of L1, as a GPU run leaves them: for tests of what is judged, not of what is measured."""

from __future__ import annotations

import numpy as np

from probes import l1
from probes.report.rows import Row


def samples(rng: np.random.Generator, mean: float, windows: int = 14) -> list[float]:
    return [float(t) for t in mean * (1 + 0.002 * rng.standard_normal(2 * windows))]


def measured(dpl: float, cases: tuple[l1.Case, ...] = l1.CASES[:3], hot: bool = False) -> list[Row]:
    """Rows as a GPU run leaves them, with dpl at `dpl` times padded's time."""
    rng = np.random.default_rng(4)
    rows = []
    for case in cases:
        base = l1.content_bytes(case.shape) / 2.5e12
        form = l1.dispatch(case.shape, True, {}).split("_")[1]
        times = {l1.BASELINE: base, l1.AA: base, "dispatch_padded": base, "dispatch_dpl": dpl * base}
        times |= {f"padded_{form}": base, f"dpl_{form}": dpl * base}
        for variant, mean in times.items():
            rows.append(
                Row(
                    probe="l1", case=case.id, variant=variant, backend="cu", source="measured", device="test",
                    shape=[case.shape.od, case.shape.id], time_s=mean, samples_s=samples(rng, mean),
                    windows=14, processes=1, counts=dict(case.counts), bitwise=True,
                    notes=["hot: little memory"] if hot else [],
                )
            )  # fmt: skip
    return rows
