"""L3's own sections: what beats the recorded pair, memory's limit, the loss taken apart, the sweeps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from probes.core.types import BACKENDS, Shape
from probes.device import tuning
from probes.device.occupancy import tail_fraction
from probes.device.tuning import Chosen
from probes.engine import limit, sweep
from probes.engine.judge import compared, find
from probes.engine.probe import Case
from probes.l3 import plan, table, waves
from probes.report import tables
from probes.report.rows import Row
from probes.report.tables import format_percent, format_ratio, format_time
from probes.verdict import record

RECORD = table.CASES[0].id

STEPS = (
    ("the matmul form", table.RING_BASELINE, table.BASELINE),
    ("the fusion, both by the ring", "form_c", table.RING_BASELINE),
    ("both together", "form_c", table.BASELINE),
)
"""Two levers that are not one: what changes, from the second variant to the first."""

README_HEADS = {
    "variant", "backend", "time", "content GB/s", "of ceiling", "regs", "blocks/SM (limiter)", "grid",
    "waves", "load balance", "ratio [low, high]",
}  # fmt: skip


def sections(rows: Sequence[Row], markdown: bool) -> list[str]:
    """What beats the pair, what is left to a plain read, the loss taken apart, a sweep's points and fits.

    Of --geometries: what it found, and nothing else.
    """
    if sweep.swept(rows):
        return [_geometries(rows, markdown)]
    title = "### " if markdown else ""
    shown = {v.name: v.ring for v in table.VARIANTS}
    out = _winners(rows, title, markdown)
    out += limit.section(limit.of_variants(rows, shown), title, markdown)
    out.append(f"{title}The loss taken apart\n\n{_taken_apart(rows, markdown)}")
    for backend in BACKENDS:
        found = waves.points(rows, backend)
        if found:
            fits = "\n".join(f"- {line}" for line in waves.told(found))
            head = f"{title}Time against waves, {backend}: measured"
            out.append(f"{head}\n\n{_points(found, markdown)}\n\n{fits}".rstrip())
    return out


def _winners(rows: Sequence[Row], title: str, markdown: bool) -> list[str]:
    """Each variant over the recorded pair, and matmul form and fusion apart; empty without ring kernels."""
    lines, told = [], []
    for group in dict.fromkeys(r.group for r in rows if r.samples_s and not r.sweep):
        for backend in BACKENDS:
            if not find(rows, group, table.RING_BASELINE, backend):
                continue
            base = find(rows, group, table.BASELINE, backend)
            for v in table.VARIANTS:
                row = find(rows, group, v.name, backend)
                if row and base:
                    ratio = format_ratio(1.0) if row is base else format_ratio(*compared(row, base))
                    share = format_percent(row.fraction_of_same_bytes_read)
                    lines.append([group, backend, v.name, format_time(row.time_s), ratio, share])
            for what, name, of in STEPS:
                a, b = (find(rows, group, n, backend) for n in (name, of))
                if a and b:
                    said = f"{name} over {of} {format_ratio(*compared(a, b))}"
                    told.append(f"- {what}, {group}, {backend}: {said}")
    if not lines:
        return []
    heads = ["case", "backend", "variant", "time", "over the pair [low, high]", "of same-bytes read"]
    text = tables.table(heads, lines, markdown, left=heads[:3])
    steps = "\n".join(told)
    return [f"{title}What beats the recorded pair here\n\n{text}\n\n{steps}".rstrip()]


def _taken_apart(rows: Sequence[Row], markdown: bool) -> str:
    """Loss, its two parts, their sum and the rest: recorded, and measured where there is a sweep."""
    figures = _figures("form_b")
    wave, latency = (figures[f"time_change_from_{m}"] for m in ("waves", "latency"))
    lines = [
        [
            "recorded, estimated there", "gb10", f"{figures['grid']:.0f}", f"{figures['waves']:.2f}",
            format_percent(figures["time_change"], sign=True),
            *(format_percent(x, 0, sign=True) for x in (wave, latency, wave + latency)), "",
        ]
    ]  # fmt: skip
    own = [r.grid for r in rows if r.variant == "form_b" and r.grid and not r.sweep]
    for backend in BACKENDS:
        found = waves.points(rows, backend)
        device = next((r.device for r in rows if r.sweep and r.device), "")
        for grid in dict.fromkeys(own):
            taken = waves.parts(found, grid)
            if taken:
                shares = (taken.loss, taken.wave_part, taken.latency_part, taken.total, taken.rest)
                cells = [format_percent(x, sign=True) for x in shares]
                lines.append([f"measured, {backend}", device or "", str(grid), f"{taken.waves:.2f}", *cells])
    heads = ["source", "device", "blocks", "waves", "loss", "(a) waves", "(b) at whole waves", "a + b"]
    heads += ["neither"]
    text = tables.table(heads, lines, markdown, left=heads[:2])
    return text if len(lines) > 1 else f"{text}\n\n(--sweep measures both parts on a GPU)"


def _points(found: Sequence[waves.Point], markdown: bool) -> str:
    """One line per grid of the sweep."""
    lines = [
        [
            str(p.grid), f"{p.waves:.3f}", format_time(p.time_s), f"{1e9 * p.time_s / p.rows:.3f}",
            f"{1e9 * p.pair_s / p.rows:.3f}", format_ratio(p.ratio, p.low, p.high),
            format_ratio(p.staged_ratio), "" if p.staged_waves is None else f"{p.staged_waves:.3f}",
            "" if p.load_balance is None else f"{p.load_balance:.2f}",
        ]
        for p in found
    ]  # fmt: skip
    heads = [
        "blocks", "waves", "form_b", "ns per row", "pair, ns per row", "form_b / pair", "staged / pair",
        "staged waves", "load balance",
    ]  # fmt: skip
    return tables.table(heads, lines, markdown)


def _geometries(rows: Sequence[Row], markdown: bool) -> str:
    """The fastest geometry of each ring variant beside the table's own, and the rows to write."""
    lines, chosen = [], []
    part = next((p for r in rows if (p := tuning.device_and_part(r.device or "")[1])), "")
    for case in dict.fromkeys(r.case for r in rows):
        mine: dict[str, Chosen] = {}
        for v in table.VARIANTS:
            found = sweep.fastest([r for r in rows if r.case == case], v.name)
            if found and found[0].shape:
                held = plan.tuned(found[0].device or "", Shape(*found[0].shape), v.name)
                cells = sweep.cells(found, str(held) if held else None)
                lines.append([case, v.name, found[0].backend, *cells])
                mine[v.name] = {"ring": sweep.at(found[0])}
        if mine:
            chosen.append((case, mine))
    heads = ["case", "variant", "backend", *sweep.HEADS]
    text = tables.table(heads, lines, markdown, left=[*heads[:3], *sweep.LEFT])
    return sweep.section("The fastest geometry of each ring kernel", text, "l3", chosen, markdown, part=part)


def pictures(path: Path) -> list[Path]:
    """Time per row against waves."""
    return [waves.picture(path)]


def plots(rows: Sequence[Row], path: Path) -> list[str]:
    """Time per row against waves, beside the report."""
    return waves.plots(rows, path)


def readme(rows: Sequence[Row]) -> str:
    """The README's block: each variant's line, the verdicts, the loss taken apart."""
    names = {v.name for v in table.VARIANTS}
    shown = [replace(r, notes=[]) for r in rows if r.variant in names and not r.verdict and not r.sweep]
    columns = [c for c in tables.CASE_COLUMNS if c.head in README_HEADS]
    judged = [r for r in rows if r.verdict]
    parts = [tables.rows_table(shown, columns, True), tables.rows_table(judged, tables.VERDICT_COLUMNS, True)]
    return "\n\n".join([*parts, *_winners(rows, "", True), _taken_apart(rows, True)])


def _figures(variant: str) -> dict[str, float]:
    found = record.figures("l3", RECORD, variant)
    return {f.metric: f.number for f in found if f.metric != "verdict"}


def recorded(case: Case) -> Iterator[Row]:
    """The record's own figures, as rows."""
    if case.id != RECORD or not case.shape:
        return
    for name in ("pair", "form_b"):
        found = _figures(name)
        row = Row(probe="l3", case=case.id, variant=name, backend="cu", source="recorded", device="gb10")
        row.shape, row.content_bytes = [case.matrix.od, case.matrix.id], table.content_bytes(case)
        row.time_s, row.content_gbps = found["time_s"], found["content_gbps"]
        row.ratio_to_baseline = 1.0 + found.get("time_change", 0.0)
        if "grid" in found:
            row.grid, row.blocks_per_sm = int(found["grid"]), int(found["blocks_per_sm"])
            row.waves = found["waves"]
            row.tail_fraction = tail_fraction(row.waves)
            row.notes.append(f"{format_percent(found['time_change'], sign=True)} against the pair")
        yield row
