"""Panels of lines with error bars, written as SVG: the same points give the same file."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from probes.core.types import BadInput
from probes.report import files


class Mark(NamedTuple):
    """A point, and how far its interval reaches down and up."""

    x: float
    y: float
    down: float
    up: float


def panels(shown: Mapping[str, Mapping[str, Sequence[Mark]]], x_label: str, y_label: str, path: Path) -> bool:
    """A panel per title, a line per label; False where matplotlib is not installed. Raises BadInput."""
    data = _svg(shown, x_label, y_label)
    if data:
        files.write(path, data)
    return bool(data)


def check() -> None:
    """Draw something small and throw it away. BadInput where matplotlib is there and cannot."""
    _svg({"": {"x": [Mark(0.0, 0.0, 0.0, 0.0)]}}, "", "")


def _svg(shown: Mapping[str, Mapping[str, Sequence[Mark]]], x_label: str, y_label: str) -> bytes:
    with errors():
        try:
            import matplotlib
        except ImportError:
            return b""
        matplotlib.use("Agg")
        matplotlib.rcParams["svg.hashsalt"] = "probes"
        from matplotlib import pyplot

        figure = _drawn(pyplot, shown, x_label, y_label)
        try:
            return drawn(figure, "svg", metadata={"Date": None})
        finally:
            pyplot.close(figure)


def _drawn(pyplot: Any, shown: Mapping[str, Mapping[str, Sequence[Mark]]], x_label: str, y_label: str) -> Any:
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
    return figure


def drawn(figure: Any, form: str, **how: Any) -> bytes:
    """A figure's picture, as "svg" or "png"."""
    data = io.BytesIO()
    figure.savefig(data, format=form, **how)
    return data.getvalue()


@contextmanager
def errors() -> Iterator[None]:
    """Whatever a library that draws raises, as BadInput in one line: no row is worth less for it."""
    try:
        yield
    except BadInput:
        raise
    except Exception as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise BadInput(f"matplotlib cannot draw: {said}; install it anew, or remove it") from error
