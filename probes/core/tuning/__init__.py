"""Launch geometry per device, chosen by a measured sweep: one TOML per device beside this file.

    devices = ["nvidia-h200", "h200"]   # slugs that it answers for: the live device's, and its profile's
    where = "..."                       # the sweep it comes from

    [l1.lm_head_14b]                    # a case, a row per layout
    gpl = { ring = "8r2b0s-drawn", async = 3 }

`ring` is a geometry as the sweep's rows name it (`gpl_ring@8r2b0s-drawn`), `async` blocks per SM. A shape
that no row speaks of gets its probe's own rule (for L1: `l1_ring.default_geometry`).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from probes.core.layouts import LAYOUTS
from probes.core.models import MODELS
from probes.core.types import BadInput, Shape


@dataclass(frozen=True, slots=True)
class Geometry:
    """A ring: rows per fill, blocks per SM, stages (0: as many as fit), tickets drawn or dealt."""

    rows: int
    blocks_per_sm: int
    stages: int = 0
    drawn: bool = False

    def __str__(self) -> str:
        tickets = "drawn" if self.drawn else "dealt"
        return f"{self.rows}r{self.blocks_per_sm}b{self.stages}s-{tickets}"

    @classmethod
    def parse(cls, text: str) -> Geometry:
        """The geometry that `str` wrote. Raises BadInput."""
        found = re.fullmatch(r"(\d+)r(\d+)b(\d+)s-(drawn|dealt)", text)
        if not found:
            raise BadInput(f"a ring's geometry looks like 8r2b0s-drawn, got {text!r}")
        return cls(int(found[1]), int(found[2]), int(found[3]), found[4] == "drawn")


@dataclass(frozen=True, slots=True)
class Tuned:
    """What a sweep chose for one case and layout: the ring's geometry, and async's blocks per SM."""

    ring: Geometry
    async_blocks: int


@dataclass(frozen=True, slots=True)
class Table:
    """One device's file. `l1`: case -> layout -> what was chosen."""

    devices: tuple[str, ...]
    where: str
    l1: Mapping[str, Mapping[str, Tuned]]


CASES: dict[str, Shape] = {t.case: t.shape for m in MODELS for t in m.tensors}


def parse(text: str, name: str = "a tuning table") -> Table:
    """Read one file's text. BadInput names the row that is wrong."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{name} is not valid TOML: {error}") from error
    if unknown := sorted({"devices", "where", "l1"} ^ table.keys()):
        raise BadInput(f"{name}: {unknown[0]!r} is missing, or unknown; it holds devices, where and l1")
    return Table(
        tuple(table["devices"]),
        str(table["where"]),
        {
            case: {lay: _tuned(row, case, lay, name) for lay, row in rows.items()}
            for case, rows in table["l1"].items()
        },
    )


def _tuned(row: object, case: str, lay: str, name: str) -> Tuned:
    where = f"{name}: [l1.{case}] {lay}"
    if case not in CASES or lay not in {x.name for x in LAYOUTS}:
        raise BadInput(f"{where}: there is no such case or layout")
    if not isinstance(row, dict) or row.keys() != {"ring", "async"}:
        raise BadInput(f'{where}: a row is {{ ring = "8r2b0s-drawn", async = 2 }}, got {row!r}')
    blocks = row["async"]
    if not isinstance(blocks, int) or isinstance(blocks, bool) or blocks < 1:
        raise BadInput(f"{where}: async counts blocks per SM, got {blocks!r}")
    return Tuned(Geometry.parse(str(row["ring"])), blocks)


@cache
def tables() -> tuple[Table, ...]:
    """Every device's table, by file name."""
    folder = resources.files("probes.core") / "tuning"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".toml")), key=lambda f: f.name)
    return tuple(parse(f.read_text(encoding="utf-8"), f"tuning/{f.name}") for f in files)


def table(slug: str) -> Table | None:
    """The table of a device (a live one's slug, or a profile's), None where it has none."""
    return next((t for t in tables() if slug in t.devices), None)


def l1(slug: str, shape: Shape, layout: str) -> Tuned | None:
    """What was chosen for a shape (a built-in case's, or a file's tensor of the same shape) and layout."""
    found = table(slug)
    case = next((c for c, s in CASES.items() if s == shape), "")
    return found.l1.get(case, {}).get(layout) if found else None


def dump(case: str, rows: Mapping[str, Tuned]) -> str:
    """One case's rows as they stand in a table."""
    wide = max(map(len, rows))
    lines = [
        f'{lay:{wide}} = {{ ring = "{row.ring}", async = {row.async_blocks} }}' for lay, row in rows.items()
    ]
    return "\n".join([f"[l1.{case}]", *lines])
