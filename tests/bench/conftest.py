"""GPU benchmarks: timed in the GPU's own seconds, judged like a run of the suite, all in one place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

ROUNDS = 12


class Clock:
    """A timer for pytest-benchmark that moves only when the GPU has worked."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


clock = Clock()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "bench" in item.path.parts and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.benchmark(timer=clock, warmup=False))


@pytest.fixture
def gpu_timed(benchmark: Any, bench: Any) -> Callable[..., None]:
    """timed(arm, base, bar, **facts): an arm and its baseline in turn, each round with an A/A pair.

    extra_info then holds the facts, the ratio with its interval, the noise floor and the bar's verdict.
    """
    from probes.gpu.timing import replay_s
    from probes.verdict import bars, intervals

    def timed(arm: Any, base: Any, bar: str, **facts: Any) -> None:
        seen: list[tuple[float, float, float]] = []

        def step() -> None:
            first, own, last = (replay_s(bench.gpu.stream, x) for x in (base, arm, base))
            seen.append((own, first, last))
            clock.seconds += own

        benchmark.pedantic(step, rounds=ROUNDS, iterations=1, warmup_rounds=1)
        own, first, last = np.array(seen[1:]).T
        found = intervals.interval(2 * own / (first + last), bench.seed)
        floor = intervals.noise_floor([last / first], bench.seed)
        decided = bars.judge_ratio(found.ratio, found.low, found.high, floor, bars.bar(bar))
        benchmark.extra_info.update(
            facts, bitwise=True, ratio_to_baseline=found.ratio, ratio_low=found.low, ratio_high=found.high,
            noise_floor=floor, verdict=decided.verdict, reason=decided.reason,
        )  # fmt: skip
        content = facts.get("content_bytes")
        if benchmark.stats and content:
            benchmark.extra_info["content_gbps"] = content / benchmark.stats.stats.median / 1e9

    return timed


def described(probe: str, spec: Any, bench: Any) -> dict[str, Any]:
    """What extra_info says of an arm besides its times."""
    from probes.bench import resource_row

    row = resource_row(probe, spec, bench.gpu)
    names = (
        "registers",
        "blocks_per_sm",
        "limiter",
        "waves",
        "tail_fraction",
        "content_bytes",
        "rotation_bytes",
    )
    return {"grid": spec.config.grid, **{name: getattr(row, name) for name in names}}


@pytest.fixture
def facts_of(bench: Any) -> Callable[[str, Any], dict[str, Any]]:
    """facts_of(probe, spec): resources, occupancy and waves of an arm."""
    return lambda probe, spec: described(probe, spec, bench)
