"""What sweeps over launches share in every probe. A row is a point, `kernel@geometry`: timed, not judged."""

from __future__ import annotations

from collections.abc import Sequence

from probes.core import report
from probes.core.rows import Row
from probes.core.types import Unavailable

WINDOWS = 4
HEADS = ("fastest", "time", "of same-bytes read", "the next", "its time", "the table says", "its time")
"""The columns of `cells`."""

LEFT = (HEADS[0], HEADS[3], HEADS[5])
"""Those of them that are words."""


def admit(seen: dict[object, str], launch: object, variant: str, fit: int, blocks: int) -> None:
    """Unavailable with the reason for a SKIPPED row: too few blocks fit, or `seen` holds the very launch."""
    if fit < blocks:
        raise Unavailable(f"only {fit} blocks of it fit on an SM")
    same = seen.setdefault(launch, variant)
    if same != variant:
        raise Unavailable(f"the same launch as {same}")


def is_sweep(rows: Sequence[Row]) -> bool:
    """Whether these rows are a sweep's."""
    return any(report.POINT in r.variant for r in rows)


def at(row: Row) -> str:
    """The geometry that a point's variant names."""
    return row.variant.partition(report.POINT)[2]


def fastest(rows: Sequence[Row], kernel: str) -> list[Row]:
    """The timed points of one kernel, fastest first."""
    mine = [r for r in rows if r.time_s and r.variant.startswith(f"{kernel}{report.POINT}")]
    return sorted(mine, key=lambda r: r.time_s or 0.0)


def cells(found: Sequence[Row], held: str | None) -> list[str]:
    """One kernel's points, fastest first, as cells: the best, the next, what the tuning table holds."""
    first, second = found[0], found[1] if len(found) > 1 else None
    share = report.format_percent(first.fraction_of_same_bytes_read)
    out = [at(first), report.format_time(first.time_s), share]
    out += [at(second), report.format_time(second.time_s)] if second else ["", ""]
    if held is None:
        return [*out, "(no row)", ""]
    row = next((r for r in found if at(r) == held), None)
    return [*out, held, report.format_time(row.time_s) if row else ""]
