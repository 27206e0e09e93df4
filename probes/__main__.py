"""python -m probes: every probe, then one summary table.

python -m probes [flags]          every probe, measured, or predicted where there is no GPU
python -m probes replay FILE      a report's verdicts again, from its samples; no GPU needed
python -m probes selfcheck        the harness against itself: A/A runs and the noise floor
python -m probes readme           the README's tables again, from the committed reports
python -m probes resources        compile every kernel for the recorded targets and write what it costs
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from probes import cli, summary

if TYPE_CHECKING:
    from pathlib import Path

    from probes.core.rows import Row


def replay(argv: list[str]) -> int:
    """Judge a report again from its own samples."""
    import argparse
    from pathlib import Path

    p = argparse.ArgumentParser(
        prog="python -m probes replay", description="A report's verdicts again, from its samples."
    )
    p.add_argument("file", type=Path, help="a report's JSON")
    args = p.parse_args(argv)

    def work() -> int:
        from probes.core import report, verdict
        from probes.core.store import read_json
        from probes.core.types import BadInput

        head, rows = read_json(args.file)
        names = sorted({r.probe for r in rows} & set(cli.PROBES))
        if not names:
            raise BadInput(f"{args.file} holds no rows of {', '.join(cli.PROBES)}")
        if head.mode != "measure":
            raise BadInput(f"{args.file} was predicted: it holds no samples to judge")
        kept = [r for r in rows if r.verdict]
        again = rejudged(rows, names, head.seed, args.file)
        print(report.first_line(head))
        if any(report.POINT in r.variant for r in rows):
            print("NOTE: a sweep over launches, which judges nothing")
            return 0
        if not head.complete:
            print("NOTE: the run was stopped; these are its finished rows only")
        if head.bars_sha256 != verdict.bars_sha256(*names):
            print("NOTE: the bars are not those of the file's run; these verdicts stand against today's")
        print(report.verdict_table(again, title="Verdicts, judged again"))
        said = {r.id: r.verdict for r in kept}
        for row in again:
            if row.id in said and said[row.id] != row.verdict:
                print(f"NOTE: {row.id} was {said[row.id]} in the file")
        lost = said.keys() - {r.id for r in again}
        for name in sorted(lost):
            print(f"NOTE: {name} was {said[name]} in the file and cannot be judged from its rows")
        return verdict.exit_code([r.verdict for r in again]) if again and not lost else 3

    return cli.guarded(work)


def rejudged(rows: list[Row], names: list[str], seed: int, file: Path) -> list[Row]:
    """Verdicts out of a file's samples alone: rows that no check stands behind are left out.

    Raises BadInput where the rows do not hold together; a file may come from anywhere.
    """
    import math
    from statistics import median

    from probes.core.types import BadInput

    timed = [r.id for r in rows if r.samples_s]
    if twice := next((i for i in timed if timed.count(i) > 1), ""):
        raise BadInput(f"{file} has two rows {twice} with samples: one of them is of another run")
    for row in rows:
        if (bad := next((x for x in row.samples_s or () if not 0 < x < math.inf), None)) is not None:
            raise BadInput(f"{file}: {row.id} has a sample of {bad} s: they are positive and finite")
    nothing_to_check = {("l2", "empty")}
    usable = [
        r
        for r in rows
        if not r.verdict
        and not r.skipped
        and (r.bitwise or not r.samples_s or (r.probe, r.case) in nothing_to_check)
    ]
    for row in usable:
        if row.samples_s:
            row.time_s = median(row.samples_s)  # not what the file says beside them
    try:
        return [
            verdict
            for name in names
            for verdict in cli.part(name, "report").judge([r for r in usable if r.probe == name], seed)
        ]
    except (ValueError, ArithmeticError, AssertionError, LookupError, TypeError) as error:
        raise BadInput(f"{file} cannot be judged: its rows do not hold together ({error!r})") from error


def everything(argv: list[str]) -> int:
    """Every probe, one after another, and one summary table."""
    args = cli.parser("").parse_args(argv)

    def work() -> int:
        from probes.core import report, store
        from probes.core.types import BadInput, ProbeError

        if args.list:
            for name, question in cli.PROBES.items():
                print(f"{name}: {question}")
                print("\n".join(cli.probe(name).listing()))
            return 0
        if args.json or args.md:
            raise BadInput("--json and --md name one file; with several probes use --out DIR")
        cli.check(args)
        if not args.record:
            store.check_writable(args.out / "l1.json")
        code, lines, judged = 0, [], []
        failed: list[str] = []
        for name in cli.PROBES:
            try:
                done = cli.run(name, cli.parser(name).parse_args(argv))
            except ProbeError as error:  # the other probes still run
                if str(error) not in failed:
                    print(f"error: {name}: {error}", file=sys.stderr)
                failed.append(str(error))
                code = max(code, error.exit_code)
                lines.append(summary.line(name, None, str(error)))
                continue
            code = max(code, cli.show(done))
            judged += done.verdicts()
            lines.append(summary.line(name, done))
        if judged:
            print(f"\n{report.verdict_table(judged, title='All verdicts')}")
        if len(failed) < len(cli.PROBES):
            print(f"\nSummary\n\n{report.table(summary.SUMMARY, lines, left=summary.SUMMARY)}")
        return code

    return cli.guarded(work)


def main(argv: list[str] | None = None) -> int:
    """Dispatch to a command, or run every probe."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["replay"]:
        return replay(argv[1:])
    if argv[:1] == ["selfcheck"]:
        from probes import selfcheck

        return selfcheck.main(argv[1:])
    if argv[:1] == ["readme"]:
        from probes import readme

        return readme.main(argv[1:])
    if argv[:1] == ["resources"]:
        from probes import resources

        return resources.main(argv[1:])
    if argv and not argv[0].startswith("-"):
        print(f"error: there is no command {argv[0]!r}: {cli.COMMANDS}", file=sys.stderr)
        return 2
    return everything(argv)


if __name__ == "__main__":
    sys.exit(main())
