"""L2's host side.

Activations that a chain hands on, the oracle of a decode layer, and comparing to the byte.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from probes.core.types import WrongResult
from probes.engine.probe import Case
from probes.formats import layer as decode_layer
from probes.formats import q8
from probes.formats.layer import F16
from probes.l2.chains import Matrix

if TYPE_CHECKING:
    from probes.gpu.memory import Buffer


def check(case: Case, args: argparse.Namespace) -> None:
    """L2 reads no files."""


def show() -> None:
    """L2 predicts from tables of launches alone."""


def activations(m: Matrix, seed: int) -> NDArray[np.uint8]:
    """What the first launch reads: seeded values of size 1, pad40 bytes."""
    values = np.random.default_rng(seed).standard_normal(m.shape.id, dtype=np.float32)
    return q8.quantise(values)


def rotate(x8: NDArray[np.uint8], count: int) -> NDArray[np.uint8]:
    """pad40 bytes rotated by so many units of 32 values: unit u becomes unit (u + count) % units."""
    return np.roll(x8.reshape(-1, q8.PAD40), count, axis=0).reshape(-1)


@dataclass
class LayerOracle:
    """One decode layer's weights, and by KV length what its kernels must leave."""

    host: decode_layer.Data
    _known: dict[int, tuple[dict[str, NDArray[Any]], F16]] = field(default_factory=dict)

    def oracle(self, kv: int, cache: F16) -> tuple[dict[str, NDArray[Any]], F16]:
        """The first layer's buffers by name, and the cache that it leaves; `cache` stays as it is."""
        if kv not in self._known:
            left = cache.copy()
            table = decode_layer.rope_table(kv - 1)
            self._known[kv] = decode_layer.run_layer(self.host, left, self.host.hidden, table), left
        return self._known[kv]


@dataclass
class LayerOnDevice:
    """The decode layers' weights, shared by all KV lengths and chains.

    `finals`: by KV length the words after all layers, once decode13's kernels were held to the oracle.
    """

    layer: LayerOracle
    device: dict[str, Buffer]
    shared: dict[str, Buffer]
    count: int
    finals: dict[int, NDArray[np.uint32]] = field(default_factory=dict)


def compare(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any], what: str) -> None:
    """Raise WrongResult at the first byte that differs."""
    a, b = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (got, want))
    bad = np.flatnonzero(a != b)
    if bad.size:
        k = int(bad[0])
        raise WrongResult(f"{what} ({bad.size} of {b.size} bytes differ), byte", k, int(a[k]), int(b[k]))
