"""--counters: the profiler's DRAM bytes and durations beside our own times.

One profiled child per backend launches each arm once; its rows say in which order.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from probes.core import store
from probes.core.rows import Row
from probes.core.types import Unavailable
from probes.gpu import counters
from probes.processes import child_argv


def attach(name: str, args: argparse.Namespace, rows: Sequence[Row], tell: Callable[[str], None]) -> None:
    """Fill dram_bytes_read and profiler_time_s of measured rows; a note where the profiler refuses."""
    for backend in dict.fromkeys(r.backend for r in rows if r.samples_s):
        tell(f"profiling {backend} kernels")
        try:
            counted = _count(name, args, backend)
        except Unavailable as error:
            for row in rows:
                if row.backend == backend and row.samples_s:
                    row.notes.append(str(error))
                    break
            continue
        for row in rows:
            seen = counted.get(row.id)
            if seen and row.samples_s:
                row.dram_bytes_read, row.profiler_time_s = seen.dram_bytes_read, seen.time_s


def explain(name: str, arch: str, args: argparse.Namespace, rows: Sequence[Row]) -> None:
    """Say in its row why a Numba twin is slower; a note on the first row where no disassembler is found."""
    from probes import twins

    try:
        twins.explain(name, arch, rows, args.blocks_per_sm or 0)
    except Unavailable as error:
        rows[0].notes.append(str(error))


def _count(name: str, args: argparse.Namespace, backend: str) -> dict[str, counters.Counted]:
    with tempfile.TemporaryDirectory(prefix="probes-") as folder:
        out = Path(folder) / "once.json"
        own = argparse.Namespace(**{**vars(args), "backend": [backend]})
        child = [sys.executable, "-m", f"probes.{name}", *child_argv(own, out), "--once"]
        launches = counters.profile(child, f"({name}|harness_read).*")
        _, order = store.read_json(out)
    if len(launches) != len(order):
        raise Unavailable(f"the profiler saw {len(launches)} launches where {len(order)} were made")
    found: dict[str, counters.Counted] = {}
    for row, seen in zip(order, launches, strict=True):  # a step of several kernels has a row for each
        before = found.get(row.id, counters.Counted(seen.kernel, 0, 0.0))
        found[row.id] = counters.Counted(
            before.kernel, before.dram_bytes_read + seen.dram_bytes_read, before.time_s + seen.time_s
        )
    return found
