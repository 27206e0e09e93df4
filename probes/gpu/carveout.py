"""The L2 that the driver keeps for persisting accesses: given back before anything is measured.

The set-aside part serves no plain read: under 37 MiB of it a read of 58 MB takes 22 % longer on an H200. A
context begins with one where CUDA_DEFAULT_PERSISTING_L2_CACHE_PERCENTAGE_LIMIT says so.
"""

from __future__ import annotations

from probes.core.types import Fault, Unavailable
from probes.gpu.driver import call


def reset() -> list[str]:
    """Set the current context's carve-out to 0; a line on what it was and whether that worked, if any.

    Under MPS or MIG the driver may refuse to tell or to change it: what cannot be told is passed over.
    """
    from cuda.bindings import driver

    limit = driver.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE
    try:
        size = int(call(driver.cuCtxGetLimit, limit))
    except (Unavailable, Fault):
        return []  # a GPU older than sm_80 has none
    if not size:
        return []
    subject = f"an L2 carve-out of {size / 2**20:.0f} MiB"
    try:
        call(driver.cuCtxSetLimit, limit, 0)
        call(driver.cuCtxResetPersistingL2Cache)
        left = int(call(driver.cuCtxGetLimit, limit))
    except (Unavailable, Fault) as error:
        return [f"{subject}: it cannot be reset ({error}); reads of what fits the L2 take longer"]
    if left:
        return [f"{subject}: the driver keeps it; reads of what fits the L2 take longer"]
    return [f"{subject} was reset: persisting accesses keep no part of the L2"]
