"""The probes there are, by name: their modules, parts, kernel files and digests."""

from __future__ import annotations

import importlib
from types import ModuleType

PROBES: dict[str, str] = {
    "l1": "does the dense split-plane q6_K layout win?",
    "l2": "does programmatic dependent launch pay in a CUDA graph?",
    "l3": "does fusing gate + up + SwiGLU + quantise pay, or do the waves eat it?",
}
"""Every probe: its module under `probes`, and its question."""


def probe(name: str) -> ModuleType:
    """One probe's own module: its tables, `add_flags`, `cases`, `listing` and `digest`."""
    return importlib.import_module(f"probes.{name}")


def part(name: str, piece: str) -> ModuleType:
    """A probe's part: `measure` (with `measure`), or `report`.

    A report part has `predict`, `judge`, `sections`, `readme`, and perhaps `plots`.
    """
    return importlib.import_module(f"probes.{name}_{piece}")


def stems(name: str) -> tuple[str, ...]:
    """A probe's kernel files, the same in both languages: its `STEMS`, else the one of its own name."""
    return tuple(getattr(probe(name), "STEMS", (name,)))


def digest(file: str, device: str) -> str:
    """SHA-256 of what a device's report named `file` (l1, l3-48sm) depends on."""
    module = probe(file.partition("-")[0])
    own = getattr(module, "report_digest", None)  # of a probe whose launches differ by report or device
    return str(own(file, device) if own else module.digest())
