"""L1's own sections: memory's limit, bytes of the layouts, a second plane's cost, the fold into a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from probes.core import escaping
from probes.core.types import BACKENDS, Shape
from probes.engine import limit, sweep
from probes.engine.judge import compared, family, find
from probes.engine.probe import Case
from probes.formats import layouts, traffic
from probes.formats.layouts import LAYOUTS
from probes.l1 import analysis, plan, table
from probes.l1.table import RINGS
from probes.report import tables
from probes.report.rows import Row
from probes.verdict import bars, record

SCOPES: tuple[traffic.Scope, ...] = ("matrix", "load", "block")
"""What a 64-byte piece might be fetched once per: the record's "84 % useful" is padded's `block`."""


def sections(rows: Sequence[Row], markdown: bool) -> list[str]:
    """What beats the recorded kernels, bytes of the layouts, a second plane's cost, the fold into a step.

    Of a sweep: what it found, and nothing else.
    """
    if sweep.swept(rows):
        return [_sweep(rows, markdown)]
    title = "### " if markdown else ""
    first = next((r for r in rows if r.shape and r.counts), None)
    own = first is not None and first.case not in {c.id for c in table.CASES}
    clean = escaping.markdown if markdown else escaping.shown
    name = clean(first.case) if own and first else table.CASES[0].id
    shape = Shape(*first.shape) if own and first and first.shape else table.CASES[0].shape
    assert shape, "a case of L1 has its shape"
    fold = tables.format_percent(analysis.recorded_fold(), 2, sign=True)
    told = "\n".join(line for b in BACKENDS for line in analysis.saved(rows, b))
    return [
        *_limit(rows, title, markdown),
        *_left(rows, title, markdown),
        f"{title}Bytes of the layouts, {name} ({shape})\n\n{_ledger(shape, markdown)}",
        f"{title}What a second plane beside padded costs in memory\n\n{_memory(rows, markdown)}",
        f"{title}Fold into a decode step\n\nRecorded on gb10: the kernel rates folded into its 45.45 ms step "
        f"give {fold}, where +4.27 % was measured.\n{told}".rstrip(),
        *_clocks(rows, title, markdown),
    ]


def _nearest(rows: Sequence[Row], group: str, backend: str) -> limit.Nearest | None:
    """The fastest kernel of one case and backend that gives the product to the bit; stream only reads."""
    names = {v.name for v in table.every() if v.form.name != "stream"}
    mine = [r for r in rows if (r.group, r.backend) == (group, backend) and r.samples_s and r.bitwise]
    mine = [r for r in mine if r.variant in names]
    best = min(mine, key=lambda r: r.time_s or 0.0, default=None)
    if best is None or not best.fraction_of_same_bytes_read:
        return None
    reads = family([r for r in rows if r.group == group], best)
    return limit.nearest([best], reads, bars.targets("l1.limit").targets.get(group), medians=True)


def _limit(rows: Sequence[Row], title: str, markdown: bool) -> list[str]:
    """Each case's fastest kernel beside padded as the dispatcher runs it, and beside a plain read."""
    lines = []
    for group in dict.fromkeys(r.group for r in rows):
        for backend in BACKENDS:
            near, padded = _nearest(rows, group, backend), find(rows, group, "dispatch_padded", backend)
            if near and padded:
                row, ratio = near.row, compared(near.row, padded)
                lines.append([
                    row.case, row.backend, row.variant, tables.format_time(row.time_s),
                    tables.format_ratio(*ratio),
                    tables.format_ratio(near.fraction, *near.found[1:]), *near.cells,
                ])  # fmt: skip
    if not lines:
        return []
    heads = ["case", "backend", "fastest", "time", "over padded as dispatched"]
    heads += ["of same-bytes read [low, high]", "target", ""]
    text = tables.table(heads, lines, markdown, left=[*heads[:3], heads[-1]])
    return [f"{title}What beats the recorded kernels here: the fastest that is right to the bit\n\n{text}"]


def _left(rows: Sequence[Row], title: str, markdown: bool) -> list[str]:
    """What the profiler shows of the forms past the record and of each case's fastest kernel."""
    found = []
    for group in dict.fromkeys(r.group for r in rows):
        best = {near.row.variant for b in BACKENDS if (near := _nearest(rows, group, b))}
        shown = {
            v.name: v.form.name in RINGS
            for v in table.every()
            if v.form.name not in table.RECORDED or v.name in best
        }
        found += [f for f in limit.of_variants(rows, shown) if f.row.group == group]
    return limit.section(found, title, markdown)


def _clocks(rows: Sequence[Row], title: str, markdown: bool) -> list[str]:
    """Three clocks on the same kernels of 50 us and more: graph slope, plain event loop, profiler."""
    lines = []
    for r in rows:
        if r.time_s and r.event_loop_time_s and r.profiler_time_s and r.role not in ("read", "ceiling"):
            times = (r.time_s, r.event_loop_time_s, r.profiler_time_s)
            off = [tables.format_percent(t / r.time_s - 1, 1, sign=True) for t in times[1:]]
            lines.append([r.case, r.variant, r.backend, *map(tables.format_time, times), *off])
    heads = ["case", "variant", "backend", "graph slope", "event loop", "profiler"]
    heads += ["loop off", "profiler off"]
    text = tables.table(heads, lines, markdown, left=heads[:3])
    return [f"{title}Three clocks on the same kernel\n\n{text}"] if lines else []


def _ledger(shape: Shape, markdown: bool) -> str:
    """Each layout's bytes: stored, dead, and fetched per super-block in pieces of 32 and of 64 bytes."""
    blocks = shape.od * shape.nbe
    lines = []
    for lay in LAYOUTS:
        entry = layouts.ledger(lay, shape)
        fetched = [f"{traffic.traffic_bytes(lay, shape) / blocks:.1f}"]
        fetched += [f"{traffic.fetched_bytes(lay, shape, 64, scope) / blocks:.1f}" for scope in SCOPES]
        dead = f"{entry.dead_bytes / blocks:.2f} B ({100 * entry.dead_bytes / entry.stored_bytes:.2f} %)"
        lines.append([lay.name, lay.order, str(entry.row_stride), f"{entry.align_bytes} B", dead, *fetched])
    heads = ["layout", "unit order", "row stride", "aligned", "dead per super-block", "fetched: 32 B sectors"]
    heads += [f"64 B pieces, once per {scope}" for scope in SCOPES]
    return tables.table(heads, lines, markdown, left=heads[:2])


def _memory(rows: Sequence[Row], markdown: bool) -> str:
    """q6_K bytes of the built-in models and of any GGUF file measured, and what dpl and gpl duplicate."""
    held = {m.title: [(t.shape, t.count) for t in m.tensors] for m in table.MODELS}
    seen: set[str] = set()
    for row in rows:
        for name, count in (row.counts or {}).items():
            if name not in {m.name for m in table.MODELS} and row.shape and row.case not in seen:
                seen.add(row.case)
                held.setdefault(name, []).append((Shape(row.shape[0], row.shape[1]), count))
    lines = []
    for name, tensors in held.items():
        content = sum(n * table.content_bytes(shape) for shape, n in tensors)
        both = [layouts.layout(name) for name in ("dpl", "gpl")]
        planes = [sum(n * layouts.ledger(lay, s).stored_bytes for s, n in tensors) for lay in both]
        lines.append([name, *(tables.format_bytes(size) for size in (content, *planes))])
    return tables.table(["model", "q6_K content", "dpl", "gpl"], lines, markdown, left=["model"])


def _sweep(rows: Sequence[Row], markdown: bool) -> str:
    """The fastest point of each case, layout and form beside the table's own, and the rows to write."""
    lines, texts = [], []
    for case in dict.fromkeys(r.case for r in rows):
        mine = [r for r in rows if r.case == case]
        shape = next((Shape(*r.shape) for r in mine if r.shape and r.role == "point"), None)
        device = next((r.device for r in mine if r.device), None) or ""
        chosen = {}
        for lay in LAYOUTS:
            found = {form: sweep.fastest(mine, f"{lay.name}_{form}") for form in RINGS}
            for form, timed in found.items():
                if timed and shape:
                    held = plan.tuned(device, shape, lay.name, form)
                    lines.append([case, lay.name, form, *sweep.cells(timed, str(held) if held else None)])
            if all(found.values()):
                chosen[lay.name] = {form: sweep.at(timed[0]) for form, timed in found.items()}
        if chosen:
            texts.append((case, chosen))
    heads = ["case", "layout", "form", *sweep.HEADS]
    text = tables.table(heads, lines, markdown, left=[*heads[:3], *sweep.LEFT])
    return sweep.section("The fastest of each form", text, "l1", texts, markdown, "it takes both forms")


def pictures(path: Path) -> list[Path]:
    """L1 draws nothing."""
    return []


def plots(rows: Sequence[Row], path: Path) -> list[str]:
    """L1 draws nothing."""
    return []


def readme(rows: Sequence[Row]) -> str:
    """The README's tables: content GB/s of each layout in the dispatcher's form, the verdicts, the limit."""
    lines = []
    names = [lay.name for lay in LAYOUTS]
    for group in dict.fromkeys(r.group for r in rows if not r.verdict):
        for backend in BACKENDS:
            padded = find(rows, group, "dispatch_padded", backend)
            if padded is None or not padded.time_s or not padded.of:
                continue
            form = table.variant(padded.of).form.name
            cells = []
            for name in names:
                row = find(rows, group, f"{name}_{form}", backend)
                ratio = f" ({row.time_s / padded.time_s:.3f})" if row and row.time_s else ""
                cells.append(f"{row.content_gbps:.0f}{ratio}" if row and row.content_gbps else "")
            ceiling = f"{padded.read_ceiling_gbps:.0f}" if padded.read_ceiling_gbps else ""
            lines.append([group, form, backend, *cells, ceiling])
    heads = ["case", "form", "backend", *names, "large read"]
    text = tables.table(heads, lines, True, left=heads[:3])
    judged = [r for r in rows if r.verdict and r.scope == "sum"]
    verdicts = tables.rows_table(judged, tables.VERDICT_COLUMNS, True)
    told = "Content GB/s, and in brackets time over padded's as the dispatcher runs it, an arm of its own:"
    return "\n\n".join([f"{told}\n\n{text}", verdicts, *_limit(rows, "", True)])


def recorded(case: Case) -> Iterator[Row]:
    """The record's own figures for a case, as rows."""
    for layout in ("padded", "dpl", "gs"):
        rate = record.figure("l1", case.id, layout, "content_gbps")
        change = record.figure("l1", case.id, layout, "time_change")
        if rate is None and change is None:
            continue
        row = Row(probe="l1", case=case.id, variant=layout, backend="cu", source="recorded", device="gb10")
        row.shape, row.content_bytes = [case.matrix.od, case.matrix.id], table.content_bytes(case.matrix)
        if rate is not None:
            row.content_gbps = rate.number
            row.time_s = row.content_bytes / rate.number / 1e9
        row.ratio_to_baseline = 1.0 + change.number if change else None
        yield row
