"""L1's host side: a case's weights in every layout, its activations, and what every kernel must return."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from probes.core.types import Shape, WrongResult
from probes.engine.probe import Case
from probes.formats import checksum, packing, q6k, q8
from probes.formats import gguf as gguf_file
from probes.formats.layouts import LAYOUTS, Layout

U8: TypeAlias = NDArray[np.uint8]
U32: TypeAlias = NDArray[np.uint32]


@dataclass(frozen=True)
class Weights:
    """One case's data on the host."""

    packed: dict[str, U8]  # by layout, u8[od, stride]
    x8: U8
    rows: NDArray[np.int64]
    """The rows that the oracle computed: all of a small matrix, else a seeded sample."""
    want: U32  # their sums, as words
    streamed: dict[str, U32]  # their checksums of the stream form, by layout


def weights(case: Case, layouts: Sequence[Layout], seed: int, file: Path | None) -> Weights:
    """A case's weights in the needed layouts: seeded, or out of a GGUF file. Raises BadInput."""
    shape = case.matrix
    assert shape, "a case of L1 has its shape"
    raw = gguf_file.read(file, case.tensors[0])[0] if file and case.tensors else q6k.random_raw(shape, seed)
    x8 = q8.random_x8(shape.id, seed + 1)
    rows = checksum.sampled_rows(shape.od, seed)
    packed = {lay.name: packing.pack(raw, lay) for lay in layouts}
    streamed = {lay.name: checksum.stream_sums(packed[lay.name][rows], lay, shape.nbe, x8) for lay in layouts}
    return Weights(packed, x8, rows, checksum.bits(q6k.reference(raw, x8, rows)), streamed)


def check(case: Case, args: argparse.Namespace) -> None:
    """BadInput for a tensor that no kernel could be trusted with."""
    for name in case.tensors:
        gguf_file.check(args.gguf, name)


def show() -> None:
    """Every layout unpacks to the bytes it was packed from and gives the oracle's own result: a small check.

    Raises WrongResult.
    """
    shape = Shape(3, 1280)
    raw, x8 = q6k.random_raw(shape, 1), q8.random_x8(shape.id, 2)
    want = q6k.reference(raw, x8)
    for lay in LAYOUTS:
        back = packing.unpack(packing.pack(raw, lay), lay, shape.nbe)
        bad = np.flatnonzero(q6k.reference(back, x8).view(np.uint32) != want.view(np.uint32))
        if bad.size or not np.array_equal(back, raw):
            first = int(bad[0]) if bad.size else 0
            raise WrongResult(f"layout {lay.name} does not give back its weights", first, back, raw)
