"""The layouts: addresses and bytes by the definition, round trips, and a fifth made-up row."""

from __future__ import annotations

import re
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.core.types import BadInput, Shape
from probes.formats import layouts, packing, q6k
from probes.formats.layouts import LAYOUTS, Layout, Piece, check_stride, ledger
from probes.formats.packing import pack, unpack

MADE_UP = Layout(
    "sc_first", "group", Piece(32, 128, 16), Piece(160, 64, 16), Piece(0, 16, 0), Piece(16, 2, 0), 226
)
"""Scales first, then d, a gap, then grouped nibbles and high bits in planes: nobody's layout."""
EVERY = (*LAYOUTS, MADE_UP)
every = pytest.mark.parametrize("lay", EVERY, ids=lambda lay: lay.name)


def unit_values(row: np.ndarray, lay: Layout, nbe: int, u: int) -> list[int]:
    """Unit u's 32 values q out of a packed row, by the words of the definition."""
    b, pair = divmod(u, 8)
    ql, qh = (p.plane * nbe + p.block * b + p.offset for p in (lay.ql, lay.qh))
    values = []
    for i in range(32):
        if lay.order == "gguf":
            chunk, g = pair >> 2, pair & 3
            byte = int(row[ql + chunk * 64 + (g & 1) * 32 + i])
            low = byte & 15 if g < 2 else byte >> 4
            high = (int(row[qh + chunk * 32 + i]) >> (2 * g)) & 3
        else:
            byte = int(row[ql + pair * 16 + i % 16])
            low = byte & 15 if i < 16 else byte >> 4
            j, k = divmod(i % 16, 4)
            high = (int(row[qh + pair * 8 + (4 if i >= 16 else 0) + k]) >> (2 * j)) & 3
        values.append(low + 16 * high)
    return values


@every
@pytest.mark.parametrize("nbe", [1, 2, 5, 54])
def test_packed_bytes_are_where_the_definition_says(lay: Layout, nbe: int) -> None:
    raw = q6k.random_raw(Shape(3, nbe * 256), seed=nbe)
    packed = pack(raw, lay)
    assert packed.shape == (3, lay.row_stride(nbe)) and packed.flags.c_contiguous
    assert packed.ctypes.data % 64 == 0
    q = q6k.decode_values(raw)
    owned = np.zeros(packed.shape[1], bool)
    for b in range(nbe):
        for piece, offset, size in ((lay.ql, 0, 128), (lay.qh, 128, 64), (lay.sc, 192, 16), (lay.d, 208, 2)):
            at = piece.plane * nbe + piece.block * b + piece.offset
            owned[at : at + size] = True
            if offset >= 192:
                source = b * 210 + offset
                np.testing.assert_array_equal(packed[:, at : at + size], raw[:, source : source + size])
    assert owned.sum() == nbe * 210
    assert not packed[:, ~owned].any()
    for u in range(0, nbe * 8, 3):
        assert unit_values(packed[2], lay, nbe, u) == q[2, u * 32 : u * 32 + 32].tolist()


@settings(max_examples=40, deadline=None)
@given(
    lay=st.sampled_from(EVERY), od=st.integers(1, 9), nbe=st.integers(1, 24), seed=st.integers(0, 2**32),
    compiled=st.booleans(), threads=st.integers(1, 5), spare=st.integers(0, 3),
)  # fmt: skip
def test_round_trip(
    lay: Layout, od: int, nbe: int, seed: int, compiled: bool, threads: int, spare: int
) -> None:
    raw = q6k.random_raw(Shape(od, nbe * 256), seed)
    before = raw.copy()
    out = np.full((od, lay.row_stride(nbe) + 16 * spare), 0xA5, np.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "NUMPY_MAX_BYTES", 0 if compiled else 1 << 30)
        assert pack(raw, lay, out, threads=threads) is out
        np.testing.assert_array_equal(unpack(out, lay, nbe, threads=threads), raw)
    np.testing.assert_array_equal(raw, before)


@every
def test_compiled_and_numpy_forms_agree(lay: Layout) -> None:
    raw = q6k.random_raw(Shape(37, 1280), seed=3)
    slow, fast = (np.full((37, lay.row_stride(5)), fill, np.uint8) for fill in (1, 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "NUMPY_MAX_BYTES", 1 << 30)
        pack(raw, lay, slow)
        patch.setattr(packing, "NUMPY_MAX_BYTES", 0)
        pack(raw, lay, fast, threads=2)
        np.testing.assert_array_equal(fast, slow)
        shifted = np.empty(raw.size + 1, np.uint8)[1:].reshape(raw.shape)  # rows at odd addresses
        shifted[:] = raw
        for odd in (shifted, np.concatenate((raw, raw), axis=1)[:, : raw.shape[1]]):  # and a strided view
            np.testing.assert_array_equal(pack(odd, lay), slow)


def test_large_matrices_take_the_compiled_form(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = q6k.random_raw(Shape(1000, 5120), seed=1)
    assert raw.nbytes > packing.NUMPY_MAX_BYTES
    calls = []
    real = packing.compiled()
    monkeypatch.setattr(packing, "compiled", lambda: lambda *a: (calls.append(a), real(*a))[1])
    packed = pack(raw, layouts.layout("gpl"), threads=1)
    assert len(calls) == 2  # row 0, which compiles, and then every row
    rows = [0, 499, 500, 999]
    np.testing.assert_array_equal(packed[rows], pack(np.ascontiguousarray(raw[rows]), layouts.layout("gpl")))


def test_packing_holds_one_copy() -> None:
    raw = q6k.random_raw(Shape(2000, 5120), seed=1)
    lay = layouts.layout("gpl")
    pack(raw, lay)  # compile first
    tracemalloc.start()
    packed = pack(raw, lay)
    _, peak = tracemalloc.get_traced_memory()
    unpack(packed, lay, 20)
    _, both = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert packed.nbytes <= peak < packed.nbytes + (1 << 20)
    assert both < packed.nbytes + raw.nbytes + (1 << 20)


def test_without_numba_numpy_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise ImportError("no numba")

    monkeypatch.setattr(packing, "compiled", missing)
    monkeypatch.setattr(packing, "NUMPY_MAX_BYTES", 0)
    raw = q6k.random_raw(Shape(2000, 768), seed=1)
    lay = layouts.layout("gs")
    np.testing.assert_array_equal(unpack(pack(raw, lay), lay, 3), raw)


def test_importing_the_packer_does_not_import_numba() -> None:
    code = "import sys, probes.formats.packing; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@every
@pytest.mark.parametrize("nbe", [1, 3, 14, 20, 54, 74])
def test_every_row_is_sound_and_its_ledger_adds_up(lay: Layout, nbe: int) -> None:
    stride = lay.row_stride(nbe)
    check_stride(lay, nbe, stride)
    book = ledger(lay, Shape(7, nbe * 256))
    assert book.content_bytes == 7 * nbe * 210 and book.stored_bytes == 7 * stride
    assert book.dead_bytes == book.stored_bytes - book.content_bytes >= 0
    assert stride % book.align_bytes == 0 and 16 <= book.align_bytes <= 256
    assert stride % (2 * book.align_bytes) or book.align_bytes == 256
    assert pack(q6k.random_raw(Shape(7, nbe * 256), 0), lay).nbytes == book.stored_bytes


def test_ledger_figures() -> None:
    shape = Shape(5120, 13824)  # nbe 54: 54 * 210 = 11340, rounded up to 11344
    assert ledger(layouts.layout("padded"), shape).row_stride == 54 * 224
    assert ledger(layouts.layout("dpl"), shape).row_stride == 11344
    assert ledger(layouts.layout("dpl"), shape).dead_bytes == 5120 * 4
    assert ledger(layouts.layout("gs"), shape).dead_bytes == 5120 * 54 * 14
    assert ledger(layouts.layout("gpl"), shape).align_bytes == 16


def test_unknown_layouts_get_close_names() -> None:
    assert layouts.layout("gpl").order == "group"
    with pytest.raises(BadInput, match="no layout is called 'dlp'; did you mean dpl"):
        layouts.layout("dlp")
    with pytest.raises(BadInput, match="padded or gs or dpl or gpl"):
        layouts.layout("x")


@pytest.mark.parametrize(
    ("stride", "why"),
    [(54 * 224 + 8, "misaligned"), (54 * 224 - 16, "too small"), (0, "too small"), (-16, "too small")],
)
def test_strides_are_checked(stride: int, why: str) -> None:
    with pytest.raises(BadInput, match=f"row stride {stride} is {why}"):
        check_stride(layouts.layout("padded"), 54, stride)


@pytest.mark.parametrize(
    ("ql", "qh", "sc", "d", "why"),
    [
        (8, 144, 208, 0, "ql at 8 is not aligned to 16"),
        (0, 136, 200, 216, "qh at 136 is not aligned to 16"),
        (0, 128, 192, 209, "d at 209 is not aligned to 2"),
        (0, 112, 192, 208, "pieces overlap at byte 112"),
        (0, 128, 192, 240, "pieces lie at 0..466 of a row of 448"),
        (0, 128, 192, -2, "pieces lie at -2..432"),
    ],
)
def test_a_wrong_row_never_reaches_memory(ql: int, qh: int, sc: int, d: int, why: str) -> None:
    at = [Piece(0, 224, offset) for offset in (ql, qh, sc, d)]
    lay = Layout("x", "gguf", *at, 224)
    with pytest.raises(BadInput, match=f"layout x: {re.escape(why)}"):
        pack(q6k.random_raw(Shape(1, 512), 0), lay)


def test_a_row_that_does_not_step_is_refused() -> None:
    lay = Layout("x", "gguf", Piece(0, 0, 0), Piece(0, 224, 128), Piece(0, 224, 192), Piece(0, 224, 208), 224)
    with pytest.raises(BadInput, match="layout x: ql steps by 0 bytes"):
        check_stride(lay, 2, 448)


def test_wrong_matrices_are_refused() -> None:
    lay = layouts.layout("dpl")
    raw = q6k.random_raw(Shape(2, 512), 0)
    for bad in (raw[:, :-1], raw[0], raw.view(np.int8), raw[:0], np.zeros((2, 0), np.uint8)):
        with pytest.raises(BadInput, match="q6_K rows must be"):
            pack(bad, lay)
    for out in (
        np.zeros((3, 432), np.uint8),
        np.zeros((2, 432), np.int8),
        np.zeros((2, 864), np.uint8)[:, ::2],
    ):
        with pytest.raises(BadInput, match="out must be"):
            pack(raw, lay, out)
    with pytest.raises(BadInput, match="too small"):
        pack(raw, lay, np.zeros((2, 416), np.uint8))
    with pytest.raises(BadInput, match="share memory"):
        store = np.zeros(2 * 432, np.uint8)
        pack(store[:840].reshape(2, 420), lay, store.reshape(2, 432))
    with pytest.raises(BadInput, match="at least one"):
        unpack(np.zeros((2, 432), np.uint8), lay, 0)
    with pytest.raises(BadInput, match="too small"):
        unpack(np.zeros((2, 432), np.uint8), lay, 3)
