"""What a report's figures depend on, as digests: kernels in both languages, constants, flags, launches.

Each backend's `inputs` says it for one kernel file, for the build cache and for reports alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernels_cu import build
from kernels_numba import compile as numba_compile
from probes.core.digest import digest
from probes.core.types import Unavailable
from probes.engine import probe


def sources(name: str, launches: Sequence[Any] = (), backend: str = "") -> str:
    """SHA-256 of a probe's kernels, the harness' included, of one backend or of both, and of launch rows."""
    stems = (*probe.table(name).STEMS, "harness")
    kernels = []
    if backend in ("", "cu"):
        kernels += [build.inputs(f"{stem}.cu") for stem in stems]
    if backend in ("", "numba"):
        kernels += [numba_compile.inputs(stem) for stem in stems]
        # a kernel is held to its twin's launch bounds, which the C++ file names
        kernels += [build.generated(f"{stem}.cu").get(build.CONSTANTS, "") for stem in stems]
    return digest(sorted(kernels), list(launches))


def selfcheck() -> str:
    """SHA-256 of every probe's kernels: what the self-check times."""
    return digest([sources(name) for name in probe.names()], [])


def report(file: str, device: str) -> str:
    """SHA-256 of what a device's report named `file` (l1, l3-48sm) depends on."""
    return sources(file.partition("-")[0], launches(file, device))


def launches(file: str, device: str) -> list[object]:
    """A report's launch rows: plain values."""
    return probe.plan(file.partition("-")[0]).digest(file, device)


def toolchain() -> dict[str, str]:
    """Versions of nvcc and its host compiler, where there are any, and of the libraries behind Numba."""
    found = {k: v for k, v in numba_compile.versions().items() if k in ("nvvm", "nvjitlink")}
    try:
        return {**build.versions(), **found}
    except Unavailable:
        return found
