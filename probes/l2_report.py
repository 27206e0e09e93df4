"""L2's verdicts out of samples, and the report's own blocks: per launch, what wins, when the tax wins."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from probes import l2
from probes.core import recorded, report, stats, verdict
from probes.core.chains import CHAIN
from probes.core.rows import Row
from probes.core.types import Backend
from probes.core.verdict import Verdict
from probes.l2_predict import BACKENDS, predict

__all__ = ["judge", "plots", "predict", "readme", "sections"]

EARLIER_S = 50e-9
"""A start this much earlier than in the plain graph is no accident of the timer."""

LAUNCHES = {"decode13": 13}


def launches(case: str) -> int:
    """Launches of one chain."""
    return LAUNCHES.get(case, CHAIN)


def _find(rows: Sequence[Row], group: str, variant: str, backend: str) -> Row | None:
    return next(
        (r for r in rows if (r.group, r.variant, r.backend) == (group, variant, backend) and r.samples_s),
        None,
    )


def _times(row: Row) -> stats.F64:
    return stats.arm(row.samples_s, row.processes or 1)


def _interval(a: Row, b: Row, seed: int) -> stats.Interval:
    ratios = stats.paired_ratios(_times(a), _times(b))
    if ratios.shape[0] > 1:
        return stats.interval_processes(list(ratios), seed)
    return stats.interval(ratios[0], seed)


def floor_of(rows: Sequence[Row], group: str, backend: str, seed: int) -> float | None:
    """The A/A noise floor of one chain: every pair of the plain arm's repetitions."""
    same = [r for name in l2.AA if (r := _find(rows, group, name, backend))]
    pairs = [_interval(b, a, seed) for k, a in enumerate(same) for b in same[k + 1 :]]
    return stats.floor_of(pairs) if pairs else None


def blocked(row: Row, plain: Row) -> str | None:
    """The proof that an arm lacks, None where all are there. Without an overlap nothing is decided."""
    for note in row.notes:
        if note.startswith(l2.MISSING):
            return note
    if any(note.startswith("hot") for note in row.notes):
        return "the weights were not cold"
    if row.overlap_s is None:
        return "no overlap was looked for"
    if row.overlap_s > 0:
        return None
    told = f"no overlap seen: launches start {-row.overlap_s * 1e6:.2f} us after their predecessor's end"
    if plain.overlap_s is not None and row.overlap_s - plain.overlap_s >= EARLIER_S:
        # a wait without a trigger can do no more than close the gap; the speed gained is shown all the same
        return f"{told}, {(row.overlap_s - plain.overlap_s) * 1e6:.2f} us earlier than in the plain graph"
    return f"{told}, no earlier than in the plain graph"


def _one(rows: Sequence[Row], kv: int, arm: str, backend: str, seed: int) -> tuple[Verdict, Row] | None:
    """One arm at one KV length: its verdict, and a row with the figures behind it."""
    group = f"decode13@{kv}"
    a, plain = _find(rows, group, arm, backend), _find(rows, group, l2.BASELINE, backend)
    floor = floor_of(rows, group, backend, seed)
    if a is None or plain is None or floor is None:
        return None
    found = _interval(a, plain, seed)
    decided = verdict.judge_ratio(
        found.ratio, found.low, found.high, floor, verdict.bar("l2.pdl"), blocked(a, plain)
    )
    row = Row(
        probe="l2", case="decode13", variant=arm, backend=a.backend, source="measured", device=a.device,
        ratio_to_baseline=found.ratio, ratio_low=found.low, ratio_high=found.high, noise_floor=floor,
        overlap_s=a.overlap_s,
    )  # fmt: skip
    return decided, row


def judge(rows: Sequence[Row], seed: int) -> list[Row]:
    """Verdict rows: each arm on decode13, at both KV lengths together; the recorded arm first.

    Pure: the same rows and seed give the same verdicts. A row's ratio is that of the KV length where the arm
    does worse.
    """
    measured = [r for r in rows if r.source == "measured" and not r.verdict]
    out: list[Row] = []
    for arm in l2.JUDGED:
        for backend in BACKENDS:
            out += _judge_arm(measured, arm, backend, seed)
    return out


def _judge_arm(rows: Sequence[Row], arm: str, backend: Backend, seed: int) -> list[Row]:
    parts: list[tuple[str, Verdict]] = []
    figures: list[Row] = []
    for kv in l2.KVS:
        found = _one(rows, kv, arm, backend, seed)
        if found is None:
            parts.append((f"KV {kv}", Verdict("INCONCLUSIVE", "not measured")))
        else:
            parts.append((f"KV {kv}", found[0]))
            figures.append(found[1])
    if not figures:
        return []
    decided = verdict.all_of(parts)
    row = max(figures, key=lambda r: r.ratio_to_baseline or 0.0)
    said = recorded.figure("l2", "decode13", arm, "verdict")
    word = str(said.value) if said else None
    row.verdict, row.recorded, row.agrees = decided.verdict, word, verdict.agree(decided.verdict, word)
    row.noise_floor = max(r.noise_floor or 0.0 for r in figures)
    row.reason = ". ".join([decided.reason, *_mechanism(rows, arm, backend, seed)])
    return [row]


def _mechanism(rows: Sequence[Row], arm: str, backend: str, seed: int) -> list[str]:
    """What lies behind an arm's figure: when launches started, and the same kernels without the attribute."""
    out = []
    for kv in l2.KVS:
        group = f"decode13@{kv}"
        a, plain = _find(rows, group, arm, backend), _find(rows, group, l2.BASELINE, backend)
        if a is None or plain is None:
            continue
        if a.overlap_s is not None and plain.overlap_s is not None:
            out.append(
                f"KV {kv}: launches start {_when(a.overlap_s)}, {_when(plain.overlap_s)} in the plain graph"
            )
        off = _find(rows, group, f"{arm.removesuffix('_trigger')}_off", backend)
        if off:
            found = _interval(a, off, seed)
            out.append(
                f"KV {kv}: against such kernels under PROBES_PDL=0, time ratio "
                f"{report.format_ratio(found.ratio, found.low, found.high)}"
            )
    return out


def _when(overlap_s: float) -> str:
    side = "before" if overlap_s > 0 else "after"
    return f"{abs(overlap_s) * 1e6:.2f} us {side} their predecessor's end"


# The report's own blocks


def _groups(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(r.group for r in rows if r.samples_s and not r.case.startswith(report.SWEEP)))


def _gain(row: Row) -> str:
    """The speedup over the plain graph with its interval."""
    if row.ratio_to_baseline is None or row.ratio_low is None or row.ratio_high is None:
        return ""
    g = verdict.gain_of("speedup", row.ratio_to_baseline, row.ratio_low, row.ratio_high)
    low, high = (report.format_percent(x, 2, sign=True) for x in (g.low, g.high))
    return f"{report.format_percent(g.gain, 2, sign=True)} [{low}, {high}]"


def sections(rows: Sequence[Row], markdown: bool) -> list[str]:
    """Time and gain per launch; what beats the plain graph; the launch gap; the sweep."""
    title = "### " if markdown else ""
    out: list[str] = []
    measured = [r for r in rows if r.source == "measured" and not r.verdict]
    lines = [_launch_line(measured, r) for g in _groups(measured) for r in measured if _is_arm(r, g)]
    if lines:
        heads = [
            "case", "arm", "backend", "per launch", "gain per interface", "speedup [low, high]", "floor",
            "start to predecessor's end", "recorded",
        ]  # fmt: skip
        table = report.table(heads, lines, markdown, left=["case", "arm", "backend"])
        out += [f"{title}Per launch\n\n{table}", f"{title}What beats the plain graph\n\n{_winners(measured)}"]
    gap = _gap(measured)
    if gap:
        out.append(f"{title}The launch gap\n\n{gap}")
    sweep = [r for r in measured if r.case.startswith(report.SWEEP) and r.samples_s]
    if sweep:
        out.append(f"{title}compute24 swept\n\n{sweep_text(sweep, markdown)}")
    return out


def _is_arm(row: Row, group: str) -> bool:
    return row.group == group and bool(row.samples_s) and row.variant in {a.name for a in l2.ARMS}


def _launch_line(rows: Sequence[Row], row: Row) -> list[str]:
    n = launches(row.case)
    said = recorded.figure("l2", row.case, row.variant, "time_change")
    floor = floor_of(rows, row.group, row.backend, 0)
    return [
        row.group, row.variant, row.backend, report.format_time((row.time_s or 0.0) / n),
        report.format_time(row.gain_per_interface_s), _gain(row), report.format_percent(floor, 2),
        report.format_time(row.overlap_s), report.format_percent(said.number if said else None, 1, sign=True),
    ]  # fmt: skip


def _winners(rows: Sequence[Row]) -> str:
    """One line per chain and backend: arms faster and slower than the plain graph, beyond the noise floor."""
    out = []
    for group in _groups(rows):
        for backend in BACKENDS:
            floor, plain = floor_of(rows, group, backend, 0), _find(rows, group, l2.BASELINE, backend)
            if floor is None or plain is None:
                continue
            faster: list[str] = []
            slower: list[str] = []
            for name in l2.JUDGED:
                row = _find(rows, group, name, backend)
                if row is None or row.ratio_to_baseline is None or row.ratio_low is None:
                    continue
                found = stats.Interval(row.ratio_to_baseline, row.ratio_low, row.ratio_high or 0.0)
                if stats.claims_difference(found, floor):
                    (faster if found.ratio < 1 else slower).append(f"{name} {_gain(row)}")
            out.append(
                f"- {group}, {backend} (floor {report.format_percent(floor, 2)}): "
                f"faster: {', '.join(faster) or 'none'}; slower: {', '.join(slower) or 'none'}"
            )
    return "\n".join(out)


def _gap(rows: Sequence[Row]) -> str:
    """The launch gap by the empty chain, and what a step of 48 layers could save at most."""
    out = []
    said = [
        recorded.figure("l2", c, "plain", m)
        for c, m in (("empty", "gap_per_launch_s"), ("decode13", "gap_per_step_s"))
    ]
    for backend in BACKENDS:
        plain = _find(rows, "empty", l2.BASELINE, backend)
        if plain is None or plain.time_s is None:
            continue
        each = plain.time_s / CHAIN
        best = min(
            (r.time_s for n in l2.JUDGED if (r := _find(rows, "empty", n, backend)) and r.time_s),
            default=None,
        )
        line = f"- {backend}: {report.format_time(each)} per empty launch in a graph"
        if best is not None:
            saved = each - best / CHAIN
            line += (
                f", {report.format_time(best / CHAIN)} with the best PDL arm: at most "
                f"{report.format_time(saved)} per interface, "
                f"{report.format_time(saved * 13 * 48)} per step of 48 layers"
            )
        out.append(line)
    if out and all(said):
        texts = [report.format_time(f.number) for f in said if f]
        out.append(
            f"- recorded on gb10: about {texts[0]} per launch and {texts[1]} per step, which do not agree"
        )
    return "\n".join(out)


def sweep_points(rows: Sequence[Row]) -> list[tuple[Row, float, stats.Interval]]:
    """(row, floor of its point, interval) of every PDL arm of the sweep."""
    out = []
    for row in rows:
        if row.variant in l2.JUDGED and row.ratio_low is not None and row.ratio_to_baseline is not None:
            same = [_find(rows, row.group, n, row.backend) for n in l2.SWEEP_ARMS[:2]]
            if same[0] and same[1]:
                floor = stats.floor_of([_interval(same[1], same[0], 0)])
                found = stats.Interval(row.ratio_to_baseline, row.ratio_low, row.ratio_high or 0.0)
                out.append((row, floor, found))
    return out


def sweep_text(rows: Sequence[Row], markdown: bool) -> str:
    """The swept range, the points where PDL costs or saves time beyond the floor, and the table."""
    points = sweep_points(rows)
    taxed = [(r, f) for r, f, i in points if stats.claims_difference(i, f) and i.ratio > 1]
    saved = [r for r, f, i in points if stats.claims_difference(i, f) and i.ratio < 1]
    span = [
        f"{min(v):g} to {max(v):g} {what}"
        for v, what in (
            ([r.blocks_per_sm or 0 for r, *_ in points], "blocks/SM"),
            ([r.registers or 0 for r, *_ in points], "registers"),
            ([r.smem_bytes or 0 for r, *_ in points], "B of shared memory"),
            ([r.waves or 0.0 for r, *_ in points], "waves"),
        )
        if v
    ]
    head = (
        f"{len(points)} arms at points of {', '.join(span)}: "
        f"{len(saved)} faster and {len(taxed)} slower beyond the floor."
    )
    if taxed:
        worst = max(taxed, key=lambda x: x[0].ratio_to_baseline or 0.0)[0]
        head += f" The largest tax: {worst.case}, {worst.variant}, {_gain(worst)}."
    else:
        head += " No tax was found in this range."
    lines = [
        [
            r.case.removeprefix(report.SWEEP), r.variant, r.backend, str(r.registers), str(r.blocks_per_sm),
            f"{r.waves:.2f}" if r.waves else "", report.format_percent(r.tail_fraction),
            report.format_time(r.gain_per_interface_s), _gain(r), report.format_percent(f, 2),
        ]
        for r, f, _ in points
    ]  # fmt: skip
    heads = [
        "point", "arm", "backend", "regs", "blocks/SM", "waves", "tail", "gain per interface",
        "speedup [low, high]", "floor",
    ]  # fmt: skip
    return f"{head}\n\n{report.table(heads, lines, markdown, left=['point', 'arm', 'backend'])}"


def plots(rows: Sequence[Row], path: Path) -> list[str]:
    """Draw the sweep beside the report and return the block that shows it; nothing without matplotlib."""
    points = sweep_points([r for r in rows if r.case.startswith(report.SWEEP) and r.samples_s])
    if not points:
        return []
    from probes import l2_plot

    file = path.with_name(f"{path.stem}_sweep.svg")
    if not l2_plot.draw(points, file):
        return ["(no plot of the sweep: matplotlib is not installed, see the extra `plots`)"]
    return [f"![speedup over the plain graph by waves, registers and blocks per SM]({file.name})"]


def readme(rows: Sequence[Row]) -> str:
    """The README's block: each arm's speedup on each chain, C++."""
    groups = _groups(rows)
    lines = []
    for name in l2.JUDGED:
        cells = [_find(rows, g, name, "cu") for g in groups]
        lines.append([name, *(_gain(r) if r else "" for r in cells)])
    table = report.table(["arm", *groups], lines, True, left=["arm"])
    return f"{table}\n\n{report.verdict_table(rows, True)}"
