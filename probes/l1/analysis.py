"""Why an L1 verdict came out so: bytes, registers, occupancy, what binds; and what a gain is worth. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probes.core.types import BadInput
from probes.engine.judge import both, find
from probes.engine.probe import Contest
from probes.l1 import table
from probes.report import tables
from probes.report.rows import Row
from probes.verdict import record
from probes.verdict.bars import Interval

BOUND = 0.85
"""A kernel that reaches this share of a read's speed is said to be bound by what binds the read."""


def pair(rows: Sequence[Row], contest: Contest, variant: str) -> tuple[Row, Row] | None:
    """The rows that decide a layout: itself and padded, both in the form that the dispatcher picks.

    dpl by the dispatcher's own flip, as recorded; a ring against the ring that is its contest's baseline.
    """
    if not rows or contest.baseline == table.RING_BASELINE:
        return both(rows, contest, variant)
    group, backend = rows[0].group, rows[0].backend
    base = find(rows, group, contest.baseline, backend)
    if base is None:
        return None
    assert base.of, "a dispatched row says what ran"
    form = table.variant(base.of).form.name
    own = find(rows, group, "dispatch_dpl" if variant == "dpl" else f"{variant}_{form}", backend)
    return (own, base) if own else None


def blocked(row: Row, base: Row) -> str | None:
    """L1 knows of no proof of its own."""
    return None


def why(rows: Sequence[Row], contest: Contest, row: Row, base: Row, found: Interval) -> str:
    """What limits the padded kernel here, and what the layout changes: bytes, registers, occupancy."""
    ring = contest.baseline == table.RING_BASELINE
    layout = table.variant(row.of or row.variant).layout.name
    if not (row.traffic_bytes and base.traffic_bytes and row.time_s and base.time_s):
        return ""
    parts = []
    if base.read_ceiling_gbps and base.fraction_of_same_bytes_read:
        share = base.traffic_bytes / base.time_s / 1e9 / base.read_ceiling_gbps
        what = "DRAM bandwidth binds" if share >= BOUND else "latency or issue slots bind, not DRAM"
        if share < BOUND <= base.fraction_of_same_bytes_read:
            what = "the start and end of so short a read bind"
        parts.append(
            f"{what}: padded moves {100 * share:.0f} % of the read ceiling, "
            f"{100 * base.fraction_of_same_bytes_read:.0f} % of a plain read of its bytes"
        )
    parts.append(f"{layout} moves {100 * (1 - row.traffic_bytes / base.traffic_bytes):.1f} % fewer bytes")
    costs = f"{row.registers} registers and {row.blocks_per_sm} blocks/SM"
    same = (row.registers, row.blocks_per_sm) == (base.registers, base.blocks_per_sm)
    against = f"{costs} against {base.registers} and {base.blocks_per_sm}"
    parts.append(f"at the same {costs}" if same else f"at {against}")
    if row.geometry != base.geometry:
        parts.append(f"in geometry {row.geometry} against {base.geometry}")
    x, y = (find(rows, row.group, f"{lay}_stream", row.backend) for lay in (layout, "padded"))
    if not ring and x and y and x.time_s and y.time_s:
        parts.append(f"its loads alone take {100 * (x.time_s / y.time_s - 1):+.1f} % of padded's")
    if ring:
        parts.append(bytes_alone(row.traffic_bytes / base.traffic_bytes, found))
    return ", ".join(parts)


def why_all(rows: Sequence[Row], contest: Contest, row: Row, base: Row) -> list[str]:
    """No contest of L1 decides several cases at once."""
    return []


def bytes_alone(want: float, found: Interval) -> str:
    """Is the time saved the bytes saved (`want`: their ratio), to within the interval?"""
    said = f"{100 * (1 - found.ratio):.2f} % less time for {100 * (1 - want):.2f} % fewer bytes"
    if found.low <= want <= found.high:
        return f"{said}: the gain is the bytes, no more and no less"
    if found.high < want:
        return f"{said}: more than the bytes alone"
    return f"{said}: less than the bytes, so they are not all that binds"


def fold(step_s: float, parts: Iterable[tuple[int, float]]) -> float:
    """What kernel savings are worth in decode speed: step / (step - sum n * dt) - 1.

    step_s: seconds of one decode step before. parts: (launches per step, seconds saved per launch); negative
    savings are losses. The step must have been timed on the device that the savings come from. Raises
    BadInput where the savings reach the whole step.
    """
    saved = sum(n * dt for n, dt in parts)
    if not step_s > 0.0:
        raise BadInput(f"a decode step must take a positive time, got {step_s} s")
    if not saved < step_s:
        raise BadInput(f"savings of {saved} s do not fit a decode step of {step_s} s")
    return step_s / (step_s - saved) - 1.0


def recorded_fold() -> float:
    """The record's kernel rates folded into its 14B @3254 step: 24 ffn_down and lm_head, 22.00 tok/s."""
    parts = []
    for tensor in table.MODELS[0].tensors:
        before, after = (record.figure("l1", tensor.case, n, "content_gbps") for n in ("padded", "dpl"))
        if before and after:
            size = table.content_bytes(tensor.shape)
            parts.append((tensor.count, size / before.number / 1e9 - size / after.number / 1e9))
    return fold(1 / 22.00, parts)


def saved(rows: Sequence[Row], backend: str) -> list[str]:
    """What the flip to dpl saves per decode step here, by model, in time alone.

    The gain of a whole step is folded only on the recorded device: no other step was timed.
    """
    sums: dict[str, list[tuple[float, float]]] = {}
    for group in dict.fromkeys(r.group for r in rows):
        a, b = (find(rows, group, name, backend) for name in ("dispatch_dpl", "dispatch_padded"))
        if a and b and a.time_s and b.time_s:
            for model, n in (a.counts or {}).items():
                sums.setdefault(model, []).append((n * b.time_s, n * (b.time_s - a.time_s)))
    return [
        f"Measured here, {model}, {backend}: dpl saves {tables.format_time(sum(p[1] for p in parts))} of "
        f"{tables.format_time(sum(p[0] for p in parts))} of q6_K kernels per decode step."
        for model, parts in sums.items()
    ]
