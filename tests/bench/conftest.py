"""GPU benchmarks: timed in the GPU's own seconds, judged like a run of the suite, all in one place."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.bench.built import clock, described, timed


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "bench" in item.path.parts and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.benchmark(timer=clock, warmup=False))


@pytest.fixture
def gpu_timed(benchmark: Any, bench: Any) -> Callable[..., None]:
    """gpu_timed(arm, base, bar, **facts): see `built.timed`."""
    return partial(timed, benchmark, bench)


@pytest.fixture
def facts_of(bench: Any) -> Callable[[str, Any], dict[str, Any]]:
    """facts_of(probe, spec): resources, occupancy and waves of an arm."""
    return partial(described, bench)
