"""Every L3 variant of both backends under pytest-benchmark, timed in GPU-event seconds.

    pytest tests/bench/test_bench_l3.py --benchmark-only

As the L1 benchmarks: the timer is the GPU's, per step (all kernels of a variant) and cold. extra_info
holds GB/s, waves, occupancy, the ratio to the pair (form_c's to pair_ring) and what the bar says of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from probes.core.types import BACKENDS
from probes.l3 import table
from tests.bench.built import Built, session_of

pytestmark = pytest.mark.gpu

VARIANTS = [v.name for v in table.VARIANTS]
CASE = table.CASES[0].id


@pytest.fixture(scope="module")
def session(bench: Any) -> Iterator[Built]:
    """All arms of gate_up_14b, built and checked once; checked again at the end."""
    yield from session_of("l3", bench, "--case", CASE)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_variant(
    gpu_timed: Any, facts_of: Any, bench: Any, session: Built, variant: str, backend: Any
) -> None:
    contest = next((c for c in table.CONTESTS if variant in c.variants), table.CONTESTS[0])
    key, base = (f"{CASE}/{name}/{backend}" for name in (variant, contest.baseline))
    if key not in session.arms:
        pytest.skip(session.why_not(key, bench))
    spec, arm = session.arms[key]
    gpu_timed(arm, session.arms[base][1], contest.bar, **facts_of("l3", spec))
