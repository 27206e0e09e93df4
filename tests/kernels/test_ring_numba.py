"""Numba's ring kernels of L2 and L3 without a GPU: their protocol as Python, and their machine code."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probes.core import cubin
from probes.core.types import Resources, Shape, Unavailable
from probes.device import pipeline
from probes.engine import machine_code
from probes.formats import layer as decode_layer
from probes.formats import q4k, q6k, q8, swiglu
from probes.formats.layouts import layout
from probes.formats.packing import pack
from probes.l3.data import Wanted
from tests.numba_on_host import ring as ring_on_host
from tests.numba_on_host.emulator import GATE

STRIDE = 144


def same(got: NDArray[Any], want: NDArray[Any]) -> None:
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


def shuffled(grid: int, seed: int) -> list[int]:
    return [int(b) for b in np.random.default_rng(seed).permutation(grid)]


# form_c's protocol: two warps beside the consumers, sums that meet in memory


def form_c(
    want: Wanted, w: NDArray[Any], x8: Any, nbe: int, rows: int, stages: int,
    grid: int, drawn: bool, seed: int, weights: Any, sets: int = 1,
) -> None:  # fmt: skip
    """Two launches in a row, all blocks at once: every q8 word, and all that must be 0 again."""
    from kernels_numba import l3_ring

    def make(ops: Any) -> Any:
        return l3_ring._form_c(ops, weights(ops))

    nf = want.h.size
    words, counter = np.zeros(2 * nf, np.uint32), np.zeros(1, np.uint32)
    for again in range(2):
        out = np.full(nf // 32 * 10 + 1, 0xFFFFFFFF, np.uint32)
        sizes = map(np.int32, (nbe, nf, rows, stages))
        ring_on_host.launch(
            make, (w, x8, out, words, counter if drawn else None, *sizes), grid, 32 * (sets + 2),
            stages * pipeline.stage_bytes(rows, nbe * STRIDE), [0], seed + again, cluster=grid,
        )  # fmt: skip
        same(out[:-1], want.q8)
        assert out[-1] == 0xFFFFFFFF, "a word past the end was written"
        assert not words.any() and not counter.any(), "a word is not back at 0"


@pytest.mark.sampled(6, "")
@pytest.mark.parametrize(
    ("nf", "rows", "stages", "grid", "drawn"),
    [
        (32, 16, 1, 1, False), (32, 1, 3, 4, True), (64, 2, 2, 3, False), (64, 2, 2, 3, True),
        (96, 4, 3, 2, True), (160, 8, 2, 2, False), (64, 8, 1, 1, True), (128, 8, 1, 4, True),
        (128, 16, 4, 3, False), (160, 32, 1, 3, False), (160, 32, 1, 3, True), (64, 1, 2, 1, False),
        (32, 32, 2, 3, False),
    ],
)  # fmt: skip
def test_every_group_is_quantised_once_whoever_has_its_rows(
    nf: int, rows: int, stages: int, grid: int, drawn: bool
) -> None:
    """Every row is worth a 16th of its first word, so that a row in the wrong place shows."""
    w = np.zeros((2 * nf, STRIDE // 4), np.int32)
    w[:, 0] = np.random.default_rng(nf).permutation(2 * nf) - nf
    gu = (w[:, 0] / 16).astype(np.float32)
    h = swiglu.swiglu(gu[:nf], gu[nf:])
    want = Wanted(gu=gu, h=h, q8=q8.quantise(h).view(np.uint32))
    form_c(
        want, w.view(np.uint8), None, 1, rows, stages, grid, drawn, seed=nf + rows,
        weights=ring_on_host.stand_in(32, 1, 2.0**-9), sets=1 + rows // 8 % 3,
    )  # fmt: skip


# L2's hooks: what a block waits for, fetches and triggers


class Gate:
    """A kernel's waits and, by block, how many copies were under way at each tail trigger."""

    def __init__(self) -> None:
        self.waits, self.tails = 0, list[int]()

    def of(self, block: ring_on_host.Block) -> SimpleNamespace:
        return SimpleNamespace(
            **vars(GATE) | {"late_wait": self.wait, "tail": lambda flags: self.tails.append(block.copied)}
        )

    def wait(self) -> None:
        self.waits += 1


@pytest.mark.parametrize("name", ["q4k", "q6k"])
@pytest.mark.parametrize(
    ("kind", "ahead", "fetched"), [("plain", 3, 0), ("late", 3, 3), ("late", 99, 4), ("entry", 0, 0)]
)
def test_l2_s_ring_kernels_equal_the_oracle_and_hand_on(
    name: str, kind: str, ahead: int, fetched: int
) -> None:
    """Rows, the successor's activations, what each block prefetched, its tail trigger; next8 may be null.

    A block has six tickets and two stages. The tail must come once, when all six were asked for.
    """
    from kernels_numba import held, l2_ring, q4k_held

    shape = Shape(12, 512)
    raw = decode_layer.weights(shape, 3, "q4_K" if name == "q4k" else "q6_K")
    w = raw if name == "q4k" else pack(raw, layout("dpl"))
    x8 = q8.quantise(np.random.default_rng(4).standard_normal(shape.id).astype(np.float32))
    want = (q4k if name == "q4k" else q6k).reference(raw, x8)

    def make(ops: Any) -> Any:
        rows = q4k_held.rows(ops) if name == "q4k" else held.rows(ops, layout("dpl"))
        return l2_ring._ring(ops, rows, kind)

    stride, grid, stages, rows = w.shape[1], 2, 2, 1
    for following in (np.zeros(shape.id // 32 * 10, np.uint32), None):
        out, gate = np.full(shape.od + 1, np.nan, np.float32), Gate()
        sizes = map(np.int32, (shape.nbe, stride, shape.od, rows, stages, ahead, 0))
        asked = ring_on_host.launch(
            make, (w, x8, following, out, *sizes, None), grid, 64,
            stages * pipeline.stage_bytes(rows, stride), shuffled(grid, ahead), gate=gate.of,
        )  # fmt: skip
        same(out[:-1], want)
        assert np.isnan(out[-1])
        assert len(asked) == fetched * grid
        assert {at // stride for at, _ in asked} <= set(range(grid * stages, shape.od))
        assert all(size == stride for _, size in asked) and len(set(asked)) == len(asked)
        assert gate.tails == [6] * grid and gate.waits == 32 * grid
        if following is not None:
            rotated = np.roll(x8.reshape(-1, 40), 1, axis=0).reshape(-1)
            np.testing.assert_array_equal(following.view(np.uint8), rotated)


# Machine code

BUDGET = {threads: 65536 // (2 * threads) // 8 * 8 for threads in (320, 448)}
"""Registers of a thread where two blocks of so many threads fit on an SM."""


def compiled(module: str, names: list[str], arch: str) -> dict[str, tuple[list[str], Resources]]:
    """Opcodes and resources of some kernels; skips without the tools."""
    from kernels_numba import compile as numba_compile

    try:
        paths = numba_compile.compiled(module, names, arch)
        return {
            name: (
                machine_code.opcodes(path)[name],
                cubin.kernels(path.read_bytes())[name].resources,
            )
            for name, path in paths.items()
        }
    except Unavailable as error:
        pytest.skip(str(error))


L2 = [f"l2_{weights}_ring_{kind}" for weights in ("q4k", "q6k") for kind in ("plain", "entry", "late")]
L3 = ["l3_matmul_ring", "l3_form_c"]


@pytest.mark.toolchain
@pytest.mark.sampled(1, "l2")
@pytest.mark.parametrize("arch", ["sm_90", "sm_121"])
@pytest.mark.parametrize(("module", "names"), [("l2", L2), ("l3", L3)])
def test_ring_kernels_compile_to_bulk_copies_without_spills(module: str, names: list[str], arch: str) -> None:
    count = machine_code.count
    for name, (ops, resources) in compiled(module, names, arch).items():
        budget = BUDGET[320 if "q6k" in name else 448]
        assert resources.spill_bytes == 0 and resources.registers <= budget, name
        assert resources.smem_bytes == 0, f"{name}: shared memory is the ring's alone"
        assert count(ops, "UBLKCP") and count(ops, "SYNCS") and not count(ops, "STL"), name
        assert not [op for op in ops if op.startswith("LDG") and "CONSTANT" in op], f"{name}: read-only loads"
        kind = re.sub(r".*_", "", name) if module == "l2" else "plain"
        assert count(ops, machine_code.WAIT) == (0 if kind == "plain" else 1), name
        # One place for the early trigger, one for the tail's.
        assert count(ops, machine_code.TRIGGER) == (0 if kind == "plain" else 2), name
        assert count(ops, machine_code.PREFETCH) == (1 if kind == "late" else 0), name
        if kind == "entry":
            assert machine_code.first(ops, machine_code.WAIT) < machine_code.first(ops, "UBLKCP"), name


@pytest.mark.toolchain
def test_form_c_hands_sums_over_in_whole_words_past_l1_and_never_fences() -> None:
    (ops, _), *_ = compiled("l3", ["l3_form_c"], "sm_90").values()
    shared = {op for op in ops if "STRONG.GPU" in op}
    assert shared == {  # both words, or the only one of them that is needed
        "STG.E.STRONG.GPU", "STG.E.64.STRONG.GPU", "LDG.E.STRONG.GPU", "LDG.E.64.STRONG.GPU",
        "ATOMG.E.INC.STRONG.GPU",
    }  # fmt: skip
    assert not [op for op in ops if op.startswith(("MEMBAR.ALL.GPU", "MEMBAR.SC", "ATOMG.E.ADD"))]
