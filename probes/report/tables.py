"""Rows as tables, in a terminal or in Markdown: the only place that turns figures into text with units.

A title says whether its lines were measured, predicted or recorded, a column where they differ. A predicted
time carries a `~`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from probes.core import environment, escaping
from probes.core.types import BadInput
from probes.device import resources
from probes.report.provenance import Head
from probes.report.rows import Row


def format_time(seconds: float | None, predicted: bool = False) -> str:
    """`176.5 µs`, `12.3 ms`, `1.20 s`; a predicted one `~176.5 µs`."""
    if seconds is None:
        return ""
    size = abs(seconds)
    if size < 1e-3:
        text = f"{seconds * 1e6:.{1 if size >= 1e-4 else 2}f} µs"
    else:
        text = f"{seconds * 1e3:.3f} ms" if size < 1 else f"{seconds:.2f} s"
    return f"~{text}" if predicted else text


def format_percent(fraction: float | None, digits: int = 1, sign: bool = False) -> str:
    """`62.1 %` of 0.621."""
    return "" if fraction is None else f"{100 * fraction:{'+' if sign else ''}.{digits}f} %"


def format_bytes(count: int | None) -> str:
    """`58.11 MiB`, `4.00 GiB`, `210 B`."""
    if count is None:
        return ""
    for scale, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if abs(count) >= scale:
            return f"{count / scale:.2f} {unit}"
    return f"{count} B"


def format_ratio(ratio: float | None, low: float | None = None, high: float | None = None) -> str:
    """`0.8290 [0.8261, 0.8322]`, or the ratio alone where no interval is known."""
    if ratio is None:
        return ""
    return f"{ratio:.4f}" if low is None or high is None else f"{ratio:.4f} [{low:.4f}, {high:.4f}]"


def table(
    headers: Sequence[str], lines: Sequence[Sequence[str]], markdown: bool = False, left: Sequence[str] = ()
) -> str:
    """A table of ready text cells; columns not named in `left` are right-aligned, empty ones dropped."""
    if not lines:
        return "(no rows)"
    from tabulate import tabulate  # late: a --help needs no table

    keep = [i for i in range(len(headers)) if any(line[i] for line in lines)]
    clean = escaping.markdown if markdown else escaping.shown
    drawn: str = tabulate(
        [[clean(line[i]) for i in keep] for line in lines],
        headers=[clean(headers[i]) for i in keep],
        tablefmt="pipe" if markdown else "simple",
        disable_numparse=True,
        colalign=["left" if headers[i] in left else "right" for i in keep],
    )
    return "\n".join(line.rstrip() for line in drawn.split("\n"))


def sources(rows: Sequence[Row]) -> list[str]:
    """The distinct sources of rows, in order of appearance."""
    return list(dict.fromkeys(r.source for r in rows))


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a rows' table: its head, what it shows, and whether it is text (left-aligned)."""

    head: str
    cell: Callable[[Row], str]
    text: bool = False


def _number(value: float | None, digits: int = 0) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _gbps(value: float | None) -> str:
    return _number(value, 1 if value is None or value < 1000 else 0)


def _traffic_gbps(row: Row) -> str:
    return _gbps(row.traffic_bytes / row.time_s / 1e9 if row.traffic_bytes and row.time_s else None)


def _blocks(row: Row) -> str:
    if row.blocks_per_sm is None:
        return row.limiter or ""
    return f"{row.blocks_per_sm} ({row.limiter})" if row.limiter else f"{row.blocks_per_sm}"


def _yes(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "NO"


def _note(row: Row) -> str:
    skipped = [f"SKIPPED ({row.skipped})"] if row.skipped else []
    lacks = [f"proof missing: {m}" for m in row.missing if m not in row.notes]  # schema 1 has them as notes
    return "; ".join([*skipped, *lacks, *row.doubts(), *row.notes])


CASE_COLUMNS: tuple[Column, ...] = (
    Column("variant", lambda r: r.variant, text=True),
    Column("backend", lambda r: r.backend, text=True),
    Column("time", lambda r: format_time(r.time_s, r.source == "predicted")),
    Column("content GB/s", lambda r: _gbps(r.content_gbps)),
    Column("traffic GB/s", _traffic_gbps),
    Column("of ceiling", lambda r: format_percent(r.fraction_of_ceiling)),
    Column("of same-bytes read", lambda r: format_percent(r.fraction_of_same_bytes_read)),
    Column("DRAM read", lambda r: format_bytes(r.dram_bytes_read)),
    Column("DRAM", lambda r: format_percent(r.profiler_dram_fraction)),
    Column("issue", lambda r: format_percent(r.profiler_issue_fraction)),
    Column("regs", lambda r: _number(r.registers)),
    Column("spill B", lambda r: _number(r.spill_bytes)),
    Column("blocks/SM (limiter)", _blocks),
    Column("grid", lambda r: _number(r.grid)),
    Column("waves", lambda r: _number(r.waves, 2)),
    Column("tail", lambda r: format_percent(r.tail_fraction)),
    Column("load balance", lambda r: _number(r.load_balance, 2)),
    Column("overlap", lambda r: format_time(r.overlap_s)),
    Column("gain/interface", lambda r: format_time(r.gain_per_interface_s)),
    Column("ratio [low, high]", lambda r: format_ratio(r.ratio_to_baseline, r.ratio_low, r.ratio_high)),
    Column("bitwise", lambda r: _yes(r.bitwise)),
    Column("note", _note, text=True),
)

VERDICT_COLUMNS: tuple[Column, ...] = (
    Column("probe", lambda r: r.probe, text=True),
    Column("case", lambda r: r.group, text=True),
    Column("variant", lambda r: f"{r.variant} ({r.of})" if r.of else r.variant, text=True),
    Column("against", lambda r: r.baseline or "", text=True),
    Column("backend", lambda r: r.backend, text=True),
    Column("ratio [low, high]", lambda r: format_ratio(r.ratio_to_baseline, r.ratio_low, r.ratio_high)),
    Column("placement", lambda r: format_percent(r.noise_floor, 2)),
    Column("verdict", lambda r: r.verdict or "", text=True),
    Column("recorded", lambda r: "" if r.recorded is None else str(r.recorded), text=True),
    Column("agrees", lambda r: _yes(r.agrees), text=True),
)

SWEEP = "sweep_"  # cases that begin so are points of a sweep: their probe's own section shows them


def rows_table(rows: Sequence[Row], columns: Sequence[Column], markdown: bool = False) -> str:
    """Rows by columns; a `source` column comes third where sources differ."""
    shown = list(columns)
    if len(sources(rows)) > 1:
        shown.insert(2, Column("source", lambda r: r.source, text=True))
    left = [c.head for c in shown if c.text]
    return table([c.head for c in shown], [[c.cell(r) for c in shown] for r in rows], markdown, left)


def case_table(rows: Sequence[Row], markdown: bool = False) -> str:
    """Title and table of one case: what each variant took, moved and cost."""
    rows = [r for r in rows if r.role != "contest"]
    if not rows:
        return "(no rows)"
    r = rows[0]
    # the title speaks for the lines that have a figure: a skipped line was not measured
    told = " and ".join(sources([x for x in rows if not x.skipped])) or "nothing run"
    shape = next((f", {x.shape[0]}x{x.shape[1]}" for x in rows if x.shape and len(x.shape) == 2), "")
    title = _title(f"{r.group}{shape} on {_devices(rows)}: {told}", markdown)
    return f"{title}\n\n{rows_table(rows, CASE_COLUMNS, markdown)}"


def verdict_table(rows: Sequence[Row], markdown: bool = False, title: str = "Verdicts") -> str:
    """Title, table and reasons of the rows that hold a verdict."""
    judged = [r for r in rows if r.verdict]
    if not judged:
        return _title(f"{title}: none was reached", markdown)
    head = _title(f"{title} on {_devices(judged)}: {' and '.join(sources(judged))}", markdown)
    clean = escaping.markdown if markdown else escaping.shown
    why = [f"- {clean(f'{r.id}: {r.reason}')}" for r in judged if r.reason]
    return "\n".join([head, "", rows_table(judged, VERDICT_COLUMNS, markdown), *([""] if why else []), *why])


def first_line(head: Head, markdown: bool = False) -> str:
    """What kind of figures follow. With no GPU it says first that nothing was measured."""
    return (escaping.markdown if markdown else escaping.shown)(_first_line(head))


def _first_line(head: Head) -> str:
    if head.mode == "predict":
        arch, there = head.device_facts.get("arch"), resources.archs()
        if arch and arch not in there:
            return (
                f"Nothing was measured, and no kernel is predicted for {head.device}: register counts are "
                f"recorded for {' and '.join(there)}, not for {arch}."
            )
        return f"Nothing was measured: predicted for {head.device} from recorded register counts."
    driver = f", driver {head.driver}" if head.driver else ""
    under = environment.beside(head.environment)
    return f"Measured on {head.device}{driver}, {head.time_utc}{f', under {under}' if under else ''}."


def remarks(head: Head, markdown: bool = False) -> list[str]:
    """What a reader must know beside the figures: neighbours, environment, notes; a line each."""
    clean = escaping.markdown if markdown else escaping.shown
    return [clean(f"NOTE: {line}") for line in (*head.neighbours, *head.environment, *head.notes)]


def verdicts_under(head: Head, markdown: bool = False) -> str:
    """The line that stands over the verdicts of a run under unusual settings, '' for an ordinary one."""
    under = environment.beside(head.environment)
    clean = escaping.markdown if markdown else escaping.shown
    return clean(f"These verdicts were reached under {under}: they are not the GPU's alone.") if under else ""


def document(title: str, head: Head, rows: Sequence[Row], extra: Sequence[str] = ()) -> str:
    """A whole report as Markdown: first line, verdicts, a table per case, `extra` blocks, provenance."""
    cases = dict.fromkeys(r.group for r in rows if not r.case.startswith(SWEEP))
    parts = [f"# {escaping.markdown(title)}", first_line(head, True)]
    if not head.complete:
        parts.append("INCOMPLETE: the run was stopped; finished rows only.")
    parts += remarks(head, True)
    if any(r.verdict for r in rows):
        parts += [x for x in (verdicts_under(head, True), verdict_table(rows, True)) if x]
    parts += [case_table([r for r in rows if r.group == case], True) for case in cases]
    return "\n\n".join([*parts, *extra, provenance_text(head, rows)]) + "\n"


def provenance_text(head: Head, rows: Sequence[Row]) -> str:
    """Command, seed, versions, git state and hashes, as a Markdown list."""
    changed = " with local changes" if head.git and head.git.get("dirty") else ""
    git = f"{str(head.git.get('commit'))[:12]}{changed}" if head.git else "not from a checkout"
    rotation = min((r.rotation_bytes for r in rows if r.rotation_bytes), default=None)
    lines = [
        f"command: {' '.join(head.argv)}",
        f"seed {head.seed}, git {git}, {head.time_utc}",
        "versions: " + ", ".join(f"{k} {v}" for k, v in head.versions.items()),
        f"bars {head.bars_sha256[:12]}, kernels {head.kernels_sha256[:12]}",
    ]
    if head.settings:
        lines.append("compiled under " + ", ".join(f"{k}={v}" for k, v in head.settings.items()))
    if rotation:
        lines.append(f"weights rotated over {format_bytes(rotation)} or more")
    return "\n".join([_title("Provenance", True), "", *(f"- {escaping.markdown(x)}" for x in lines)])


def fill(text: str, marker: str, body: str) -> str:
    """`text` with what stands between `<!-- marker:begin -->` and `<!-- marker:end -->` replaced."""
    begin, end = f"<!-- {marker}:begin -->", f"<!-- {marker}:end -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(end) < text.index(begin):
        raise BadInput(f"the text must hold {begin} and {end} once each, in this order")
    return f"{text[: text.index(begin) + len(begin)]}\n{body.strip()}\n{text[text.index(end) :]}"


def _devices(rows: Sequence[Row]) -> str:
    return ", ".join(dict.fromkeys(r.device or "no device" for r in rows))


def _title(words: str, markdown: bool) -> str:
    return f"### {escaping.markdown(words)}" if markdown else escaping.shown(words)  # names may hold anything
