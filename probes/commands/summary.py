"""The summary: for each probe the record's verdict, ours on the same lever, and what beats it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from probes.engine import probe
from probes.report import tables
from probes.verdict import record

if TYPE_CHECKING:
    from probes.engine.run import Run
    from probes.report.rows import Row

SUMMARY = ("probe", "recorded on gb10", "here", "reproduced", "what gains most here")


def line(name: str, done: Run | None, failure: str = "") -> list[str]:
    """One probe's line of the summary."""
    said = next((f for f in record.figures(name) if f.metric == "verdict"), None)
    word = f"{said.variant}: {said.value}" if said else ""
    if done is None:
        return [name, word, f"FAILED: {failure}", "", ""]
    if done.head.mode == "predict":
        predicted = [r for r in done.rows if r.source == "predicted"]
        some = not predicted or any(not r.skipped for r in predicted)
        here = f"predicted for {done.head.device}, not measured" if some else "neither measured nor predicted"
        return [name, word, here, "", ""]
    same = [r for r in done.verdicts() if said and r.variant == said.variant]
    lead = next((r for r in same if r.recorded), same[0] if same else None)
    if lead is None:
        return [name, word, "no verdict reached", "", ""]
    agrees = {True: "yes", False: "NO", None: "neither way"}[lead.agrees]
    if not lead.recorded:  # a part of the recorded contest answers for itself alone
        agrees = f"not asked: holds {', '.join(dict.fromkeys(r.case for r in same))} alone"
    baseline = probe.table(name).CONTESTS[0].baseline
    rows = [r for r in done.rows if r.case == lead.case]
    best = _fastest(r for r in rows if r.verdict == "GO" and r.baseline in (None, baseline))
    every = _fastest(r for r in rows if r.role in ("variant", "choice") and r.bitwise)
    gain = _named(best) if best else "nothing"
    if every and every.variant != (best.variant if best else lead.variant):
        gain += f"; of all kernels {_named(every)}"
    return [name, word, f"{lead.verdict} ({lead.case}, {lead.backend})", agrees, gain]


def _fastest(rows: Iterable[Row]) -> Row | None:
    """The row that is fastest against its baseline, None where none is faster."""
    faster = (r for r in rows if r.ratio_to_baseline and r.ratio_to_baseline < 1.0)
    return min(faster, key=lambda r: r.ratio_to_baseline or 1.0, default=None)


def _named(row: Row) -> str:
    return f"{row.variant} ({row.backend}): {tables.format_ratio(row.ratio_to_baseline)}"
