"""L1's row-per-block kernels: whole, to the oracle's bits, on every machine; and pf3's machine code."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probes.core.types import Shape, Unavailable
from probes.device.resources import recorded_resources
from probes.engine import machine_code
from probes.formats import checksum, packing, q6k, q8
from probes.formats.layouts import LAYOUTS, Layout, layout
from probes.l1 import plan, table
from tests.host_calls import MIRROR
from tests.kernels.machines import HostNumba, given, over, room, written

FORMS = [form for form in table.FORMS if form.stem == "l1"]
UNITS = (8, 112, 160, 256, 264, 296, 512, 520, 592, 768, 776)
"""Just below, at and above every change of a thread's units; 112, 296 and 592 end inside a warp.

Up to 224 units a block lacks warps: 160, of attn_v and lm_head, three of eight.
"""

SHAPES = [
    *(c.shape for c in table.CASES if c.shape and c.shape.od < 10_000),
    Shape(512, 8960),  # the record's unit test of pf; pf3's are ffn_down_7b, 16640 and 24576
    Shape(4096, 1024),  # and of loop
    Shape(2048, 5120),  # lm_head's rows, fewer of them: 152064 rows are checked in every run
    Shape(2048, 3584),
    *(Shape(od, cols) for od in (1, 3, 1023) for cols in (256, 8448, 16384, 16640, 24576)),
    *(Shape(3, 32 * units) for units in UNITS),
]
SMALL = [Shape(3, cols) for cols in (256, 8448, 16640)]


class Matrix:
    """Weights of one shape with their activations and what each kernel must return."""

    def __init__(self, shape: Shape, seed: int) -> None:
        self.shape, self.raw, self.x8 = shape, q6k.random_raw(shape, seed), q8.random_x8(shape.id, seed + 1)
        self.sums = q6k.reference(self.raw, self.x8).view(np.uint32)

    def run(self, machine: Any, lay: Layout, form: str, order: int = 0, block: int = 0) -> NDArray[np.uint32]:
        """The result's words, u32[od]; of so many threads a block, or as planned."""
        out, kernel = room(self.shape.od), f"l1_{lay.name}_{form}"
        block = block or plan.launch_config(self.shape).block
        packed = packing.pack(self.raw, lay)
        od, stride = packed.shape
        args = given(packed), given(self.x8), out, self.shape.nbe, stride
        machine.run(kernel, args, od, block, order=order)
        return written(out, kernel)

    def want(self, lay: Layout, form: str) -> NDArray[np.uint32]:
        if form != "stream":
            return self.sums
        return checksum.stream_sums(packing.pack(self.raw, lay), lay, self.shape.nbe, self.x8)


@pytest.mark.sampled(4, "host-numba")
@over(
    "shape", cu=[Shape(3, 32 * units) for units in UNITS], numba=[Shape(1, 32 * units) for units in UNITS],
    gpu=dict.fromkeys(SHAPES), small=SMALL,
)  # fmt: skip
def test_every_layout_and_form_equals_the_oracle(machine: Any, shape: Shape) -> None:
    """On fibers threads in order, backwards and shuffled; a load outside the matrix raises in Numba's."""
    for seed in (1, 20) if machine.live else (3,):
        m = Matrix(shape, seed)
        for lay in LAYOUTS:
            for form in FORMS:
                if form.refuses(shape):
                    continue
                for order in machine.orders:
                    got, what = m.run(machine, lay, form.name, order), f"{lay.name} {form.name} order {order}"
                    np.testing.assert_array_equal(got, m.want(lay, form.name), err_msg=what)


@over("shape", cu=[Shape(3, 3584)], numba=[Shape(1, 3584)], gpu=[Shape(512, 3584)])
@pytest.mark.parametrize("block", [160, 256])
def test_warps_without_a_unit_change_no_bit(machine: Any, shape: Shape, block: int) -> None:
    """112 units need 128 threads; more add 0."""
    m = Matrix(shape, 8)
    for form in ("loop", "stream"):
        got = m.run(machine, layout("dpl"), form, block=block)
        np.testing.assert_array_equal(got, m.want(layout("dpl"), form), err_msg=form)


@over("shape", cu=[Shape(37, 2560)], numba=[Shape(1, 2560)], gpu=[Shape(37, 2560)])
def test_a_fifth_layout_runs_with_one_row(machine: Any, shape: Shape) -> None:
    """Both twins take a made-up layout from its row alone."""
    m = Matrix(shape, 8)
    np.testing.assert_array_equal(m.run(machine, MIRROR, "loop"), m.sums)


@pytest.mark.parametrize(("form", "most", "units"), [("pf", 512, 592), ("pf3", 768, 800), ("pf3", 768, 848)])
def test_past_its_range_a_form_drops_the_units_and_is_refused(
    machine: Any, form: str, most: int, units: int
) -> None:
    m = Matrix(Shape(4 if machine.live else 2, 32 * units), 3)
    first = np.ascontiguousarray(m.raw.reshape(m.shape.od, -1, 210)[:, : most // 8].reshape(m.shape.od, -1))
    want = q6k.reference(first, m.x8[: most * 40]).view(np.uint32)
    assert (want != m.sums).all()
    np.testing.assert_array_equal(m.run(machine, layout("padded"), form), want)
    assert f"has {units}" in next(f for f in FORMS if f.name == form).refuses(m.shape)


@pytest.mark.parametrize(("form", "units"), [("pf", 248), ("pf3", 504)])
def test_below_its_range_a_form_reads_past_the_row(form: str, units: int) -> None:
    """The emulator sees it."""
    with pytest.raises(AssertionError, match="byte"):
        Matrix(Shape(1, 32 * units), 3).run(HostNumba(), layout("padded"), form)


@pytest.mark.toolchain
@pytest.mark.parametrize("backend", ["cu", "numba"])
def test_loop_and_stream_ask_for_a_units_weights_at_once(backend: Any) -> None:
    """No wait is seen in opcodes, but what follows one: unpacking a unit takes 16 shifts in GGUF order.

    In 40 registers at most, so that six blocks of 256 threads share an SM and dpl has as many as padded.
    """
    names = [f"l1_{lay.name}_{form}" for lay in LAYOUTS for form in ("loop", "stream")]
    try:
        found = machine_code.kernels("l1", names, backend, "sm_90")
    except Unavailable as error:
        pytest.skip(str(error))
    for name, ops in found.items():
        places = [k for k, op in enumerate(ops) if op.startswith("LDG") and ("128" in op or "U16" in op)]
        assert len(places) == (6 if layout(name.split("_")[1]).order == "gguf" else 3), name
        between = [op for op in ops[places[0] : places[-1]] if op.startswith(("SHF", "LOP3"))]
        assert len(between) <= 4, f"{name}: {between}"
        assert recorded_resources(backend, name, "sm_90").registers <= 40, name


@pytest.mark.toolchain
@pytest.mark.parametrize("backend", ["cu", "numba"])
@pytest.mark.parametrize("arch", ["sm_90", "sm_121"])
def test_pf3_asks_for_most_of_three_units_before_it_sums_one(arch: str, backend: Any) -> None:
    """In group order 21 loads in a row at least, of 27 (9 a unit), and 18 in the warps that own two.

    C++'s gpl, the fastest on an H200, has all. One kernel spills, as device/launch_bounds.py says.
    """
    names = [f"l1_{lay.name}_pf3" for lay in LAYOUTS]
    try:
        found = machine_code.kernels("l1", names, backend, arch)
    except Unavailable as error:
        pytest.skip(str(error))
    count, load = machine_code.count, machine_code.LOAD
    for lay, name in zip(LAYOUTS, names, strict=True):
        ops = found[name]
        spills = (backend, arch, lay.name) == ("numba", "sm_121", "dpl")
        assert spills or (not count(ops, "STL") and not count(ops, "LDL")), name
        if lay.order == "group":
            order = [op for op in ops if op.startswith((load, "IDP"))]
            runs = [len(list(run)) for _, run in groupby(op.startswith(load) for op in order)]
            two, three = runs.index(18), max(runs[::2])
            assert runs[two + 1] == 24 and 21 <= three <= 27, f"{name}: {runs}"
            if (backend, lay.name) == ("cu", "gpl"):
                assert runs in ([18, 24, 27, 36], [27, 36, 18, 24]), name
