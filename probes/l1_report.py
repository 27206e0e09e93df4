"""L1's report: verdicts (l1_judge), predictions (l1_predict), memory's limit (l1_limit), its own tables."""

from __future__ import annotations

from collections.abc import Sequence

from probes import l1, l1_limit, l1_sweep, points
from probes.core import layouts, models, recorded, report, trace
from probes.core.layouts import LAYOUTS
from probes.core.rows import Row
from probes.core.types import Shape
from probes.l1_judge import BACKENDS, direct, find, judge
from probes.l1_predict import predict

__all__ = ["judge", "predict", "readme", "sections"]

SCOPES: tuple[trace.Scope, ...] = ("matrix", "load", "block")
"""What a 64-byte piece might be fetched once per: the record's "84 % useful" is padded's `block`."""


def sections(rows: Sequence[Row], markdown: bool) -> list[str]:
    """What beats the recorded kernels, bytes of the layouts, a second plane's cost, the fold into a step.

    Of a sweep: what it found, and nothing else.
    """
    if points.is_sweep(rows):
        return [l1_sweep.section(rows, markdown)]
    title = "### " if markdown else ""
    first = next((r for r in rows if r.shape and r.counts), None)
    own = first is not None and first.case not in {c.id for c in l1.CASES}
    name = first.case if own and first else l1.CASES[0].id
    shape = Shape(*first.shape) if own and first and first.shape else l1.CASES[0].shape
    fold = report.format_percent(recorded_fold(), 2, sign=True)
    return [
        *l1_limit.section(rows, title, markdown),
        *l1_limit.left(rows, title, markdown),
        f"{title}Bytes of the layouts, {name} ({shape})\n\n{_ledger(shape, markdown)}",
        f"{title}What a second plane beside padded costs in memory\n\n{_memory(rows, markdown)}",
        f"{title}Fold into a decode step\n\nRecorded on gb10: the kernel rates folded into its 45.45 ms step "
        f"give {fold}, where +4.27 % was measured.\n{_saved(rows)}".rstrip(),
        *_harness(rows, title, markdown),
    ]


def _harness(rows: Sequence[Row], title: str, markdown: bool) -> list[str]:
    """Three clocks on the same kernels of 50 us and more: graph slope, plain event loop, profiler."""
    lines = []
    for r in rows:
        if r.time_s and r.event_loop_time_s and r.profiler_time_s and not r.variant.startswith("read_"):
            times = (r.time_s, r.event_loop_time_s, r.profiler_time_s)
            off = [report.format_percent(t / r.time_s - 1, 1, sign=True) for t in times[1:]]
            lines.append([r.case, r.variant, r.backend, *map(report.format_time, times), *off])
    heads = [
        "case",
        "variant",
        "backend",
        "graph slope",
        "event loop",
        "profiler",
        "loop off",
        "profiler off",
    ]
    table = report.table(heads, lines, markdown, left=heads[:3])
    return [f"{title}Three clocks on the same kernel\n\n{table}"] if lines else []


def readme(rows: Sequence[Row]) -> str:
    """The README's tables: content GB/s of each layout in the dispatcher's form, the verdicts, the limit."""
    lines = []
    names = [lay.name for lay in LAYOUTS]
    for case in dict.fromkeys(r.case for r in rows if not r.verdict):
        for backend in BACKENDS:
            padded = find(rows, case, "dispatch_padded", backend)
            if padded is None or not padded.time_s:
                continue
            form = direct("dispatch_padded", padded).removeprefix("padded_")
            cells = []
            for name in names:
                row = find(rows, case, f"{name}_{form}", backend)
                ratio = f" ({row.time_s / padded.time_s:.3f})" if row and row.time_s else ""
                cells.append(f"{row.content_gbps:.0f}{ratio}" if row and row.content_gbps else "")
            ceiling = f"{padded.read_ceiling_gbps:.0f}" if padded.read_ceiling_gbps else ""
            lines.append([case, form, backend, *cells, ceiling])
    heads = ["case", "form", "backend", *names, "large read"]
    table = report.table(heads, lines, True, left=heads[:3])
    judged = [r for r in rows if r.verdict and r.case.startswith("model_")]
    verdicts = report.rows_table(judged, report.VERDICT_COLUMNS, True)
    told = "Content GB/s, and in brackets time over padded's as the dispatcher runs it, an arm of its own:"
    parts = [f"{told}\n\n{table}", verdicts]
    return "\n\n".join([*parts, *l1_limit.section(rows, "", True)])


def _ledger(shape: Shape, markdown: bool) -> str:
    """Each layout's bytes: stored, dead, and fetched per super-block in pieces of 32 and of 64 bytes."""
    blocks = shape.od * shape.nbe
    lines = []
    for lay in LAYOUTS:
        entry = layouts.ledger(lay, shape)
        fetched = [f"{trace.traffic_bytes(lay, shape) / blocks:.1f}"]
        fetched += [f"{trace.fetched_bytes(lay, shape, 64, scope) / blocks:.1f}" for scope in SCOPES]
        dead = f"{entry.dead_bytes / blocks:.2f} B ({100 * entry.dead_bytes / entry.stored_bytes:.2f} %)"
        lines.append([lay.name, lay.order, str(entry.row_stride), f"{entry.align_bytes} B", dead, *fetched])
    heads = ["layout", "unit order", "row stride", "aligned", "dead per super-block", "fetched: 32 B sectors"]
    heads += [f"64 B pieces, once per {scope}" for scope in SCOPES]
    return report.table(heads, lines, markdown, left=heads[:2])


def _memory(rows: Sequence[Row], markdown: bool) -> str:
    """q6_K bytes of the built-in models and of any GGUF file measured, and what dpl and gpl duplicate."""
    held = {m.title: [(t.shape, t.count) for t in m.tensors] for m in models.MODELS}
    seen: set[str] = set()
    for row in rows:
        for name, count in (row.counts or {}).items():
            if name not in {m.name for m in models.MODELS} and row.shape and row.case not in seen:
                seen.add(row.case)
                held.setdefault(name, []).append((Shape(row.shape[0], row.shape[1]), count))
    lines = []
    for name, tensors in held.items():
        content = sum(n * l1.content_bytes(shape) for shape, n in tensors)
        planes = [
            sum(n * layouts.ledger(layouts.layout(lay), shape).stored_bytes for shape, n in tensors)
            for lay in ("dpl", "gpl")
        ]
        lines.append([name, *(report.format_bytes(size) for size in (content, *planes))])
    return report.table(["model", "q6_K content", "dpl", "gpl"], lines, markdown, left=["model"])


def _saved(rows: Sequence[Row]) -> str:
    """What the flip to dpl saves per decode step here, by model and backend, in time alone.

    The gain of a whole step is folded only on the recorded device: no other step was timed.
    """
    out = []
    for backend in BACKENDS:
        sums: dict[str, list[tuple[float, float]]] = {}
        for case in dict.fromkeys(r.case for r in rows):
            a, b = (find(rows, case, name, backend) for name in ("dispatch_dpl", "dispatch_padded"))
            if a and b and a.time_s and b.time_s:
                for model, n in (a.counts or {}).items():
                    sums.setdefault(model, []).append((n * b.time_s, n * (b.time_s - a.time_s)))
        for model, parts in sums.items():
            before, saved = (sum(p[k] for p in parts) for k in (0, 1))
            out.append(
                f"Measured here, {model}, {backend}: dpl saves {report.format_time(saved)} of "
                f"{report.format_time(before)} of q6_K kernels per decode step."
            )
    return "\n".join(out)


def recorded_fold() -> float:
    """The record's kernel rates folded into its 14B @3254 step: 24 ffn_down and lm_head, 22.00 tok/s."""
    parts = []
    for tensor in models.model("14b").tensors:
        before, after = (recorded.figure("l1", tensor.case, n, "content_gbps") for n in ("padded", "dpl"))
        if before and after:
            size = l1.content_bytes(tensor.shape)
            parts.append((tensor.count, size / before.number / 1e9 - size / after.number / 1e9))
    return models.fold(1 / 22.00, parts)
