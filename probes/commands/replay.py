"""python -m probes replay FILE: a report's verdicts again, from its own samples. No GPU needed.

It ends with exit code 4 where the file says anything else than its samples do.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from probes import cli
from probes.core import escaping, flags
from probes.core.types import BadInput
from probes.engine import block_rule, judge, old_rule, probe, recheck, sweep
from probes.report import store, tables
from probes.report.provenance import Head
from probes.report.rows import Row
from probes.verdict import bars

BLOCKS_SCHEMA = 3
"""From this schema on contests have blocks of their own."""

MOST_LINES = 20
"""Of differences that are listed."""


def main(argv: Sequence[str]) -> int:
    """Judge a report again; the exit code of its verdicts."""
    text = "A report's verdicts again, from its samples."
    p = flags.Parser(prog="python -m probes replay", description=text)
    p.add_argument("file", type=Path, help="a report's JSON")
    return cli.guarded(lambda: _work(p.parse_args(argv).file))


def _work(file: Path) -> int:
    head, rows = store.read_json(file)
    names = sorted({r.probe for r in rows} & set(probe.names()))
    if not names:
        raise BadInput(f"{file} holds no rows of {', '.join(probe.names())}")
    if head.mode != "measure":
        raise BadInput(f"{file} was predicted: it holds no samples to judge")
    again = rejudged(rows, names, head, file)
    print(tables.first_line(head), *tables.remarks(head), sep="\n")
    if sweep.swept(rows):
        print("NOTE: a sweep over launches, which judges nothing")
        return 0
    if not head.complete:
        print("NOTE: the run was stopped; these are its finished rows only")
    if head.schema < BLOCKS_SCHEMA:
        rule = "the rule of its time: windows, and a floor that gates"
        print(f"NOTE: a report of schema {head.schema}, judged by {rule}")
    if under := tables.verdicts_under(head):
        print(under)
    print(tables.verdict_table(again, title="Verdicts, judged again"))
    wrong = differences(head, rows, again, names)
    for line in wrong[:MOST_LINES]:
        print(escaping.shown(f"DIFFERS: {line}"))
    if len(wrong) > MOST_LINES:
        print(f"DIFFERS: {len(wrong) - MOST_LINES} more")
    if wrong:
        return 4
    return bars.exit_code([r.verdict for r in again]) if again else 3


def differences(head: Head, rows: Sequence[Row], again: Sequence[Row], names: Sequence[str]) -> list[str]:
    """What a file says and its samples do not; of an older file its verdicts' words and figures alone."""
    out = []
    if head.bars_sha256 != bars.bars_sha256(*names) and head.schema >= BLOCKS_SCHEMA:
        out.append("the bars are not those of the file's run; the verdicts above stand against today's")
    said = [r for r in rows if r.verdict]
    if head.schema < BLOCKS_SCHEMA:
        return out + recheck.decisions(said, again)
    if head.rows_sha256 != store.rows_sha256(rows):
        out.append("the rows are not those that the run wrote (rows_sha256)")
    out += recheck.samples(head, rows) + recheck.figures(rows)
    return out + recheck.verdicts(said, again)


def rule_of(head: Head, rows: Sequence[Row]) -> judge.Rule:
    """The rule that a file's rows were judged by."""
    if head.schema < BLOCKS_SCHEMA:
        return old_rule.Windows(head.seed)
    highest = head.device_facts.get("sm_clock_hz")
    known = float(highest) if isinstance(highest, int | float) else None
    return block_rule.rule([r for r in rows if r.source == "measured"], known)


def rejudged(rows: Sequence[Row], names: Sequence[str], head: Head, file: Path) -> list[Row]:
    """Verdicts out of a file's samples alone, without rows that no check stands behind. Raises BadInput.

    A file from before schema 3 is judged by the rule of its time, and best against best is not asked of it.
    """
    timed = Counter(r.id for r in rows if r.samples_s)
    if twice := next((i for i, n in timed.items() if n > 1), ""):
        raise BadInput(f"{file} has two rows {twice} with samples: one of them is of another run")
    for row in rows:
        if bad := [x for x in (*row.samples_s, *row.blocks_s) if not 0 < x < math.inf]:
            raise BadInput(f"{file}: {row.id} has a sample of {bad[0]} s: they are positive and finite")
    usable = [r for r in rows if not r.verdict and not r.skipped and (r.bitwise or not r.samples_s)]
    for row in usable:
        if row.samples_s:
            row.time_s = median(row.samples_s)  # not what the file says beside them
    again: list[Row] = []
    try:
        for name in names:
            mine, contests = [r for r in usable if r.probe == name], probe.table(name).CONTESTS
            if head.schema < BLOCKS_SCHEMA:
                contests = tuple(c for c in contests if not c.sides)
            by = rule_of(head, mine)
            again += judge.judge(mine, contests, probe.analysis(name), by)
        return again
    except (ValueError, ArithmeticError, AssertionError, LookupError, TypeError, StopIteration) as error:
        raise BadInput(f"{file} cannot be judged: its rows do not hold together ({error!r})") from error
