"""Launch geometry per device, chosen by a measured sweep: one TOML per device beside this file.

    devices = ["nvidia-h200", "h200"]   # slugs that it answers for: the live device's, and its profile's
    where = "..."                       # the sweep it comes from

    [l1.lm_head_14b]                    # a case, a row per layout
    gpl = { ring = "8r2b0s-drawn", async = "4r2b0s-drawn" }

    [l2.ffn_down24]                     # a chain of ring kernels, a row per matrix; not every table has one
    ffn_down = { ring = "2r2b5s-dealt", ahead = 0, plain = "2r2b0s-dealt" }

    [l3.gate_up_14b]                    # gate and up of one layer; not every table has one
    pair_ring = { ring = "8r2b2s3x-drawn" }
    form_c = { ring = "16r2b2s4x-drawn" }

    [l3."gate_up_14b@48sm"]             # the same in a partition of 48 SMs, where that has rows of its own

`ring` is a geometry as the sweep's rows name it (`gpl_ring@8r2b0s-drawn`; with `3x` three sets of consumers,
which only L3's kernels have), `async` that of L1's form of this name, `ahead` the fills beyond a ring's
stages that are prefetched into L2, `plain` the ring of the plain graph. What no row speaks of gets its
probe's own rule (`l1_ring.default_geometry`, `l2_ring.default_geometry`, `l3_launch.default_choice`).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

from probes.core.layouts import LAYOUTS
from probes.core.models import MODELS
from probes.core.types import BadInput, Shape

_N = "([0-9]{1,6})"


@dataclass(frozen=True, slots=True)
class Geometry:
    """A ring: rows per fill, blocks per SM, stages (0: as many as fit), tickets drawn or dealt, sets.

    A set is as many consumer warps as a row has use for; several take a fill's rows by turns.
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


FORMS = ("ring", "async")
"""L1's forms that have a geometry."""

Tuned = Mapping[str, Geometry]
"""What a sweep chose for one case and layout of L1: a geometry by form."""


@dataclass(frozen=True, slots=True)
class ChainRing:
    """What a sweep chose for one matrix of an L2 chain: a ring with dealt tickets, and fills prefetched.

    `plain`: the ring of the plain graph, which has an SM to itself; None for the same one.
    """

    ring: Geometry
    ahead: int = 0
    plain: Geometry | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """One device's file: what was chosen, by case and layout (l1), matrix (l2) or variant (l3)."""

    devices: tuple[str, ...]
    where: str
    l1: Mapping[str, Mapping[str, Tuned]]
    l2: Mapping[str, Mapping[str, ChainRing]] = field(default_factory=dict)
    l3: Mapping[str, Mapping[str, Geometry]] = field(default_factory=dict)


CASES: dict[str, Shape] = {t.case: t.shape for m in MODELS for t in m.tensors}

CHAINS: dict[str, tuple[str, ...]] = {
    "ffn_down24": ("ffn_down",),
    "attn_v24": ("attn_v",),
    "decode13_ring": ("qkv", "o", "gate_up", "down"),
}
"""L2's chains of ring kernels, and the matrices of each."""

GATE_UPS: dict[str, Shape] = {"gate_up_14b": Shape(2 * 13824, 5120)}
"""L3's cases: gate rows and up rows together."""

GATE_UP_ROWS: dict[str, tuple[int, ...]] = {"pair_ring": tuple(range(1, 33)), "form_c": (1, 2, 4, 8, 16, 32)}
"""L3's ring variants, and the rows that a ticket of each may name: form_c's divide a group of 32."""


def parse(text: str, name: str = "a tuning table") -> Table:
    """Read one file's text. BadInput names the row that is wrong."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{name} is not valid TOML: {error}") from error
    if unknown := sorted({"devices", "where", "l1"} ^ (table.keys() - {"l2", "l3"})):
        raise BadInput(f"{name}: {unknown[0]!r} is missing, or unknown; it holds devices, where, l1, l2, l3")
    devices = table["devices"]
    if not isinstance(devices, list) or not all(isinstance(d, str) for d in devices):
        raise BadInput(f"{name}: devices is a list of slugs, got {devices!r}")
    return Table(
        tuple(devices),
        str(table["where"]),
        {c: {k: _tuned(row, c, k, name) for k, row in rows.items()} for c, rows in _cases(table, "l1", name)},
        {
            c: {k: _chain_ring(row, c, k, name) for k, row in rows.items()}
            for c, rows in _cases(table, "l2", name)
        },
        {
            c: {k: _gate_up(row, c, k, name) for k, row in rows.items()}
            for c, rows in _cases(table, "l3", name)
        },
    )


def _cases(table: Mapping[str, object], probe: str, name: str) -> list[tuple[str, dict[str, object]]]:
    """(case, its rows) of one probe. BadInput where something else stands there."""
    cases = table.get(probe, {})
    if not isinstance(cases, dict):
        raise BadInput(f"{name}: {probe} holds a table per case, got {cases!r}")
    for case, rows in cases.items():
        if not isinstance(rows, dict):
            raise BadInput(f"{name}: [{probe}.{case}] holds rows, got {rows!r}")
    return list(cases.items())


def _ring(text: object, where: str) -> Geometry:
    """A row's geometry. BadInput names the row."""
    try:
        found = Geometry.parse(str(text))
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from None
    if not 1 <= found.rows <= 32 or not 1 <= found.blocks_per_sm <= 32:
        raise BadInput(f"{where}: a ring has 1 to 32 rows a fill and 1 to 32 blocks per SM, got {text}")
    return found


def _tuned(row: object, case: str, lay: str, name: str) -> Tuned:
    where = f"{name}: [l1.{case}] {lay}"
    if case not in CASES or lay not in {x.name for x in LAYOUTS}:
        raise BadInput(f"{where}: there is no such case or layout")
    if not isinstance(row, dict) or row.keys() != set(FORMS):
        like = '{ ring = "8r2b0s-drawn", async = "4r2b0s-drawn" }'
        raise BadInput(f"{where}: a row is {like}, got {row!r}")
    return {form: _one_set(row[form], where) for form in FORMS}


def _one_set(text: object, where: str) -> Geometry:
    """The geometry of a kernel whose block has one set of consumers."""
    ring = _ring(text, where)
    if ring.sets != 1:
        raise BadInput(f"{where}: this kernel's block has one set of consumers, got {ring}")
    return ring


def _chain_ring(row: object, case: str, matrix: str, name: str) -> ChainRing:
    where = f"{name}: [l2.{case}] {matrix}"
    if matrix not in CHAINS.get(case, ()):
        raise BadInput(f"{where}: there is no such chain or matrix")
    if not isinstance(row, dict) or row.keys() - {"plain"} != {"ring", "ahead"}:
        raise BadInput(f'{where}: a row is {{ ring = "4r1b0s-dealt", ahead = 0 }}, got {row!r}')
    ring, ahead = _one_set(row["ring"], where), row["ahead"]
    plain = _one_set(row["plain"], where) if "plain" in row else None
    for geometry in (ring, plain):
        if geometry and geometry.drawn:
            raise BadInput(f"{where}: a chain's tickets are dealt, got {geometry}")
    if not isinstance(ahead, int) or isinstance(ahead, bool) or not 0 <= ahead < 2**31:
        raise BadInput(f"{where}: ahead counts fills, got {ahead!r}")
    return ChainRing(ring, ahead, plain)


def _gate_up(row: object, case: str, variant: str, name: str) -> Geometry:
    where = f"{name}: [l3.{case}] {variant}"
    if re.sub(r"@\d+sm$", "", case) not in GATE_UPS or variant not in GATE_UP_ROWS:
        raise BadInput(f"{where}: there is no such case or variant")
    if not isinstance(row, dict) or row.keys() != {"ring"}:
        raise BadInput(f'{where}: a row is {{ ring = "8r2b2s3x-drawn" }}, got {row!r}')
    choice = _ring(row["ring"], where)
    if wrong := gate_up_fault(variant, choice):
        raise BadInput(f"{where}: {wrong}")
    return choice


def gate_up_fault(variant: str, choice: Geometry) -> str:
    """What a ring variant of L3 cannot be launched with, '' for nothing."""
    fit = GATE_UP_ROWS[variant]
    if choice.sets < 1:
        return f"a block has a set of consumers at least, got {choice}"
    if choice.rows not in fit:
        return f"rows are one of {', '.join(map(str, fit))}, got {choice}"
    return ""


@cache
def tables() -> tuple[Table, ...]:
    """Every device's table, by file name."""
    folder = resources.files("probes.core") / "tuning"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".toml")), key=lambda f: f.name)
    try:
        texts = [f.read_text(encoding="utf-8") for f in files]
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"a tuning table cannot be read: {error}") from error
    return tuple(parse(text, f"tuning/{f.name}") for f, text in zip(files, texts, strict=True))


def table(slug: str) -> Table | None:
    """The table of a device (a live one's slug, or a profile's), None where it has none."""
    return next((t for t in tables() if slug in t.devices), None)


def l1(slug: str, shape: Shape, layout: str) -> Tuned | None:
    """What was chosen for a shape (a built-in case's, or a file's tensor of the same shape) and layout."""
    found = table(slug)
    case = next((c for c, s in CASES.items() if s == shape), "")
    return found.l1.get(case, {}).get(layout) if found else None


def l2(slug: str, case: str, matrix: str) -> ChainRing | None:
    """What was chosen for one matrix of a chain."""
    found = table(slug)
    return found.l2.get(case, {}).get(matrix) if found else None


def l3(slug: str, shape: Shape, variant: str) -> Geometry | None:
    """What was chosen for gate and up of a shape (rows of both together) and a ring variant.

    A partition (`nvidia-h200-48sm`) has its own rows, or else its device's.
    """
    device, part = device_and_part(slug)
    found = table(device)
    case = next((c for c, s in GATE_UPS.items() if s == shape), "")
    names = [f"{case}@{part}", case] if part else [case]
    rows = [found.l3.get(name, {}).get(variant) for name in names] if found else []
    return next((row for row in rows if row), None)


def device_and_part(slug: str) -> tuple[str, str]:
    """A partition's device and size (`48sm`); the slug itself and '' for a whole device."""
    found = re.fullmatch(r"(.+)-(\d+sm)", slug)
    return (found[1], found[2]) if found else (slug, "")


def dump_l3(case: str, rows: Mapping[str, Geometry], part: str = "") -> str:
    """One case's rows as they stand in a table; `part`: of a partition of that size."""
    wide = max(map(len, rows))
    lines = [f'{variant:{wide}} = {{ ring = "{row}" }}' for variant, row in rows.items()]
    return "\n".join([f'[l3."{case}@{part}"]' if part else f"[l3.{case}]", *lines])


def dump_l2(case: str, rows: Mapping[str, ChainRing]) -> str:
    """One chain's rows as they stand in a table."""
    wide = max(map(len, rows))
    lines = []
    for matrix, row in rows.items():
        plain = f', plain = "{row.plain}"' if row.plain else ""
        lines.append(f'{matrix:{wide}} = {{ ring = "{row.ring}", ahead = {row.ahead}{plain} }}')
    return "\n".join([f"[l2.{case}]", *lines])


def dump(case: str, rows: Mapping[str, Tuned]) -> str:
    """One case's rows as they stand in a table."""
    wide = max(map(len, rows))
    lines = [
        f'{lay:{wide}} = {{ ring = "{row["ring"]}", async = "{row["async"]}" }}' for lay, row in rows.items()
    ]
    return "\n".join([f"[l1.{case}]", *lines])
