"""The protocol of Numba's ring as the Python it is, on numba_on_host/ring.py: every row once, nobody hangs.

What a consumer makes of a row is replaced by the row's first word for each unit, so that a row in the wrong
place shows.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numba
import numpy as np
import pytest

from probes.device import pipeline
from tests.numba_on_host import ring as ring_on_host

STRIDE, UNITS = 48, 4


def make(ops: Any, most_held: int = 3, form: str = "ring") -> Any:
    """l1_*_ring or l1_*_async over the stand-in's weights."""
    from kernels_numba import l1_ring, ring_block, ring_feed

    weights = ring_on_host.stand_in(UNITS, most_held)(ops)
    run = ring_feed.form(ops, weights, l1_ring._JOBS[form](ops), ring_feed.no_hooks(ops))
    ring_of = ring_block.ring_of(ops)

    def kernel(w: Any, out: Any, counter: Any, nbe: Any, od: Any, rows: Any, stages: Any) -> None:
        parts = ring_of(stages, rows, np.int32(STRIDE), np.int32(nbe * UNITS))
        run(parts, None, nbe, counter, (w, out, np.uint32(od)), 0)

    return kernel


def launch(
    od: int, rows: int, stages: int, grid: int, drawn: bool, consumers: int, nbe: int, sets: int = 1,
    most_held: int = 3, form: str = "ring",
) -> None:  # fmt: skip
    """One launch, its blocks backwards; every row's sum and the counter are looked at."""
    weights = np.zeros((od, STRIDE // 4), np.int32)
    weights[:, 0] = np.arange(od) + 7
    out, counter = np.full(od + 1, -1.0, np.float32), np.zeros(1, np.uint32)
    args = (weights.view(np.uint8), out, counter if drawn else None, *map(np.int32, (nbe, od, rows, stages)))
    ring_on_host.launch(
        partial(make, most_held=most_held, form=form), args, grid, 32 * (sets * consumers + 1),
        stages * pipeline.stage_bytes(rows, STRIDE), reversed(range(grid)), seed=od,
    )  # fmt: skip
    owned = nbe * UNITS
    np.testing.assert_array_equal(out[:od], (np.arange(od) + 7) * owned)
    assert out[od] == -1.0
    assert counter[0] == 0


@pytest.mark.parametrize("form", ["ring", "async"])
@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize(
    ("od", "rows", "stages", "grid", "consumers"),
    [
        (1, 1, 1, 1, 1), (1, 4, 3, 2, 1), (5, 1, 2, 1, 1), (9, 2, 2, 2, 1),
        (23, 4, 2, 2, 1), (16, 4, 1, 1, 2), (13, 3, 2, 1, 1), (14, 7, 1, 1, 1),
    ],
)  # fmt: skip
def test_every_row_comes_out_once(
    form: str, od: int, rows: int, stages: int, grid: int, consumers: int, drawn: bool
) -> None:  # fmt: skip
    launch(od, rows, stages, grid, drawn, consumers, nbe=8 * consumers, form=form)


@pytest.mark.parametrize(("nbe", "consumers"), [(1, 1), (13, 2), (65, 8), (129, 8), (193, 8)])
def test_every_count_of_units_is_summed(nbe: int, consumers: int) -> None:
    """One, two, three and more units per thread, and lanes that have one fewer; held, or read each time."""
    for most_held in (1, 3):
        launch(3, 3, 2, 1, False, consumers, nbe, most_held=most_held)


@pytest.mark.parametrize(("nbe", "consumers"), [(3, 1), (4, 1), (9, 2), (12, 2)])
@pytest.mark.parametrize(("rows", "sets"), [(3, 1), (8, 1), (9, 2), (15, 1), (16, 3)])
def test_a_half_empty_warp_takes_two_rows_at_once(nbe: int, consumers: int, rows: int, sets: int) -> None:
    """16 lanes at most of the last warp own a unit: passes of eight rows, pairs, and one alone."""
    assert 0 < nbe * UNITS - 32 * (consumers - 1) <= 16
    launch(29, rows, 2, 1, True, consumers, nbe, sets)


@pytest.mark.parametrize(
    ("consumers", "sets", "rows"), [(1, 2, 14), (1, 3, 5), (2, 2, 9), (1, 4, 1), (1, 3, 8)]
)
def test_sets_of_consumers_take_passes_by_turns(consumers: int, sets: int, rows: int) -> None:
    launch(23, rows, 2, 1, True, consumers, 8 * consumers, sets)


# The emulator itself


def test_a_wait_that_nothing_ends_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """A barrier that wants one arrival more than comes."""
    monkeypatch.setattr(ring_on_host, "PATIENCE_S", 0.2)

    def make(ops: Any) -> Any:
        from kernels_numba import ring as statements

        asm, block = statements.statements(), numba.cuda

        def kernel() -> None:
            if block.threadIdx.x == 0:
                asm.barrier_init(0, 33)
            block.syncthreads()
            asm.barrier_arrive(0)
            asm.barrier_wait(0, 0)

        return kernel

    with pytest.raises(ring_on_host.Hang, match="waits for 0"):
        ring_on_host.launch(make, (), 1, 32, 16, [0])


def test_a_shuffle_that_one_lane_leaves_out_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_on_host, "PATIENCE_S", 0.2)

    def make(ops: Any) -> Any:
        block = numba.cuda

        def kernel() -> None:
            if block.threadIdx.x != 7:
                block.shfl_sync(0xFFFFFFFF, 1, 0)

        return kernel

    with pytest.raises(AssertionError, match="waits for another that is gone"):
        ring_on_host.launch(make, (), 1, 32, 16, [0])
