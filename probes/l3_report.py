"""L3's report: verdicts (l3_judge), predictions (l3_predict), geometries, the loss beside the record's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from probes import l3, l3_geometries, l3_judge, l3_waves, limits, points
from probes.core import recorded, report
from probes.core.rows import Row
from probes.l3_judge import judge
from probes.l3_predict import BACKENDS, RECORD, predict
from probes.l3_waves import plots

__all__ = ["judge", "plots", "predict", "readme", "sections"]


def sections(rows: Sequence[Row], markdown: bool) -> list[str]:
    """What beats the pair, what is left to a plain read, the loss taken apart, a sweep's points and fits.

    Of --geometries: what it found, and nothing else.
    """
    if points.is_sweep(rows):
        return [l3_geometries.section(rows, markdown)]
    title = "### " if markdown else ""
    shown = {v.name: v.ring for v in l3.VARIANTS}
    out = l3_judge.section(rows, title, markdown)
    out += limits.section(limits.of_variants(rows, shown), title, markdown)
    out.append(f"{title}The loss taken apart\n\n{_taken_apart(rows, markdown)}")
    for backend in BACKENDS:
        found = l3_waves.points(rows, backend)
        if found:
            fits = "\n".join(f"- {line}" for line in l3_waves.told(found))
            head = f"{title}Time against waves, {backend}: measured"
            out.append(f"{head}\n\n{_points(found, markdown)}\n\n{fits}".rstrip())
    return out


def _taken_apart(rows: Sequence[Row], markdown: bool) -> str:
    """Loss, its two parts, their sum and the rest: recorded, and measured where there is a sweep."""
    percent = report.format_percent
    figures = {f.metric: f.number for f in recorded.figures("l3", RECORD, "form_b") if f.metric != "verdict"}
    wave, latency = (figures[f"time_change_from_{m}"] for m in ("waves", "latency"))
    lines = [
        [
            "recorded, estimated there", "gb10", f"{figures['grid']:.0f}", f"{figures['waves']:.2f}",
            percent(figures["time_change"], sign=True),
            *(percent(x, 0, sign=True) for x in (wave, latency, wave + latency)), "",
        ]
    ]  # fmt: skip
    own = [r.grid for r in rows if r.variant == "form_b" and r.grid and not r.case.startswith(report.SWEEP)]
    for backend in BACKENDS:
        found = l3_waves.points(rows, backend)
        device = next((r.device for r in rows if r.case.startswith(report.SWEEP) and r.device), "")
        for grid in dict.fromkeys(own):
            taken = l3_waves.parts(found, grid)
            if taken:
                shares = (taken.loss, taken.wave_part, taken.latency_part, taken.total, taken.rest)
                cells = [percent(x, sign=True) for x in shares]
                lines.append([f"measured, {backend}", device or "", str(grid), f"{taken.waves:.2f}", *cells])
    heads = [
        "source",
        "device",
        "blocks",
        "waves",
        "loss",
        "(a) waves",
        "(b) at whole waves",
        "a + b",
        "neither",
    ]
    text = report.table(heads, lines, markdown, left=heads[:2])
    return text if len(lines) > 1 else f"{text}\n\n(--sweep measures both parts on a GPU)"


def _points(found: Sequence[l3_waves.Point], markdown: bool) -> str:
    """One line per grid of the sweep."""
    lines = [
        [
            str(p.grid), f"{p.waves:.3f}", report.format_time(p.time_s), f"{1e9 * p.time_s / p.rows:.3f}",
            f"{1e9 * p.pair_s / p.rows:.3f}", report.format_ratio(p.ratio, p.low, p.high),
            report.format_ratio(p.staged_ratio), "" if p.staged_waves is None else f"{p.staged_waves:.3f}",
            "" if p.load_balance is None else f"{p.load_balance:.2f}",
        ]
        for p in found
    ]  # fmt: skip
    heads = [
        "blocks", "waves", "form_b", "ns per row", "pair, ns per row", "form_b / pair", "staged / pair",
        "staged waves", "load balance",
    ]  # fmt: skip
    return report.table(heads, lines, markdown)


def readme(rows: Sequence[Row]) -> str:
    """The README's block: each variant's line, the verdicts, the loss taken apart."""
    shown = [
        replace(r, notes=[])
        for r in rows
        if r.variant in {v.name for v in l3.VARIANTS}
        and not r.verdict
        and not r.case.startswith(report.SWEEP)
    ]
    heads = {
        "variant",
        "backend",
        "time",
        "content GB/s",
        "of ceiling",
        "regs",
        "blocks/SM (limiter)",
        "grid",
    }
    heads |= {"waves", "load balance", "ratio [low, high]"}
    columns = [c for c in report.CASE_COLUMNS if c.head in heads]
    judged = [r for r in rows if r.verdict]
    parts = [report.rows_table(shown, columns, True), report.rows_table(judged, report.VERDICT_COLUMNS, True)]
    return "\n\n".join([*parts, *l3_judge.section(rows, "", True), _taken_apart(rows, True)])
