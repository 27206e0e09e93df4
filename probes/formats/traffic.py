"""Which bytes the warps of a q6_K kernel ask for, and what memory moves to answer.

Addresses follow the layout's row, as the loop form issues them: a warp takes 32 consecutive units of one row,
and a unit asks for

    gguf order   ql 16 + 16 B, qh 16 + 16 B, sc 2 B, d 2 B    (68 B; 26.25 B are its own)
    group order  ql 16 B, qh 8 B, sc 2 B, d 2 B               (28 B)
    both         40 B of pad40 activations as five 8-byte loads at 40 * unit

`pf`, `pf3` and `stream` ask for the same bytes. The matrix starts on a multiple of 256 B, as allocations do.

A *sector* is 32 B, a *line* 128 B. Rows repeat their phase against them after a few rows (dpl strides are
multiples of 16, not of 32), so those rows are traced once and multiplied: exact, and milliseconds. Addresses
within a row repeat their phase every 256 super-blocks, so a long row is counted from two short ones.

A *wavefront* is one L1 cycle, a lower bound: a load of w bytes per lane is served 128 B at a time, hence in
groups of 128 / w neighbouring lanes (all 32 for w <= 4); a group costs one cycle, or as many as the distinct
4-byte words it wants from the busiest of 32 banks. Tag look-ups are left out: a cycle for each line would
give 35 us to a kernel that an H200 ran in 24.

What larger pieces would cost, in bytes fetched per super-block of 210 (nbe 54):

    scope     padded 32 B  padded 64 B  dpl 32 B  dpl 64 B   a piece is fetched once per ...
    matrix          224.0        224.0     210.1     210.1   matrix (perfect sharing)
    block           224.0        256.0     288.0     416.0   super-block, each by itself
    load            224.0        320.0     210.1     244.7   warp load, for sectors not there yet

Like for like, dpl saves 6 % (matrix) or 24 % (load); the recorded 17 % lies between. So 64-byte fetches are a
hypothesis that the trace bounds, no more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from probes.core.types import BadInput, Shape
from probes.formats.layouts import BLOCK_BYTES, Layout, pieces

SECTOR, LINE, WORD = 32, 128, 4  # bytes
BANKS = WARP = 32
UNITS_PER_BLOCK = 8
REPEAT = 256  # super-blocks after which all addresses of a row have the same phase again

UNIT_BYTES = BLOCK_BYTES / UNITS_PER_BLOCK  # a unit's own weight bytes, in flight per thread: 26.25

Scope = Literal["matrix", "block", "load"]
I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Load:
    """One load instruction of the unit: bytes per lane and, for every unit, its address in the row."""

    name: str
    width: int
    address: I64


@dataclass(frozen=True, slots=True)
class LoadCount:
    """One load instruction over a whole launch: bytes that active lanes ask for, L1 cycles at least."""

    name: str
    requested_bytes: int
    wavefronts: int


@dataclass(frozen=True, slots=True)
class Requests:
    """What a launch asks of L1, load by load, weights before activations."""

    loads: tuple[LoadCount, ...]
    weight_requested_bytes: int
    requested_bytes: int
    wavefronts: int


def weight_loads(lay: Layout, nbe: int) -> tuple[Load, ...]:
    """The loads of every unit of one row, in issue order; addresses i64[8 * nbe] from the row's start."""
    unit = np.arange(UNITS_PER_BLOCK * nbe, dtype=np.int64)
    block, pair = unit >> 3, unit & 7
    ql, qh, sc, d = (piece.plane * nbe + piece.block * block + piece.offset for piece in pieces(lay))
    if lay.order == "group":
        quants = [Load("ql", 16, ql + 16 * pair), Load("qh", 8, qh + 8 * pair)]
    else:
        chunk = pair >> 2
        halves = (("ql", ql + 64 * chunk + 32 * (pair & 1)), ("qh", qh + 32 * chunk))
        quants = [load for n, at in halves for load in (Load(n, 16, at), Load(f"{n}+16", 16, at + 16))]
    return (*quants, Load("sc", 2, sc + 2 * pair), Load("d", 2, d))


def activation_loads(nbe: int) -> tuple[Load, ...]:
    """The five 8-byte loads of each unit's pad40 activations; the same for every row."""
    unit = np.arange(UNITS_PER_BLOCK * nbe, dtype=np.int64)
    return tuple(Load(f"x8+{at}", 8, 40 * unit + at) for at in range(0, 40, 8))


def _by_length(count: Callable[[int], int], nbe: int) -> int:
    """count(nbe) of a row of nbe super-blocks; of a long one from two short ones, exactly.

    REPEAT more super-blocks move every plane's start and the row's end by a multiple of 256 B and leave whole
    warps, so whatever is counted per granule, bank or warp load grows by the same amount each time.
    """
    if nbe < 3 * REPEAT:
        return count(nbe)
    first = REPEAT + nbe % REPEAT
    least, more = count(first), count(first + REPEAT)
    return least + (nbe - first) // REPEAT * (more - least)


def _period(stride: int, granule: int) -> int:
    """Rows after which a row starts at the same place in its granule again."""
    return granule // math.gcd(stride, granule)


def _spans(start: I64, width: int, granule: int) -> I64:
    """Granules of `[start, start + width)`, shape (n, k); narrower spans repeat their last granule."""
    first, last = start // granule, (start + width - 1) // granule
    most = int((last - first).max(initial=0)) + 1
    spans: I64 = np.minimum(first[:, None] + np.arange(most), last[:, None])
    return spans


def _rows_fetched(lay: Layout, nbe: int, rows: int, granule: int, scope: Scope) -> int:
    """Granules fetched for `rows` rows from a granule-aligned start, distinct within each scope."""
    unit = np.arange(UNITS_PER_BLOCK * nbe, dtype=np.int64)
    warps = -(-len(unit) // WARP)
    loads = weight_loads(lay, nbe)
    small = min(granule, SECTOR) if scope == "load" else granule
    touched, owner = [], []
    for row in range(rows):
        for i, load in enumerate(loads):
            span = _spans(row * lay.row_stride(nbe) + load.address, load.width, small)
            group = {
                "matrix": np.zeros_like(unit),
                "block": row * nbe + (unit >> 3),
                "load": (row * warps + unit // WARP) * len(loads) + i,
            }[scope]
            touched.append(span.ravel())
            owner.append(np.repeat(group, span.shape[1]))
    piece, group = np.concatenate(touched), np.concatenate(owner)
    if scope == "load":  # a sector belongs to the first instruction that asks for it
        order = np.lexsort((group, piece))
        piece, group = piece[order], group[order]
        new = np.flatnonzero(np.diff(piece, prepend=-1))
        piece, group = piece[new] // (granule // small), group[new]
    return int(np.unique(group * (piece.max() + 1) + piece).size)


@cache
def fetched_bytes(lay: Layout, shape: Shape, granularity: int, scope: Scope) -> int:
    """Weight bytes moved when every piece of `granularity` bytes is fetched once per `scope`.

    "matrix": once in all, what a perfect cache moves. "block": once for each super-block, as if nothing were
    shared beyond it. "load": 32-byte sectors are kept once fetched, but each warp load fetches whole pieces
    for the sectors it misses, and drops the rest. BadInput for a granularity that is no power of 2 up to 256.
    """
    if granularity < 1 or granularity & (granularity - 1) or granularity > 256:
        raise BadInput(f"granularity must be a power of two up to 256 bytes, got {granularity}")
    period = _period(lay.row_stride(shape.nbe), max(granularity, SECTOR))
    full, rest = divmod(shape.od, period)

    def fetched(rows: int) -> int:
        return _by_length(lambda nbe: _rows_fetched(lay, nbe, rows, granularity, scope), shape.nbe)

    count = full * fetched(period) if full else 0
    return (count + (fetched(rest) if rest else 0)) * granularity


def traffic_bytes(lay: Layout, shape: Shape) -> int:
    """32 x the distinct sectors that the weight loads touch: the least to move."""
    return fetched_bytes(lay, shape, SECTOR, "matrix")


def _distinct(values: I64, lanes: int) -> tuple[I64, I64]:
    """Distinct values (n, k) within each run of `lanes` neighbouring units: (run, value) of each."""
    top = int(values.max()) + 1
    run = np.repeat(np.arange(len(values), dtype=np.int64) // lanes, values.shape[1])
    run, value = np.divmod(np.unique(run * top + values.ravel()), top)
    return run, value


def _wavefronts(start: I64, width: int) -> int:
    """L1 cycles at least: per group of lanes, the words wanted from its busiest bank; added up."""
    group, word = _distinct(_spans(start, width, WORD), min(WARP, LINE // width))
    per_bank = np.bincount(group * BANKS + word % BANKS, minlength=(int(group[-1]) + 1) * BANKS)
    return int(per_bank.reshape(-1, BANKS).max(axis=1).sum())


def _cycles(lay: Layout, nbe: int, load: int, row: int) -> int:
    """L1 cycles of one load of a row, the weights' before the activations'; row: its place in the matrix."""
    weights = weight_loads(lay, nbe)
    if load < len(weights):
        own = weights[load]
        return _wavefronts(own.address + row * lay.row_stride(nbe), own.width)
    own = activation_loads(nbe)[load - len(weights)]
    return _wavefronts(own.address, own.width)


@cache
def requests(lay: Layout, shape: Shape) -> Requests:
    """What one launch over the matrix asks of L1: loads, bytes and wavefronts.

    Each row starts its own warps (a block per row), so no instruction spans two rows.
    """
    stride = lay.row_stride(shape.nbe)
    period = _period(stride, LINE)
    full, rest = divmod(shape.od, period)
    weights, activations = weight_loads(lay, 1), activation_loads(1)

    def cycles_of(load: int, row: int = 0) -> int:
        return _by_length(lambda nbe: _cycles(lay, nbe, load, row), shape.nbe)

    phases = [(k, full + (k < rest)) for k in range(min(period, shape.od))]
    cycles = [sum(n * cycles_of(i, k) for k, n in phases) for i in range(len(weights))]
    cycles += [shape.od * cycles_of(len(weights) + i) for i in range(len(activations))]
    asked = [shape.od * shape.nunits * load.width for load in (*weights, *activations)]
    names = [load.name for load in (*weights, *activations)]
    counts = tuple(map(LoadCount, names, asked, cycles))
    return Requests(counts, sum(asked[: len(weights)]), sum(asked), sum(cycles))
