"""One run of one probe: measured or predicted, judged, written.

Exit codes: 0 verdicts reached, 1 something is wrong with the suite, 2 usage or bad input,
3 some verdict is INCONCLUSIVE, 130 stopped by Ctrl-C with the finished rows kept.
"""

from __future__ import annotations

import argparse
import errno
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probes.core.types import BadInput, Fault, ProbeError, WrongResult
from probes.flags import COMMANDS, QUICK_WINDOWS, WINDOWS, check, folder, parser
from probes.registry import PROBES, digest, part, probe, stems

__all__ = [
    "COMMANDS", "PROBES", "WINDOWS", "check", "digest", "folder", "main", "parser", "part", "probe", "run",
    "stems",
]  # fmt: skip

if TYPE_CHECKING:
    from probes.core.device import DeviceFacts
    from probes.core.provenance import Head
    from probes.core.rows import Row


@dataclass
class Run:
    """One probe's run: its head, rows with verdicts, and extra sections."""

    name: str
    head: Head
    rows: list[Row] = field(default_factory=list)

    def verdicts(self) -> list[Row]:
        """The rows that hold a verdict."""
        return [r for r in self.rows if r.verdict]


def check_places(name: str, args: argparse.Namespace, device: str) -> None:
    """BadInput where the reports would replace each other or a committed one, or cannot be written."""
    from probes.core import store

    rows, text = json_path(name, args, device), md_path(name, args, device)
    if rows.resolve() == text.resolve():
        raise BadInput(f"rows and Markdown would both go to {rows}: give --json and --md two files")
    kept = Path("out").resolve()
    for path in (rows, text):
        folder = path.resolve().parent
        if not args.record and folder.parent == kept and folder.name not in ("runs", "build"):
            raise BadInput(f"{path} is a committed report's place, which only --record replaces")
    for path in (rows, text):
        store.check_writable(path)


def teller(quiet: bool) -> Callable[[str], None]:
    """Progress lines on standard error, at most a few a second."""
    started = time.monotonic()

    def tell(line: str) -> None:
        if not quiet:
            print(f"[{time.monotonic() - started:5.1f} s] {line}", file=sys.stderr, flush=True)

    return tell


def decide_mode(args: argparse.Namespace) -> str:
    """measure or predict; the flag, or whether a GPU answers. Warns of a driver that is there and fails."""
    if args.mode:
        return str(args.mode)
    from probes.gpu import facts

    found = facts.look()
    if found.broken:
        warn(f"{found.why}; nothing is measured, and what follows is predicted")
    return "measure" if found.count else "predict"


@cache
def warn(line: str) -> None:
    """One line on standard error, once a process: every probe of a run would say the same."""
    print(f"warning: {line}", file=sys.stderr)


def run(name: str, args: argparse.Namespace) -> Run:
    """Run one probe and write its reports as it goes. Raises ProbeError, WrongResult, KeyboardInterrupt."""
    from probes.core import provenance, report, store

    check(args)
    tell = teller(args.quiet)
    mode = decide_mode(args)
    if args.record and mode == "predict":
        raise BadInput("--record keeps measured reports only, and this run would predict: it needs a GPU")
    if mode == "predict" and args.counters:
        raise BadInput("--counters reads a GPU's counters, and this run would predict: it needs a GPU")
    bounds = getattr(probe(name), "BOUNDS_RECORDED", ())
    if mode == "predict" and args.blocks_per_sm and args.blocks_per_sm not in bounds:
        known = f"l3 alone is recorded for it, with {' or '.join(map(str, probe('l3').BOUNDS_RECORDED))}"
        raise BadInput(f"--blocks-per-sm {args.blocks_per_sm} compiles {name} anew and needs a GPU; {known}")
    for flag in ("quick", "case", "backend", "variant", "arm", "kv", "layout", "form"):
        if args.record and getattr(args, flag, None):
            raise BadInput(f"--record keeps whole runs: leave out --{flag}")
    args.windows = args.windows or (QUICK_WINDOWS if args.quick else WINDOWS)
    steps: Any
    if mode == "measure":
        from probes.bench import Bench
        from probes.gpu import facts as live

        gpu = live.open_gpu(args.device)
        bench = Bench(gpu, args.seed, args.windows, tell)
        if args.processes == 1:
            bench.reserve()
        facts, neighbours = gpu.facts, live.neighbours(args.device, own_context=True)
        environment = gpu.environment
        driver: str | None = f"{live.driver_version()} ({gpu.driver})"
        steps = pooled(name, args, tell) if args.processes > 1 else part(name, "measure").measure(bench, args)
    else:
        from probes.core import device

        facts, neighbours, driver = device.load(args.device_profile), [], None
        environment = []
        steps = part(name, "report").predict(facts, args)
        steps = chain(list(islice(steps, 1)), steps)  # a mistake is told before anything is said
    head = provenance.collect(
        mode=mode, device=facts.slug, seed=args.seed,
        kernels_sha256=digest(file_of(name, args), facts.slug), driver=driver, neighbours=neighbours,
        device_facts=described(facts), extra_versions=toolchain() if mode == "measure" else {},
        environment=environment,
    )  # fmt: skip
    check_places(name, args, facts.slug)
    done = Run(name, head)
    print(report.first_line(head), end="\n\n", flush=True)
    path = json_path(name, args, facts.slug)
    # a committed report is replaced by a finished run only: until then the rows go to the runs folder
    working = Path(args.out) / path.name if args.record else path
    with store.ReportFile(working, head) as file:
        for rows in steps:
            file.add(*rows)
            done.rows = file.rows
            shown = [r for r in rows if not r.case.startswith(report.SWEEP)]
            if shown and not args.quiet and not args.once:
                print(report.case_table(shown), end="\n\n", flush=True)
        if mode == "measure" and not args.once:
            if args.counters:
                from probes import profiling

                file.add(*profiling.attach(name, args, file.rows, tell))
            if not args.quick:
                from probes import profiling

                profiling.explain(name, facts.arch, args, file.rows)
            file.add(*part(name, "report").judge(file.rows, args.seed))
            head.neighbours += [n for n in live.neighbours(args.device, True) if n not in head.neighbours]
    done.rows = file.rows
    if args.record:
        store.write_json(path, head, done.rows)
    if not args.once:
        text, pieces = md_path(name, args, facts.slug), part(name, "report")
        extra = pieces.sections(done.rows, True)
        if hasattr(pieces, "plots"):  # drawn beside the report, which shows them
            extra += pieces.plots(done.rows, text)
        title = f"{name.upper()}: {PROBES[name]}"
        store.write_text(text, report.document(title, head, done.rows, True, extra))
    return done


def described(facts: DeviceFacts) -> dict[str, Any]:
    """A device's facts for a report's head: counts, sizes and rates, not where they come from."""
    from dataclasses import asdict

    return {k: v for k, v in asdict(facts).items() if k not in ("sources", "match") and v is not None}


def toolchain() -> dict[str, str]:
    """The version of nvcc, where there is one."""
    from kernels_cu import build
    from probes.core.types import Unavailable

    try:
        return {"nvcc": build.compiler_version()}
    except Unavailable:
        return {}


def pooled(name: str, args: argparse.Namespace, tell: Callable[[str], None]) -> Any:
    """Rows of `--processes` fresh processes with their samples joined, case by case."""
    from probes import processes

    yield from processes.pooled(name, args, tell)


def file_of(name: str, args: argparse.Namespace) -> str:
    """File name of a run's reports, without suffix: a probe may tell its runs apart."""
    module = probe(name)
    return str(module.stem(args)) if hasattr(module, "stem") else name


def json_path(name: str, args: argparse.Namespace, device: str) -> Path:
    """Where the rows go: --json, the committed report with --record, else the runs folder."""
    if args.json:
        return Path(args.json)
    folder = Path("out") / device if args.record else Path(args.out)
    return folder / f"{file_of(name, args)}.json"


def md_path(name: str, args: argparse.Namespace, device: str) -> Path:
    """Where the Markdown goes: --md, or beside the rows."""
    return Path(args.md) if args.md else json_path(name, args, device).with_suffix(".md")


def guarded(work: Callable[[], int]) -> int:
    """Run and turn what a user can mend into one line and its exit code."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal without µ shows a ?, not a traceback
    try:
        code = work()
        sys.stdout.flush()
        return code
    except ProbeError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except WrongResult as error:
        print(f"WRONG RESULT: {error}", file=sys.stderr)
        return error.exit_code
    except Fault as error:
        print(f"FAULT: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("stopped; whatever rows were finished are kept", file=sys.stderr)
        return 130
    except MemoryError as error:
        print(f"error: this machine has no room for that ({error})", file=sys.stderr)
        return 2
    except BrokenPipeError:
        sys.stderr.close()  # the reader went away, as `| head` does, and the run was cut short
        return 1
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        print(f"error: cannot write the output: {error.strerror}", file=sys.stderr)
        return 2


def main(name: str, argv: Sequence[str] | None = None) -> int:
    """`python -m probes.<name>`."""
    args = parser(name).parse_args(argv)

    def work() -> int:
        if args.list:
            print("\n".join(probe(name).listing()))
            return 0
        done = run(name, args)
        return 0 if args.once else show(done)  # the profiler takes any other code for a failure

    return guarded(work)


def show(done: Run) -> int:
    """Print verdicts and sections; returns the exit code."""
    from probes.core import report

    for line in report.remarks(done.head):
        print(line)
    for section in part(done.name, "report").sections(done.rows, False):
        print(f"\n{section}")
    if done.head.mode == "measure":
        if under := report.verdicts_under(done.head):
            print(f"\n{under}")
        print(f"\n{report.verdict_table(done.rows)}")
    return code_of(done)


def code_of(done: Run) -> int:
    """0 where every verdict was reached; 3 where one is INCONCLUSIVE, or a measured run reached none.

    A sweep over launches judges nothing, and is done when it is through.
    """
    from probes.core import report, verdict

    if any(report.POINT in r.variant for r in done.rows):
        return 0
    reached = [r.verdict for r in done.verdicts()]
    return 3 if done.head.mode == "measure" and not reached else verdict.exit_code(reached)
