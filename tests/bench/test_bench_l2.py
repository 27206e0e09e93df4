"""Every chain and arm of L2 under pytest-benchmark, timed in GPU-event seconds.

    pytest tests/bench/test_bench_l2.py --benchmark-only

The timer is the GPU's: it returns event seconds accumulated by replays, per chain and cold. Each entry's
extra_info holds the launches of a chain, GB/s, waves and occupancy of its first kernel, the ratio to the
plain graph with its interval, and the verdict.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from probes import cli, l2
from probes.engine.bench import BACKENDS

pytestmark = pytest.mark.gpu

GROUPS = [
    "bandwidth24", "compute24", "decode13@128", "decode13@3254", "ffn_down24", "attn_v24",
    "decode13_ring@128", "decode13_ring@3254", "empty",
]  # fmt: skip


@pytest.fixture(scope="module", params=GROUPS)
def session(bench: Any, request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """All arms of one chain, built and checked once."""
    from probes import l2_launch, l2_make, l2_measure

    if bench.gpu.facts.compute_capability < (9, 0):
        pytest.skip(f"{l2.NEEDS}, this GPU is {bench.gpu.facts.arch}")
    args = cli.parser("l2").parse_args([])
    name, _, kv = request.param.partition("@")
    case = l2.Case(name, int(kv) if kv else None)
    kernels = l2_measure.load_kernels(bench, args)
    with ExitStack() as stack:
        found = l2_make.Chains(bench, args, kernels, stack).of(case, stack)
        arms = l2_launch.arms_of(found, l2.arms(args, case.id))
        for _, arm in arms:
            arm.build(bench.gpu.stream)
        yield {spec.name: (spec, arm, found[0]) for spec, arm in arms}
        for _, arm in arms:
            arm.recheck()
            arm.close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("variant", [*(a.name for a in l2.ARMS), *l2.READS])
def test_arm(
    gpu_timed: Any, facts_of: Any, bench: Any, session: dict[str, Any], variant: str, backend: Any
) -> None:
    if f"{variant}/{backend}" not in session:
        pytest.skip(bench.skipped.get(backend, "not an arm of this chain"))
    spec, arm, chain = session[f"{variant}/{backend}"]
    _, plain, _ = session[f"{l2.BASELINE}/{backend}"]
    bar = l2.BARS.get(chain.case.id, "l2.pdl")
    gpu_timed(arm, plain, bar, launches=len(chain.steps), **facts_of("l2", spec))
