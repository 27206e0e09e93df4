"""Reports of schema 1 told by names and notes what later ones state in fields: here they become fields."""

from __future__ import annotations

from collections.abc import Sequence

from probes.core.types import Role
from probes.report.rows import Row

MISSING, DISPATCHED, GEOMETRY = "proof missing: ", "dispatched to ", "geometry "


def upgraded(rows: Sequence[Row]) -> list[Row]:
    """The same rows, each with the fields of schema 2 filled from its names and notes."""
    for row in rows:
        row.role, row.of = _role(row)
        if row.verdict:
            row.scope = "sum" if row.case.startswith("model_") else "each"
        row.sweep = _sweep(row)
        row.missing = [n for n in row.notes if n.startswith(MISSING)]
        told = next((n for n in row.notes if n.startswith(GEOMETRY)), "")
        at = row.variant.partition("@")[2] if row.role == "point" else ""
        row.geometry = told.removeprefix(GEOMETRY).partition(",")[0] or at or None
        if row.rotation_bytes is not None:
            row.cold = not any(n.startswith("hot") for n in row.notes)
    for group in dict.fromkeys((r.probe, r.group) for r in rows):
        _relate([r for r in rows if (r.probe, r.group) == group])
    return list(rows)


def _role(row: Row) -> tuple[Role, str | None]:
    name = row.variant
    said = next((n.removeprefix(DISPATCHED) for n in row.notes if n.startswith(DISPATCHED)), None)
    if row.verdict:
        return "verdict", None
    if said:
        return "choice", said
    if name == "read_large":
        return "ceiling", None
    if name.startswith("read_"):
        return "read", None
    if name.startswith("kernel_"):
        return "kernel", name.removeprefix("kernel_")
    if name.startswith("profiled_"):
        of, _, kind = name.removeprefix("profiled_").rpartition("_")
        return ("read" if kind == "read" else "alone"), of
    if name.startswith("pair_") and row.time_s is None and row.overlap_s is not None:
        return "gap", name.removeprefix("pair_")
    if "@" in name:
        return "point", name.partition("@")[0]
    if row.case.startswith("sweep_ring_"):
        return "point", None
    for end in ("_aa", "_ab"):
        if name.endswith(end):
            return "again", name.removesuffix(end)
    return "variant", None


def _sweep(row: Row) -> str | None:
    if "@" in row.variant:
        return "geometries"
    if not row.case.startswith("sweep_"):
        return None
    if row.case.startswith("sweep_ring_"):
        return "rings"
    return "waves" if row.case.endswith("_blocks") else "tails"


def _relate(peers: Sequence[Row]) -> None:
    """Baselines and reads of rows that were timed together."""
    bases = {r.backend: r.variant for r in peers if r.ratio_to_baseline == 1.0 and r.ratio_low is None}
    reads = {r.time_s: r.variant for r in peers if r.role == "read" and r.time_s is not None}
    swept = next((r.sweep for r in peers if r.sweep), None)
    for row in peers:
        if row.ratio_to_baseline is not None and not row.verdict and row.source == "measured":
            row.baseline = bases.get(row.backend)
        if row.same_bytes_read_s is not None:
            row.read = reads.get(row.same_bytes_read_s)
        if row.role in ("read", "ceiling"):
            row.sweep = swept
