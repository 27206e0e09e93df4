"""L2's report: per launch, what wins, how near the ring chains come to a plain read, the gap, the sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from probes import l2, l2_limit, l2_ring_sweep
from probes.core import recorded, report, stats, tuning, verdict
from probes.core.chains import CHAIN
from probes.core.rows import Row
from probes.l2_judge import find, floor_of, interval, judge
from probes.l2_predict import BACKENDS, predict

__all__ = ["judge", "plots", "predict", "readme", "sections"]


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
    rings_told = _geometries(measured)
    if rings_told:
        out.append(f"{title}The ring chains' geometries\n\n{rings_told}")
    out += l2_limit.section(measured, title, markdown)
    out += l2_limit.kernels(measured, title, markdown)
    beside = _beside(measured, markdown)
    if beside:
        out.append(f"{title}What the same arms do to compute24\n\n{beside}")
    gap = _gap(measured)
    if gap:
        out.append(f"{title}The launch gap\n\n{gap}")
    rings = [r for r in measured if r.case.startswith(l2_ring_sweep.CASE)]
    sweep = [r for r in measured if r.case.startswith(report.SWEEP) and r not in rings and r.samples_s]
    if sweep:
        out.append(f"{title}compute24 swept\n\n{sweep_text(sweep, markdown)}")
    if rings:
        out.append(l2_ring_sweep.section(rings, markdown))
    return out


def _geometries(rows: Sequence[Row]) -> str:
    """Which ring each arm of a ring chain has: the plain graph has its own, so that it is not held back."""
    out = []
    for case in l2.RING:
        row = next((r for r in rows if r.case == case and r.samples_s), None)
        for matrix in tuning.CHAINS[case] if row else ():
            held = tuning.l2((row.device if row else None) or "", case, matrix)
            if held:
                own = f"{held.plain} in the plain graph" if held.plain else "the same in the plain graph"
                out.append(f"- {case} {matrix}: {held.ring} in the PDL arms, {own}")
    if not out:
        return ""
    return "\n".join([
        "An arm is held against the plain graph in the geometry that suits the plain graph best, so a gain "
        "is no less than its figure, and a loss of an arm without a trigger is that of the other geometry. "
        "`2r2b5s`: 2 rows a fill, 2 blocks per SM, 5 stages each (0: as many as leave a successor room).\n",
        *out,
    ])  # fmt: skip


def _beside(rows: Sequence[Row], markdown: bool) -> str:
    """The ring chains' arms on a chain that no memory bounds, '' where either was not measured."""
    if not any(r.case in l2.RING and r.samples_s for r in rows):
        return ""
    lines = []
    for name in l2.JUDGED:
        for backend in BACKENDS:
            if row := find(rows, "compute24", name, backend):
                floor = floor_of(rows, "compute24", backend, 0)
                cells = [report.format_percent(floor, 2), report.format_time(row.overlap_s)]
                lines.append([name, backend, _gain(row), *cells])
    heads = ["arm", "backend", "speedup [low, high]", "floor", "start to predecessor's end"]
    return report.table(heads, lines, markdown, left=heads[:2]) if lines else ""


def _is_arm(row: Row, group: str) -> bool:
    return row.group == group and bool(row.samples_s) and row.variant in {a.name for a in l2.ARMS}


def _launch_line(rows: Sequence[Row], row: Row) -> list[str]:
    n = l2.launches(row.case)
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
            floor, plain = floor_of(rows, group, backend, 0), find(rows, group, l2.BASELINE, backend)
            if floor is None or plain is None:
                continue
            faster: list[str] = []
            slower: list[str] = []
            for name in l2.JUDGED:
                row = find(rows, group, name, backend)
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
        plain = find(rows, "empty", l2.BASELINE, backend)
        if plain is None or plain.time_s is None:
            continue
        each = plain.time_s / CHAIN
        best = min(
            (r.time_s for n in l2.JUDGED if (r := find(rows, "empty", n, backend)) and r.time_s),
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
            same = [find(rows, row.group, n, row.backend) for n in l2.SWEEP_ARMS[:2]]
            if same[0] and same[1]:
                floor = stats.floor_of([interval(same[1], same[0], 0)])
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
    """The README's block: each arm's speedup on each chain, C++; the ring chains in a table of their own."""
    groups = _groups([r for r in rows if r.source == "measured" and not r.verdict])
    rings = [g for g in groups if g.partition("@")[0] in l2.RING]
    parts = [_speedups(rows, [g for g in groups if g not in rings])]
    if rings:
        parts += ["Chains of ring kernels, against the plain graph in its own best geometry:"]
        parts += [_speedups(rows, rings), *l2_limit.section(rows, "### ", True)]
    judged = [r for r in rows if r.verdict]  # the reasons stand in the report itself
    return "\n\n".join([*parts, report.rows_table(judged, report.VERDICT_COLUMNS, True)])


def _speedups(rows: Sequence[Row], groups: Sequence[str]) -> str:
    lines = []
    for name in l2.JUDGED:
        cells = [find(rows, g, name, "cu") for g in groups]
        if any(cells):
            lines.append([name, *(_gain(r) if r else "" for r in cells)])
    return report.table(["arm", *groups], lines, True, left=["arm"])
