"""The ring and async forms without a GPU: the kernels on host fibers, their arithmetic, their machine code.

The C++ kernels run whole, with barriers and bulk copies that land late and in any order
(cuda_on_host/l1_ring.cpp); a hang ends as an error. The Numba twins' arithmetic is compiled by njit, and
their protocol runs as Python in test_l1_ring_numba.py.
"""

from __future__ import annotations

import ctypes
import dataclasses
import random
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probes import l1, l1_ring, sass
from probes.core.types import BadInput, Shape, Unavailable
from probes.device import facts as profiles
from probes.device import pipeline
from probes.formats import packing, q6k, q8, reduction
from probes.formats.layouts import LAYOUTS, Layout
from tests.host_calls import FAULTS, aligned, global_piece, pointer

H200 = profiles.load("h200")


class Case:
    """One matrix in one layout, with its oracle."""

    def __init__(self, shape: Shape, lay: Layout, seed: int = 3) -> None:
        raw, x8 = q6k.random_raw(shape, seed), q8.random_x8(shape.id, seed + 1)
        self.shape, self.lay = shape, lay
        self.want = q6k.reference(raw, x8)
        packed = packing.pack(raw, lay)
        self.stride = packed.shape[1]
        self.w, self.x8 = aligned(packed), aligned(x8)

    def checked(self, out: NDArray[np.float32], what: str) -> None:
        np.testing.assert_array_equal(out[:-1].view(np.uint32), self.want.view(np.uint32), err_msg=what)
        assert np.isnan(out[-1]), f"{what}: a word past the end was written"

    def ring(
        self, lib: ctypes.CDLL, rows: int, stages: int, grid: int, drawn: bool, seed: int, form: str = "ring"
    ) -> None:
        what = (
            f"{form} {self.lay.name} {self.shape} rows {rows} stages {stages} grid {grid} drawn {drawn} "
            f"seed {seed}"
        )
        out = np.full(self.shape.od + 1, np.nan, np.float32)
        counter = np.zeros(1, np.uint32)
        fault = getattr(lib, f"run_{form}_{self.lay.name}")(
            pointer(self.w), pointer(self.x8), pointer(out), pointer(counter if drawn else None),
            self.shape.nbe, self.stride, self.shape.od, rows, stages, grid,
            32 * (pipeline.consumer_warps(self.shape.nunits) + 1),
            ctypes.c_int64(stages * pipeline.stage_bytes(rows, self.stride)), seed,
        )  # fmt: skip
        assert FAULTS[fault] == "none", what
        self.checked(out, what)
        assert counter[0] == 0, f"{what}: the counter is {counter[0]} afterwards"


SHAPES = [Shape(1, 256), Shape(5, 512), Shape(37, 3584), Shape(40, 5120), Shape(11, 13824), Shape(9, 18944)]
MORE = [Shape(3, 7936), Shape(3, 8192), Shape(3, 8448), Shape(3, 16384), Shape(3, 24576), Shape(4, 25600)]
"""Just below, at and above every change of path: one, two, three and more units per thread."""


@pytest.mark.parametrize("form", ["ring", "async"])
@pytest.mark.parametrize("lay", LAYOUTS, ids=lambda lay: lay.name)
@pytest.mark.parametrize("shape", [*SHAPES, *MORE], ids=str)
def test_ring_equals_the_oracle_on_fibers(
    l1_ring_on_host: ctypes.CDLL, lay: Layout, shape: Shape, form: str
) -> None:
    case = Case(shape, lay)
    for rows, stages, grid, drawn in (
        (1, 1, 1, False), (4, 2, 3, False), (4, 3, 2, True), (9, 2, 2, True),
        (2, 3, 5, True), (15, 1, 2, False), (1, 8, 4, True),
    ):  # fmt: skip
        for seed in (0, 1, 2):
            case.ring(l1_ring_on_host, rows, stages, grid, drawn, seed, form)


@pytest.mark.parametrize("form", ["ring", "async"])
@pytest.mark.parametrize("drawn", [False, True])
def test_no_count_of_rows_or_stages_hangs_or_drops_a_row(
    l1_ring_on_host: ctypes.CDLL, drawn: bool, form: str
) -> None:
    """The protocol at a small size: every number of rows around every multiple of a turn of the ring."""
    for od in (*range(1, 14), 24, 25, 32, 33):
        case = Case(Shape(od, 256), LAYOUTS[od % 4], seed=od)
        for rows in (1, 2, 3, 5):
            for stages in (1, 2, 3, 4):
                for grid in (1, 2, 3):
                    case.ring(l1_ring_on_host, rows, stages, grid, drawn, od + 5 * rows + stages, form)


def test_the_ring_keeps_every_stage_in_flight(l1_ring_on_host: ctypes.CDLL) -> None:
    Case(Shape(40, 512), LAYOUTS[3]).ring(l1_ring_on_host, 1, 6, 1, False, 0)
    l1_ring_on_host.most_copies.restype = ctypes.c_int64
    assert l1_ring_on_host.most_copies() == 6


def test_a_wait_that_nothing_ends_is_seen(l1_ring_on_host: ctypes.CDLL) -> None:
    """The emulator itself: a consumer warp too few, and the feeder waits for ever."""
    assert FAULTS[l1_ring_on_host.run_hang()] == "hang"


# Drawn tickets


@pytest.mark.parametrize("seed", range(20))
def test_drawn_tickets_cover_every_row_once_and_leave_the_counter_at_zero(seed: int) -> None:
    """ring_feed's rule with blocks that draw in any order: the fibers run one block at a time."""
    rng = random.Random(seed)
    for _ in range(50):
        tickets, grid, stages = rng.randint(1, 60), rng.randint(1, 8), rng.randint(1, 4)
        last, counter, seen = tickets + grid - grid * stages - 1, 0, []
        drawing = []
        for block in range(grid):
            mine = [block + k * grid for k in range(stages)]
            seen += [t for t in mine if t < tickets]
            if mine[-1] < tickets:
                drawing.append(block)
        while drawing:
            block = rng.choice(drawing)
            old = counter
            counter = 0 if old >= last else old + 1
            ticket = grid * stages + old
            if ticket < tickets:
                seen.append(ticket)
            else:
                drawing.remove(block)
        assert sorted(seen) == list(range(tickets))
        assert counter == 0


# The reduction


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_exchanging_halves_is_the_butterfly_to_the_bit(rows: int) -> None:
    rng = np.random.default_rng(rows)
    terms = (rng.standard_normal((rows, 256)) * 10.0 ** rng.integers(-8, 8, (rows, 256))).astype(np.float32)
    lane = np.arange(32)
    totals = np.zeros(rows, np.float32)
    for warp in range(8):
        acc = [terms[r, 32 * warp : 32 * warp + 32] for r in range(rows)]
        offset = 16
        while offset:
            if len(acc) > 1:
                half, upper = len(acc) // 2, (lane & offset) != 0
                keep = [np.where(upper, acc[half + k], acc[k]) for k in range(half)]
                give = [np.where(upper, acc[k], acc[half + k]) for k in range(half)]
                acc = [a + g[lane ^ offset] for a, g in zip(keep, give, strict=True)]
            else:
                acc = [acc[0] + acc[0][lane ^ offset]]
            offset //= 2
        totals = totals + acc[0][:: 32 // rows]
    np.testing.assert_array_equal(totals.view(np.uint32), reduction.reduce_units(terms).view(np.uint32))


# Numba's arithmetic


@cache
def numba_units(lay: Layout) -> Any:
    """A compiled loop over one row's units: (row, x8, terms, super-blocks, owned), each unit's term."""
    from numba import carray, cfunc, int32, types

    from kernels_numba import held
    from kernels_numba.ops import cpu_ops

    ops = cpu_ops()
    unit = held.functions(ops, lay)
    piece = global_piece(ops, lay.order == "group")
    term, hold, place, activation, group_of = unit.term, unit.hold, unit.place, unit.activation, unit.group_of
    byte, single = types.CPointer(types.uint8), types.CPointer(types.float32)

    @cfunc(types.void(byte, byte, single, types.int32, types.boolean))
    def units(row, x8, terms, nbe, owned):
        out = carray(terms, nbe * 8)
        for u in range(nbe * 8):
            held_unit = hold(activation(x8, int32(u)), owned)
            out[u] = term(piece(row, place(int32(u), nbe)), held_unit, group_of(int32(u & 7)))

    return units


@pytest.mark.parametrize("lay", LAYOUTS, ids=lambda lay: lay.name)
@pytest.mark.parametrize("shape", [Shape(3, 256), Shape(4, 5120), Shape(2, 18944)], ids=str)
def test_numba_terms_equal_the_oracle(lay: Layout, shape: Shape) -> None:
    word = ctypes.c_void_p
    kind = ctypes.CFUNCTYPE(None, word, word, word, ctypes.c_int32, ctypes.c_bool)
    run = kind(numba_units(lay).address)
    raw, x8 = q6k.random_raw(shape, 5), q8.random_x8(shape.id, 6)
    packed, want = packing.pack(raw, lay), q6k.reference(raw, x8)
    terms = np.empty((shape.od, shape.nunits), np.float32)
    for r in range(shape.od):
        run(pointer(packed[r]), pointer(x8), pointer(terms[r]), shape.nbe, True)
    np.testing.assert_array_equal(reduction.reduce_units(terms).view(np.uint32), want.view(np.uint32))
    run(pointer(packed[0]), pointer(x8), pointer(terms[0]), shape.nbe, False)
    assert (terms[0] == 0).all(), "a lane without a unit must add nothing"


# Geometry


@pytest.mark.parametrize("case", l1.CASES, ids=lambda c: c.id)
def test_every_case_has_a_geometry_that_fits_an_h200(case: l1.Case) -> None:
    fitting = 0
    for lay in LAYOUTS:
        stride = lay.row_stride(case.shape.nbe)
        for geometry in l1_ring.CANDIDATES:
            try:
                made = l1_ring.plan(case.shape, lay, stride, geometry, H200)
            except Unavailable:
                continue
            fitting += 1
            c = made.config
            assert c.smem_bytes == made.stages * pipeline.stage_bytes(made.rows, stride)
            assert c.smem_bytes <= H200.smem_per_block_max_bytes
            per_sm = (c.smem_bytes + H200.smem_reserved_per_block_bytes) * geometry.blocks_per_sm
            assert per_sm <= H200.smem_per_sm_bytes
            assert c.block in (160, 192, 288)
            assert made.rows * made.stages * c.grid < case.shape.od + made.rows * (made.stages + c.grid)
    assert fitting > 20


def test_what_cannot_run_says_why() -> None:
    lay, shape = LAYOUTS[3], Shape(8, 284160)
    stride = lay.row_stride(shape.nbe)
    with pytest.raises(Unavailable, match="bytes of shared memory"):
        l1_ring.plan(shape, lay, stride, l1_ring.Geometry(1, 1), H200)
    small = Shape(8, 256)
    one = l1_ring.Geometry(1, 1)
    with pytest.raises(Unavailable, match="bulk copies need sm_90, this GPU is sm_86"):
        l1_ring.plan(small, lay, 224, one, dataclasses.replace(H200, arch="sm_86"))
    assert l1_ring.plan(small, lay, 224, one, dataclasses.replace(H200, arch="sm_86"), "async").stages == 1
    with pytest.raises(Unavailable, match=r"cp\.async needs sm_80, this GPU is sm_75"):
        l1_ring.plan(small, lay, 224, one, dataclasses.replace(H200, arch="sm_75"), "async")
    for wrong in (l1_ring.Geometry(0, 1), l1_ring.Geometry(33, 1), l1_ring.Geometry(1, 0)):
        with pytest.raises(BadInput, match="a ring needs"):
            l1_ring.plan(small, lay, 224, wrong, H200)
    with pytest.raises(BadInput, match="misaligned"):
        l1_ring.plan(small, lay, 232, l1_ring.Geometry(1, 1), H200)


# Machine code


def bulk_and_barriers(ops: list[str]) -> bool:
    """Whether a kernel copies in bulk, waits asleep, and arrives."""
    waits = sass.count(ops, "SYNCS.PHASECHK.TRANS64.TRYWAIT")
    return bool(sass.count(ops, sass.COPY) and waits and sass.count(ops, "SYNCS.ARRIVE"))


@pytest.mark.toolchain
@pytest.mark.parametrize("arch", ["sm_90", "sm_121"])
def test_cpp_compiles_to_bulk_copies_without_spills(arch: str) -> None:
    from kernels_cu import build

    try:
        path = build.library("l1_ring.cu", arch)
        found = sass.opcodes(path)
    except Unavailable as error:
        pytest.skip(str(error))
    resources = {o.name: o.resources for o in build.offline("l1_ring.cu", arch)}
    assert len(resources) == 2 * len(LAYOUTS)
    for name, res in resources.items():
        assert res.spill_bytes == 0, name
        assert res.registers <= 128
        assert bulk_and_barriers(found[name]) is name.endswith("_ring"), name


@pytest.mark.toolchain
@pytest.mark.parametrize("arch", ["sm_90", "sm_121"])
def test_numba_compiles_to_bulk_copies_without_spills(arch: str) -> None:
    from kernels_numba import compile as numba_compile

    names = [f"l1_{lay}_{form}" for lay in ("padded", "gpl") for form in ("ring", "async")]
    try:
        paths = numba_compile.compiled("l1_ring", names, arch)
        found = {name: sass.opcodes(path)[name] for name, path in paths.items()}
    except Unavailable as error:
        pytest.skip(str(error))
    for name, ops in found.items():
        assert bulk_and_barriers(ops) is name.endswith("_ring"), name
        assert not sass.count(ops, "STL"), f"{name} spills"


@pytest.mark.toolchain
def test_before_sm_90_async_alone_is_compiled() -> None:
    from kernels_cu import build

    try:
        resources = {o.name: o.resources for o in build.offline("l1_ring.cu", "sm_80")}
    except Unavailable as error:
        pytest.skip(str(error))
    assert resources["l1_gpl_ring"].registers < 16 < resources["l1_gpl_async"].registers


@pytest.mark.toolchain
@pytest.mark.parametrize("arch", ["sm_80", "sm_89"])
@pytest.mark.parametrize("backend", ["cu", "numba"])
def test_async_needs_nothing_past_sm_80(arch: str, backend: str) -> None:
    """Copies that a barrier counts in, and a wait that only asks."""
    from kernels_cu import build
    from kernels_numba import compile as numba_compile

    name = "l1_gpl_async"
    try:
        if backend == "cu":
            path = build.library("l1_ring.cu", arch)
        else:
            path = numba_compile.compiled("l1_ring", [name], arch)[name]
        ops = sass.opcodes(path)[name]
    except Unavailable as error:
        pytest.skip(str(error))
    assert sass.count(ops, "LDGSTS.E.BYPASS") and sass.count(ops, "ARRIVES.LDGSTSBAR")
    assert not sass.count(ops, sass.COPY) and not [op for op in ops if "TRYWAIT" in op]
