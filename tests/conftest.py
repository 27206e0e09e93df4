"""Tests marked `gpu` skip where no GPU answers, and say why."""

from __future__ import annotations

from functools import cache

import pytest


@cache
def why_no_gpu() -> str:
    from probes.gpu import facts

    return facts.why_absent()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu") and why_no_gpu():
            item.add_marker(pytest.mark.skip(reason=f"needs an NVIDIA GPU: {why_no_gpu()}"))


@pytest.fixture(scope="session")
def bench():
    """A bench on GPU 0 with few windows: for tests of correctness, not of speed."""
    from probes.bench import Bench

    from probes.gpu import facts

    return Bench(facts.open_gpu(0), seed=0, windows=2, progress=lambda line: None)
