"""What the rings stand on, without a kernel: drawn tickets, the halved butterfly, geometries that fit."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest

from probes.core.types import BadInput, Shape, Unavailable
from probes.device import facts as profiles
from probes.device import pipeline
from probes.device.facts import DeviceFacts
from probes.device.tuning import Geometry
from probes.engine.probe import Case
from probes.formats import reduction
from probes.formats.layouts import LAYOUTS, Layout, check_stride
from probes.l1 import plan, table

H200 = profiles.load("h200")


def planned(
    lay: Layout, form: str, shape: Shape, geometry: Geometry, facts: DeviceFacts = H200
) -> pipeline.Plan:
    made = plan.ring(table.variant(f"{lay.name}_{form}"), shape, geometry, facts).ring
    assert made
    return made


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


# Geometry


@pytest.mark.parametrize("case", table.CASES, ids=lambda c: c.id)
def test_every_case_has_a_geometry_that_fits_an_h200(case: Case) -> None:
    fitting = 0
    assert case.shape
    for lay in LAYOUTS:
        stride = lay.row_stride(case.shape.nbe)
        for geometry in plan.CANDIDATES:
            try:
                made = planned(lay, "ring", case.shape, geometry)
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
    lay, small, one = LAYOUTS[3], Shape(8, 256), Geometry(1, 1)
    with pytest.raises(Unavailable, match="bytes of shared memory"):
        planned(lay, "ring", Shape(8, 284160), one)
    with pytest.raises(Unavailable, match="bulk copies need sm_90, this GPU is sm_86"):
        planned(lay, "ring", small, one, dataclasses.replace(H200, arch="sm_86"))
    assert planned(lay, "async", small, one, dataclasses.replace(H200, arch="sm_86")).stages == 1
    with pytest.raises(Unavailable, match=r"cp\.async needs sm_80, this GPU is sm_75"):
        planned(lay, "async", small, one, dataclasses.replace(H200, arch="sm_75"))
    for wrong in (Geometry(0, 1), Geometry(33, 1), Geometry(1, 0)):
        with pytest.raises(BadInput, match="a ring needs"):
            planned(lay, "ring", small, wrong)
    with pytest.raises(BadInput, match="misaligned"):
        check_stride(lay, small.nbe, 232)
