"""Kernels under test by backend; a backend that cannot be built here skips its tests with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from probes.core.types import Backend, Unavailable
from probes.engine.bench import BACKENDS


def built(build: Callable[[Backend], Any]) -> dict[str, Any]:
    """What `build` gives per backend, or why it cannot."""
    out: dict[str, Any] = {}
    for backend in BACKENDS:
        try:
            out[backend] = build(backend)
        except Unavailable as error:
            out[backend] = error
    return out


def sized(values: Iterable[Any], small: Iterable[Any]) -> list[Any]:
    """Parameters, those among `small` marked so: they meet every kernel, and stages that are refilled."""
    few = list(small)
    return [
        pytest.param(*(v if isinstance(v, tuple) else (v,)), marks=pytest.mark.small if v in few else ())
        for v in values
    ]


def of(kernels: dict[str, Any], backend: str) -> Any:
    """One backend's kernels."""
    if isinstance(kernels[backend], Unavailable):
        pytest.skip(str(kernels[backend]))
    return kernels[backend]
