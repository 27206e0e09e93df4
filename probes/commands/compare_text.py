"""What `compare` says: tables for a terminal and for Markdown, rows as CSV and as JSON."""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from probes.core import escaping
from probes.core.types import BadInput
from probes.engine.compare import Comparison, Matched
from probes.engine.sides import Report
from probes.report import files, tables
from probes.verdict import comparison
from probes.verdict.comparison import Answer

ORDER: tuple[Answer, ...] = ("SLOWER", "FASTER", "UNCLEAR", "SAME")
COLUMNS = (
    "probe", "case", "kv", "variant", "backend", "kind", "role", "baseline", "old", "new", "ratio",
    "ratio_low", "ratio_high", "answer", "reason", "p", "places", "processes",
)  # fmt: skip
HEADS = ("row", "kind", "baseline", "old", "new", "change [99 %]", "answer", "why")


def percent(ln: float) -> str:
    """`+1.23 %` of a logarithm of a ratio."""
    return tables.format_percent(math.expm1(ln), 2, sign=True)


@dataclass
class Text:
    """A comparison's head and tables."""

    found: Comparison
    olds: Sequence[Report]
    news: Sequence[Report]

    def head(self) -> list[str]:
        """What was compared and what was taken out, a line each."""
        out = []
        for side, reports in (("old", self.olds), ("new", self.news)):
            for r in reports:
                git = r.head.git or {}
                commit = f"{git.get('commit')}"[:12] + " with local changes" * bool(git.get("dirty"))
                words = [r.name, r.head.time_utc, commit if git else "no commit", r.head.driver]
                out.append(f"{side}: {', '.join(w for w in words if w)}")
                if not r.head.complete:
                    out.append(f"NOTE: {r.name} was stopped; these are its finished rows only")
        if len({r.head.driver for r in (*self.olds, *self.news)}) > 1:
            out.append("NOTE: the drivers differ")
        return [*out, f"kernels: {'the same' if self.found.same_kernels else 'they differ'}", self.drift(), *(
            f"NOTE: {n}" for n in self.found.notes
        )]  # fmt: skip

    def drift(self) -> str:
        """One line on what all rows moved by."""
        d = self.found.drift
        if d.why == "no-controls":
            wide = f"intervals are {100 * d.slack:.1f} % wider on either side"
            few = f"{d.rows} reads and A/A arms are in both, {comparison.PEERS} are needed"
            return f"drift: unknown, {few}; {wide}"
        classes = [
            f"{n} {percent(m)}" for n, m in (("reads", d.reads), ("A/A arms", d.again)) if m is not None
        ]
        more = {
            "reads-alone": "; A/A arms differ from the reads and so do the kernels: the reads alone count",
            "controls-disagree": f"; they disagree: intervals are {100 * d.slack:.2f} % wider on either side",
        }.get(d.why, "")
        spread = max(d.spread, comparison.PRIOR, self.found.tau)
        told = f"; another process adds {100 * spread:.2f} % to a row (standard deviation)"
        return f"drift: {percent(d.m)} by {d.rows} rows ({', '.join(classes)}), taken out{told}{more}"

    def summary(self) -> str:
        """How many rows are what."""
        counts = [f"{n} {a}" for a in ORDER if (n := self.found.count(a))]
        margin = f"margin {100 * self.found.margin:g} %, Holm over {len(self.found.lines)} rows"
        return f"{', '.join(counts) or 'no rows'} ({margin})"

    def text(self, markdown: bool) -> str:
        """Head, table, what is in one side only, summary."""
        lines = sorted(self.found.lines, key=lambda x: ORDER.index(x.answer))
        left = (HEADS[0], HEADS[1], HEADS[2], HEADS[6], HEADS[7])
        table = tables.table(HEADS, [_cells(x) for x in lines], markdown, left)
        clean = escaping.markdown if markdown else escaping.shown
        only = [
            clean(f"only-in-{side}: {', '.join(ids)}")
            for side, ids in (("old", self.found.only_old), ("new", self.found.only_new)) if ids
        ]  # fmt: skip
        head = [f"{'- ' * markdown}{clean(x)}" for x in self.head()]
        title = ["# Two runs compared", ""] if markdown else []
        return "\n".join([*title, *head, "", table, "", *only, *([""] if only else []), self.summary()])

    def json(self) -> dict[str, Any]:
        """Head and rows as plain values; of a lever `old` and `new` are ratios, else seconds."""
        f, d = self.found, self.found.drift
        return {
            "old": [_provenance(r) for r in self.olds], "new": [_provenance(r) for r in self.news],
            "margin": f.margin, "alpha": comparison.ALPHA, "same_kernels": f.same_kernels, "notes": f.notes,
            "drift": {
                "ratio": math.exp(d.m), "rows": d.rows, "why": d.why, "slack": d.slack,
                "spread": max(d.spread, comparison.PRIOR, f.tau),
            },
            "only_in_old": f.only_old, "only_in_new": f.only_new,
            "counts": {a: f.count(a) for a in ORDER}, "rows": self.rows(),
        }  # fmt: skip

    def rows(self) -> list[dict[str, Any]]:
        """COLUMNS of every line."""
        return [dict(zip(COLUMNS, _values(x), strict=True)) for x in self.found.lines]


def _provenance(r: Report) -> dict[str, Any]:
    h = r.head
    return {
        "file": r.name, "device": h.device, "seed": h.seed, "git": h.git, "time_utc": h.time_utc,
        "kernels_sha256": h.kernels_sha256, "bars_sha256": h.bars_sha256, "driver": h.driver,
    }  # fmt: skip


def _values(x: Matched) -> tuple[Any, ...]:
    r, f = x.row, x.found
    ratios = tuple(math.exp(v) for v in f[:3]) if f else (None, None, None)
    return (
        r.probe, r.case, r.kv, r.variant, r.backend, x.kind, r.role, x.baseline, x.old, x.new, *ratios,
        x.answer, x.reason, f.p if f else None, x.places, x.processes,
    )  # fmt: skip


def _cells(x: Matched) -> list[str]:
    own = tables.format_time if x.kind == "time" else tables.format_ratio
    f = x.found
    change = f"{percent(f.m)} [{percent(f.low)}, {percent(f.high)}]" if f else ""
    return [x.id, x.kind, x.baseline, own(x.old), own(x.new), change, x.answer, x.reason]


@dataclass
class Levers:
    """Verdicts of several GPUs: levers down, GPUs across."""

    gpus: list[str]
    lines: dict[tuple[str, ...], dict[str, str]] = field(default_factory=dict)
    values: list[dict[str, Any]] = field(default_factory=list)

    HEADS = ("lever", "baseline", "backend")

    def text(self, markdown: bool) -> str:
        """The table."""
        cells = [[*key, *(own.get(g, "") for g in self.gpus)] for key, own in self.lines.items()]
        heads = [*self.HEADS, *self.gpus]
        title = "Verdicts across devices: gain over the baseline; times are not compared"
        return f"{'### ' * markdown}{title}\n\n{tables.table(heads, cells, markdown, heads)}"

    def json(self) -> dict[str, Any]:
        """Every verdict as plain values."""
        return {"devices": self.gpus, "rows": self.values}

    def rows(self) -> list[dict[str, Any]]:
        """The same."""
        return self.values


def levers(reports: Sequence[Report]) -> Levers:
    """The verdict rows of reports of several devices. BadInput where there is none."""
    names: list[str] = []
    for r in reports:  # several reports of one device are told apart by their files
        many = sum(x.head.device == r.head.device for x in reports) > 1
        names.append(f"{r.head.device} ({r.name})" if many else r.head.device)
    out = Levers(list(dict.fromkeys(names)))
    for name, report in zip(names, reports, strict=True):
        for row in report.rows:
            if row.role != "verdict" or not row.verdict:
                continue
            ratio = row.ratio_to_baseline or 0.0
            gain = f" {tables.format_percent(1 / ratio - 1, 2, sign=True)}" if ratio > 1e-9 else ""
            key = (f"{row.probe}/{row.group}/{row.variant}", row.baseline or "", row.backend)
            out.lines.setdefault(key, {})[name] = f"{row.verdict}{gain}"
            out.values.append({
                "device": report.head.device, "file": report.name, "probe": row.probe, "case": row.case,
                "kv": row.kv, "variant": row.variant, "backend": row.backend, "baseline": row.baseline,
                "verdict": row.verdict, "ratio": row.ratio_to_baseline, "ratio_low": row.ratio_low,
                "ratio_high": row.ratio_high,
            })  # fmt: skip
    if not out.lines:
        raise BadInput(f"no verdicts in {' and '.join(r.name for r in reports)}: nothing to lay side by side")
    return out


def write(said: Text | Levers, args: argparse.Namespace) -> int:
    """Print, and write the files asked for."""
    print(said.text(False))
    if args.md:
        files.write(args.md, said.text(True) + "\n")
    if args.json:
        files.write(args.json, json.dumps(said.json(), indent=1, allow_nan=False, ensure_ascii=False) + "\n")
    if args.csv:
        rows, out = said.rows(), io.StringIO()
        made = csv.DictWriter(out, list(rows[0]) if rows else list(COLUMNS), lineterminator="\n")
        made.writeheader()
        made.writerows(rows)
        files.write(args.csv, out.getvalue())
    return 0
