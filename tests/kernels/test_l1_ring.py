"""The ring and async forms: the oracle's bits on every machine, their arithmetic and their machine code.

On the host the C++ kernels run with barriers and bulk copies that land late and in any order, and a hang ends
as an error. What becomes of every ticket of a Numba ring is in test_l1_ring_numba.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probes import cli
from probes.core.types import Shape, Unavailable
from probes.device import pipeline
from probes.device.facts import DeviceFacts
from probes.device.tuning import Geometry
from probes.engine import machine_code
from probes.engine.probe import Case
from probes.formats import packing, q6k, q8, reduction
from probes.formats.layouts import LAYOUTS, Layout
from probes.l1 import plan, table
from probes.report import store
from tests.host_calls import FAULTS, global_piece, pointer
from tests.kernels.machines import HostCpp, given, over, ring, room, written


def planned(lay: Layout, form: str, shape: Shape, geometry: Geometry, facts: DeviceFacts) -> pipeline.Plan:
    made = plan.ring(table.variant(f"{lay.name}_{form}"), shape, geometry, facts).ring
    assert made
    return made


class Matrix:
    """One matrix in one layout, with its oracle."""

    def __init__(self, shape: Shape, lay: Layout, seed: int = 3) -> None:
        raw, x8 = q6k.random_raw(shape, seed), q8.random_x8(shape.id, seed + 1)
        self.shape, self.lay = shape, lay
        self.want = q6k.reference(raw, x8).view(np.uint32)
        packed = packing.pack(raw, lay)
        self.w, self.x8, self.stride = given(packed), given(x8), packed.shape[1]

    def args(self, made: pipeline.Plan, w: Any, x8: Any, out: Any, counter: Any) -> tuple[Any, ...]:
        """A ring's arguments, four pointers first."""
        ints = self.shape.nbe, self.stride, self.shape.od, made.rows, made.stages
        return w, x8, out, counter if made.drawn else None, *ints

    def check(self, machine: Any, form: str, made: pipeline.Plan, order: int = 0) -> None:
        what = f"{form} {self.lay.name} {self.shape} {made} order {order}"
        out, counter, c = room(self.shape.od), np.zeros(1, np.uint32), made.config
        args = self.args(made, self.w, self.x8, out, counter)
        machine.run(f"l1_{self.lay.name}_{form}", args, c.grid, c.block, c.smem_bytes, order=order)
        np.testing.assert_array_equal(written(out, what), self.want, err_msg=what)
        assert counter[0] == 0, f"{what}: the counter is {counter[0]} afterwards"

    def ring(self, rows: int, stages: int, grid: int, drawn: bool) -> pipeline.Plan:
        return ring(self.shape.nunits, self.stride, rows, stages, grid, drawn)


SHAPES = [Shape(1, 256), Shape(5, 512), Shape(37, 3584), Shape(40, 5120), Shape(11, 13824), Shape(9, 18944)]
MORE = [Shape(3, 7936), Shape(3, 8192), Shape(3, 8448), Shape(3, 16384), Shape(3, 24576), Shape(4, 25600)]
"""Just below, at and above every change of path: one, two, three and more units per thread."""

GPU_SHAPES = [
    *(Shape(od, c) for od in (1, 3, 1023) for c in (256, 512, 3584, 5120, 8448, 13824, 16384, 16640, 18944)),
    *(Shape(od, 24576) for od in (1, 3, 64, 1023)),
    *(c.shape for c in table.CASES if c.shape and c.shape.od < 10_000),
    *(Shape(5120, 512), Shape(5120, 5120), Shape(64, 8192), Shape(64, 8448), Shape(64, 25600)),
    *(Shape(512, 8960), Shape(4096, 1024), Shape(2048, 5120), Shape(2048, 3584)),
    Shape(600, 2048),  # few stages and several fills a block on any GPU of up to 300 SMs
]
SMALL = [Shape(3, 256), Shape(3, 8448), Shape(3, 13824), Shape(3, 16640), Shape(3, 18944), Shape(600, 2048)]
RINGS = (
    (1, 1, 1, False), (4, 2, 3, False), (4, 3, 2, True), (9, 2, 2, True), (2, 3, 5, True), (15, 1, 2, False),
    (1, 8, 4, True),
)  # fmt: skip
"""Rows, stages, blocks, whether tickets are drawn: on the host, where no device says what fits."""

GEOMETRIES = [
    Geometry(1, 1), Geometry(1, 2, drawn=True), Geometry(2, 2, drawn=True), Geometry(4, 2, 2),
    Geometry(4, 1, drawn=True), Geometry(8, 1, 1), Geometry(3, 2, 3, drawn=True),
    Geometry(1, 1, 1), Geometry(1, 1, 2, drawn=True),
]  # fmt: skip


def rings(machine: Any, m: Matrix, form: str) -> Iterator[pipeline.Plan]:
    """On a GPU every geometry that fits, and the one that the probe takes for itself."""
    if not machine.live:
        yield from (m.ring(*choice) for choice in RINGS)
        return
    case, args = Case(id="test", shape=m.shape), cli.parser("l1").parse_args([])
    v = table.variant(f"{m.lay.name}_{form}")
    own = plan.plan(v, case, machine.facts, args, machine.backend).ring
    assert own
    yield own
    for geometry in GEOMETRIES:
        try:
            yield planned(m.lay, form, m.shape, geometry, machine.facts)
        except Unavailable:
            continue


@pytest.mark.sampled(1, "host-numba-2x3584")
@pytest.mark.parametrize("form", table.RINGS)
@over(
    "shape", cu=[*SHAPES, *MORE], numba=[Shape(5, 512), Shape(2, 3584)], gpu=dict.fromkeys(GPU_SHAPES),
    small=SMALL,
)  # fmt: skip
def test_a_ring_equals_the_oracle(machine: Any, shape: Shape, form: str) -> None:
    """In every geometry and order; the counter of drawn tickets is 0 again."""
    if machine.live:
        machine.kernel(f"l1_padded_{form}")
    for seed in (1, 20) if machine.live else (3,):
        for lay in LAYOUTS:
            m = Matrix(shape, lay, seed)
            for made in rings(machine, m, form):
                for order in machine.orders:
                    m.check(machine, form, made, order)


@pytest.mark.parametrize("form", table.RINGS)
def test_replays_give_the_same_bits_and_leave_the_counter_at_zero(gpu: Any, form: str) -> None:
    """Only a GPU replays graphs, whose launches follow one another without a pause."""
    from probes.gpu.graph import capture
    from probes.gpu.kernels import Launch, int32
    from probes.gpu.memory import Buffer

    m, kernel = Matrix(Shape(5120, 5120), LAYOUTS[3], 5), gpu.kernel(f"l1_gpl_{form}")
    made = planned(m.lay, form, m.shape, Geometry(2, 2, 3, drawn=True), gpu.facts)
    assert made.drawn
    kernel.make_room(made.config.smem_bytes)
    zero = np.zeros(4, np.uint32)
    with Buffer.of(m.w) as w, Buffer.of(m.x8) as x, Buffer(4 * m.shape.od) as out, Buffer.of(zero) as counter:
        args = m.args(made, w.address, x.address, out.address, counter.address)
        launch = Launch(kernel, made.config, (*args[:4], *map(int32, args[4:])))
        graph = capture(gpu.bench.gpu.stream, [launch] * 20)
        for _ in range(10):
            out.poison()
            for _ in range(20):
                graph.replay()
            np.testing.assert_array_equal(out.download(np.uint32, m.shape.od), m.want)
            assert counter.download(np.uint32, 1)[0] == 0
        graph.close()


@pytest.mark.gpu
def test_a_run_and_a_sweep_of_one_case(bench: Any, tmp_path: Path) -> None:
    """Only a GPU times kernels: every row to the bit, and what the table should hold."""
    if bench.gpu.facts.compute_capability < (9, 0):
        pytest.skip(f"{pipeline.NEEDS['ring'][0]}, this GPU is {bench.gpu.facts.arch}")
    out = tmp_path / "l1.json"
    common = ["--windows", "2", "-q", "--json", str(out)]
    argv = ["--case", "attn_v_7b", "--form", "ring", "--form", "async", "--layout", "gpl", *common]
    assert cli.main("l1", argv) in (0, 3)
    _, rows = store.read_json(out)
    for variant in ("gpl_ring", "gpl_async", "padded_ring", "padded_ring_aa", "padded_loop"):
        mine = [r for r in rows if r.variant == variant and not r.verdict]
        assert mine and all(r.bitwise is True and r.waves for r in mine), variant
    assert cli.main("l1", [*argv, "--sweep"]) == 0
    _, swept = store.read_json(out)
    assert all(r.bitwise or r.skipped for r in swept)
    text = out.with_suffix(".md").read_text()
    assert "[l1.attn_v_7b]\ngpl = " in text and "padded = " not in text


# What the emulator alone can show


@pytest.mark.parametrize("form", table.RINGS)
@pytest.mark.parametrize("drawn", [False, True])
def test_no_count_of_rows_or_stages_hangs_or_drops_a_row(
    l1_ring_on_host: ctypes.CDLL, drawn: bool, form: str
) -> None:
    """The protocol at a small size: every number of rows around every multiple of a turn of the ring."""
    machine = HostCpp(lambda stem: l1_ring_on_host)
    for od in (*range(1, 14), 24, 25, 32, 33):
        m = Matrix(Shape(od, 256), LAYOUTS[od % 4], seed=od)
        for rows in (1, 2, 3, 5):
            for stages in (1, 2, 3, 4):
                for grid in (1, 2, 3):
                    m.check(machine, form, m.ring(rows, stages, grid, drawn), od + 5 * rows + stages)


def test_the_ring_keeps_every_stage_in_flight(l1_ring_on_host: ctypes.CDLL) -> None:
    m = Matrix(Shape(40, 512), LAYOUTS[3])
    m.check(HostCpp(lambda stem: l1_ring_on_host), "ring", m.ring(1, 6, 1, False))
    l1_ring_on_host.most_copies.restype = ctypes.c_int64
    assert l1_ring_on_host.most_copies() == 6


def test_a_wait_that_nothing_ends_is_seen(l1_ring_on_host: ctypes.CDLL) -> None:
    """The emulator itself: a consumer warp too few, and the feeder waits for ever."""
    assert FAULTS[l1_ring_on_host.run_hang()] == "hang"


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


# Machine code


def bulk_and_barriers(ops: list[str]) -> bool:
    """Whether a kernel copies in bulk, waits asleep, and arrives."""
    waits = machine_code.count(ops, "SYNCS.PHASECHK.TRANS64.TRYWAIT")
    return bool(
        machine_code.count(ops, machine_code.COPY) and waits and machine_code.count(ops, "SYNCS.ARRIVE")
    )


@pytest.mark.toolchain
@pytest.mark.parametrize("arch", ["sm_90", "sm_121"])
def test_cpp_compiles_to_bulk_copies_without_spills(arch: str) -> None:
    from kernels_cu import build

    try:
        path = build.library("l1_ring.cu", arch)
        found = machine_code.opcodes(path)
    except Unavailable as error:
        pytest.skip(str(error))
    resources = {o.name: o.resources for o in build.offline("l1_ring.cu", arch)}
    assert len(resources) == 2 * len(LAYOUTS)
    for name, res in resources.items():
        assert res.spill_bytes == 0, name
        assert res.registers <= 128
        assert bulk_and_barriers(found[name]) is name.endswith("_ring"), name


@pytest.mark.toolchain
@pytest.mark.sampled(1, "")
@pytest.mark.parametrize("arch", ["sm_90", "sm_121"])
def test_numba_compiles_to_bulk_copies_without_spills(arch: str) -> None:
    from kernels_numba import compile as numba_compile

    names = [f"l1_{lay}_{form}" for lay in ("padded", "gpl") for form in ("ring", "async")]
    try:
        paths = numba_compile.compiled("l1_ring", names, arch)
        found = {name: machine_code.opcodes(path)[name] for name, path in paths.items()}
    except Unavailable as error:
        pytest.skip(str(error))
    for name, ops in found.items():
        assert bulk_and_barriers(ops) is name.endswith("_ring"), name
        assert not machine_code.count(ops, "STL"), f"{name} spills"


@pytest.mark.toolchain
def test_before_sm_90_async_alone_is_compiled() -> None:
    from kernels_cu import build

    try:
        resources = {o.name: o.resources for o in build.offline("l1_ring.cu", "sm_80")}
    except Unavailable as error:
        pytest.skip(str(error))
    assert resources["l1_gpl_ring"].registers < 16 < resources["l1_gpl_async"].registers


@pytest.mark.toolchain
@pytest.mark.sampled(2, "")
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
        ops = machine_code.opcodes(path)[name]
    except Unavailable as error:
        pytest.skip(str(error))
    assert machine_code.count(ops, "LDGSTS.E.BYPASS") and machine_code.count(ops, "ARRIVES.LDGSTSBAR")
    assert not machine_code.count(ops, machine_code.COPY) and not [op for op in ops if "TRYWAIT" in op]
