"""Every L3 variant of both backends under pytest-benchmark, timed in GPU-event seconds.

    pytest tests/bench/test_bench_l3.py --benchmark-only

As the L1 benchmarks: the timer is the GPU's, per step (all kernels of a variant) and cold. extra_info
holds GB/s, waves, occupancy, the ratio to the pair and what the bar says of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from probes import cli, l3
from probes.bench import BACKENDS

pytestmark = pytest.mark.gpu

VARIANTS = [v.name for v in l3.VARIANTS]


class Clock:
    """A timer for pytest-benchmark that only moves when the GPU has worked."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


clock = Clock()


@pytest.fixture(scope="module")
def session(bench: Any) -> Iterator[dict[str, Any]]:
    """All arms of gate_up_14b, built and checked once; checked again at the end."""
    from probes import l3_measure

    args, case = cli.parser("l3").parse_args([]), l3.CASES[0]
    kernels = l3_measure.load_kernels(bench, args)
    with ExitStack() as stack:
        d = l3_measure.data_of(bench, args, case, kernels, stack)
        arms, _ = l3_measure.arms_of(bench, args, case, kernels, VARIANTS, d, stack)
        for _, arm in arms:
            arm.build(bench.gpu.stream)
        yield {spec.name: (spec, arm) for spec, arm in arms}
        for _, arm in arms:
            arm.recheck()
            arm.close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.benchmark(timer=clock, warmup=False)
def test_variant(benchmark: Any, bench: Any, session: dict[str, Any], variant: str, backend: Any) -> None:
    from probes.bench import resource_row
    from probes.core import verdict
    from probes.gpu.timing import replay_s

    if f"{variant}/{backend}" not in session:
        pytest.skip(bench.skipped.get(backend, f"{variant} does not fit on an SM"))
    spec, arm = session[f"{variant}/{backend}"]
    base = session[f"{l3.BASELINE}/{backend}"][1]
    ratios = []

    def step() -> None:
        seconds = replay_s(bench.gpu.stream, arm)
        ratios.append(seconds / replay_s(bench.gpu.stream, base))
        clock.seconds += seconds

    benchmark.pedantic(step, rounds=10, iterations=1, warmup_rounds=1)
    row = resource_row("l3", spec, bench.gpu)
    ratio, bar = sorted(ratios)[len(ratios) // 2], verdict.bar("l3.fused")
    extra = benchmark.extra_info
    extra.update(
        registers=row.registers, blocks_per_sm=row.blocks_per_sm, limiter=row.limiter, waves=row.waves,
        grid=spec.config.grid, bitwise=True, rotation_bytes=spec.rotation_bytes, ratio_to_baseline=ratio,
    )  # fmt: skip
    extra["verdict"] = f"{'above' if 1 - ratio > bar.bar else 'below'} the bar ({bar.text}), by medians alone"
    if benchmark.stats:
        extra["content_gbps"] = spec.content_bytes / benchmark.stats.stats.median / 1e9
