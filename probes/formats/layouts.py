"""The q6_K weight layouts of L1: where the pieces of a super-block lie in a stored row.

A layout is one row of `LAYOUTS`, which both kernel packages read: a unit *order* (who owns which byte) and an
affine address, from the row's start, for each of the four components of super-block b of nbe:

    address(component) = component.plane * nbe + component.block * b + component.offset

Grouped, a unit's nibbles are 16 bytes (byte k: value k low, value 16 + k high) and its high bits 8
(for j, k < 4: value 4j + k in bits 2j..2j+1 of byte k, value 16 + 4j + k in the same bits of byte
4 + k). Scales and d are the same bytes in every layout; every other byte of a row is 0.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Literal

from probes.core.types import BadInput, Shape

Order = Literal["gguf", "group"]
"""`gguf`: two units share each ql byte, four each qh byte. `group`: each unit owns its bytes."""

BLOCK_BYTES = 210  # content of one q6_K super-block: ql 128, qh 64, sc 16, d 2


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


_BY_BLOCK = (Piece(0, 224, 0), Piece(0, 224, 128), Piece(0, 224, 192), Piece(0, 224, 208), 224)
_BY_PLANE = (Piece(0, 128, 0), Piece(128, 64, 0), Piece(192, 16, 0), Piece(208, 2, 0), 210)

LAYOUTS: tuple[Layout, ...] = (
    Layout("padded", "gguf", *_BY_BLOCK),
    Layout("gs", "group", *_BY_BLOCK),
    Layout("dpl", "gguf", *_BY_PLANE),
    Layout("gpl", "group", *_BY_PLANE),
)

# name, offset and size of the four components of a GGUF super-block
COMPONENTS = (("ql", 0, 128), ("qh", 128, 64), ("sc", 192, 16), ("d", 208, 2))


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


@cache
def check_stride(lay: Layout, nbe: int, stride: int) -> None:
    """Raise BadInput where rows of `stride` bytes cannot hold `nbe` super-blocks of `lay`.

    The stride must be a multiple of 16 (an unaligned 16-byte load faults) and hold every piece. Pieces must
    be aligned for the loads (ql 16 bytes; qh 16 in GGUF order, 8 grouped; sc and d 2), and not overlap.
    """
    if nbe < 1:
        raise BadInput(f"a row needs at least one super-block, got {nbe}")
    if stride % 16:
        why = "kernels load 16 bytes, so it must be a multiple of 16"
        raise BadInput(f"row stride {stride} is misaligned: {why}")
    if stride < (need := lay.row_stride(nbe)):
        raise BadInput(f"row stride {stride} is too small: {nbe} blocks of {lay.name} need {need}")
    spans = []
    aligns = (16, 16 if lay.order == "gguf" else 8, 2, 2)
    for (name, _, size), piece, align in zip(COMPONENTS, pieces(lay), aligns, strict=True):
        if piece.block < 1:
            raise BadInput(f"layout {lay.name}: {name} steps by {piece.block} bytes per super-block")
        first = piece.plane * nbe + piece.offset
        for at in range(first, first + piece.block * nbe, piece.block):
            if at % align:
                raise BadInput(f"layout {lay.name}: {name} at {at} is not aligned to {align} bytes")
            spans.append((at, at + size))
    spans.sort()
    start, end = spans[0][0], spans[-1][1]
    if start < 0 or end > stride:
        raise BadInput(f"layout {lay.name}: pieces lie at {start}..{end} of a row of {stride} bytes")
    for (_, last), (first, _) in pairwise(spans):
        if first < last:
            raise BadInput(f"layout {lay.name}: pieces overlap at byte {first}")


@dataclass(frozen=True, slots=True)
class Ledger:
    """The bytes of one matrix in one layout."""

    content_bytes: int  # what the format needs: od * nbe * 210
    stored_bytes: int  # od * row_stride
    dead_bytes: int  # stored, but never read
    row_stride: int
    align_bytes: int  # the largest power of two, up to 256, that divides every row's start


def ledger(lay: Layout, shape: Shape) -> Ledger:
    stride = lay.row_stride(shape.nbe)
    content, stored = shape.od * shape.nbe * BLOCK_BYTES, shape.od * stride
    return Ledger(content, stored, stored - content, stride, min(256, stride & -stride))
