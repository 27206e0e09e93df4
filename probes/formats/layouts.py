"""The q6_K weight layouts of L1: where the pieces of a super-block lie in a stored row.

A layout is one row of `LAYOUTS`: a unit *order* (who owns which byte) and an affine address for
each of the four components. With `b` the super-block's index in the row and `nbe` their number,

    address(component) = component.plane * nbe + component.block * b + component.offset

from the row's start. Both kernel packages read these rows; neither repeats a number of them.

Grouped, a unit's nibbles are 16 bytes (byte k: value k low, value 16 + k high) and its high bits 8
(for j, k < 4: value 4j + k in bits 2j..2j+1 of byte k, value 16 + 4j + k in the same bits of byte
4 + k). Scales and d are the same bytes in every layout; every other byte of a row is 0.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from probes.core.types import BadInput, Shape

Order = Literal["gguf", "group"]
"""`gguf`: two units share each ql byte, four each qh byte. `group`: each unit owns its bytes."""

BLOCK_BYTES = 210
"""Content of one q6_K super-block: ql 128, qh 64, sc 16, d 2."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Affine address of one component: plane * nbe + block * b + offset, in bytes."""

    plane: int
    block: int
    offset: int


@dataclass(frozen=True, slots=True)
class Layout:
    """One layout: unit order, the four component addresses, and bytes per super-block in a row."""

    name: str
    order: Order
    ql: Piece
    qh: Piece
    sc: Piece
    d: Piece
    block_stride: int

    def row_stride(self, nbe: int) -> int:
        """Bytes from one row to the next: rounded up to 16 so that 16-byte loads stay aligned."""
        return (nbe * self.block_stride + 15) & ~15


def _by_block(name: str, order: Order) -> Layout:
    return Layout(
        name, order, Piece(0, 224, 0), Piece(0, 224, 128), Piece(0, 224, 192), Piece(0, 224, 208), 224
    )


def _by_plane(name: str, order: Order) -> Layout:
    return Layout(name, order, Piece(0, 128, 0), Piece(128, 64, 0), Piece(192, 16, 0), Piece(208, 2, 0), 210)


LAYOUTS: tuple[Layout, ...] = (
    _by_block("padded", "gguf"),
    _by_block("gs", "group"),
    _by_plane("dpl", "gguf"),
    _by_plane("gpl", "group"),
)

COMPONENTS = (("ql", 0, 128), ("qh", 128, 64), ("sc", 192, 16), ("d", 208, 2))
"""Name, offset and size of the four components of a GGUF super-block."""


def layout(name: str) -> Layout:
    """The layout called `name`; BadInput with the close names for any other."""
    for lay in LAYOUTS:
        if lay.name == name:
            return lay
    names = [lay.name for lay in LAYOUTS]
    close = difflib.get_close_matches(name, names, cutoff=0.4) or names
    raise BadInput(f"no layout is called {name!r}; did you mean {' or '.join(close)}?")


def pieces(lay: Layout) -> tuple[Piece, Piece, Piece, Piece]:
    """The layout's ql, qh, sc and d."""
    return lay.ql, lay.qh, lay.sc, lay.d


def check_stride(lay: Layout, nbe: int, stride: int) -> None:
    """Raise BadInput where rows of `stride` bytes cannot hold `nbe` super-blocks of `lay`.

    The stride must be a multiple of 16 (kernels load 16 bytes at a time; an odd one faults) and
    hold every piece. The pieces themselves must be aligned for the loads (ql 16 bytes; qh 16 in
    GGUF order, 8 grouped; sc and d 2) and must not overlap, which a new row may get wrong.
    """
    if nbe < 1:
        raise BadInput(f"a row needs at least one super-block, got {nbe}")
    if stride % 16:
        raise BadInput(
            f"row stride {stride} is misaligned: kernels load 16 bytes, so it must be a multiple of 16"
        )
    if stride < lay.row_stride(nbe):
        raise BadInput(
            f"row stride {stride} is too small: {nbe} blocks of {lay.name} need {lay.row_stride(nbe)}"
        )
    spans = []
    need = (16, 16 if lay.order == "gguf" else 8, 2, 2)
    for (name, _, size), piece, align in zip(COMPONENTS, pieces(lay), need, strict=True):
        if piece.block < 1:
            raise BadInput(f"layout {lay.name}: {name} steps by {piece.block} bytes per super-block")
        first = piece.plane * nbe + piece.offset
        for at in range(first, first + piece.block * nbe, piece.block):
            if at % align:
                raise BadInput(f"layout {lay.name}: {name} at {at} is not aligned to {align} bytes")
            spans.append((at, at + size))
    spans.sort()
    if spans[0][0] < 0 or spans[-1][1] > stride:
        raise BadInput(
            f"layout {lay.name}: pieces lie at {spans[0][0]}..{spans[-1][1]} of a row of {stride} bytes"
        )
    for (_, last), (first, _) in pairwise(spans):
        if first < last:
            raise BadInput(f"layout {lay.name}: pieces overlap at byte {first}")


@dataclass(frozen=True, slots=True)
class Ledger:
    """The bytes of one matrix in one layout.

    content_bytes: what the format needs (od * nbe * 210). stored_bytes: od * row_stride.
    dead_bytes: stored but never read. align_bytes: the largest power of two, up to 256, that
    divides every row's start where the matrix itself starts on 256.
    """

    layout: str
    content_bytes: int
    stored_bytes: int
    dead_bytes: int
    row_stride: int
    align_bytes: int


def ledger(lay: Layout, shape: Shape) -> Ledger:
    """The byte ledger of `shape` stored in `lay`."""
    stride = lay.row_stride(shape.nbe)
    content = shape.od * shape.nbe * BLOCK_BYTES
    stored = shape.od * stride
    return Ledger(lay.name, content, stored, stored - content, stride, min(256, stride & -stride))
