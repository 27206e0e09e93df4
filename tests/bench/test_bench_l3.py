"""Every L3 variant of both backends under pytest-benchmark, timed in GPU-event seconds.

    pytest tests/bench/test_bench_l3.py --benchmark-only

As the L1 benchmarks: the timer is the GPU's, per step (all kernels of a variant) and cold. extra_info
holds GB/s, waves, occupancy, the ratio to the pair (form_c's to pair_ring) and what the bar says of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from probes import cli, l3
from probes.engine.bench import BACKENDS

pytestmark = pytest.mark.gpu

VARIANTS = [v.name for v in l3.VARIANTS]


@pytest.fixture(scope="module")
def session(bench: Any) -> Iterator[dict[str, Any]]:
    """All arms of gate_up_14b, built and checked once; checked again at the end."""
    from probes import l3_measure

    args, case = cli.parser("l3").parse_args([]), l3.CASES[0]
    kernels = l3_measure.load_kernels(bench, args)
    with ExitStack() as stack:
        d = l3_measure.data_of(bench, args, case, kernels, stack)
        arms, skipped = l3_measure.arms_of(bench, args, case, kernels, VARIANTS, d, stack)
        for _, arm in arms:
            arm.build(bench.gpu.stream)
        told = {f"{row.variant}/{row.backend}": (row.skipped, None) for row in skipped}
        yield {**told, **{spec.name: (spec, arm) for spec, arm in arms}}
        for _, arm in arms:
            arm.recheck()
            arm.close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_variant(
    gpu_timed: Any, facts_of: Any, bench: Any, session: dict[str, Any], variant: str, backend: Any
) -> None:
    if f"{variant}/{backend}" not in session:
        pytest.skip(bench.skipped.get(backend, f"{backend} was not built"))
    spec, arm = session[f"{variant}/{backend}"]
    if arm is None:
        pytest.skip(spec)
    contest = next((c for c in l3.CONTESTS if variant in c.forms), l3.CONTESTS[0])
    gpu_timed(arm, session[f"{contest.baseline}/{backend}"][1], contest.bar, **facts_of("l3", spec))
