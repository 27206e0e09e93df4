"""python -m probes compare OLD NEW: did a row change between two runs? No GPU needed.

Every row that both hold is FASTER, SLOWER, SAME or UNCLEAR, with the code of why and an interval; a lever (a
variant over its baseline, timed side by side) is a row of its own. What both runs drifted by is taken out.
Exit code 4 where a row is SLOWER, 5 where one is UNCLEAR and --fail-on unclear asks for it.

python -m probes compare OLD.json NEW.json                    two runs
python -m probes compare OLD1.json OLD2.json --new NEW1.json NEW2.json   several a side, pooled as processes
python -m probes compare BASE.json --run                      measure now as BASE was, and compare
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from probes import cli
from probes.core import flags
from probes.core.types import BadInput, Unavailable

if TYPE_CHECKING:
    from probes.engine.compare import Comparison, Matched
    from probes.engine.sides import Report

ACROSS = ["devices", "seeds", "rotations", "bars"]
MOST_RUNS = 3
SAFE = {
    "case", "quick", "windows", "blocks", "backend", "blocks_per_sm", "processes", "kv",
    "variant", "arm", "layout", "form",
}  # fmt: skip
"""Flags of BASE's run that --run takes over: none that names a place on a machine."""


class _Strict(argparse.ArgumentParser):
    """Raises BadInput in place of leaving: its words come out of a file."""

    def error(self, message: str) -> NoReturn:
        raise BadInput(message)


def parser() -> argparse.ArgumentParser:
    """The command's flags."""
    text = [*(__doc__ or "").split("\n\n"), "", "", ""]  # python -OO leaves no docstring
    p = flags.Parser(
        prog="python -m probes compare", description=text[1], epilog=text[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = p.add_argument
    add("file", type=Path, nargs="+", help="OLD NEW; or, with --new or --run, what is old")
    add("--new", type=Path, nargs="+", metavar="FILE", help="what is new, where a side has several files")
    again = f"measure what is new, {MOST_RUNS} times at most while rows are UNCLEAR"
    add("--run", action="store_true", help=again)
    add("--margin", type=float, default=1.0, metavar="PERCENT", help="changes up to it are none (default 1)")
    add("--fail-on", choices=["slower", "unclear"], default="slower", help="what else than 0 to end with")
    permit = "permit files that differ in this (repeatable)"
    add("--across", action="append", choices=ACROSS, default=[], help=permit)
    add("--csv", type=Path, metavar="FILE", help="write the rows as CSV")
    add("--json", type=Path, metavar="FILE", help="write head and rows as JSON")
    add("--md", type=Path, metavar="FILE", help="write the tables as Markdown")
    runs = Path("out") / "runs" / "compare"
    add(
        "--out",
        type=cli.folder,
        default=runs,
        metavar="DIR",
        help=f"with --run: of its reports (default {runs})",
    )
    add("--device", type=int, default=0, metavar="N", help="with --run: GPU index (default 0)")
    return p


def main(argv: Sequence[str]) -> int:
    """Compare; the exit code of what was found."""
    return cli.guarded(lambda: _work(parser().parse_args(argv)))


def _work(args: argparse.Namespace) -> int:
    from probes.commands import compare_text as text
    from probes.engine import compare, sides
    from probes.report import files, store

    old, new = _sides(args)
    if not (math.isfinite(args.margin) and 0 <= args.margin < 100):
        raise BadInput(f"--margin must be from 0 to below 100 percent, got {args.margin}")
    places = [p for p in (args.csv, args.json, args.md) if p]
    read = {files.whole(p) for p in (*old, *new)}
    if len(read | {files.whole(p) for p in places}) < len(read) + len(places):
        raise BadInput("two of --csv, --json, --md and the reports are one file")
    for place in places:
        files.check_not_committed(place)
        files.check_not_measured(place, "a comparison")
        files.check_writable(place)
    olds = sides.read(old, store.read_json)
    if args.run:
        found, news = _run(args, olds)
    else:
        news = sides.read(new, store.read_json)
        devices = {r.head.device for r in (*olds, *news)}
        if "devices" in args.across and len(devices) > 1:
            return text.write(text.levers([*olds, *news]), args)
        compare.permit(olds, news, args.across)
        found = compare.compare(olds, news, args.margin / 100)
    text.write(text.Text(found, olds, news), args)
    return found.exit_code(args.fail_on)


def _sides(args: argparse.Namespace) -> tuple[list[Path], list[Path]]:
    """Old and new files of the command line. BadInput."""
    if args.run and args.new:
        raise BadInput("--run measures what is new: leave out --new")
    if args.run:
        if len(args.file) > 1:
            raise BadInput(f"--run takes one file to measure again, got {len(args.file)}")
        return args.file, []
    if args.new:
        return args.file, args.new
    if len(args.file) != 2:
        told = "two files are compared, OLD NEW; where a side has several: OLD... --new NEW..."
        raise BadInput(f"{told}; got {len(args.file)}")
    return args.file[:1], args.file[1:]


def flags_of(base: Report) -> tuple[str, argparse.Namespace]:
    """The probe of a report and the flags that it was measured with, as far as --run may take them over."""
    from probes.engine import probe

    names = sorted({r.probe for r in base.rows} & set(probe.names()))
    if len(names) != 1:
        raise BadInput(f"--run measures one probe, {base.name} holds {' and '.join(names) or 'none'}")
    full = cli.parser(names[0])
    known = _Strict(add_help=False, allow_abbrev=False)
    for action in full._actions:  # argparse has no public list of its flags
        if action.dest in SAFE:
            known._add_action(action)
    try:
        taken, left = known.parse_known_args([str(word) for word in base.head.argv[1:]])
    except BadInput as error:
        raise BadInput(f"{base.name}: --run cannot take over its command line: {error}") from error
    if other := sorted({word.partition("=")[0] for word in left} & _own(names[0])):
        raise BadInput(f"{base.name} was measured with {' '.join(other)}, which --run does not take over")
    args = full.parse_args(["--mode", "measure", "--seed", str(base.head.seed)])
    for name, value in vars(taken).items():
        setattr(args, name, value)
    return names[0], args


def _own(name: str) -> set[str]:
    """The probe's own flags: with one that is not SAFE another thing was measured."""
    from probes.engine import probe

    p = argparse.ArgumentParser(add_help=False)
    probe.table(name).add_flags(p)
    return {s for a in p._actions for s in a.option_strings if a.dest not in SAFE}


def _run(args: argparse.Namespace, olds: Sequence[Report]) -> tuple[Comparison, list[Report]]:
    """Measure as the base was; while rows are UNCLEAR, their cases again in two fresh processes, pooled."""
    from probes.engine import compare, sides
    from probes.report import store

    name, own = flags_of(olds[0])
    own.device, own.quiet, own.out = args.device, True, args.out
    paths: list[Path] = []
    open_: list[Matched] = []
    news: list[Report] = []
    found, stopped = None, ""
    while not paths or (open_ and len(paths) < MOST_RUNS):
        own.json = args.out / f"{olds[0].name.removesuffix('.json')}-new{len(paths) + 1}.json"
        own.md = own.json.with_suffix(".md")
        try:
            cli.run(name, own)
        except Unavailable as error:
            if not found:
                raise
            stopped = f"; it could not be measured again: {error}"
            break
        paths.append(own.json)
        news = sides.read(paths, store.read_json)
        if not found:
            compare.permit(olds, news, args.across)
        found = compare.compare(olds, news, args.margin / 100)
        open_ = [x for x in found.lines if x.answer == "UNCLEAR" and not x.reason.startswith("doubt")]
        own.case, own.processes = list(dict.fromkeys(x.row.case for x in open_)), 2
    assert found, "the first run raises or is compared"
    times = f"{len(paths)} time{'s' * (len(paths) > 1)}"
    found.notes.append(f"measured {times}, pooled; {len(open_)} rows stay UNCLEAR{stopped}")
    return found, news
