"""L2's own sections: per launch, what wins, how near the rings come to a plain read, the gap, the sweeps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from probes.core.types import BACKENDS
from probes.engine import limit, sweep
from probes.engine.judge import find
from probes.engine.probe import Case
from probes.l2 import analysis, chains, plan, table
from probes.report import tables
from probes.report.pictures import Mark, panels
from probes.report.rows import Row
from probes.report.tables import format_percent, format_ratio, format_time
from probes.verdict import bars, record

READ = "read_chain_pdl"
LATE = tuple(a.name for a in table.ARMS if a.kind == "late" and a.pdl and a.graph and a.env is None)
FORMS = tuple(a.name for a in table.ARMS if a.form)

ALONE = (
    "Each kernel of the chains launched alone: a profiler lets no launch overlap another, so an arm has no "
    "meaning here, and what PDL hides at a launch's start and end shows in full. `_plain` is the kernel of "
    "the plain graph; `_late` that of the PDL arms, without the attribute, so that its wait returns at once. "
    "The plain read is of the same weights, under the profiler too. Caches are flushed before each launch: "
    "activations that a chain finds in L2 come from memory here."
)


def _groups(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(r.group for r in rows if r.samples_s and not r.sweep))


def _gain(row: Row | None) -> str:
    """The speedup over the plain graph with its interval."""
    if row is None or row.ratio_to_baseline is None or row.ratio_low is None or row.ratio_high is None:
        return ""
    g = bars.gain_of("speedup", row.ratio_to_baseline, row.ratio_low, row.ratio_high)
    low, high = (format_percent(x, 2, sign=True) for x in (g.low, g.high))
    return f"{format_percent(g.gain, 2, sign=True)} [{low}, {high}]"


def sections(rows: Sequence[Row], markdown: bool) -> list[str]:
    """Time and gain per launch; what beats the plain graph; the launch gap; the sweeps."""
    title = "### " if markdown else ""
    out: list[str] = []
    rows = [r for r in rows if r.source == "measured" and not r.verdict]
    arms = {a.name for a in table.ARMS}
    lines = [
        _launch_line(rows, r)
        for g in _groups(rows)
        for r in rows
        if r.group == g and r.samples_s and r.variant in arms
    ]
    if lines:
        heads = [
            "case", "arm", "backend", "per launch", "gain per interface", "speedup [low, high]", "floor",
            "start to predecessor's end", "recorded",
        ]  # fmt: skip
        text = tables.table(heads, lines, markdown, left=["case", "arm", "backend"])
        out += [f"{title}Per launch\n\n{text}", f"{title}What beats the plain graph\n\n{_winners(rows)}"]
    if body := _geometries(rows):
        out.append(f"{title}The ring chains' geometries\n\n{body}")
    out += _limit(rows, title, markdown)
    out += _kernels(rows, title, markdown)
    for head, body in (
        ("What the same arms do to compute24", _beside(rows, markdown)),
        ("The launch gap", _gap(rows)),
        ("compute24 swept", _tails([r for r in rows if r.sweep == table.TAILS and r.samples_s], markdown)),
    ):
        out += [f"{title}{head}\n\n{body}"] if body else []
    rings = [r for r in rows if r.sweep == table.RINGS]
    return out + ([_rings(rings, markdown)] if rings else [])


def _launch_line(rows: Sequence[Row], row: Row) -> list[str]:
    said = record.figure("l2", row.case, row.variant, "time_change")
    return [
        row.group, row.variant, row.backend, format_time((row.time_s or 0.0) / table.launches(row.case)),
        format_time(row.gain_per_interface_s), _gain(row),
        format_percent(analysis.noise(rows, row.group, row.backend), 2), format_time(row.overlap_s),
        format_percent(said.number if said else None, 1, sign=True),
    ]  # fmt: skip


def _winners(rows: Sequence[Row]) -> str:
    """One line per chain and backend: arms faster and slower than the plain graph, beyond the noise floor."""
    out = []
    for group in _groups(rows):
        for backend in BACKENDS:
            noise = analysis.noise(rows, group, backend)
            if noise is None:
                continue
            arms = [r for n in (*table.JUDGED, *FORMS) if (r := find(rows, group, n, backend))]
            found = [r for r in arms if analysis.claimed(r, noise)]
            faster = [f"{r.variant} {_gain(r)}" for r in found if (r.ratio_to_baseline or 0.0) < 1]
            slower = [f"{r.variant} {_gain(r)}" for r in found if (r.ratio_to_baseline or 0.0) >= 1]
            out.append(
                f"- {group}, {backend} (floor {format_percent(noise, 2)}): "
                f"faster: {', '.join(faster) or 'none'}; slower: {', '.join(slower) or 'none'}"
            )
    return "\n".join(out)


def _geometries(rows: Sequence[Row]) -> str:
    """Which ring each arm of a ring chain has: the plain graph has its own, so that it is not held back."""
    out = []
    for chain in table.RING:
        row = next((r for r in rows if r.case == chain and r.samples_s), None)
        for matrix in table.MATRICES[chain] if row else ():
            held = chains.tuned((row.device if row else None) or "", chain, matrix)
            if held:
                own = f"{held.plain} in the plain graph" if held.plain else "the same in the plain graph"
                out.append(f"- {chain} {matrix}: {held.ring} in the PDL arms, {own}")
    if not out:
        return ""
    return "\n".join([
        "An arm is held against the plain graph in the geometry that suits the plain graph best, so a gain "
        "is no less than its figure, and a loss of an arm without a trigger is that of the other geometry. "
        "`2r2b5s`: 2 rows a fill, 2 blocks per SM, 5 stages each (0: as many as leave a successor room).\n",
        *out,
    ])  # fmt: skip


def _limit(rows: Sequence[Row], title: str, markdown: bool) -> list[str]:
    """Each ring chain's fastest late arm beside the fastest chain that only reads its bytes."""
    lines = []
    for chain in table.RING:
        reads = [r for r in rows if r.group == chain and r.samples_s and READ in (r.variant, r.of)]
        for backend in BACKENDS:
            mine = [r for name in LATE if (r := find(rows, chain, name, backend)) and r.bitwise]
            near = limit.nearest(mine, reads, bars.targets(table.TARGETS).targets.get(chain))
            if near:
                each = format_time((near.row.time_s or 0.0) / table.launches(chain))
                lines.append([chain, backend, near.row.variant, each, format_ratio(*near.found), *near.cells])
    if not lines:
        return []
    heads = ["chain", "backend", "fastest late arm", "per launch", "of PDL read [low, high]", "target", ""]
    text = tables.table(heads, lines, markdown, left=[*heads[:3], heads[-1]])
    return [f"{title}How near the ring chains come to PDL chains that read the same bytes\n\n{text}"]


def _kernels(rows: Sequence[Row], title: str, markdown: bool) -> list[str]:
    """Each kernel alone under the profiler beside a plain read of its weights, empty without --counters."""
    reads: dict[tuple[str, str | None], float] = {}
    for r in rows:
        if r.role == "read" and r.of and r.profiler_time_s:
            key = r.group, r.of
            reads[key] = min(r.profiler_time_s, reads.get(key, r.profiler_time_s))
    most, ceiling = limit.reach(rows), max((r.read_ceiling_gbps or 0.0 for r in rows), default=0.0)
    found = []
    for r in rows:
        if r.role == "alone" and r.profiler_time_s:
            read_s = reads.get((r.group, r.of)) if r.content_bytes else 0.0
            ring = r.of in table.MATRICES.get(r.case, ())
            shown = replace(r, variant=r.variant.removeprefix("profiled_"))
            found.append(limit.Figures(shown, r.profiler_time_s, read_s, most, ceiling, ring))
    return limit.section(found, title, markdown, ALONE)


def _beside(rows: Sequence[Row], markdown: bool) -> str:
    """The ring chains' arms on a chain that no memory bounds, '' where either was not measured."""
    if not any(r.case in table.RING and r.samples_s for r in rows):
        return ""
    lines = []
    for name in table.JUDGED:
        for backend in BACKENDS:
            if row := find(rows, "compute24", name, backend):
                noise = format_percent(analysis.noise(rows, "compute24", backend), 2)
                lines.append([name, backend, _gain(row), noise, format_time(row.overlap_s)])
    heads = ["arm", "backend", "speedup [low, high]", "floor", "start to predecessor's end"]
    return tables.table(heads, lines, markdown, left=heads[:2]) if lines else ""


def _gap(rows: Sequence[Row]) -> str:
    """The launch gap by the empty chain, and what a step of 48 layers could save at most."""
    out = []
    said = [
        record.figure("l2", c, "plain", m)
        for c, m in (("empty", "gap_per_launch_s"), ("decode13", "gap_per_step_s"))
    ]
    for backend in BACKENDS:
        plain = find(rows, "empty", table.BASELINE, backend)
        if plain is None or plain.time_s is None:
            continue
        each = plain.time_s / table.CHAIN
        found = [r for n in table.JUDGED if (r := find(rows, "empty", n, backend))]
        best = min((r.time_s for r in found if r.time_s), default=None)
        line = f"- {backend}: {format_time(each)} per empty launch in a graph"
        if best is not None:
            saved = each - best / table.CHAIN
            line += f", {format_time(best / table.CHAIN)} with the best PDL arm: at most {format_time(saved)}"
            line += f" per interface, {format_time(saved * 13 * 48)} per step of 48 layers"
        out.append(line)
    if out and all(said):
        texts = [format_time(f.number) for f in said if f]
        told = f"about {texts[0]} per launch and {texts[1]} per step"
        out.append(f"- recorded on gb10: {told}, which do not agree")
    return "\n".join(out)


def _tails(rows: Sequence[Row], markdown: bool) -> str:
    """The swept range, the points where PDL costs or saves time beyond the floor, and the table."""
    points = analysis.tail_points(rows)
    if not points:
        return ""
    claimed = [r for r, f in points if analysis.claimed(r, f)]
    taxed = [r for r in claimed if (r.ratio_to_baseline or 0.0) > 1]
    spans = (
        ([r.blocks_per_sm or 0 for r, _ in points], "blocks/SM"),
        ([r.registers or 0 for r, _ in points], "registers"),
        ([r.smem_bytes or 0 for r, _ in points], "B of shared memory"),
        ([r.waves or 0.0 for r, _ in points], "waves"),
    )
    span = ", ".join(f"{min(v):g} to {max(v):g} {what}" for v, what in spans)
    head = (
        f"{len(points)} arms at points of {span}: "
        f"{len(claimed) - len(taxed)} faster and {len(taxed)} slower beyond the floor."
    )
    worst = max(taxed, key=lambda r: r.ratio_to_baseline or 0.0, default=None)
    head += (
        f" The largest tax: {worst.case}, {worst.variant}, {_gain(worst)}."
        if worst
        else " No tax was found in this range."
    )
    lines = [
        [
            r.case.removeprefix("sweep_"), r.variant, r.backend, str(r.registers), str(r.blocks_per_sm),
            f"{r.waves:.2f}" if r.waves else "", format_percent(r.tail_fraction),
            format_time(r.gain_per_interface_s), _gain(r), format_percent(f, 2),
        ]
        for r, f in points
    ]  # fmt: skip
    heads = [
        "point", "arm", "backend", "regs", "blocks/SM", "waves", "tail", "gain per interface",
        "speedup [low, high]", "floor",
    ]  # fmt: skip
    return f"{head}\n\n{tables.table(heads, lines, markdown, left=['point', 'arm', 'backend'])}"


def _rings(rows: Sequence[Row], markdown: bool) -> str:
    """Every point of every swept chain, the fastest of its family marked, and the rows to write."""
    lines, chosen = [], []
    for chain in table.RING:
        mine = analysis.swept(rows, chain)
        own = [f for f, of in plan.FAMILIES.items() if set(of) & {*table.MATRICES[chain]}] if mine else []
        win = {
            analysis.fastest(rows, chain, f, launched): f"the fastest {said}"
            for f in own
            for launched, said in (("tail", "with the tail"), ("plain", "plain"))
        }
        for variant, row in sorted(mine.items(), key=lambda x: x[1].time_s or 0.0):
            each = format_time((row.time_s or 0.0) / table.launches(chain))
            share = format_percent(row.fraction_of_same_bytes_read)
            lines.append([chain, variant, each, share, win.get(variant, "")])
        if found := analysis.best(rows, chain) if mine else {}:
            chosen.append((chain, found))
    heads = ["chain", "point", "per launch", "of same-bytes read", ""]
    text = tables.table(heads, lines, markdown, left=[heads[0], heads[1], heads[-1]])
    refused = [f"- {r.case.removeprefix('sweep_ring_')} {r.variant}: {r.skipped}" for r in rows if r.skipped]
    text += "\n\nNot launched:\n\n" + "\n".join(refused) if refused else ""
    return sweep.section("The ring chains swept", text, "l2", chosen, markdown)


def pictures(path: Path) -> list[Path]:
    """The sweep over tails."""
    return [path.with_name(f"{path.stem}_sweep.svg")]


def plots(rows: Sequence[Row], path: Path) -> list[str]:
    """Draw the sweep over tails beside the report: each PDL arm's speedup by waves, a panel per occupancy."""
    points = analysis.tail_points(rows)
    if not points:
        return []
    shown: dict[str, dict[str, list[Mark]]] = {}
    swept = sorted(
        (r for r, _ in points), key=lambda r: (r.registers or 0, r.blocks_per_sm or 0, r.waves or 0)
    )
    for row in swept:
        panel = shown.setdefault(f"{row.registers} registers, {row.blocks_per_sm} blocks/SM", {})
        ratio, low, high = row.ratio_to_baseline or 1.0, row.ratio_low or 1.0, row.ratio_high or 1.0
        ends = (100 * (1 / ratio - 1 / high), 100 * (1 / low - 1 / ratio))
        bar = Mark(row.waves or 0.0, 100 * (1 / ratio - 1), *ends)
        panel.setdefault(row.variant, []).append(bar)
    (file,) = pictures(path)
    if not panels(shown, "waves", "speedup, %", file):
        return ["(no plot of the sweep: matplotlib is not installed, see the extra `plots`)"]
    return [f"![speedup over the plain graph by waves, registers and blocks per SM]({file.name})"]


def readme(rows: Sequence[Row]) -> str:
    """The README's block: each arm's speedup on each chain, C++; the ring chains in a table of their own."""
    measured = [r for r in rows if r.source == "measured" and not r.verdict]
    rings = {r.group for r in measured if r.case in table.RING}
    groups = _groups(measured)
    parts = [_speedups(rows, [g for g in groups if g not in rings])]
    if own := [g for g in groups if g in rings]:
        parts += ["Chains of ring kernels, against the plain graph in its own best geometry:"]
        parts += [_speedups(rows, own), *_limit(rows, "### ", True)]
    judged = [r for r in rows if r.verdict]  # the reasons stand in the report itself
    return "\n\n".join([*parts, tables.rows_table(judged, tables.VERDICT_COLUMNS, True)])


def _speedups(rows: Sequence[Row], groups: Sequence[str]) -> str:
    lines = []
    for name in table.JUDGED:
        cells = [find(rows, g, name, "cu") for g in groups]
        if any(cells):
            lines.append([name, *(_gain(r) for r in cells)])
    return tables.table(["arm", *groups], lines, True, left=["arm"])


def recorded(case: Case) -> Iterator[Row]:
    """The record's own figures for a case, as rows."""

    def row(variant: str, ratio: float | None, note: str) -> Row:
        r = Row(probe="l2", case=case.id, variant=variant, backend="cu", source="recorded", device="gb10")
        r.kv, r.ratio_to_baseline, r.notes = case.kv, ratio, [note] if note else []
        return r

    change = record.figure("l2", case.id, table.RECORDED, "time_change")
    if change:
        yield row(table.RECORDED, 1.0 + change.number, change.note)
    if case.id == "decode13" and case.kv in table.KVS:
        names = ("14b_tg128", "14b_tg128_again") if case.kv == table.KVS[0] else ("14b_3254",)
        for name in names:
            figure = record.figure("l2", case.id, table.RECORDED, f"throughput_change_{name}")
            if figure:
                note = f"tokens per second in situ; {figure.note}"
                yield row(table.RECORDED, 1.0 / (1.0 + figure.number), note)
    gap = record.figure("l2", case.id, "plain", "gap_per_launch_s")
    if gap:
        r = row("plain", None, f"about {gap.number * 1e6:.0f} us per launch inside a graph")
        r.time_s = table.CHAIN * gap.number
        yield r
