"""L1's row-per-block kernels without a GPU: whole, to the oracle's bits, and pf3's machine code."""

from __future__ import annotations

import ctypes
from itertools import groupby
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probes import l1, sass
from probes.core.types import VIRTUAL_THREADS, Shape, Unavailable
from probes.formats import checksum, packing, q6k, q8
from probes.formats.layouts import LAYOUTS, Layout, layout
from tests.host_calls import aligned, pointer
from tests.numba_on_host import emulator as numba_on_host

FORMS = [form for form in l1.FORMS if form.stem == "l1"]
UNITS = (8, 256, 264, 296, 512, 520, 592, 768, 776)
"""Just below, at and above every change of a thread's units; 296 and 592 end inside a warp."""


class Case:
    """One matrix in one layout, u8[od, stride], with its activations u8[40 * units] and its oracle."""

    def __init__(self, lay: Layout, od: int, units: int) -> None:
        self.shape = Shape(od, 32 * units)
        self.raw, self.activations = q6k.random_raw(self.shape, 3), q8.random_x8(self.shape.id, 4)
        self.packed, self.lay = packing.pack(self.raw, lay), lay

    def want(self, form: str) -> NDArray[np.uint32]:
        """u32[od]: the result's bits."""
        if form == "stream":
            return checksum.stream_sums(self.packed, self.lay, self.shape.nbe, self.activations)
        return q6k.reference(self.raw, self.activations).view(np.uint32)

    def cpp(self, lib: ctypes.CDLL, form: str, seed: int) -> NDArray[np.uint32]:
        od, stride = self.packed.shape
        out = np.full(od + 1, 0xFFFFFFFF, np.uint32)
        w, x8 = aligned(self.packed), aligned(self.activations)
        run = getattr(lib, f"run_{form}_{self.lay.name}")
        run(pointer(w), pointer(x8), pointer(out), self.shape.nbe, stride, od, ctypes.c_uint(seed))
        assert out[-1] == 0xFFFFFFFF, "a word past the end was written"
        return out[:-1]

    def numba(self, monkeypatch: pytest.MonkeyPatch, form: str) -> NDArray[np.uint32]:
        """The kernel's Python on host threads, where a load outside the matrix raises."""
        from kernels_numba import l1 as twins

        od, stride = self.packed.shape
        out = np.full(od, 0xFFFFFFFF, np.uint32)

        def make(ops: Any, kind: str) -> Any:
            monkeypatch.setattr(twins, "gpu_ops", lambda: ops)
            kernel = twins._forms(self.lay)[form][0]
            return lambda *args: kernel(*args[:5])

        kind = np.uint32 if form == "stream" else np.float32
        args = (self.packed, self.activations, out.view(kind), np.int32(self.shape.nbe), np.int32(stride))
        numba_on_host.launch(monkeypatch, make, args, od, VIRTUAL_THREADS, range(od))
        return out


@pytest.mark.parametrize("lay", LAYOUTS, ids=lambda lay: lay.name)
@pytest.mark.parametrize("units", UNITS)
def test_cpp_equals_the_oracle_on_fibers(l1_on_host: ctypes.CDLL, lay: Layout, units: int) -> None:
    case = Case(lay, 3, units)
    for form in FORMS:
        if not form.refuses(case.shape):
            for seed in (0, 1, 2):
                got = case.cpp(l1_on_host, form.name, seed)
                np.testing.assert_array_equal(got, case.want(form.name), err_msg=f"{form.name} seed {seed}")


@pytest.mark.parametrize("lay", LAYOUTS, ids=lambda lay: lay.name)
@pytest.mark.parametrize("units", UNITS)
def test_numba_equals_the_oracle_on_host_threads(
    monkeypatch: pytest.MonkeyPatch, lay: Layout, units: int
) -> None:
    case = Case(lay, 1, units)
    for form in FORMS:
        if not form.refuses(case.shape):
            got = case.numba(monkeypatch, form.name)
            np.testing.assert_array_equal(got, case.want(form.name), err_msg=form.name)


@pytest.mark.parametrize(("form", "most"), [("pf", 512), ("pf3", 768)])
def test_past_its_range_a_form_drops_the_units(
    l1_on_host: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, form: str, most: int
) -> None:
    case = Case(layout("padded"), 2, most + 80)
    first = np.ascontiguousarray(case.raw.reshape(2, -1, 210)[:, : most // 8].reshape(2, -1))
    want = q6k.reference(first, case.activations[: most * 40]).view(np.uint32)
    assert (want != case.want(form)).all()
    np.testing.assert_array_equal(case.cpp(l1_on_host, form, 0), want)
    np.testing.assert_array_equal(case.numba(monkeypatch, form), want)


@pytest.mark.parametrize(("form", "units"), [("pf", 248), ("pf3", 504)])
def test_below_its_range_a_form_reads_past_the_row(
    monkeypatch: pytest.MonkeyPatch, form: str, units: int
) -> None:
    with pytest.raises(AssertionError, match="byte"):
        Case(layout("padded"), 1, units).numba(monkeypatch, form)


@pytest.mark.toolchain
@pytest.mark.parametrize("backend", ["cu", "numba"])
@pytest.mark.parametrize("arch", ["sm_90", "sm_121"])
def test_pf3_asks_for_most_of_three_units_before_it_sums_one(arch: str, backend: Any) -> None:
    """In group order 21 loads in a row at least, of 27 (9 a unit), and 18 in the warps that own two.

    C++'s gpl, the fastest on an H200, has all. One kernel spills, as core/bounds.py says.
    """
    names = [f"l1_{lay.name}_pf3" for lay in LAYOUTS]
    try:
        found = sass.kernels("l1", names, backend, arch)
    except Unavailable as error:
        pytest.skip(str(error))
    for lay, name in zip(LAYOUTS, names, strict=True):
        ops = found[name]
        spills = (backend, arch, lay.name) == ("numba", "sm_121", "dpl")
        assert spills or (not sass.count(ops, "STL") and not sass.count(ops, "LDL")), name
        if lay.order == "group":
            order = [op for op in ops if op.startswith((sass.LOAD, "IDP"))]
            runs = [len(list(run)) for _, run in groupby(op.startswith(sass.LOAD) for op in order)]
            two, three = runs.index(18), max(runs[::2])
            assert runs[two + 1] == 24 and 21 <= three <= 27, f"{name}: {runs}"
            if (backend, lay.name) == ("cu", "gpl"):
                assert runs in ([18, 24, 27, 36], [27, 36, 18, 24]), name
