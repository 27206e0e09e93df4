"""Why an L2 verdict came out so: when launches started, how near to a plain read, PROBES_PDL=0. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from probes.device.tuning import Chosen
from probes.engine import sweep
from probes.engine.judge import both, find
from probes.engine.probe import Contest
from probes.l2 import chains, plan, table
from probes.l2.chains import ChainRing
from probes.report.rows import Row
from probes.report.tables import format_percent, format_ratio
from probes.verdict.bars import Interval

EARLIER_S = 50e-9
"""A start this much earlier than in the plain graph is no accident of the timer."""

pair = both


def blocked(row: Row, base: Row) -> str | None:
    """Starts must have been looked at; whether they overlap is evidence, and gates nothing."""
    return "no overlap was looked for" if row.overlap_s is None else None


def _source(row: Row, base: Row) -> str:
    """Where an arm's gain or loss can come from, by its launches' starts."""
    if row.overlap_s is None or base.overlap_s is None:
        return ""
    if row.overlap_s > 0:
        return "launches overlap"
    if row.overlap_s - base.overlap_s >= EARLIER_S:
        return "an earlier start, no overlap"
    return "neither overlap nor an earlier start"


def why(rows: Sequence[Row], contest: Contest, row: Row, base: Row, found: Interval) -> str:
    """Every contest of L2 decides its groups at once: see why_all."""
    return ""


def why_all(rows: Sequence[Row], contest: Contest, row: Row, base: Row) -> list[str]:
    """What lies behind an arm's figure in each group: starts, shares of a read, the flip by PROBES_PDL=0."""
    out = []
    groups = contest.groups or {row.group: ""}
    for group, name in groups.items():
        said = f"{name}: " if name else ""
        a, plain = (find(rows, group, n, row.backend) for n in (row.variant, base.variant))
        if a is None or plain is None:
            continue
        if a.overlap_s is not None and plain.overlap_s is not None:
            starts = f"launches start {_when(a.overlap_s)}, {_when(plain.overlap_s)} in the plain graph"
            out.append(f"{said}{_source(a, plain)}: {starts}")
        if a.fraction_of_same_bytes_read and plain.fraction_of_same_bytes_read:
            own, before = (format_percent(r.fraction_of_same_bytes_read) for r in (a, plain))
            out.append(
                f"{said}at {own} of a PDL chain that reads the same bytes, "
                f"the plain graph at {before} of a plain chain that does"
            )
        off = find(rows, group, table.arm(row.variant).off, row.backend)
        if off and a.time_s and off.time_s:
            ratio = format_ratio(a.time_s / off.time_s)
            out.append(f"{said}against such kernels under PROBES_PDL=0, time ratio {ratio}")
    return out


def _when(overlap_s: float) -> str:
    side = "before" if overlap_s > 0 else "after"
    return f"{abs(overlap_s) * 1e6:.2f} us {side} their predecessor's end"


# The ring chains swept


def swept(rows: Sequence[Row], chain: str) -> dict[str, Row]:
    """A swept chain's rows by variant, those with a time."""
    return {
        r.variant: r for r in rows if r.case == f"sweep_ring_{chain}" and r.time_s and r.role != "ceiling"
    }


def fastest(rows: Sequence[Row], chain: str, family: str, launched: str) -> str:
    """The fastest point of a family that is launched so, `now` among them; '' without rows."""
    mine, now = swept(rows, chain), plan.NOW_PLAIN if launched == "plain" else plan.NOW
    names = [now, *(v for v, f, p in plan.ring_points(chain) if f == family and p.launched == launched)]
    return min((v for v in names if v in mine), key=lambda v: mine[v].time_s or 0.0, default="")


def _held(rows: Sequence[Row], chain: str, matrix: str, launched: str) -> ChainRing | None:
    """The fastest choice of one matrix; None where `now` wins and stands in no table and at no point."""
    family = next(f for f, of in plan.FAMILIES.items() if matrix in of)
    own = {v: p.choice for v, f, p in plan.ring_points(chain) if f == family and p.launched == launched}
    now = plan.NOW_PLAIN if launched == "plain" else plan.NOW
    variant = fastest(rows, chain, family, launched)
    if variant == now:  # it stands for the point that makes the same launches
        said = sweep.SAME.format(now)
        same = {r.variant for r in rows if r.case == f"sweep_ring_{chain}" and r.skipped == said}
        variant = next((v for v in own if v in same), now)
    if variant in own:
        return own[variant]
    device = next((r.device for r in swept(rows, chain).values()), None) or ""
    held = chains.tuned(device, chain, matrix) if variant else None
    return ChainRing(held.plain or held.ring) if held and launched == "plain" else held


def best(rows: Sequence[Row], chain: str) -> dict[str, Chosen]:
    """Matrix -> what the tuning table should hold.

    Late with the tail in the PDL arms, plain in the plain graph.
    """
    out: dict[str, Chosen] = {}
    for matrix in table.MATRICES[chain]:
        late, plain = (_held(rows, chain, matrix, launched) for launched in ("tail", "plain"))
        if late:
            own = plain.ring if plain and plain.ring != late.ring else None
            out[matrix] = replace(late, plain=own).row
    return out


# What any chain shows beyond the floor


def noise(rows: Sequence[Row], group: str, backend: str) -> float | None:
    """The furthest end that a group's A/A arms reach against what they repeat; None without one."""
    again = [r for r in rows if (r.group, r.backend, r.role) == (group, backend, "again")]
    ends = [abs(end - 1.0) for r in again for end in (r.ratio_low, r.ratio_high) if end is not None]
    return max(ends, default=None)


def claimed(row: Row, least: float) -> bool:
    """Whether a row differs from the plain graph beyond the noise floor."""
    if row.ratio_to_baseline is None or row.ratio_low is None or row.ratio_high is None:
        return False
    return not row.ratio_low <= 1.0 <= row.ratio_high and abs(row.ratio_to_baseline - 1.0) > least


def tail_points(rows: Sequence[Row]) -> list[tuple[Row, float]]:
    """(row, floor of its point) of every PDL arm of the sweep over tails."""
    out = []
    for row in rows:
        if row.sweep == table.TAILS and row.variant in table.JUDGED and row.ratio_low is not None:
            least = noise(rows, row.group, row.backend)
            if least is not None:
                out.append((row, least))
    return out
