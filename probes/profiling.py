"""--counters: the profiler's figures beside our own times.

One profiled child per backend launches each arm once, or of L2 each kernel; its rows say in which order.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from probes.core import store
from probes.core.rows import Row
from probes.core.types import BadInput, Unavailable
from probes.gpu import counters
from probes.processes import child_argv


def attach(
    name: str, args: argparse.Namespace, rows: Sequence[Row], tell: Callable[[str], None]
) -> list[Row]:
    """Fill the profiler's figures of measured rows; a note where it refuses.

    Returns the child's rows that `rows` lacks (L2's kernels), with their figures.
    """
    added: list[Row] = []
    known = {r.id: r for r in rows}
    for backend in dict.fromkeys(r.backend for r in rows if r.samples_s):
        tell(f"profiling {backend} kernels")
        try:
            counted = _count(name, args, backend)
        except Unavailable as error:
            next(r for r in rows if r.backend == backend and r.samples_s).notes.append(str(error))
            continue
        for child, seen in counted:
            row = known.get(child.id, child)
            if row is child:
                added.append(row)
            elif not row.samples_s:
                continue
            row.dram_bytes_read, row.profiler_time_s = seen.dram_bytes_read, seen.time_s
            row.profiler_dram_fraction = seen.dram_fraction
            row.profiler_issue_fraction = seen.issue_fraction
    return added


def explain(name: str, arch: str, args: argparse.Namespace, rows: Sequence[Row]) -> None:
    """Say in its row why a Numba twin is slower; a note on the first row where no disassembler is found."""
    from probes import twins

    try:
        twins.explain(name, arch, rows, args.blocks_per_sm or 0)
    except Unavailable as error:
        rows[0].notes.append(str(error))


def _count(name: str, args: argparse.Namespace, backend: str) -> list[tuple[Row, counters.Counted]]:
    """Each arm's row as the profiled child gave it, and its figures. Raises Unavailable."""
    with tempfile.TemporaryDirectory(prefix="probes-") as folder:
        out = Path(folder) / "once.json"
        own = argparse.Namespace(**{**vars(args), "backend": [backend]})
        child = [sys.executable, "-m", f"probes.{name}", *child_argv(own, out), "--once"]
        launches = counters.profile(child, f"({name}|harness_read).*")
        try:
            _, rows = store.read_json(out)
        except BadInput as error:
            raise Unavailable("the profiled run left no rows that can be read") from error
    order = [r for r in rows if not r.skipped]
    if len(launches) != len(order):
        raise Unavailable(f"the profiler saw {len(launches)} launches where {len(order)} were made")
    arms: dict[str, tuple[Row, list[counters.Counted]]] = {}
    for row, seen in zip(order, launches, strict=True):  # a step of several kernels has a row for each
        arms.setdefault(row.id, (row, []))[1].append(seen)
    return [(row, counters.joined(parts)) for row, parts in arms.values()]
