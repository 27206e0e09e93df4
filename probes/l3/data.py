"""L3's weights and activations, whose SwiGLU fits q8, and what every kernel must return.

Gate rows 0..nf-1 and up rows nf..2nf-1 form one matrix. The oracle: `q4k.reference`, `swiglu`, `q8.quantise`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from probes.core.types import BadInput, Shape, WrongResult
from probes.engine.probe import Case
from probes.formats import gguf as gguf_file
from probes.formats import q4k, q8, swiglu

U8: TypeAlias = NDArray[np.uint8]
U32: TypeAlias = NDArray[np.uint32]
F32: TypeAlias = NDArray[np.float32]

BLOCK_VALUES = 32
"""Values of one q8 block: `nf` is a multiple of it, and form_b gives each a thread block of its own."""

ACTIVATION_SCALE = np.float32(2.0**-4)
"""Of the seeded activations: gate sums then are of the order of 1, where SwiGLU bends."""


def random_gate_up(nf: int, id_: int, seed: int) -> U8:
    """Seeded weights u8[2 * nf, id_ // 256 * 144], d and dmin below 2^-6 (so that SwiGLU fits q8's f16 d)."""
    raw = q4k.random_raw(Shape(2 * nf, id_), seed)
    raw.reshape(-1, q4k.BLOCK)[:, 1:4:2] &= np.uint8(0x9F)
    return raw


def random_x8(id_: int, seed: int) -> U8:
    """Seeded pad40 activations of `id_` values, u8[id_ // 32 * 40]."""
    rng = np.random.Generator(np.random.SFC64(seed))
    x = rng.standard_normal(id_, dtype=np.float32)
    return q8.quantise(x * ACTIVATION_SCALE)


def gate_up_shape(path: Path, gate: str, up: str) -> Shape:
    """The one shape of both tensors. Raises BadInput as `read_gate_up`."""
    return _one_shape(gate, up, [gguf_file.check(path, name, "Q4_K") for name in (gate, up)])


def check(case: Case, args: argparse.Namespace) -> None:
    """A file's tensors were read when its case was made, and refused there."""


def read_gate_up(path: Path, gate: str, up: str) -> tuple[U8, Shape]:
    """Gate and up tensors of a GGUF file, one below the other. BadInput unless both are q4_K of one shape."""
    parts, shapes = zip(*(gguf_file.read(path, name, "Q4_K") for name in (gate, up)), strict=True)
    shape = _one_shape(gate, up, shapes)
    return np.concatenate(parts), shape


def _one_shape(gate: str, up: str, shapes: Sequence[Shape]) -> Shape:
    if shapes[0] != shapes[1]:
        got = f"got {gate} of {shapes[0]} and {up} of {shapes[1]}"
        raise BadInput(f"gate and up must have one shape, {got}; name the two tensors of one layer")
    if shapes[0].od % BLOCK_VALUES:
        raise BadInput(f"{gate} has {shapes[0].od} rows; L3 needs a multiple of {BLOCK_VALUES}")
    return shapes[0]


def quantised(h: F32, what: str = "these weights") -> U32:
    """`h` f32[nf] as pad40 words u32[nf // 32 * 10]. BadInput where q8 cannot hold it."""
    try:
        return np.ascontiguousarray(q8.quantise(h)).view(np.uint32)
    except BadInput as error:
        raise BadInput(f"SwiGLU of {what} does not fit q8: {error}") from None


def oracle(raw: U8, x8: U8, rows: NDArray[np.int64] | None = None) -> F32:
    """Sums of the gate and up rows in the reference order: all of `raw`'s, or those in `rows`."""
    return q4k.reference(raw, x8, rows)


@dataclass(frozen=True)
class Wanted:
    """What one matrix and its activations must give: every f32 intermediate and the q8 words."""

    gu: F32
    h: F32
    q8: U32

    @classmethod
    def of(cls, gu: F32, what: str = "these weights") -> Wanted:
        """All of it from the row sums `gu` f32[2 * nf]."""
        h = swiglu.swiglu(gu[: gu.size // 2], gu[gu.size // 2 :])
        return cls(gu, h, quantised(h, what))

    def first(self, nf: int) -> Wanted:
        """What the first `nf` gate rows and the first `nf` up rows give."""
        whole = self.gu.size // 2
        gu = np.concatenate([self.gu[:nf], self.gu[whole : whole + nf]])
        return Wanted(gu, self.h[:nf], self.q8[: nf // BLOCK_VALUES * (q8.PAD40 // 4)])


def first_rows(raw: U8, nf: int) -> U8:
    """The first `nf` gate rows and the first `nf` up rows of `raw`, as a matrix of their own."""
    whole = raw.shape[0] // 2
    return raw if nf == whole else np.concatenate([raw[:nf], raw[whole : whole + nf]])


def show() -> None:
    """The oracle's q8 holds its SwiGLU, shown at a small size. Raises WrongResult."""
    raw, x8 = random_gate_up(64, 256, 1), random_x8(256, 2)
    want = Wanted.of(oracle(raw, x8))
    d, _, _ = q8.unpack(want.q8.view(np.uint8))
    # half a step of rounding, and d's own rounding to f16 on up to 127 steps
    room = np.repeat(d.astype(np.float64), 32) * (0.5 + 128 * 2.0**-11)
    off = np.abs(q8.dequantise(want.q8.view(np.uint8)).astype(np.float64) - want.h)
    if (off > room).any():
        worst = int(np.argmax(off - room))
        raise WrongResult("q8 does not hold SwiGLU", worst, float(off[worst]), float(room[worst]))
