"""L3's kernels, one claim each on every machine: the forms, their traced twins, the rings.

On the host the rings have barriers, bulk copies that land late, and blocks in any order.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probes.core.types import Unavailable
from probes.device import pipeline
from probes.device.tuning import Geometry
from probes.l3 import data, plan, table
from probes.l3.data import Wanted
from tests.kernels.machines import HostCpp, given, over, ring, room, written

STRIDE = table.Q4K_BLOCK_BYTES


class GateUp:
    """Gate and up rows, their activations, and what every kernel must return."""

    def __init__(self, nf: int, cols: int, seed: int = 3) -> None:
        raw, x8 = data.random_gate_up(nf, cols, seed), data.random_x8(cols, seed + 1)
        self.nf, self.cols, self.nbe, self.want = nf, cols, cols // 256, Wanted.of(data.oracle(raw, x8))
        self.w, self.x8 = given(raw), given(x8)

    def ring(self, form: str, choice: Geometry, grid: int) -> pipeline.Plan:
        """A ring of any geometry: its stages and sets, and a grid of our own."""
        others = 2 if form == "form_c" else 1
        sizes = choice.rows, choice.stages, grid, choice.drawn, choice.sets, others
        return ring(self.nbe * 4, self.nbe * STRIDE, *sizes)

    def matmul_ring(self, machine: Any, made: pipeline.Plan, order: int = 0) -> None:
        gu, counter, c = room(2 * self.nf), np.zeros(1, np.uint32), made.config
        pointers = self.w, self.x8, gu, counter if made.drawn else None
        args = *pointers, self.nbe, 2 * self.nf, made.rows, made.stages
        machine.run("l3_matmul_ring", args, c.grid, c.block, c.smem_bytes, order=order)
        np.testing.assert_array_equal(written(gu), self.want.gu.view(np.uint32), err_msg=f"{made} {order}")
        assert counter[0] == 0

    def form_c(self, machine: Any, made: pipeline.Plan, order: int = 0) -> None:
        """Two launches: the second one stands on the words that the first one left."""
        words, counter, c = np.zeros(2 * self.nf, np.uint32), np.zeros(1, np.uint32), made.config
        for _ in range(2):
            out = room(self.want.q8.size)
            pointers = self.w, self.x8, out, words, counter if made.drawn else None
            args = *pointers, self.nbe, self.nf, made.rows, made.stages
            machine.run("l3_form_c", args, c.grid, c.block, c.smem_bytes, order=order, at_once=True)
            np.testing.assert_array_equal(written(out), self.want.q8, err_msg=f"{made} {order}")
            assert not words.any() and not counter.any(), "a word is not back at 0"

    def check(self, machine: Any, form: str, made: pipeline.Plan, order: int = 0) -> None:
        (self.form_c if form == "form_c" else self.matmul_ring)(machine, made, order)


# The forms

SHAPES = [(32, 256), (64, 512), (32, 16640)]
"""The last has 260 units, so that some threads have two and the staged form's further units are seen."""

SIZES = [(nf, cols) for nf in (32, 64, 96, 1024) for cols in (256, 512, 5120)]
SIZES += [(64, 16640), (32, 16640)]


def launch(
    machine: Any, kernel: str, args: tuple[Any, ...], grid: int, want: NDArray[Any], order: int
) -> None:
    """One launch whose result stands in the place of ..., to the bit; of a slow machine's blocks two."""
    out, expected = room(want.size), want.view(np.uint32)
    own = tuple(out if a is ... else a for a in args)
    ran = machine.run(kernel, own, grid, order=order, few=True)
    got = written(out, kernel)
    each = -(-want.size // grid)
    hit = np.isin(np.arange(got.size) // each, ran)
    np.testing.assert_array_equal(got[hit], expected[hit], err_msg=f"{kernel} order {order}")
    assert (got[~hit] == 0xFFFFFFFF).all()


@over(
    "nf,cols,order", cu=[(*s, order) for s in SHAPES for order in (0, 1, 7)], numba=[(32, 256, 0)],
    gpu=[(*s, 0) for s in SIZES], small=[(32, 256, 0), (64, 16640, 0)],
)  # fmt: skip
def test_every_form_equals_the_oracle(machine: Any, nf: int, cols: int, order: int) -> None:
    """On fibers threads in order, backwards and shuffled: an answer that depends on the order is a race."""
    for seed in (0, 17) if machine.live else (3,):
        m = GateUp(nf, cols, seed)
        w, x8, nbe, want = m.w, m.x8, m.nbe, m.want
        gu, h, finish = given(want.gu), given(want.h), -(-nf // 256)
        for kernel, args, grid, expected in (
            ("matmul", (w, x8, ..., nbe), 2 * nf, want.gu),
            ("form_a", (w, x8, ..., nf, nbe), nf, want.h),
            ("form_b", (w, x8, ..., nf, nbe), nf // 32, want.q8),
            ("form_b_staged", (w, x8, ..., nf, nbe), nf // 32, want.q8),
            ("swiglu_quant", (gu, ..., nf), finish, want.q8),
            ("quant", (h, ..., nf), finish, want.q8),
        ):
            launch(machine, f"l3_{kernel}", args, grid, expected, order)


@pytest.mark.parametrize("v", [v for v in table.VARIANTS if not v.ring], ids=lambda v: v.name)
def test_a_traced_twin_gives_the_same_and_an_sm_per_block(machine: Any, v: table.Fusion) -> None:
    m = GateUp(96 if machine.backend == "cu" or machine.live else 32, 256, 1)
    grid = plan.config(v, m.nf).grid
    sm, want = room(grid), {"pair": m.want.gu, "form_a": m.want.h}.get(v.name, m.want.q8)
    ints = (m.nbe,) if v.sums_alone else (m.nf, m.nbe)
    out = room(want.size)
    ran = machine.run(v.traced, (m.w, m.x8, out, *ints, sm), grid, few=True)
    hit = np.isin(np.arange(want.size) // (want.size // grid), ran)
    np.testing.assert_array_equal(written(out)[hit], want.view(np.uint32)[hit])
    sms = machine.facts.sms if machine.live else 1
    assert (written(sm)[ran] < sms).all()


# The rings: barriers, bulk copies that land late, blocks in any order

RING_SHAPES = [(32, 256), (64, 5120), (96, 512), (32, 8192), (32, 16640), (32, 50176)]
"""One to eight virtual warps, two units per thread, and more than registers hold."""

GPU_SHAPES = [*product((32, 64, 96, 13824), (256, 512, 5120, 16640)), (480, 512)]
FORMS = {"pair_ring": "matmul_ring", "form_c": "form_c"}
HOST_RINGS = (
    (1, 1, 1, False), (2, 2, 3, False), (4, 3, 2, True), (8, 2, 4, False), (16, 1, 2, False), (1, 3, 5, True),
    (32, 2, 2, True),
)  # fmt: skip
"""Rows, stages, blocks, whether tickets are drawn."""

GEOMETRIES = [
    Geometry(rows, blocks, stages, drawn, sets)
    for rows, blocks, stages, sets in (
        (1, 4, 0, 1), (2, 3, 2, 1), (4, 3, 0, 1), (8, 1, 1, 1), (16, 1, 0, 1), (4, 3, 2, 2), (8, 2, 2, 4),
        (16, 1, 2, 3), (1, 1, 2, 2), (32, 1, 2, 1),
    )
    for drawn in (False, True)
]  # fmt: skip


def planned(machine: Any, m: GateUp, name: str, choice: Geometry) -> pipeline.Plan:
    """A geometry on a GPU. Raises Unavailable where it does not fit, or not all of form_c's blocks at once.

    Small sizes run under sanitizers, which may leave room for one block on an SM.
    """
    v, facts = table.variant(name), machine.facts
    made = plan.ring(v, table.made("test", m.nf, m.cols), choice, facts).ring
    assert made
    c, kernel = made.config, machine.kernel(v.reader)
    kernel.make_room(facts.smem_per_block_max_bytes - kernel.resources.smem_bytes)
    fit = kernel.blocks_per_sm(c.block, c.smem_bytes) * facts.sms
    assert fit > 0
    most = fit if m.nf > 10_000 else min(fit, facts.sms)
    if name == "form_c" and c.grid > most:
        raise Unavailable("form_c's blocks wait for each other: all must run at once")
    return made


def rings(machine: Any, m: GateUp, name: str) -> Iterator[tuple[pipeline.Plan, int]]:
    """(launch, order) of every geometry."""
    if machine.live:
        for choice in GEOMETRIES:
            try:
                yield planned(machine, m, name, choice), 0
            except Unavailable:
                continue
        return
    for rows, stages, grid, drawn in HOST_RINGS if machine.backend == "cu" else HOST_RINGS[2:5]:
        for order in (0, 1, 2, 3) if machine.backend == "cu" else (5,):
            choice = Geometry(rows, 1, stages, drawn, 1 + order % 3)
            yield m.ring(name, choice, grid), order


@pytest.mark.sampled(1, "host")
@over("nf,cols", cu=RING_SHAPES, numba=[(64, 512)], gpu=GPU_SHAPES, small=[(32, 256), (480, 512)])
def test_the_rings_equal_the_oracle_in_every_geometry(machine: Any, nf: int, cols: int) -> None:
    """Whoever finishes a group last, its q8 block is the same; what must be 0 is 0 again."""
    m, seen = GateUp(nf, cols), set[Any]()
    for name in FORMS:
        for made, order in rings(machine, m, name):
            m.check(machine, name, made, order)
            seen |= {(name, made.drawn), made.config.block}
    assert {(name, False) for name in FORMS} <= seen
    assert machine.live or {(name, True) for name in FORMS} <= seen
    if nf == 13824:
        assert {(name, True) for name in FORMS} <= seen, "tickets were drawn too"
    if machine.live and cols == 5120:
        assert {160, 448} <= seen, "one set of consumers and four"
    if not machine.live:
        m.matmul_ring(machine, m.ring("pair_ring", Geometry(7 if machine.backend == "cu" else 5, 1, 2), 3), 5)


GROUPS = ["4r3b2s-drawn", "8r2b2s4x-dealt", "2r4b0s2x-drawn", "32r1b2s3x-drawn", "1r2b3s-dealt"]


@pytest.mark.sampled(3, "host")
@over(
    "nf,text",
    cu=[(nf, "any") for nf in (32, 96, 160)],
    numba=[(96, "4r1b2s-drawn")],
    gpu=[(0, t) for t in GROUPS],
)
def test_form_c_is_right_with_any_number_of_groups(machine: Any, nf: int, text: str) -> None:
    """Fewer than a grid has blocks, as many, more, and no multiple: a group's parts are near or far apart."""
    if machine.live:
        choice = Geometry.parse(text)
        blocks = choice.blocks_per_sm * machine.facts.sms
        for groups in (1, 3, blocks // 2 - 1, blocks - 1, blocks, blocks + 1, 3 * blocks + blocks // 2 + 1):
            m = GateUp(32 * groups, 512)
            made = plan.ring(
                table.variant("form_c"), table.made("test", m.nf, 512), choice, machine.facts
            ).ring
            assert made and made.config.grid == min(blocks, 64 * groups // choice.rows)
            m.form_c(machine, made)
        return
    m = GateUp(nf, 256)
    if text != "any":
        m.form_c(machine, m.ring("form_c", Geometry.parse(text), 2))
        return
    for rows, stages, grid, drawn in product(
        plan.ROWS["form_c"], (1, 2, 3), (1, 2, 3, 4, 5, 7), (False, True)
    ):
        order = rows + 5 * stages + grid
        m.form_c(machine, m.ring("form_c", Geometry(rows, 1, stages, drawn, 1 + order % 3), grid), order)


@pytest.mark.sampled(2, "")
@pytest.mark.parametrize("stages", [1, 2, 3, 8])
def test_any_warp_of_form_c_may_lag_behind_as_far_as_the_others_let_it(
    l3_on_host: ctypes.CDLL, stages: int
) -> None:
    """Most of all the finisher, which tells of a stage that it may be filled again before it has its sums."""
    m = GateUp(64, 256)
    for rows, grid in ((1, 1), (2, 1), (2, 2), (1, 5)):
        for seed in range(2, 18):
            choice = Geometry(rows, 1, stages, bool(seed % 2), 1 + seed % 3)
            m.form_c(HostCpp(lambda stem: l3_on_host), m.ring("form_c", choice, grid), seed)
