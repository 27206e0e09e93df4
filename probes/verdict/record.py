"""What others measured: every recorded figure is a row of verdicts.toml, with its place in the source."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from probes.core.types import BadInput, Unavailable

VERDICTS_FILE = "verdicts.toml"

Value = float | int | str | bool


@dataclass(frozen=True, slots=True)
class Figure:
    """One recorded figure. `where` is its place in the record, `note` what to know before using it."""

    probe: str
    case: str
    variant: str
    metric: str
    value: Value
    unit: str
    where: str
    note: str = ""

    @property
    def number(self) -> float:
        """The value as a number; BadInput for a word or a flag."""
        if isinstance(self.value, (str, bool)):
            name = f"{self.probe} {self.case} {self.variant} {self.metric}"
            raise BadInput(f"{name} is {self.value!r}, not a number")
        return float(self.value)


@cache
def all_figures() -> tuple[Figure, ...]:
    """Every recorded figure, in the file's order. Raises Unavailable where the file is not installed."""
    file = Path(__file__).with_name(VERDICTS_FILE)
    if not file.is_file():
        raise Unavailable(f"{VERDICTS_FILE} is not in this installation: reinstall the package")
    names = {f.name for f in fields(Figure)}
    rows = []
    for table in tomllib.loads(file.read_text(encoding="utf-8"))["figure"]:
        if wrong := sorted(table.keys() - names) or sorted(names - {"note"} - table.keys()):
            raise BadInput(f"{VERDICTS_FILE}: unknown or missing key {wrong[0]!r} in {table}")
        rows.append(Figure(**table))
    return tuple(rows)


def figures(probe: str, case: str | None = None, variant: str | None = None) -> tuple[Figure, ...]:
    """Recorded figures of a probe, of one case and one variant where given; empty where none is recorded.

    A figure recorded for case "all" (registers, the verdict) answers for every case.
    """
    found = [f for f in all_figures() if f.probe == probe and (case is None or f.case in (case, "all"))]
    return tuple(f for f in found if variant is None or f.variant == variant)


def figure(probe: str, case: str, variant: str, metric: str) -> Figure | None:
    """The one recorded figure of that metric, or None; a figure of the case itself before one of "all"."""
    found = [f for f in figures(probe, case, variant) if f.metric == metric]
    return min(found, key=lambda f: f.case == "all", default=None)
