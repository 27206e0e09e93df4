"""The L2 that the driver keeps for persisting accesses: given back before anything is measured.

The set-aside part serves no plain read: under 37 MiB of it a read of 58 MB takes 22 % longer on an H200. A
context begins with one where CUDA_DEFAULT_PERSISTING_L2_CACHE_PERCENTAGE_LIMIT says so.
"""

from __future__ import annotations

from probes.core.types import Fault, Unavailable
from probes.gpu.driver import call


def reset() -> list[str]:
    """Set the current context's carve-out to 0; a line where it stays.

    One that is given back changes nothing: an H200's contexts begin with 11 MiB of it.
    """
    from cuda.bindings import driver

    limit = driver.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE
    try:
        size = int(call("cuCtxGetLimit", limit))
    except (Unavailable, Fault):
        return []  # a GPU older than sm_80 has none, and under MPS or MIG the driver may refuse to tell
    if not size:
        return []
    subject = f"an L2 carve-out of {size / 2**20:.0f} MiB"
    try:
        call("cuCtxSetLimit", limit, 0)
        call("cuCtxResetPersistingL2Cache")
        kept = "the driver keeps it" if int(call("cuCtxGetLimit", limit)) else ""
    except (Unavailable, Fault) as error:
        kept = f"it cannot be reset ({error})"
    return [f"{subject}: {kept}; reads of what fits the L2 take longer"] if kept else []
