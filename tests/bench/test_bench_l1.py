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
from probes.engine.bench import BACKENDS

pytestmark = pytest.mark.gpu

CASE, PF3_CASE = "ffn_down_14b", "ffn_down_7b"  # pf and pf3 have no shape in common
VARIANTS = [*(name for name, _, _ in l1.variants()), *l1.FLIP]


@pytest.fixture(scope="module")
def session(bench: Any) -> Iterator[dict[str, Any]]:
    """All arms of both cases, built and checked once; their verdict rows."""
    from probes import l1_measure

    args = cli.parser("l1").parse_args(["--case", CASE, "--case", PF3_CASE])
    kernels = l1_measure.load_kernels(bench, args)
    with ExitStack() as stack:
        arms = [
            arm for case in l1.cases(args) for arm in l1_measure.arms_of(bench, args, case, kernels, stack)[0]
        ]
        for _, arm in arms:
            arm.build(bench.gpu.stream)
        yield {f"{spec.case}/{spec.name}": (spec, arm) for spec, arm in arms}
        for _, arm in arms:
            arm.recheck()
            arm.close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_kernel(
    gpu_timed: Any, facts_of: Any, bench: Any, session: dict[str, Any], variant: str, backend: Any
) -> None:
    case = PF3_CASE if variant.endswith("_pf3") else CASE
    if f"{case}/{variant}/{backend}" not in session:
        pytest.skip(bench.skipped.get(backend, f"{variant} does not run on {case}"))
    spec, arm = session[f"{case}/{variant}/{backend}"]
    gpu_timed(arm, session[f"{case}/{l1.BASELINE}/{backend}"][1], "l1.dpl", **facts_of("l1", spec))
