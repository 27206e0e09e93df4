"""All kernels that a run needs and the cache lacks, compiled before it, both backends at once on every core.

Worker processes compile a few Numba kernels each, one nvcc each C++ file. Nothing is bound here: the bench
loads the kernels from the cache. Failures are handed back by backend, so that one costs that backend alone.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kernels_cu import build
from kernels_numba import compile as numba_compile
from probes.core import children
from probes.core.types import Backend, Progress, Unavailable
from probes.device import pipeline

RING_COST = 8  # compiling a Numba kernel with a ring takes about 4 s, any other 0.5 s
_WORK = "from kernels_numba.compile import work; work()"


@dataclass(frozen=True, slots=True)
class Asked:
    """Kernels of one file, the same in both languages; `min_blocks` as --blocks-per-sm."""

    stem: str
    names: tuple[str, ...]
    min_blocks: int = 0


def compile_all(
    wanted: Iterable[Asked], arch: str, backends: Sequence[Backend] = ("cu", "numba"),
    progress: Progress | None = None, workers: int = 0,
) -> dict[Backend, str]:  # fmt: skip
    """Compile what the cache lacks, in `workers` processes (0: a core each); why a backend could not."""
    asked = list(dict.fromkeys(wanted))
    workers = workers or len(os.sched_getaffinity(0))
    failed: dict[Backend, str] = {}
    jobs: list[tuple[Backend, Callable[[], object]]] = []
    if "numba" in backends:
        for chunk in _chunks(asked, arch, 2 * workers):
            jobs.append(("numba", partial(_numba, chunk, arch)))
    if "cu" in backends:
        for source, blocks in dict.fromkeys((f"{w.stem}.cu", w.min_blocks) for w in asked):
            jobs.append(("cu", partial(build.library, source, arch, blocks)))
    if progress and any(b == "numba" for b, _ in jobs):
        progress(f"compiling kernels for {arch} in {min(workers, len(jobs))} processes (once; cached)")
    with ThreadPoolExecutor(workers) as pool:
        started = [(backend, pool.submit(job)) for backend, job in jobs]
        try:
            for backend, job in started:
                try:
                    job.result()
                except Unavailable as error:
                    failed.setdefault(backend, str(error))
        except BaseException:  # stopped: the pool would wait for what runs
            pool.shutdown(wait=False, cancel_futures=True)
            while not all(job.done() for _, job in started):
                children.stop()  # again, since a job may be about to start its child
                time.sleep(0.05)
            raise
    return failed


def _chunks(asked: Sequence[Asked], arch: str, most: int) -> list[list[Asked]]:
    """The Numba kernels that the cache lacks in at most so many parts of like cost, the longest first."""
    lacking = [
        (w, name) for w in asked for name in numba_compile.missing(w.stem, w.names, arch, w.min_blocks)
    ]
    lacking.sort(key=lambda row: -_cost(row[1]))
    chunks: list[list[Asked]] = [[] for _ in range(min(most, len(lacking)))]
    costs = [0] * len(chunks)
    for w, name in lacking:
        least = costs.index(min(costs))
        chunks[least].append(Asked(w.stem, (name,), w.min_blocks))
        costs[least] += _cost(name)
    return chunks


def _cost(name: str) -> int:
    return RING_COST if pipeline.since(name) > (0, 0) else 1


def _numba(chunk: Sequence[Asked], arch: str) -> None:
    """Compile in a process of its own. Raises Unavailable with what it said; leaves a fault to the loader."""
    roots = [str(Path(numba_compile.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, roots))}
    asked = json.dumps({"arch": arch, "rows": [(w.stem, w.names, w.min_blocks) for w in chunk]})
    done = children.run([sys.executable, "-c", _WORK, asked], env=env)
    if done.returncode == Unavailable.exit_code:
        raise Unavailable(done.stderr.strip().splitlines()[-1])
    if done.returncode < 0:  # loading the kernel here would end this process, too
        raise Unavailable(f"Numba's compiler died of signal {-done.returncode} on {chunk[0].names[0]}")
