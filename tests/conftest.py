"""One run of the tests: its build folder, its processes, and what skips without a GPU.

A run compiles into one folder, which all its tests and processes share and which goes at the end; where
PROBES_BUILD_DIR is set, that folder is taken instead, and stays. The whole suite (`pytest`, no path) runs
on all cores, a file to a process. Whatever names a path, benchmarks, and a machine with a GPU have one
process, so that nothing shares what is timed; `-n 4` and `-n 0` say otherwise.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Sequence
from functools import cache

import pytest

pytest_plugins = ["tests.fixtures", "tests.kernels.machines"]

SAMPLE_SEED = 0
MOST_PROCESSES = 8
"""The longest file takes an eighth of the suite's time: more processes would wait for it, at 0.5 GB each."""


@cache
def why_no_gpu() -> str:
    from probes.gpu import facts

    return facts.look().why


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("numprocesses", None):  # one to a core: BLAS threads would only spin
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if os.environ.get("PROBES_BUILD_DIR"):  # the user's; or the run's, which a worker process inherits
        return
    folder = tempfile.mkdtemp(prefix="probes-build-")
    os.environ["PROBES_BUILD_DIR"] = folder

    def remove() -> None:
        del os.environ["PROBES_BUILD_DIR"]
        shutil.rmtree(folder, ignore_errors=True)

    config.add_cleanup(remove)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """How many processes `-n auto` means, 0 for this one alone."""
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if not whole or config.getoption("benchmark_only", False) or not why_no_gpu():
        return 0
    return min(len(os.sched_getaffinity(0)), MOST_PROCESSES)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files with a test that compiles kernels come first: they take longest, and the short ones fill up."""
    for item in [] if config.getoption("campaigns") else left_out(items):
        item.add_marker(pytest.mark.skip(reason="not of the seeded sample; --campaigns runs all"))
    compiling = {item.path for item in items if item.get_closest_marker("toolchain")}
    items.sort(key=lambda item: item.path not in compiling)
    for item in items:
        if item.get_closest_marker("gpu") and why_no_gpu():
            item.add_marker(pytest.mark.skip(reason=f"needs an NVIDIA GPU: {why_no_gpu()}"))


def left_out(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Of the cases that a `sampled(keep, of)` test has with `of` in their ids: all but a seeded `keep`."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        mark = item.get_closest_marker("sampled")
        if mark and mark.args[1] in item.nodeid:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    out = []
    for name, mine in cases.items():
        marks = mine[0].get_closest_marker("sampled")
        kept = random.Random(f"{SAMPLE_SEED} {name}").sample(
            mine, min(len(mine), marks.args[0] if marks else 0)
        )
        out += [item for item in mine if item not in kept]
    return out


@pytest.fixture(scope="session")
def bench():
    """A bench on GPU 0 with few windows and blocks: for tests of correctness, not of speed."""
    from probes.engine.bench import Bench
    from probes.gpu import facts

    return Bench(facts.open_gpu(0), seed=0, windows=2, progress=lambda line: None, looks=(16,))


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "every case of the slowest tests, and 4,000 simulated runs where 500 are usual"
    parser.addoption("--campaigns", action="store_true", help=text)


@pytest.fixture(scope="session")
def campaign(request: pytest.FixtureRequest) -> int:
    """How many runs a simulation has."""
    return 4000 if request.config.getoption("--campaigns") else 500
