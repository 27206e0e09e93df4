"""--processes N: the same run in N fresh processes, one after another, samples joined.

Addresses, placement and clock state are the process's: windows cannot vary them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from probes.core import children
from probes.core.types import BadInput, Unavailable
from probes.engine import judge, probe
from probes.report import store
from probes.report.rows import Row
from probes.verdict import blocks

# figures of a joined row that are the median of the processes'
MEDIANS = ("event_loop_time_s", "overlap_s", "gain_per_interface_s", "load_balance", "sm_clock_hz")


FOREVER_S = 1e6  # a run takes as long as it takes


def child_argv(name: str, args: argparse.Namespace, out: Path, k: int = 0) -> list[str]:
    """The parent's own flags, for the `k`-th child: it measures alone, by a seed of its own, into `out`."""
    argv = ["--mode=measure", "-q", f"--json={out}", f"--md={out.with_suffix('.md')}"]
    argv += [f"--device={args.device}", f"--seed={args.seed + k}", f"--windows={args.windows}"]
    argv += [f"--blocks={args.blocks}", f"--build-timeout={args.build_timeout}"]
    argv += [f"--blocks-per-sm={args.blocks_per_sm}"] if args.blocks_per_sm else []
    argv += [f"--backend={backend}" for backend in args.backend or ()]
    argv += [f"--case={case}" for case in args.case or ()]
    return [*argv, *own_flags(name, args), *(["--quick"] if args.quick else [])]


def own_flags(name: str, args: argparse.Namespace) -> list[str]:
    """The flags that only this probe has, as they were given."""
    parser = argparse.ArgumentParser(add_help=False)
    probe.table(name).add_flags(parser)
    argv: list[str] = []
    for action in parser._actions:  # argparse has no public list of its flags
        flag, value = action.option_strings[0], getattr(args, action.dest)
        if action.nargs == 0:
            argv += [flag] if value else []
        elif isinstance(value, list) and action.nargs is None:  # a flag that is given again and again
            argv += [f"{flag}={v}" for v in value]
        elif isinstance(value, list):
            argv += [flag, *map(str, value)]
        elif value is not None:
            argv.append(f"{flag}={value}")
    return argv


def pooled(name: str, args: argparse.Namespace, tell: Callable[[str], None]) -> Iterator[list[Row]]:
    """Rows of all processes joined, case by case. Raises Unavailable where a child failed."""
    runs: list[list[Row]] = []
    stopped: KeyboardInterrupt | Unavailable | None = None
    with tempfile.TemporaryDirectory(prefix="probes-") as folder:
        try:
            for k in range(args.processes):
                tell(f"process {k + 1} of {args.processes}")
                runs.append(_child(name, args, k, Path(folder) / f"{k}.json"))
        except (KeyboardInterrupt, Unavailable) as error:  # what the finished processes measured is kept
            stopped = error
    if len({len(rows) for rows in runs}) > 1:
        raise BadInput("the processes measured different arms: their rows cannot be joined")
    if runs:
        joined = [join(list(rows)) for rows in zip(*runs, strict=True)]
        judge.relate(joined)
        for group in dict.fromkeys(r.group for r in joined):
            yield [r for r in joined if r.group == group]
    if stopped:
        raise stopped


def _child(name: str, args: argparse.Namespace, k: int, out: Path) -> list[Row]:
    """One process' rows, with what it saw of its neighbours as a note. Raises Unavailable."""
    command = [sys.executable, "-m", f"probes.{name}", *child_argv(name, args, out, k)]
    child = children.run(command, within_s=FOREVER_S)
    if child.returncode not in (0, 3):
        last = (child.stderr.strip().splitlines() or ["no message"])[-1]
        raise Unavailable(f"process {k + 1} stopped with exit code {child.returncode}: {last}")
    head, rows = store.read_json(out)
    measured = [r for r in rows if not r.verdict]
    if measured:
        measured[0].notes += [f"process {k + 1}: {line}" for line in head.neighbours]
    return measured


def join(rows: list[Row]) -> Row:
    """One row out of the same row of several processes: samples one after another, medians afresh."""
    first = rows[0]
    if any(r.id != first.id for r in rows):
        raise BadInput(f"rows of different arms cannot be joined: {sorted({r.id for r in rows})}")
    if first.role == "contest":
        return _joined_pair(rows)
    if not first.samples_s:
        return first
    first.samples_s = [t for r in rows for t in r.samples_s]
    before, length = first.time_s or 1.0, len(first.samples_s) // len(rows)
    first.time_s, first.time_s_p25, first.time_s_p75 = blocks.quartiles(first.samples_s)
    first.processes = len(rows)
    first.throttled_samples = [k + i * length for i, r in enumerate(rows) for k in r.throttled_samples]
    first.throttled = len(first.throttled_samples)
    if first.content_gbps:
        first.content_gbps *= before / first.time_s
    for name in MEDIANS:
        known = [v for r in rows if (v := getattr(r, name)) is not None]
        setattr(first, name, float(np.median(known)) if known else None)
    # a proof missing in one process is missing, weights hot in one are hot, every note is kept once
    first.missing = list(dict.fromkeys(x for r in rows for x in r.missing))
    first.notes = list(dict.fromkeys(x for r in rows for x in r.notes))
    first.cold = None if first.cold is None else all(r.cold for r in rows)
    return first


def _joined_pair(rows: list[Row]) -> Row:
    """Blocks of several processes one after another."""
    first = rows[0]
    # a process that begins with an odd count would swap who comes first in the blocks that follow
    whole = [len(r.blocks_s) // 8 * 8 for r in rows]
    first.block_clock_hz = [c for r, n in zip(rows, whole, strict=True) for c in r.block_clock_hz[: n // 4]]
    first.blocks_s = [t for r, n in zip(rows, whole, strict=True) for t in r.blocks_s[:n]]
    first.retaken = sum(r.retaken or 0 for r in rows)
    first.missing = list(dict.fromkeys(x for r in rows for x in r.missing))
    return first
