"""The sweep's picture: speedup of each PDL arm over the plain graph, by waves, one panel per occupancy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from probes.core.rows import Row
from probes.core.stats import Interval


def draw(points: Sequence[tuple[Row, float, Interval]], path: Path) -> bool:
    """Write an SVG; False where matplotlib is not installed. Points are l2_report.sweep_points'."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "probes"  # the same points give the same file
    from matplotlib import pyplot

    panels = sorted({(r.registers or 0, r.blocks_per_sm or 0) for r, *_ in points})
    arms = list(dict.fromkeys(r.variant for r, *_ in points))
    columns = min(4, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(3.4 * columns, 2.6 * rows), squeeze=False, sharex=True, sharey=True
    )
    for k, (registers, blocks) in enumerate(panels):
        axis = axes[k // columns][k % columns]
        mine = [p for p in points if (p[0].registers or 0, p[0].blocks_per_sm or 0) == (registers, blocks)]
        for arm in arms:
            own = sorted((p for p in mine if p[0].variant == arm), key=lambda p: p[0].waves or 0.0)
            x = [r.waves or 0.0 for r, *_ in own]
            y = [100 * (1 / i.ratio - 1) for *_, i in own]
            low = [100 * (1 / i.ratio - 1 / i.high) for *_, i in own]
            high = [100 * (1 / i.low - 1 / i.ratio) for *_, i in own]
            axis.errorbar(x, y, yerr=[low, high], marker=".", linewidth=1, label=arm)
        axis.axhline(0.0, color="black", linewidth=0.6)
        axis.set_title(f"{registers} registers, {blocks} blocks/SM", fontsize=8)
    for axis in axes[-1]:
        axis.set_xlabel("waves", fontsize=8)
    for line in axes:
        line[0].set_ylabel("speedup, %", fontsize=8)
    axes[0][0].legend(fontsize=6)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    return True
