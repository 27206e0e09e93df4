"""--counters: the profiler's figures beside our own times.

A profiled child per backend launches each arm, or each kernel of a chain, once, in the order of its rows.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from probes.core.types import BadInput, Unavailable
from probes.engine.bench import Bench, Spec
from probes.engine.processes import child_argv
from probes.gpu import counters
from probes.gpu.timing import Arm, synchronize
from probes.report import store
from probes.report.rows import Row


def once(probe: str, bench: Bench, arms: Sequence[tuple[Spec, Arm]]) -> list[Row]:
    """For the profiler: each arm launched once, in order, and checked, but not timed; a row per kernel."""
    rows = []
    with counters.window():
        for spec, arm in arms:
            arm.poison()
            arm.launches[0].enqueue(bench.gpu.stream)
            synchronize()
            arm.check(spec.name)
            rows += [bench.row(probe, spec)] * arm.launches[0].nodes
    return rows


def attach(
    name: str, args: argparse.Namespace, rows: Sequence[Row], tell: Callable[[str], None]
) -> list[Row]:
    """Fill in the profiler's figures, or a note where it refuses; the child's rows that `rows` lacks."""
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
            row.profiler_dram_fraction, row.profiler_issue_fraction = seen.dram_fraction, seen.issue_fraction
    return added


def _count(name: str, args: argparse.Namespace, backend: str) -> list[tuple[Row, counters.Counted]]:
    """Each arm's row as the profiled child gave it, and its figures. Raises Unavailable."""
    with tempfile.TemporaryDirectory(prefix="probes-") as folder:
        out = Path(folder) / "once.json"
        own = argparse.Namespace(**{**vars(args), "backend": [backend]})
        child = [sys.executable, "-m", f"probes.{name}", *child_argv(name, own, out), "--once"]
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
