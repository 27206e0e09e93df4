"""Every layout, form and backend of L1 under pytest-benchmark, timed in GPU-event seconds.

    pytest tests/bench/test_bench_l1.py --benchmark-only

The timer is the GPU's: it returns event seconds accumulated by graph replays, per launch and cold. Each
entry's extra_info holds GB/s, waves, occupancy, the ratio to padded and what the bar says of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from probes.core.types import BACKENDS
from probes.l1 import table
from tests.bench.built import Built, session_of

pytestmark = pytest.mark.gpu

CASE, PF3_CASE = "ffn_down_14b", "ffn_down_7b"  # pf and pf3 have no shape in common
VARIANTS = [*(v.name for v in table.every()), *table.FLIP]


@pytest.fixture(scope="module")
def session(bench: Any) -> Iterator[Built]:
    """All arms of both cases, built and checked once."""
    yield from session_of("l1", bench, "--case", CASE, "--case", PF3_CASE)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_kernel(
    gpu_timed: Any, facts_of: Any, bench: Any, session: Built, variant: str, backend: Any
) -> None:
    case = PF3_CASE if variant.endswith("_pf3") else CASE
    key, base = (f"{case}/{name}/{backend}" for name in (variant, table.BASELINE))
    if key not in session.arms:
        pytest.skip(session.why_not(key, bench))
    spec, arm = session.arms[key]
    gpu_timed(arm, session.arms[base][1], "l1.dpl", **facts_of("l1", spec))
