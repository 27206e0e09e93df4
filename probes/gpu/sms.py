"""The SMs that this process really has: MPS and MIG give fewer than the chip holds.

Grids, tuning rows and the reports' folder follow them: `nvidia-h200-48sm` for 48 of an H200's 132, and a MIG
slice, which has a share of L2 and DRAM too, under its own name (`nvidia-h200-mig-3g-71gb`).
"""

from __future__ import annotations

import re

from probes.core.types import Fault, Unavailable
from probes.device import facts as profiles
from probes.gpu.driver import call


def slug_of(name: str) -> str:
    """'NVIDIA H200' -> 'nvidia-h200': the folder of a device's reports."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def is_mig(name: str) -> bool:
    """Whether a driver's device name is that of a MIG slice ('NVIDIA H200 MIG 3g.71gb')."""
    return " MIG " in name


def of_chip(name: str, told: int) -> int:
    """SMs of the whole GPU: the profile's for its very name, else the `told` ones of the driver.

    A MIG slice is a GPU of its own; one that a profile only resembles (RTX 4090 D) may have fewer for good.
    """
    profile = profiles.find(name)
    return max(told, profile.sms) if profile and profile.name == name else told


def place(name: str, sms: int, chip: int) -> str:
    """The slug of `sms` SMs of a GPU of that name that has `chip` of them."""
    return slug_of(name) if sms >= chip else f"{slug_of(name)}-{sms}sm"


def here(told: int) -> int:
    """SMs that the current context may use, at most the `told` ones of the device's properties.

    MPS with CUDA_MPS_ACTIVE_THREAD_PERCENTAGE makes it fewer; without MPS the driver knows no such limit.
    """
    from cuda.bindings import driver

    kind = driver.CUexecAffinityType.CU_EXEC_AFFINITY_TYPE_SM_COUNT
    try:
        count = int(call("cuCtxGetExecAffinity", kind).param.smCount.val)
    except (Unavailable, Fault):
        return told
    return min(told, count) if count > 0 else told
