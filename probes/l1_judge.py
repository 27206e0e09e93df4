"""L1's verdicts out of samples: layouts in the dispatcher's form, and dpl against padded as rings."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

from probes import l1
from probes.core import recorded, report, stats, verdict
from probes.core.rows import Row
from probes.core.types import Backend, Shape

BACKENDS: tuple[Backend, ...] = ("cu", "numba")
BOUND = 0.85
"""A kernel that reaches this share of a read's speed is said to be bound by what binds the read."""

JUDGED = ("dpl", "gs", "gpl", l1.RING)


def find(rows: Sequence[Row], case: str, variant: str, backend: str) -> Row | None:
    """The measured row of one variant."""
    return next(
        (r for r in rows if (r.case, r.variant, r.backend) == (case, variant, backend) and r.samples_s), None
    )


DISPATCHED = "dispatched to "
"""A dispatched row's note begins so, with the variant that ran."""


def direct(name: str, row: Row) -> str:
    """The variant that a dispatched row ran: the same kernel as an arm of its own, so an A/A pair."""
    assert row.shape, "a measured row has its shape"
    said = next((n for n in row.notes if n.startswith(DISPATCHED)), None)
    if said:  # under whatever environment the run had
        return said.removeprefix(DISPATCHED)
    return l1.dispatch(Shape(row.shape[0], row.shape[1]), dpl_built=True, env=l1.FLIP[name])


def case_floor(
    rows: Sequence[Row], case: str, backend: str, seed: int, baseline: str = l1.BASELINE
) -> float | None:
    """The A/A noise floor of one case and backend: the same kernel as two arms.

    Three pairs of them where the dispatcher's flip runs, and for a baseline of its own (the ring's) that one.
    """
    pairs = [
        (find(rows, case, of, backend), find(rows, case, aa, backend))
        for aa, of in l1.AAS.items()
        if of == baseline
    ]
    for name in l1.FLIP if baseline == l1.BASELINE else ():
        dispatched = find(rows, case, name, backend)
        if dispatched:
            pairs.append((find(rows, case, direct(name, dispatched), backend), dispatched))
    ratios = [stats.paired_ratios(times(b), times(a)) for a, b in pairs if a and b]
    return stats.noise_floor([r if r.shape[0] > 1 else r[0] for r in ratios], seed) if ratios else None


def times(row: Row) -> stats.F64:
    """A row's samples by process and window."""
    return stats.arm(row.samples_s, row.processes or 1)


def judge(rows: Sequence[Row], seed: int) -> list[Row]:
    """Verdict rows: per case, and summed over each model whose cases are all there.

    dpl is judged by the dispatcher's flip, as recorded; gs and gpl by the same form as padded ran; dpl_ring
    against padded_ring; all by the same bar. Pure: the same rows and seed give the same verdicts, so a file
    can be judged again.
    """
    out: list[Row] = []
    measured = [r for r in rows if r.source == "measured" and not r.verdict]
    for backend in BACKENDS:
        for layout in JUDGED:
            out += _judge_layout(measured, backend, layout, seed)
    return out


def pair_of(rows: Sequence[Row], case: str, backend: str, layout: str) -> tuple[Row, Row] | None:
    """The rows that decide a layout on one case: itself and padded, in the form that the dispatcher picks.

    Of dpl_ring both in the ring form.
    """
    if layout == l1.RING:
        x, y = (find(rows, case, name, backend) for name in (l1.RING, l1.RING_BASELINE))
        return (x, y) if x and y else None
    b = find(rows, case, "dispatch_padded", backend)
    if b is None:
        return None
    form = direct("dispatch_padded", b).removeprefix("padded_")
    a = find(rows, case, "dispatch_dpl" if layout == "dpl" else f"{layout}_{form}", backend)
    return (a, b) if a else None


def _judge_layout(measured: Sequence[Row], backend: Backend, layout: str, seed: int) -> list[Row]:
    """One layout's verdicts (or dpl_ring's): each case, then each model."""
    ring = layout == l1.RING
    bar = verdict.bar("l1.dpl")
    said = recorded.figure("l1", "all", layout, "verdict")
    word = str(said.value) if said else None
    out: list[Row] = []
    parts: dict[str, list[tuple[int, str, Row, Row, float]]] = {}
    for case in dict.fromkeys(r.case for r in measured):
        pair = pair_of(measured, case, backend, layout)
        floor = case_floor(measured, case, backend, seed, l1.RING_BASELINE if ring else l1.BASELINE)
        if pair is None or floor is None:
            continue
        a, b = pair
        found = stats.weighted_ratio([(1, times(a), times(b))], seed)
        why = binds(measured, case, backend, layout)
        if ring:
            why += f", {bytes_alone(a, b, found, floor)}"
        out.append(_verdict_row(case, layout, backend, [a, b], found, floor, bar, word, why))
        for model, count in (a.counts or {}).items():
            parts.setdefault(model, []).append((count, case, a, b, floor))
    for model, rows_of in parts.items():
        whole = [c.id for c in l1.CASES if model in c.counts]
        if whole and {case for _, case, *_ in rows_of} != set(whole):
            continue
        found = stats.weighted_ratio([(n, times(a), times(b)) for n, _, a, b, _ in rows_of], seed)
        # each case's ratio strays by its floor at most, so the sum's by their mean, weighted by time
        weights = [n * (b.time_s or 0.0) for n, _, _, b, _ in rows_of]
        floor = fsum(w * f for w, (*_, f) in zip(weights, rows_of, strict=True)) / fsum(weights)
        saved = fsum(n * ((b.time_s or 0.0) - (a.time_s or 0.0)) for n, _, a, b, _ in rows_of)
        why = f"{report.format_time(saved)} saved of {report.format_time(fsum(weights))} per decode step"
        every = [row for _, _, a, b, _ in rows_of for row in (a, b)]
        out.append(_verdict_row(f"model_{model}", layout, backend, every, found, floor, bar, word, why))
    return out


def _verdict_row(
    case: str,
    layout: str,
    backend: Backend,
    of: Sequence[Row],
    found: stats.Interval,
    floor: float,
    bar: verdict.Bar,
    word: str | None,
    why: str,
) -> Row:
    hot = "the weights were not cold" if any("hot" in n for r in of for n in r.notes) else None
    decided = verdict.judge_ratio(found.ratio, found.low, found.high, floor, bar, blocked=hot)
    return Row(
        probe="l1", case=case, variant=layout, backend=backend, source="measured", device=of[0].device,
        ratio_to_baseline=found.ratio, ratio_low=found.low, ratio_high=found.high, noise_floor=floor,
        verdict=decided.verdict, recorded=word, agrees=verdict.agree(decided.verdict, word),
        reason=f"{decided.reason}. {why}",
    )  # fmt: skip


def binds(rows: Sequence[Row], case: str, backend: str, layout: str) -> str:
    """What limits the padded kernel here, and what the layout changes: bytes, registers, occupancy."""
    pair = pair_of(rows, case, backend, layout)
    if pair is None:
        return ""
    layout, _, form = layout.partition("_")
    a, b = pair
    if not (a.traffic_bytes and b.traffic_bytes and a.time_s and b.time_s):
        return ""
    parts = []
    if b.read_ceiling_gbps and b.fraction_of_same_bytes_read:
        share = b.traffic_bytes / b.time_s / 1e9 / b.read_ceiling_gbps
        what = "DRAM bandwidth binds" if share >= BOUND else "latency or issue slots bind, not DRAM"
        if share < BOUND <= b.fraction_of_same_bytes_read:
            what = "the start and end of so short a read bind"
        parts.append(
            f"{what}: padded moves {100 * share:.0f} % of the read ceiling, "
            f"{100 * b.fraction_of_same_bytes_read:.0f} % of a plain read of its bytes"
        )
    parts.append(f"{layout} moves {100 * (1 - a.traffic_bytes / b.traffic_bytes):.1f} % fewer bytes")
    if (a.registers, a.blocks_per_sm) != (b.registers, b.blocks_per_sm):
        parts.append(
            f"at {a.registers} registers and {a.blocks_per_sm} blocks/SM "
            f"against {b.registers} and {b.blocks_per_sm}"
        )
    else:
        parts.append(f"at the same {a.registers} registers and {a.blocks_per_sm} blocks/SM")
    ours, theirs = (_geometry(r) for r in (a, b))
    if ours != theirs:
        parts.append(f"in geometry {ours} against {theirs}")
    x, y = (find(rows, case, f"{lay}_stream", backend) for lay in (layout, "padded"))
    if not form and x and y and x.time_s and y.time_s:
        parts.append(f"its loads alone take {100 * (x.time_s / y.time_s - 1):+.1f} % of padded's")
    return ", ".join(parts)


def _geometry(row: Row) -> str:
    """The geometry that a persistent form's row names, '' of one row per block."""
    told = next((n for n in row.notes if n.startswith("geometry ")), "")
    return told.removeprefix("geometry ").partition(",")[0]


def bytes_alone(a: Row, b: Row, found: stats.Interval, floor: float) -> str:
    """Is the time that `a` saves over `b` its fewer bytes, to within the interval and the noise floor?"""
    if not (a.traffic_bytes and b.traffic_bytes):
        return ""
    want = a.traffic_bytes / b.traffic_bytes
    low, high = found.low - floor, found.high + floor
    said = f"{100 * (1 - found.ratio):.2f} % less time for {100 * (1 - want):.2f} % fewer bytes"
    if low <= want <= high:
        return f"{said}: the gain is the bytes, no more and no less"
    if high < want:
        return f"{said}: more than the bytes alone"
    return f"{said}: less than the bytes, so they are not all that binds"
