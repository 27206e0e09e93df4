"""Every layout, form and backend of L1 under pytest-benchmark, timed in GPU-event seconds.

    pytest tests/bench/test_bench_l1.py --benchmark-only

The timer is the GPU's: it returns event seconds accumulated by graph replays, per launch and cold. Each
entry's extra_info holds GB/s, waves, occupancy, the ratio to padded and what the bar says of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from probes import cli, l1
from probes.bench import BACKENDS

pytestmark = pytest.mark.gpu

CASE = "ffn_down_14b"
VARIANTS = [*(name for name, _, _ in l1.variants()), *l1.FLIP]


class Clock:
    """A timer for pytest-benchmark that only moves when the GPU has worked."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


clock = Clock()


@pytest.fixture(scope="module")
def session(bench: Any) -> Iterator[dict[str, Any]]:
    """All arms of one case, built and checked once; their verdict rows."""
    from probes import l1_measure

    args = cli.parser("l1").parse_args(["--case", CASE])
    kernels = l1_measure.load_kernels(bench, args)
    case = l1.cases(args)[0]
    with ExitStack() as stack:
        arms, _ = l1_measure.arms_of(bench, args, case, kernels, stack)
        for _, arm in arms:
            arm.build(bench.gpu.stream)
        yield {spec.name: (spec, arm) for spec, arm in arms}
        for _, arm in arms:
            arm.recheck()
            arm.close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.benchmark(timer=clock, warmup=False)
def test_kernel(benchmark: Any, bench: Any, session: dict[str, Any], variant: str, backend: Any) -> None:
    from probes.bench import resource_row
    from probes.gpu.timing import replay_s

    if f"{variant}/{backend}" not in session:
        pytest.skip(bench.skipped.get(backend, f"{variant} does not run on {CASE}"))
    spec, arm = session[f"{variant}/{backend}"]
    base = session[f"{l1.BASELINE}/{backend}"][1]
    ratios = []

    def step() -> None:
        seconds = replay_s(bench.gpu.stream, arm)
        ratios.append(seconds / replay_s(bench.gpu.stream, base))
        clock.seconds += seconds

    benchmark.pedantic(step, rounds=10, iterations=1, warmup_rounds=1)
    row = resource_row("l1", spec, bench.gpu)
    ratio = sorted(ratios)[len(ratios) // 2]
    extra = benchmark.extra_info
    extra.update(
        registers=row.registers, blocks_per_sm=row.blocks_per_sm, limiter=row.limiter, waves=row.waves
    )
    extra.update(bitwise=True, rotation_bytes=spec.rotation_bytes, ratio_to_baseline=ratio)
    if benchmark.stats:
        extra["content_gbps"] = spec.content_bytes / benchmark.stats.stats.median / 1e9
    from probes.core import verdict

    bar = verdict.bar("l1.dpl")
    extra["verdict"] = (
        f"{'above' if 1 - ratio >= bar.bar else 'below'} the bar ({bar.text}), by medians alone"
    )
