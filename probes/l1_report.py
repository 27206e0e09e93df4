"""L1 without a GPU: predicted rows, verdicts out of samples, the fold into a decode step."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import numpy as np

from probes import l1
from probes.core import layouts, models, packing, q6k, q8, recorded, report, stats, trace, verdict
from probes.core import predict as roofline
from probes.core.device import DeviceFacts
from probes.core.layouts import LAYOUTS
from probes.core.occupancy import occupancy, tail_fraction, waves
from probes.core.rows import Row
from probes.core.types import Backend, Shape, Unavailable, Work, WrongResult

BACKENDS: tuple[Backend, ...] = ("cu", "numba")
SCOPES: tuple[trace.Scope, ...] = ("matrix", "load", "block")
"""What a 64-byte piece might be fetched once per: the record's "84 % useful" is padded's `block`."""


def predict(facts: DeviceFacts, args: argparse.Namespace) -> Iterator[list[Row]]:
    """Each case's rows for a device profile: ledger, sectors, occupancy, waves, a first roofline estimate.

    Before anything is said, the layouts are shown right at a small size: every layout unpacks to the
    very bytes it was packed from, and so gives the oracle's own result.
    """
    _show_layouts()
    for case in l1.cases(args):
        rows = [
            _predicted(facts, case, name, lay, form, backend)
            for backend in BACKENDS
            if not args.backend or backend in args.backend
            for name, lay, form in l1.variants()
            if name == l1.BASELINE
            or ((not args.layout or lay.name in args.layout) and (not args.form or form.name in args.form))
        ]
        for backend in BACKENDS:
            base = next((r.time_s for r in rows if r.backend == backend and r.variant == l1.BASELINE), None)
            for row in rows:
                if row.backend == backend and row.time_s and base:
                    row.ratio_to_baseline = row.time_s / base
        yield [*rows, *_recorded(case)]


def _show_layouts() -> None:
    shape = Shape(3, 1280)
    raw, x8 = q6k.random_raw(shape, 1), q8.random_x8(shape.id, 2)
    want = q6k.reference(raw, x8)
    for lay in LAYOUTS:
        back = packing.unpack(packing.pack(raw, lay), lay, shape.nbe)
        bad = np.flatnonzero(q6k.reference(back, x8).view(np.uint32) != want.view(np.uint32))
        if bad.size or not np.array_equal(back, raw):
            raise WrongResult(
                f"layout {lay.name} does not give back its weights", int(bad[0]) if bad.size else 0, back, raw
            )


def _predicted(
    facts: DeviceFacts, case: l1.Case, name: str, lay: layouts.Layout, form: l1.Form, backend: Backend
) -> Row:
    shape = case.shape
    row = Row(
        probe="l1", case=case.id, variant=name, backend=backend, source="predicted", device=facts.slug,
        shape=[shape.od, shape.id], content_bytes=l1.content_bytes(shape),
        traffic_bytes=trace.traffic_bytes(lay, shape), l2_bytes=facts.l2_bytes,
    )  # fmt: skip
    row.skipped = form.refuses(shape) or None
    if row.skipped:
        return row
    try:
        res = recorded.recorded_resources(backend, f"l1_{name}", facts.arch)
    except Unavailable as error:
        row.skipped = str(error)
        return row
    config = l1.launch_config(shape)
    limits = occupancy(res, config.block, 0, facts)
    w = waves(config.grid, facts.sms, limits.blocks_per_sm)
    asked = trace.requests(lay, shape)
    estimate = roofline.predict(
        Work(row.content_bytes or 0, row.traffic_bytes or 0), res, config, facts,
        trace.UNIT_BYTES * (2 if form.name == "pf" else 1), asked.requested_bytes,
        l1_wavefronts=asked.wavefronts,
    )  # fmt: skip
    row.registers, row.spill_bytes, row.smem_bytes = res.registers, res.spill_bytes, res.smem_bytes
    row.blocks_per_sm, row.limiter, row.waves, row.tail_fraction = (
        limits.blocks_per_sm,
        limits.limiter,
        w,
        tail_fraction(w),
    )
    row.time_s = estimate.time_s
    row.content_gbps = (row.content_bytes or 0) / estimate.time_s / 1e9
    row.read_ceiling_gbps = facts.ceiling_bps / 1e9
    row.fraction_of_ceiling = row.content_gbps / row.read_ceiling_gbps
    row.notes.append(f"binds: {estimate.limiter}")
    return row


def _recorded(case: l1.Case) -> list[Row]:
    """The record's own figures for a case, as rows."""
    rows = []
    for layout in ("padded", "dpl", "gs"):
        rate = recorded.figure("l1", case.id, layout, "content_gbps")
        change = recorded.figure("l1", case.id, layout, "time_change")
        if rate is None and change is None:
            continue
        row = Row(probe="l1", case=case.id, variant=layout, backend="cu", source="recorded", device="gb10")
        row.shape, row.content_bytes = [case.shape.od, case.shape.id], l1.content_bytes(case.shape)
        if rate is not None:
            row.content_gbps = rate.number
            row.time_s = row.content_bytes / rate.number / 1e9
        row.ratio_to_baseline = 1.0 + change.number if change else None
        rows.append(row)
    return rows


def _find(rows: Sequence[Row], case: str, variant: str, backend: str) -> Row | None:
    return next(
        (r for r in rows if (r.case, r.variant, r.backend) == (case, variant, backend) and r.samples_s), None
    )


def _direct(name: str, row: Row) -> str:
    """The variant that a dispatched row ran: the same kernel as an arm of its own, so an A/A pair."""
    assert row.shape, "a measured row has its shape"
    return l1.dispatch(Shape(row.shape[0], row.shape[1]), dpl_built=True, env=l1.FLIP[name])


def case_floor(rows: Sequence[Row], case: str, backend: str, seed: int) -> float | None:
    """The A/A noise floor of one case and backend: the same kernel as two arms, three pairs of them."""
    pairs = [(_find(rows, case, l1.BASELINE, backend), _find(rows, case, l1.AA, backend))]
    for name in l1.FLIP:
        dispatched = _find(rows, case, name, backend)
        if dispatched:
            pairs.append((_find(rows, case, _direct(name, dispatched), backend), dispatched))
    ratios = [stats.paired_ratios(_times(b), _times(a)) for a, b in pairs if a and b]
    return stats.noise_floor([r if r.shape[0] > 1 else r[0] for r in ratios], seed) if ratios else None


def _times(row: Row) -> stats.F64:
    return stats.arm(row.samples_s, row.processes or 1)


def judge(rows: Sequence[Row], seed: int) -> list[Row]:
    """Verdict rows: per case, and summed over each model whose cases are all there.

    dpl is judged by the dispatcher's flip, as recorded; gs and gpl by the same form as padded ran, against
    the same bar. Pure: the same rows and seed give the same verdicts, so a file can be judged again.
    """
    out: list[Row] = []
    measured = [r for r in rows if r.source == "measured" and not r.verdict]
    for backend in BACKENDS:
        for layout in ("dpl", "gs", "gpl"):
            out += _judge_layout(measured, backend, layout, seed)
    return out


def _pair(rows: Sequence[Row], case: str, backend: str, layout: str) -> tuple[Row, Row] | None:
    """The rows that decide a layout on one case: itself and padded, in the form that the dispatcher picks."""
    b = _find(rows, case, "dispatch_padded", backend)
    if b is None:
        return None
    form = _direct("dispatch_padded", b).removeprefix("padded_")
    a = _find(rows, case, "dispatch_dpl" if layout == "dpl" else f"{layout}_{form}", backend)
    return (a, b) if a else None


def _judge_layout(measured: Sequence[Row], backend: Backend, layout: str, seed: int) -> list[Row]:
    """One layout's verdicts: each case, then each model."""
    bar = verdict.bar("l1.dpl")
    said = recorded.figure("l1", "all", layout, "verdict")
    word = str(said.value) if said else None
    out: list[Row] = []
    parts: dict[str, list[tuple[int, str, Row, Row, float]]] = {}
    for case in dict.fromkeys(r.case for r in measured):
        pair = _pair(measured, case, backend, layout)
        floor = case_floor(measured, case, backend, seed)
        if pair is None or floor is None:
            continue
        a, b = pair
        found = stats.weighted_ratio([(1, _times(a), _times(b))], seed)
        why = binds(measured, case, backend, layout)
        out.append(_verdict_row(case, layout, backend, a, found, floor, bar, word, why))
        for model, count in (a.counts or {}).items():
            parts.setdefault(model, []).append((count, case, a, b, floor))
    for model, rows_of in parts.items():
        whole = [c.id for c in l1.CASES if model in c.counts]
        if whole and {case for _, case, *_ in rows_of} != set(whole):
            continue
        found = stats.weighted_ratio([(n, _times(a), _times(b)) for n, _, a, b, _ in rows_of], seed)
        # each case's ratio strays by its floor at most, so the sum's by their mean, weighted by time
        weights = [n * (b.time_s or 0.0) for n, _, _, b, _ in rows_of]
        floor = sum(w * f for w, (*_, f) in zip(weights, rows_of, strict=True)) / sum(weights)
        saved = sum(n * ((b.time_s or 0.0) - (a.time_s or 0.0)) for n, _, a, b, _ in rows_of)
        why = f"{report.format_time(saved)} saved of {report.format_time(sum(weights))} per decode step"
        like = rows_of[0][2]
        out.append(_verdict_row(f"model_{model}", layout, backend, like, found, floor, bar, word, why))
    return out


def _verdict_row(
    case: str,
    layout: str,
    backend: Backend,
    like: Row,
    found: stats.Interval,
    floor: float,
    bar: verdict.Bar,
    word: str | None,
    why: str,
) -> Row:
    hot = "the weights were not cold" if any("hot" in n for n in like.notes) else None
    decided = verdict.judge_ratio(found.ratio, found.low, found.high, floor, bar, blocked=hot)
    return Row(
        probe="l1", case=case, variant=layout, backend=backend, source="measured", device=like.device,
        ratio_to_baseline=found.ratio, ratio_low=found.low, ratio_high=found.high, noise_floor=floor,
        verdict=decided.verdict, recorded=word, agrees=verdict.agree(decided.verdict, word),
        reason=f"{decided.reason}. {why}",
    )  # fmt: skip


def binds(rows: Sequence[Row], case: str, backend: str, layout: str) -> str:
    """What limits the padded kernel here, and what the layout changes: bytes, registers, occupancy."""
    pair = _pair(rows, case, backend, layout)
    if pair is None:
        return ""
    a, b = pair
    if not (a.traffic_bytes and b.traffic_bytes and a.time_s and b.time_s):
        return ""
    parts = []
    if b.read_ceiling_gbps and b.fraction_of_same_bytes_read:
        share = b.traffic_bytes / b.time_s / 1e9 / b.read_ceiling_gbps
        what = "DRAM bandwidth binds" if share >= 0.85 else "latency and issue slots bind, not DRAM"
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
    x, y = (_find(rows, case, f"{lay}_stream", backend) for lay in (layout, "padded"))
    if x and y and x.time_s and y.time_s:
        parts.append(f"its loads alone take {100 * (x.time_s / y.time_s - 1):+.1f} % of padded's")
    return ", ".join(parts)


def sections(rows: Sequence[Row], markdown: bool) -> list[str]:
    """Bytes of the layouts, what a second plane costs in memory, and the fold into a decode step."""
    title = "### " if markdown else ""
    shape = l1.CASES[0].shape
    fold = report.format_percent(recorded_fold(), 2, sign=True)
    return [
        f"{title}Bytes of the layouts, {l1.CASES[0].id} ({shape})\n\n{_ledger(shape, markdown)}",
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
    """The README's table: content GB/s of each layout as the dispatcher's form ran it, then the verdicts."""
    lines = []
    names = [lay.name for lay in LAYOUTS]
    for case in dict.fromkeys(r.case for r in rows if not r.verdict):
        for backend in BACKENDS:
            padded = _find(rows, case, "dispatch_padded", backend)
            if padded is None or not padded.time_s:
                continue
            form = _direct("dispatch_padded", padded).removeprefix("padded_")
            cells = []
            for name in names:
                row = _find(rows, case, f"{name}_{form}", backend)
                ratio = f" ({row.time_s / padded.time_s:.3f})" if row and row.time_s else ""
                cells.append(f"{row.content_gbps:.0f}{ratio}" if row and row.content_gbps else "")
            ceiling = f"{padded.read_ceiling_gbps:.0f}" if padded.read_ceiling_gbps else ""
            lines.append([case, form, backend, *cells, ceiling])
    heads = ["case", "form", "backend", *names, "large read"]
    table = report.table(heads, lines, True, left=heads[:3])
    judged = [r for r in rows if r.verdict and r.case.startswith("model_")]
    verdicts = report.rows_table(judged, report.VERDICT_COLUMNS, True)
    return f"Content GB/s, and time over padded's in brackets:\n\n{table}\n\n{verdicts}"


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
            a, b = (_find(rows, case, name, backend) for name in ("dispatch_dpl", "dispatch_padded"))
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
