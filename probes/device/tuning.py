"""Launch geometry per device, chosen by a measured sweep: one TOML per device in `tuned/`.

    devices = ["nvidia-h200", "h200"]   # slugs that it answers for: the live device's, and its profile's
    where = "..."                       # the sweep it comes from

    [l1.lm_head_14b]                    # a probe's case, and a row per what the probe tunes
    gpl = { ring = "8r2b0s-drawn", async = "4r2b0s-drawn" }

    [l3."gate_up_14b@48sm"]             # the same in a partition of 48 SMs, which has rows of its own

A row's values are geometries as the sweep's rows name them, or counts; the probe says what a row may hold.
What no row speaks of gets the probe's own rule.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from probes.core.types import BadInput

_N = "([0-9]{1,6})"


@dataclass(frozen=True, slots=True)
class Geometry:
    """A ring: rows per stage, blocks per SM, stages (0: as many as fit), tickets, consumer groups.

    A consumer group is as many warps as a row has use for; several take a stage's rows by turns.
    """

    rows: int
    blocks_per_sm: int
    stages: int = 0
    drawn: bool = False
    sets: int = 1

    def __str__(self) -> str:
        tickets = "drawn" if self.drawn else "dealt"
        sets = f"{self.sets}x" if self.sets != 1 else ""
        return f"{self.rows}r{self.blocks_per_sm}b{self.stages}s{sets}-{tickets}"

    @classmethod
    def parse(cls, text: str) -> Geometry:
        """The geometry that `str` wrote. Raises BadInput."""
        found = re.fullmatch(f"{_N}r{_N}b{_N}s(?:{_N}x)?-(drawn|dealt)", text)
        if not found:
            raise BadInput(f"a ring's geometry looks like 8r2b0s-drawn or 8r2b0s3x-drawn, got {text!r}")
        rows, blocks, stages, sets = (int(x or 1) for x in found.groups()[:4])
        return cls(rows, blocks, stages, found[5] == "drawn", sets)


Chosen = Mapping[str, Geometry | int]  # one row: what a sweep chose, by name


@dataclass(frozen=True, slots=True)
class Table:
    """One device's file: rows by probe, case and what the probe tunes."""

    devices: tuple[str, ...]
    where: str
    rows: Mapping[str, Mapping[str, Mapping[str, Chosen]]]


def parse(text: str, name: str = "a tuning table") -> Table:
    """Read one file's text. BadInput names the row that is wrong."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{name} is not valid TOML: {error}") from error
    for key in ("devices", "where"):
        if key not in table:
            raise BadInput(f"{name}: {key!r} is missing; it holds devices, where, and a table per probe")
    devices, where = table.pop("devices"), str(table.pop("where"))
    if not isinstance(devices, list) or not all(isinstance(d, str) for d in devices):
        raise BadInput(f"{name}: devices is a list of slugs, got {devices!r}")
    rows: dict[str, dict[str, dict[str, Chosen]]] = {}
    for probe, cases in table.items():
        for case, found in _tables(cases, f"{name}: {probe}").items():
            mine = _tables(found, f"{name}: [{probe}.{case}]")
            rows.setdefault(probe, {})[case] = {
                key: _chosen(row, f"{name}: [{probe}.{case}] {key}") for key, row in mine.items()
            }
    return Table(tuple(devices), where, rows)


def _tables(value: object, where: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise BadInput(f"{where} holds tables, got {value!r}")
    return value


def _chosen(row: object, where: str) -> Chosen:
    out: dict[str, Geometry | int] = {}
    for key, value in _tables(row, where).items():
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31:
            out[key] = value
            continue
        try:
            found = Geometry.parse(str(value))
        except BadInput as error:
            raise BadInput(f"{where}: {error}") from None
        if not 1 <= found.rows <= 32 or not 1 <= found.blocks_per_sm <= 32 or found.sets < 1:
            least = "1 to 32 rows a stage, 1 to 32 blocks per SM and a consumer group at least"
            raise BadInput(f"{where}: a ring has {least}, got {value}")
        out[key] = found
    return out


@cache
def tables() -> tuple[Table, ...]:
    """Every device's table, by file name."""
    folder = resources.files("probes.device") / "tuned"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".toml")), key=lambda f: f.name)
    try:
        texts = [f.read_text(encoding="utf-8") for f in files]
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"a tuning table cannot be read: {error}") from error
    return tuple(parse(text, f"tuned/{f.name}") for f, text in zip(files, texts, strict=True))


def of(slug: str, probe: str) -> Mapping[str, Mapping[str, Chosen]]:
    """A probe's rows on a device (a live one's slug, or a profile's) by case; empty where it has none."""
    found = next((t for t in tables() if slug in t.devices), None)
    return found.rows.get(probe, {}) if found else {}


def row(slug: str, probe: str, case: str, key: str) -> Chosen | None:
    """What was chosen; None where nobody swept. A partition (`nvidia-h200-48sm`) has only rows of its own."""
    device, part = device_and_part(slug)
    return of(device, probe).get(f"{case}@{part}" if part else case, {}).get(key)


def device_and_part(slug: str) -> tuple[str, str]:
    """A partition's device and size (`48sm`); the slug itself and '' for a whole device."""
    found = re.fullmatch(r"(.+)-(\d+sm)", slug)
    return (found[1], found[2]) if found else (slug, "")


def dump(probe: str, case: str, rows: Mapping[str, Chosen], part: str = "") -> str:
    """One case's rows as they stand in a table; `part`: of a partition of that size."""
    wide = max(map(len, rows))
    lines = []
    for key, values in rows.items():
        cells = [f"{k} = {v}" if isinstance(v, int) else f'{k} = "{v}"' for k, v in values.items()]
        lines.append(f"{key:{wide}} = {{ {', '.join(cells)} }}")
    return "\n".join([f'[{probe}."{case}@{part}"]' if part else f"[{probe}.{case}]", *lines])
