"""Form_b's time against its waves: the sawtooth's fit, the loss taken apart, the plot.

A whole wave is one block in every slot of the GPU. Three accounts of the time of a grid of w waves:

    ceil      t = a + b * ceil(w)                       a part-filled wave takes as long as a full one
    sawtooth  t = a + b * w + c * (ceil(w) - w)         and here by how much: c = b is ceil, c = 0 no waves

The loss against the pair at one grid then has two parts, both measured, neither fitted:

    waves    form_b's time against what it would be if waves cost in proportion: between the whole-wave times
             on either side (below one wave, the same time per row as at one)
    latency  form_b against the pair at whole waves, where no slot is left empty

and (1 + loss) = (1 + waves) (1 + latency) (1 + rest), where the rest is the pair's own time per
row, which is not the same at the two sizes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from probes.l3.table import SWEPT, WAVES
from probes.report import files, pictures
from probes.report.tables import format_percent

if TYPE_CHECKING:
    from probes.report.rows import Row


@dataclass(frozen=True, slots=True)
class Point:
    """One grid: form_b's rows, waves and time, and ratios to the pair (form_b_staged's too, if timed)."""

    grid: int
    rows: int
    waves: float
    time_s: float
    pair_s: float
    ratio: float
    low: float
    high: float
    staged_ratio: float | None
    staged_waves: float | None
    load_balance: float | None

    @property
    def whole(self) -> bool:
        """A whole number of waves."""
        return self.waves == round(self.waves)


def points(rows: Sequence[Row], backend: str) -> list[Point]:
    """The sweep's points of one backend, by grid."""
    by_case: dict[str, dict[str, Row]] = {}
    for r in rows:
        if r.sweep == WAVES and r.backend == backend and r.time_s:
            by_case.setdefault(r.case, {})[r.variant] = r
    out = []
    for found in by_case.values():
        b, pair, staged = (found.get(v) for v in SWEPT)
        if b is None or pair is None or not (b.time_s and b.waves and b.grid and b.shape and pair.time_s):
            continue
        ratio = b.ratio_to_baseline or b.time_s / pair.time_s
        out.append(
            Point(
                b.grid, b.shape[0], b.waves, b.time_s, pair.time_s, ratio, b.ratio_low or ratio,
                b.ratio_high or ratio, staged.ratio_to_baseline if staged else None,
                staged.waves if staged else None, b.load_balance,
            )
        )  # fmt: skip
    return sorted(out, key=lambda p: p.grid)


@dataclass(frozen=True, slots=True)
class Fit:
    """A model of the time in seconds, by least squares of the relative error; rms is that error."""

    a: float
    b: float
    c: float
    rms: float

    def at(self, waves: float) -> float:
        """Seconds of a grid of `waves`."""
        return self.a + self.b * waves + self.c * (math.ceil(waves) - waves)


def fit(found: Sequence[Point], model: str = "sawtooth") -> Fit | None:
    """The sawtooth, or with model "ceil" the one whose c is b; None for fewer points than it takes."""
    w = np.array([p.waves for p in found])
    t = np.array([p.time_s for p in found])
    columns = [np.ones_like(w), np.ceil(w)] if model == "ceil" else [np.ones_like(w), w, np.ceil(w) - w]
    if len(set(w.tolist())) <= len(columns):
        return None
    weighted = np.stack(columns, axis=1) / t[:, None]
    solution = np.linalg.lstsq(weighted, np.ones_like(t), rcond=None)[0]
    rms = float(np.sqrt(np.mean((weighted @ solution - 1.0) ** 2)))
    a, b = (float(x) for x in solution[:2])
    return Fit(a, b, b if model == "ceil" else float(solution[2]), rms)


@dataclass(frozen=True, slots=True)
class Parts:
    """The loss at one grid and its parts, as fractions."""

    grid: int
    waves: float
    loss: float
    wave_part: float
    latency_part: float

    @property
    def total(self) -> float:
        """Both parts added, as the record added them."""
        return self.wave_part + self.latency_part

    @property
    def rest(self) -> float:
        """What neither part explains: the pair's own change of time per row."""
        return (1 + self.loss) / ((1 + self.wave_part) * (1 + self.latency_part)) - 1


def _at_whole(found: Sequence[Point], waves: float) -> tuple[float, float] | None:
    """(form_b's time at `waves` if waves cost in proportion, form_b over pair at whole waves beside it)."""
    whole = {round(p.waves): p for p in found if p.whole}
    below, above = math.floor(waves), math.ceil(waves)
    if above not in whole or (below and below not in whole):
        return None
    high = whole[above]
    if not below:
        return high.time_s * waves / above, high.time_s / high.pair_s
    low, share = whole[below], waves - below
    ratios = (low.time_s / low.pair_s, high.time_s / high.pair_s)
    return low.time_s + share * (high.time_s - low.time_s), ratios[0] + share * (ratios[1] - ratios[0])


def parts(found: Sequence[Point], grid: int) -> Parts | None:
    """The loss at `grid` taken apart; None where the sweep lacks that grid or the whole waves beside it."""
    here = next((p for p in found if p.grid == grid), None)
    beside = _at_whole(found, here.waves) if here else None
    if here is None or beside is None:
        return None
    smooth, ratio = beside
    return Parts(grid, here.waves, here.time_s / here.pair_s - 1, here.time_s / smooth - 1, ratio - 1)


def told(found: Sequence[Point]) -> list[str]:
    """The fits in words."""
    ceil, saw = fit(found, "ceil"), fit(found)
    if ceil is None or saw is None:
        return []
    share = f"; opening a wave costs {format_percent(saw.c / saw.b, 0)} of a full one" if saw.b > 0 else ""
    return [
        f"t = {1e6 * saw.a:.1f} + {1e6 * saw.b:.1f} w + {1e6 * saw.c:.1f} (ceil(w) - w) µs, "
        f"rms {format_percent(saw.rms)}{share}",
        f"t = {1e6 * ceil.a:.1f} + {1e6 * ceil.b:.1f} ceil(w) µs, rms {format_percent(ceil.rms)}",
    ]


def plots(rows: Sequence[Row], path: Path) -> list[str]:
    """Draw time per row against waves, one panel a backend, beside the Markdown report at `path`.

    Returns the lines that show it there: none without a sweep, the reason where matplotlib is missing.
    Raises BadInput where the picture cannot be drawn or written.
    """
    backends = [b for b in ("cu", "numba") if points(rows, b)]
    if not backends:
        return []
    with pictures.errors():
        try:
            from matplotlib.figure import Figure
        except ImportError:
            return ["(no plot: matplotlib is not installed; pip install '.[plots]')"]
        figure = Figure(figsize=(7.0 * len(backends), 4.2), layout="constrained")
        axes = figure.subplots(1, len(backends), sharey=True, squeeze=False)[0]
        for axis, backend in zip(axes, backends, strict=True):
            _panel(axis, backend, points(rows, backend))
        data = pictures.drawn(figure, "png", dpi=110, metadata={"Software": None})
    files.write(picture(path), data)
    return [f"![Time per row against waves]({picture(path).name})"]


def picture(path: Path) -> Path:
    """Where `plots` draws, for a report's Markdown at `path`."""
    return path.with_name(f"{path.stem}-waves.png")


def _panel(axis: Any, backend: str, found: Sequence[Point]) -> None:
    """One backend's sawtooth: form_b measured and fitted, the pair, the staged form."""
    w = [p.waves for p in found]
    per_row = [1e9 * p.time_s / p.rows for p in found]
    axis.plot(w, per_row, "o", ms=4, label="form_b")
    axis.plot(w, [1e9 * p.pair_s / p.rows for p in found], ".-", lw=0.8, ms=4, label="pair")
    staged = [(p.waves, 1e9 * p.pair_s * p.staged_ratio / p.rows) for p in found if p.staged_ratio]
    if staged:
        axis.plot(*zip(*staged, strict=True), "x", ms=4, label="form_b_staged")
    saw = fit(found)
    if saw:
        fine = np.linspace(min(w), max(w), 800)
        rows_per_wave = float(np.median([p.rows / p.waves for p in found]))
        fitted = [1e9 * saw.at(x) / (x * rows_per_wave) for x in fine]
        axis.plot(fine, fitted, "-", lw=1, label="sawtooth fitted")
    for k in range(1, math.ceil(max(w)) + 1):
        axis.axvline(k, lw=0.5, color="0.8")
    axis.set(xlabel="form_b waves", ylabel="ns per row", title=backend, ylim=(0, None))
    axis.legend()
