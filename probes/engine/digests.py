"""What a report's figures depend on, as digests: kernels in both languages, constants, flags, launches.

Each backend's `inputs` says it for one kernel file, for the build cache and for reports alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kernels_cu import build
from kernels_numba import compile as numba_compile
from probes.core.digest import digest, plain_json
from probes.core.types import Unavailable
from probes.engine import probe

_NOTES: list[list[str]] = []


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
    for notes in _NOTES:
        notes.append(plain_json(list(launches)))
    return digest(sorted(kernels), list(launches))


def report(file: str, device: str) -> str:
    """SHA-256 of what a device's report named `file` (l1, l3-48sm) depends on."""
    name = file.partition("-")[0]
    return sources(name, probe.plan(name).digest(file, device))


@contextmanager
def noted() -> Iterator[list[str]]:
    """The launch rows, as JSON, of each digest that is made meanwhile."""
    _NOTES.append([])
    try:
        yield _NOTES[-1]
    finally:
        _NOTES.pop()


def toolchain() -> dict[str, str]:
    """Versions of nvcc and its host compiler, where there are any, and of the libraries behind Numba."""
    found = {k: v for k, v in numba_compile.versions().items() if k in ("nvvm", "nvjitlink")}
    try:
        return {**build.versions(), **found}
    except Unavailable:
        return found
