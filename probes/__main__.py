"""python -m probes: every probe, then one summary table; or a command.

python -m probes [flags]          every probe, measured, or predicted where there is no GPU
python -m probes replay FILE      a report's verdicts again, from its samples; no GPU needed
python -m probes compare OLD NEW  did a row change between two runs, or two GPUs? (docs/compare.md)
python -m probes selfcheck        the harness against itself: A/A runs and the noise floor
python -m probes readme           the README's tables again, from the committed reports
python -m probes resources        compile every kernel for the recorded targets and write what it costs
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import cast

from probes import cli
from probes.core import flags, streams
from probes.core.types import BadInput, ProbeError
from probes.engine import probe

COMMANDS = ("replay", "compare", "selfcheck", "readme", "resources")


def everything(argv: Sequence[str]) -> int:
    """Every probe, one after another, and one summary table."""

    def work() -> int:
        args = cli.parser("").parse_args(argv)
        if args.list:
            for name in probe.names():
                print(f"{name}: {probe.table(name).QUESTION}", *probe.table(name).listing(), sep="\n")
            return 0
        if args.json or args.md:
            raise BadInput("--json and --md name one file; with several probes use --out DIR")
        cli.check(args)
        from probes.commands import summary
        from probes.report import files, tables

        if not args.record:
            files.check_writable(args.out / "l1.json")
        code, lines, judged = 0, [], []
        failed: list[str] = []
        for name in probe.names():
            try:
                done = cli.run(name, cli.parser(name).parse_args(argv))
            except ProbeError as error:  # the other probes still run
                if str(error) not in failed:
                    streams.tell(f"error: {name}: {error}")
                failed.append(str(error))
                code = max(code, error.exit_code)
                lines.append(summary.line(name, None, str(error)))
                continue
            code = max(code, cli.show(done))
            judged += done.verdicts()
            lines.append(summary.line(name, done))
        if judged:
            print(f"\n{tables.verdict_table(judged, title='All verdicts')}")
        if len(failed) < len(probe.names()):
            print(f"\nSummary\n\n{tables.table(summary.SUMMARY, lines, left=summary.SUMMARY)}")
        return code

    return cli.guarded(work)


def main(argv: Sequence[str] | None = None) -> int:
    """Dispatch to a command, or run every probe."""
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0] in COMMANDS:
        return cast(int, importlib.import_module(f"probes.commands.{argv[0]}").main(argv[1:]))
    if argv and not argv[0].startswith("-"):
        streams.settle()
        told = flags.near(argv[0], COMMANDS) or f": {cli.COMMANDS}"
        streams.tell(f"error: there is no command {argv[0]!r}{told}")
        return 2
    return everything(argv)


if __name__ == "__main__":
    sys.exit(main())
