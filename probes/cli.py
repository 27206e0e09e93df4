"""The command line: flags, one run of one probe, exit codes. Light: NumPy and CUDA load when a run starts."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from probes.core import children, ends, flags, packages, streams
from probes.core.types import MAX_PROCESSES, MAX_ROW_SAMPLES, BadInput, Fault, ProbeError, WrongResult
from probes.engine import probe

if TYPE_CHECKING:
    from probes.engine.run import Run

WINDOWS = 4
BLOCKS, QUICK_BLOCKS = 64, 16
COMMANDS = "replay, compare, selfcheck, readme, resources (each has its --help)"


def folder(text: str) -> Path:
    """A flag's folder; '' would be the one that the command runs in."""
    if not text:
        raise argparse.ArgumentTypeError(f"must name a folder, got {text!r}")
    return Path(text)


def parser(name: str) -> argparse.ArgumentParser:
    """Flags of one probe; of all together for name ''."""
    table = probe.table(name) if name else None
    text = table.QUESTION if table else f"every probe, one summary table; or, in place of flags: {COMMANDS}"
    p = flags.Parser(
        prog=f"python -m probes{'.' + name if name else ''}",
        description=text[0].upper() + text[1:],
        epilog="exit codes: 0 decided, 1 our fault, 2 bad input, 3 INCONCLUSIVE, 129/130/143 stopped",
    )
    add, on = p.add_argument, "store_true"
    runs, where = Path("out") / "runs", "folder of this run's reports (default out/runs)"
    profile = "GPU to predict for: gb10 (default), h200, ..."
    windows = f"windows that fill the tables (default {WINDOWS})"
    most = f"blocks per contest at most (default {BLOCKS}; {QUICK_BLOCKS} with --quick)"
    rates = "add the profiler's DRAM bytes, durations, DRAM and issue rates (needs ncu)"
    add("--list", action=on, help="print cases, variants and bars, and stop")
    add("--mode", choices=["measure", "predict"], help="default: measure where there is a GPU")
    add("--device", type=int, default=0, metavar="N", help="GPU index (default 0)")
    add("--device-profile", default="gb10", metavar="NAME", help=profile)
    add("--backend", action="append", choices=["cu", "numba"], help="only this backend (repeatable)")
    add("--quick", action=on, help="fewer cases and blocks: under 20 s on a GPU")
    add("--windows", type=int, metavar="N", help=windows)
    add("--blocks", type=int, choices=[16, 32, 64], help=most)
    add("--processes", type=int, default=1, metavar="N", help="repeat in N fresh processes and pool them")
    add("--seed", type=int, default=0, help="of weights, orders and intervals (default 0)")
    add("--blocks-per-sm", type=int, metavar="N", help="hold every kernel to N blocks per SM")
    add_build_timeout(p)
    add("--counters", action=on, help=rates)
    add("--out", type=folder, default=runs, metavar="DIR", help=where)
    add("--json", type=Path, metavar="PATH", help="write the rows here instead")
    add("--md", type=Path, metavar="PATH", help="write the report as Markdown here instead")
    add("--record", action=on, help="replace the committed report under out/<device>/")
    add("-q", "--quiet", action=on, help="no progress lines, verdicts only")
    add("--once", action=on, help=argparse.SUPPRESS)  # a child of --counters
    if table:
        add("--case", action="append", metavar="ID", help="only this case (repeatable)")
        table.add_flags(p)
    return p


def add_build_timeout(p: argparse.ArgumentParser) -> None:
    """The flag of every command that compiles."""
    said = f"what a compiler may take before it is stopped (default {children.LIMIT_S:g})"
    p.add_argument("--build-timeout", type=float, default=children.LIMIT_S, metavar="SECONDS", help=said)


def check(args: argparse.Namespace) -> None:
    """BadInput for flags and switches that no run of any probe could honour."""
    for flag, value, least in (
        ("--processes", args.processes, 1), ("--windows", args.windows, 2),
        ("--blocks-per-sm", args.blocks_per_sm, 1), ("--seed", args.seed, 0), ("--device", args.device, 0),
    ):  # fmt: skip
        if value is not None and not least <= value < 2**31:
            bound = f"at least {least}" if value < least else "below 2^31"
            raise BadInput(f"{flag} must be {bound}, got {value}")
    if args.processes > MAX_PROCESSES:
        raise BadInput(f"--processes must be at most {MAX_PROCESSES}, got {args.processes}")
    if args.processes * 2 * (args.windows or 0) > MAX_ROW_SAMPLES:
        most = MAX_ROW_SAMPLES // 2 // args.processes
        raise BadInput(
            f"--windows must be at most {most} in each of {args.processes} processes, got {args.windows}"
        )
    if args.blocks_per_sm is not None and args.blocks_per_sm > 32:
        raise BadInput(f"--blocks-per-sm must be at most 32, got {args.blocks_per_sm}")
    children.limit(args.build_timeout)
    if args.record and (args.json or args.md):
        raise BadInput("--record says where the report goes: leave out --json and --md")
    for flag, path in (("--json", args.json), ("--md", args.md)):
        if path is not None and not path.name:
            raise BadInput(f"{flag} must name a file, got {str(path)!r}")


def teller(quiet: bool) -> Callable[[str], None]:
    """Progress lines on standard error."""
    started = time.monotonic()

    def tell(line: str) -> None:
        if not quiet:
            streams.tell(f"[{time.monotonic() - started:5.1f} s] {line}")

    return tell


def mode_of(args: argparse.Namespace) -> str:
    """measure or predict; the flag, or whether a GPU answers. Warns of a driver that is there and fails."""
    if args.mode:
        return str(args.mode)
    from probes.gpu import facts

    found = facts.look()
    if found.broken:
        streams.warn(f"{found.why}; nothing is measured, and what follows is predicted")
    return "measure" if found.count else "predict"


def run(name: str, args: argparse.Namespace) -> Run:
    """Run one probe and write its reports as it goes. Raises ProbeError, WrongResult, KeyboardInterrupt."""
    with ends.at_once():
        from probes.engine import run as engine

    check(args)
    args.windows = args.windows or WINDOWS
    args.blocks = args.blocks or (QUICK_BLOCKS if args.quick else BLOCKS)
    done = engine.run(name, mode_of(args), args, teller(args.quiet))
    for line in done.lost:
        streams.tell(f"error: {line}")
    return done


def guarded(work: Callable[[], int]) -> int:
    """Run and turn what a user can mend into one line and its exit code (see the epilog of `parser`).

    `work` reads its flags itself, so that whatever they say is guarded, too.
    """
    streams.settle()
    try:
        with ends.caught():
            code = _ended(work)
            sys.stdout.flush()
            return code
    except ends.Stopped as stop:
        streams.tell(ends.line(stop.exit_code - 128))
        streams.drop()
        return stop.exit_code
    except (ProbeError, WrongResult, Fault) as error:
        kind = {WrongResult: "WRONG RESULT", Fault: "FAULT"}.get(type(error), "error")
        streams.tell(f"{kind}: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        streams.tell(ends.line(signal.SIGINT))
        return 128 + signal.SIGINT
    except MemoryError as error:
        streams.tell(f"error: this machine has no room for that ({error})")
    except BrokenPipeError:
        streams.tell("error: what read the output is gone; whatever rows were finished are kept")
        streams.drop()
    except Exception as error:
        if found := packages.failed(error):
            streams.tell(f"error: {found}")
            return BadInput.exit_code
        if not isinstance(error, OSError):
            raise
        what = f"cannot use {error.filename}" if error.filename else "cannot write the output"
        streams.tell(f"error: {what}: {error.strerror or error}")
        streams.drop()
    return BadInput.exit_code


def _ended(work: Callable[[], int]) -> int:
    """`work`'s exit code, argparse's own too. Raises BadInput where the current folder is gone."""
    try:
        os.getcwd()
    except OSError as error:
        raise BadInput(
            f"the current folder is not there ({error.strerror}): change to one that is"
        ) from error
    flags.check_environment()
    try:
        return work()
    except SystemExit as end:  # --help, or a flag that is none
        return end.code if isinstance(end.code, int) else 0


def main(name: str, argv: Sequence[str] | None = None) -> int:
    """`python -m probes.<name>`."""

    def work() -> int:
        args = parser(name).parse_args(argv)
        if args.list:
            print("\n".join(probe.table(name).listing()))
            return 0
        done = run(name, args)
        return 0 if args.once else show(done)  # the profiler takes any other code for a failure

    return guarded(work)


def show(done: Run) -> int:
    """Print verdicts and sections; returns the exit code."""
    from probes.report import tables

    for line in tables.remarks(done.head):
        print(line)
    parts = probe.report(done.name).sections(done.rows, False)
    if done.head.mode == "measure":
        parts += [x for x in (tables.verdicts_under(done.head), tables.verdict_table(done.rows)) if x]
    for part in parts:
        print(f"\n{part}")
    return code_of(done)


def code_of(done: Run) -> int:
    """0 where every verdict was reached; 3 where one is INCONCLUSIVE, or a measured run reached none.

    2 where a file of the report could not be written.
    """
    from probes.engine import sweep
    from probes.verdict import bars

    if done.lost:
        return BadInput.exit_code
    if sweep.swept(done.rows):  # it judges nothing, and is done when it is through
        return 0
    reached = [r.verdict for r in done.verdicts()]
    return 3 if done.head.mode == "measure" and not reached else bars.exit_code(reached)
