"""Every chain and arm of L2 under pytest-benchmark, timed in GPU-event seconds.

    pytest tests/bench/test_bench_l2.py --benchmark-only

The timer is the GPU's: it returns event seconds accumulated by replays, per chain and cold. Each entry's
extra_info holds the launches of a chain, GB/s, waves and occupancy where it has one kernel, the ratio to the
plain graph with its interval, and the verdict.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from probes.core.types import BACKENDS
from probes.l2 import table
from tests.bench.built import Built, session_of

pytestmark = pytest.mark.gpu

GROUPS = [
    "bandwidth24", "compute24", "decode13@128", "decode13@3254", "ffn_down24", "attn_v24",
    "decode13_ring@128", "decode13_ring@3254", "empty",
]  # fmt: skip


@pytest.fixture(scope="module", params=GROUPS)
def session(bench: Any, request: pytest.FixtureRequest) -> Iterator[tuple[str, Built]]:
    """All arms of one chain, built and checked once."""
    name, _, kv = request.param.partition("@")
    for found in session_of("l2", bench, "--case", name, *(["--kv", kv] if kv else [])):
        yield request.param, found


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("variant", [*(a.name for a in table.ARMS), *table.READS])
def test_arm(
    gpu_timed: Any, facts_of: Any, bench: Any, session: tuple[str, Built], variant: str, backend: Any
) -> None:
    group, found = session
    key, base = (f"{group}/{name}/{backend}" for name in (variant, table.BASELINE))
    if key not in found.arms:
        pytest.skip(found.why_not(key, bench))
    spec, arm = found.arms[key]
    bar = next((c.bar for c in table.CONTESTS if spec.case.id in c.cases), table.CONTESTS[0].bar)
    gpu_timed(arm, found.arms[base][1], bar, launches=len(spec.planned.steps), **facts_of("l2", spec))
