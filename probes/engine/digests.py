"""What a report's figures depend on, as digests: the kernels' own sources, shared constants and launches; the bars."""

from __future__ import annotations

from probes.core.types import Unavailable
from probes.engine import probe


def report(file: str, device: str) -> str:
    """SHA-256 of what a device's report named `file` (l1, l3-48sm) depends on."""
    from probes import sources

    name = file.partition("-")[0]
    return sources.digest(name, probe.plan(name).digest(file, device))


def bars(name: str) -> str:
    """SHA-256 of a probe's own bars."""
    from probes.verdict import bars as tables

    return tables.bars_sha256()


def toolchain() -> dict[str, str]:
    """The version of nvcc, where there is one."""
    from kernels_cu import build

    try:
        return {"nvcc": build.compiler_version()}
    except Unavailable:
        return {}
