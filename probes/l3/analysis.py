"""Why an L3 verdict came out so: waves, load, registers, and what a fusion could save at most. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from probes.engine.judge import both
from probes.engine.probe import Contest
from probes.l3 import table, waves
from probes.report.rows import Row
from probes.report.tables import format_percent, format_time
from probes.verdict.bars import Interval

BOUND = 0.85
"""A kernel that reaches this share of a read's speed is said to be bound by what binds the read."""

pair = both


def blocked(row: Row, base: Row) -> str | None:
    """A persistent grid whose blocks do not fit at once decides nothing."""
    for r in (row, base):
        if r.geometry and (r.waves or 0.0) > 1.0:
            return f"{r.variant}'s {r.grid} blocks do not fit at once ({r.waves:.2f} waves): a ring's should"
    return None


def why(rows: Sequence[Row], contest: Contest, row: Row, base: Row, found: Interval) -> str:
    """What binds the baseline here, and what the form changes."""
    return _saves(row, base, found) if contest.baseline == table.RING_BASELINE else _binds(rows, row, base)


def why_all(rows: Sequence[Row], contest: Contest, row: Row, base: Row) -> list[str]:
    """No contest of L3 decides several cases at once."""
    return []


def _saves(row: Row, base: Row, found: Interval) -> str:
    """What a fusion saves over the pair by the same matrix kernel, of what there is to save; what binds."""
    assert row.time_s and base.time_s, "a measured row has its time"
    gain = 1 - found.ratio
    word = "saves" if gain >= 0 else "costs"
    saved = f"{format_time(abs(gain) * base.time_s)} of {format_time(base.time_s)}"
    out = [f"against {base.variant}, which reads by the same kernel, the fusion {word} {saved}"]
    read = base.same_bytes_read_s
    if read:
        most, share = base.time_s - read, read / base.time_s
        rest = "what is not reading binds (instructions, start and end, the second kernel)"
        what = "memory binds" if share >= BOUND else rest
        out.append(
            f"{what}: a plain read of these bytes takes {format_percent(share, 0)} of "
            f"{base.variant}'s time, so no fusion could save more than {format_time(most)} "
            f"({format_percent(most / base.time_s, 1)})"
        )
    if row.fraction_of_same_bytes_read is not None:
        near = format_percent(row.fraction_of_same_bytes_read, 0)
        out.append(f"{row.variant} runs at {near} of that read")
    if row.geometry:
        out.append(f"in geometry {row.geometry} against {base.geometry}")
    if row.grid and row.waves and base.grid and base.waves:
        out.append(f"{row.grid} blocks in {row.waves:.2f} waves against {base.grid} in {base.waves:.2f}")
    if row.registers and base.registers and row.registers != base.registers:
        out.append(f"{row.registers} registers against {base.registers}")
    return ", ".join(out)


def _binds(rows: Sequence[Row], row: Row, base: Row) -> str:
    """What limits the pair here, and what the form changes: waves, load, registers; the sweep's word too."""
    out = []
    if base.fraction_of_ceiling is not None:
        dram = base.fraction_of_ceiling >= BOUND
        what = "DRAM bandwidth binds" if dram else "latency or issue slots bind, not DRAM"
        out.append(f"{what}: the pair reads at {format_percent(base.fraction_of_ceiling, 0)} of the ceiling")
    if row.grid and row.waves and row.blocks_per_sm:
        even = "" if row.load_balance is None else f", the busiest SM with {row.load_balance:.2f} x the mean"
        sms = round(row.grid / (row.waves * row.blocks_per_sm))
        out.append(
            f"{row.grid} blocks at {row.blocks_per_sm} per SM on {sms} SMs are {row.waves:.2f} waves"
            f"{even} (the pair's matmul {base.waves or 0:.1f} waves)"
        )
    if row.registers and base.registers and row.registers != base.registers:
        out.append(f"{row.registers} registers against {base.registers}")
    if row.variant == "form_b" and row.grid:
        taken = waves.parts(waves.points(rows, row.backend), row.grid)
        if taken:
            out.append(
                f"in the sweep waves cost {format_percent(taken.wave_part, sign=True)} "
                f"and the form at whole waves {format_percent(taken.latency_part, sign=True)}"
            )
    return ", ".join(out)
