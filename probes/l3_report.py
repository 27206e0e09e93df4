"""L3 without a GPU: predicted rows, verdicts out of samples, the loss taken apart beside the record's."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from probes import l3, l3_data, l3_waves
from probes.core import predict as roofline
from probes.core import q8, recorded, report, stats, verdict
from probes.core.device import DeviceFacts
from probes.core.occupancy import occupancy, tail_fraction, waves
from probes.core.rows import Row
from probes.core.types import Backend, Resources, Unavailable, Work, WrongResult
from probes.gpu import partition
from probes.l3_waves import plots

__all__ = ["judge", "plots", "predict", "readme", "sections"]

BACKENDS: tuple[Backend, ...] = ("cu", "numba")
RECORD = l3.CASES[0].id
UNIT_BYTES, UNIT_REQUESTED = 48, 128
"""Per unit of 64 values: weight bytes loaded, and bytes asked of L1 with the activations."""


def _resources(backend: Backend, kernel: str, arch: str, held: int | None) -> Resources:
    return recorded.recorded_resources(backend, f"{kernel}@{held}" if held else kernel, arch)


def predict(facts: DeviceFacts, args: argparse.Namespace) -> Iterator[list[Row]]:
    """Rows for a device profile: registers, occupancy, waves, a roofline; beside them the record's.

    Before anything is said, the oracle's q8 is shown to hold its SwiGLU at a small size.
    """
    l3.check_flags(args)
    _show_q8()
    if args.sms is not None:
        partition.check(args.sms, facts.sms, partition.granularity(facts))
        facts = partition.name_of(facts, args.sms) if args.sms != facts.sms else facts
    asked = [b for b in BACKENDS if not args.backend or b in args.backend]
    blocks: dict[Backend, int] = {}
    if args.match_waves is not None:
        for backend in asked:
            res = _resources(backend, "l3_form_b", facts.arch, args.blocks_per_sm)
            fits = occupancy(res, l3.THREADS, 0, facts).blocks_per_sm
            blocks[backend] = min(fits, args.blocks_per_sm or fits)
    for case in l3.cases(args, facts.sms, blocks):
        rows = _recorded(case) if case.id == RECORD else []
        for backend in asked:
            if case.backends and backend not in case.backends:
                continue
            for v in l3.VARIANTS:
                if not args.variant or v.name in args.variant or v.name == l3.BASELINE:
                    rows.append(_predicted(facts, args, case, v, backend))
        yield rows


def _show_q8() -> None:
    raw, x8 = l3_data.random_gate_up(64, 256, 1), l3_data.random_x8(256, 2)
    want = l3_data.Wanted.of(l3_data.oracle(raw, x8))
    d, _, _ = q8.unpack(want.q8.view(np.uint8))
    # half a step of rounding, and d's own rounding to f16 on up to 127 steps
    room = np.repeat(d.astype(np.float64), 32) * (0.5 + 128 * 2.0**-11)
    off = np.abs(q8.dequantise(want.q8.view(np.uint8)).astype(np.float64) - want.h)
    if (off > room).any():
        worst = int(np.argmax(off - room))
        raise WrongResult("q8 does not hold SwiGLU", worst, float(off[worst]), float(room[worst]))


def _predicted(
    facts: DeviceFacts, args: argparse.Namespace, case: l3.Case, v: l3.Variant, backend: Backend
) -> Row:
    held = args.blocks_per_sm
    row = Row(
        probe="l3", case=case.id, variant=v.name, backend=backend, source="predicted", device=facts.slug,
        shape=[case.shape.od, case.shape.id], content_bytes=case.content_bytes,
        traffic_bytes=case.content_bytes, l2_bytes=facts.l2_bytes,
    )  # fmt: skip
    try:
        res = _resources(backend, v.reader, facts.arch, held)
    except Unavailable as error:
        row.skipped = str(error)
        return row
    config = l3.config(v, case.nf)
    limits = occupancy(res, config.block, 0, facts)
    row.grid, row.limiter = config.grid, limits.limiter
    row.registers, row.spill_bytes, row.smem_bytes = res.registers, res.spill_bytes, res.smem_bytes
    row.blocks_per_sm = min(limits.blocks_per_sm, held or limits.blocks_per_sm)
    if not row.blocks_per_sm:
        row.skipped = "the kernel does not fit on an SM"
        return row
    row.waves = waves(config.grid, facts.sms, row.blocks_per_sm)
    row.tail_fraction = tail_fraction(row.waves)
    if row.tail_fraction >= 0.05:
        most = row.tail_fraction / (1 - row.tail_fraction)
        row.notes.append(f"a last wave as slow as a full one would add {report.format_percent(most)}")
    if args.sms is not None:
        row.notes.append("no time: what these SMs alone can read is not known")
        return row
    units = 2 * case.nf * case.shape.nbe * 4
    flying = UNIT_BYTES * (2 if v.name in ("form_a", "form_b_staged") else 1)
    estimate = roofline.predict(
        Work(case.content_bytes, case.content_bytes), res, config, facts, flying, units * UNIT_REQUESTED
    )
    row.time_s = estimate.time_s
    row.content_gbps = case.content_bytes / estimate.time_s / 1e9
    row.read_ceiling_gbps = facts.ceiling_bps / 1e9
    row.fraction_of_ceiling = row.content_gbps / row.read_ceiling_gbps
    row.notes.append(f"binds: {estimate.limiter} (a roofline, blind to waves)")
    return row


def _recorded(case: l3.Case) -> list[Row]:
    """The record's own figures, as rows."""
    rows = []
    for name in ("pair", "form_b"):
        found = {f.metric: f.number for f in recorded.figures("l3", RECORD, name) if f.metric != "verdict"}
        row = Row(probe="l3", case=case.id, variant=name, backend="cu", source="recorded", device="gb10")
        row.shape, row.content_bytes = [case.shape.od, case.shape.id], case.content_bytes
        row.time_s, row.content_gbps = found["time_s"], found["content_gbps"]
        row.ratio_to_baseline = 1.0 + found.get("time_change", 0.0)
        if "grid" in found:
            row.grid, row.blocks_per_sm = int(found["grid"]), int(found["blocks_per_sm"])
            row.waves = found["waves"]
            row.tail_fraction = tail_fraction(row.waves)
            row.notes.append(f"{report.format_percent(found['time_change'], sign=True)} against the pair")
        rows.append(row)
    return rows


# Verdicts


def _find(rows: Sequence[Row], case: str, variant: str, backend: str) -> Row | None:
    return next(
        (r for r in rows if (r.case, r.variant, r.backend) == (case, variant, backend) and r.samples_s), None
    )


def _times(row: Row) -> stats.F64:
    return stats.arm(row.samples_s, row.processes or 1)


def case_floor(rows: Sequence[Row], case: str, backend: str, seed: int) -> float | None:
    """The A/A noise floor of one case and backend: the pair and form_b, each as two arms."""
    pairs = [
        (_find(rows, case, of, backend), _find(rows, case, again, backend)) for again, of in l3.AA.items()
    ]
    ratios = [stats.paired_ratios(_times(b), _times(a)) for a, b in pairs if a and b]
    return stats.noise_floor([r if r.shape[0] > 1 else r[0] for r in ratios], seed) if ratios else None


def judge(rows: Sequence[Row], seed: int) -> list[Row]:
    """Verdict rows: each form against the pair, per case and backend; the sweep's points are not judged.

    Pure: the same rows and seed give the same verdicts, so a file can be judged again anywhere.
    """
    bar = verdict.bar("l3.fused")
    measured = [r for r in rows if r.source == "measured" and not r.verdict]
    out = []
    for backend in BACKENDS:
        for case in dict.fromkeys(r.case for r in measured if not r.case.startswith(report.SWEEP)):
            floor = case_floor(measured, case, backend, seed)
            base = _find(measured, case, l3.BASELINE, backend)
            for name in l3.JUDGED:
                row = _find(measured, case, name, backend)
                if row is None or base is None or floor is None:
                    continue
                found = stats.weighted_ratio([(1, _times(row), _times(base))], seed)
                hot = "the weights were not cold" if any("hot" in n for n in row.notes) else None
                decided = verdict.judge_ratio(found.ratio, found.low, found.high, floor, bar, blocked=hot)
                said = recorded.figure("l3", RECORD, name, "verdict")
                word = str(said.value) if said else None
                out.append(
                    Row(
                        probe="l3", case=case, variant=name, backend=backend, source="measured",
                        device=row.device, ratio_to_baseline=found.ratio, ratio_low=found.low,
                        ratio_high=found.high, noise_floor=floor, verdict=decided.verdict, recorded=word,
                        agrees=verdict.agree(decided.verdict, word),
                        reason=f"{decided.reason}. {binds(measured, row, base)}",
                    )
                )  # fmt: skip
    return out


def _sms(row: Row) -> int | None:
    """SMs that a row ran on, out of its own figures."""
    return (
        round(row.grid / (row.waves * row.blocks_per_sm))
        if row.grid and row.waves and row.blocks_per_sm
        else None
    )


def binds(rows: Sequence[Row], row: Row, base: Row) -> str:
    """What limits the pair here, and what the form changes: waves, load, registers; the sweep's word too."""
    out = []
    if base.fraction_of_ceiling is not None:
        dram = base.fraction_of_ceiling >= 0.85
        what = "DRAM bandwidth binds" if dram else "latency and issue slots bind, not DRAM"
        out.append(
            f"{what}: the pair reads at {report.format_percent(base.fraction_of_ceiling, 0)} of the ceiling"
        )
    if row.grid and row.waves and row.blocks_per_sm:
        even = "" if row.load_balance is None else f", the busiest SM with {row.load_balance:.2f} x the mean"
        out.append(
            f"{row.grid} blocks at {row.blocks_per_sm} per SM on {_sms(row)} SMs are {row.waves:.2f} waves"
            f"{even} (the pair's matmul {base.waves or 0:.1f} waves)"
        )
    if row.registers and base.registers and row.registers != base.registers:
        out.append(f"{row.registers} registers against {base.registers}")
    if row.variant == "form_b" and row.grid:
        taken = l3_waves.parts(l3_waves.points(rows, row.backend), row.grid)
        if taken:
            out.append(
                f"in the sweep waves cost {report.format_percent(taken.wave_part, sign=True)} "
                f"and the form at whole waves {report.format_percent(taken.latency_part, sign=True)}"
            )
    return ", ".join(out)


# Sections


def sections(rows: Sequence[Row], markdown: bool) -> list[str]:
    """The loss taken apart beside the record's account; with a sweep its points and fits."""
    title = "### " if markdown else ""
    out = [f"{title}The loss taken apart\n\n{_taken_apart(rows, markdown)}"]
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
    return "\n\n".join([*parts, _taken_apart(rows, True)])
