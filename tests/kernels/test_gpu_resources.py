"""Resources and occupancy of every kernel: the recorded file and our rules against the driver."""

from __future__ import annotations

from typing import Any

import pytest

from probes.core.types import BACKENDS, Unavailable
from probes.device import pipeline, resources
from probes.device.occupancy import occupancy, waves
from probes.engine import probe

pytestmark = pytest.mark.gpu

STEMS = ("harness", *(stem for name in probe.names() for stem in probe.table(name).STEMS))


def names(stem: str, backend: str, arch: str) -> list[str]:
    """Kernels of one source stem that were recorded for this GPU."""
    from kernels_cu import build
    from kernels_numba import compile as numba_compile

    if backend == "cu":
        return [row.name for row in build.offline(f"{stem}.cu", arch)]
    return list(numba_compile.names(stem))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("stem", STEMS)
def test_predicted_occupancy_is_the_drivers(bench: Any, stem: str, backend: Any) -> None:
    """Only a driver tells the registers of a loaded kernel, and how many of its blocks share an SM."""
    facts = bench.gpu.facts
    try:
        kernels = bench.kernels(stem, names(stem, backend, facts.arch), backend)
    except Unavailable as error:
        pytest.skip(str(error))
    assert kernels
    known = resources.recorded()[1]
    for name, kernel in kernels.items():
        if facts.compute_capability < pipeline.since(name):
            continue  # there is no code of it here
        if facts.arch in ("sm_90", "sm_121") and (backend, name, facts.arch) in known:
            mine = known[backend, name, facts.arch]
            assert mine.registers == kernel.resources.registers, name
            assert mine.smem_bytes == kernel.resources.smem_bytes, name
        for block in (32, 64, 128, 160, 256):
            for smem in (0, 1000, 4096, 20000, 30000):
                if block > kernel.handle.attributes.max_threads_per_block:
                    continue
                if kernel.resources.smem_bytes + smem > 48 << 10:
                    kernel.allow_smem(smem)
                ours = occupancy(kernel.resources, block, smem, facts)
                driver = kernel.blocks_per_sm(block, smem)
                assert ours.blocks_per_sm == driver, (name, block, smem, ours.limiter)
                assert waves(432, facts.sms, driver) == 432 / (facts.sms * driver)
