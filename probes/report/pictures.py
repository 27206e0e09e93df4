"""Panels of lines with error bars, written as SVG: the same points give the same file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from probes.core.types import BadInput


class Mark(NamedTuple):
    """A point, and how far its interval reaches down and up."""

    x: float
    y: float
    down: float
    up: float


def panels(shown: Mapping[str, Mapping[str, Sequence[Mark]]], x_label: str, y_label: str, path: Path) -> bool:
    """A panel per title, a line per label; False where matplotlib is not installed. Raises BadInput."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "probes"
    from matplotlib import pyplot

    columns = min(4, len(shown))
    rows = -(-len(shown) // columns)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(3.4 * columns, 2.6 * rows), squeeze=False, sharex=True, sharey=True
    )
    for axis, (title, lines) in zip(axes.flat, shown.items(), strict=False):
        for label, points in lines.items():
            reach = [[p.down for p in points], [p.up for p in points]]
            axis.errorbar(
                [p.x for p in points], [p.y for p in points], yerr=reach, marker=".", linewidth=1, label=label
            )
        axis.axhline(0.0, color="black", linewidth=0.6)
        axis.set_title(title, fontsize=8)
    for axis in axes[-1]:
        axis.set_xlabel(x_label, fontsize=8)
    for line in axes:
        line[0].set_ylabel(y_label, fontsize=8)
    axes[0][0].legend(fontsize=6)
    figure.tight_layout()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={"Date": None})
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror}") from error
    finally:
        pyplot.close(figure)
    return True
