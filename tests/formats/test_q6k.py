"""q6_K: ggml's dequantiser to the bit, and an oracle held by two independent computations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.core.types import BadInput, Shape
from probes.formats import gguf as gguf_file
from probes.formats import kquant, q6k, q8
from tests.formats.bounds import q6k_bound, q6k_values

DATA = Path(__file__).parents[1] / "data"
GGUF = DATA / "minilm-ffn_down-48rows.gguf"


def naive_row(row: bytes, x8: bytes) -> np.float32:
    """One row's product, written from the format's and the order's definition, value by value."""
    f32 = np.float32
    units = len(row) // 210 * 8
    acc = [f32(0.0)] * 256
    for u in range(units):
        block = row[(u >> 3) * 210 : (u >> 3) * 210 + 210]
        pair = u & 7
        chunk, g = pair >> 2, pair & 3
        d = f32(np.frombuffer(block[208:210], "<f2")[0])
        act = x8[u * 40 : u * 40 + 40]
        d8 = f32(np.frombuffer(act[0:2], "<f2")[0])
        dots = [0, 0]
        for i in range(32):
            byte = block[chunk * 64 + (g & 1) * 32 + i]
            low = byte & 15 if g < 2 else byte >> 4
            high = (block[128 + chunk * 32 + i] >> (2 * g)) & 3
            x = int(np.int8(act[4 + i] - 256 if act[4 + i] > 127 else act[4 + i]))
            dots[i // 16] += (low + 16 * high - 32) * x
        sc = [block[192 + 2 * pair + k] for k in (0, 1)]
        sc = [s - 256 if s > 127 else s for s in sc]
        first = f32(f32(f32(d8 * f32(sc[0])) * d) * f32(dots[0]))
        second = f32(f32(f32(d8 * f32(sc[1])) * d) * f32(dots[1]))
        acc[u % 256] = f32(acc[u % 256] + f32(first + second))
    total = f32(0.0)
    for warp in range(8):
        lanes = acc[warp * 32 : warp * 32 + 32]
        for offset in (16, 8, 4, 2, 1):
            lanes = [f32(lanes[i] + lanes[i ^ offset]) for i in range(32)]
        total = f32(total + lanes[0])
    return total


def test_dequantise_matches_ggml_to_the_bit() -> None:
    golden = np.load(DATA / "ggml-golden.npz")
    got = q6k_values(golden["q6k_rows"])
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got.view(np.uint32), golden["q6k_dequant"].view(np.uint32))
    # and those are the weights that were quantised: within half a step of 1/32 of a sub-block's top
    assert np.abs(got - golden["f32"]).max() < 0.02 * np.abs(golden["f32"]).max()


def test_dequantise_matches_the_gguf_package() -> None:
    quants = pytest.importorskip("gguf.quants")
    raw = q6k.random_raw(Shape(5, 768), seed=3)
    theirs = quants.Q6_K.dequantize_blocks(raw.reshape(-1, q6k.BLOCK)).reshape(5, -1)
    np.testing.assert_array_equal(q6k_values(raw).view(np.uint32), theirs.view(np.uint32))


def test_decode_values_is_the_definition() -> None:
    raw = q6k.random_raw(Shape(2, 512), seed=9)
    q = q6k.decode_values(raw)
    assert q.shape == (2, 512) and q.dtype == np.int8 and q.min() >= 0 and q.max() <= 63
    for value in (0, 31, 32, 100, 255, 256, 511):
        block, i = divmod(value, 256)
        chunk, g, k = i >> 7, (i >> 5) & 3, i & 31
        data = raw[1, block * 210 :]
        low = (data[chunk * 64 + (g & 1) * 32 + k] >> (4 * (g >> 1))) & 15
        high = (data[128 + chunk * 32 + k] >> (2 * g)) & 3
        assert q[1, value] == low + 16 * high


# 256 units is a thread's first, 257.. its second and 513.. its third: the order shows only there
@pytest.mark.parametrize("id_", [256, 512, 8192, 8448, 16640])
def test_oracle_is_the_naive_loop_to_the_bit(id_: int) -> None:
    shape = Shape(2, id_)
    raw, x8 = q6k.random_raw(shape, seed=id_), q8.random_x8(id_, seed=id_ + 1)
    want = np.array([naive_row(row.tobytes(), x8.tobytes()) for row in raw])
    np.testing.assert_array_equal(q6k.reference(raw, x8).view(np.uint32), want.view(np.uint32))


@settings(max_examples=15, deadline=None)
@given(nbe=st.integers(1, 6), od=st.integers(1, 4), seed=st.integers(0, 2**32))
def test_oracle_is_the_naive_loop_on_any_small_shape(nbe: int, od: int, seed: int) -> None:
    raw, x8 = q6k.random_raw(Shape(od, nbe * 256), seed), q8.random_x8(nbe * 256, seed + 1)
    want = np.array([naive_row(row.tobytes(), x8.tobytes()) for row in raw])
    np.testing.assert_array_equal(q6k.reference(raw, x8).view(np.uint32), want.view(np.uint32))


def test_oracle_takes_rows_and_chunks_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    raw, x8 = q6k.random_raw(Shape(37, 512), seed=1), q8.random_x8(512, seed=2)
    whole = q6k.reference(raw, x8)
    monkeypatch.setattr(kquant, "CHUNK_VALUES", 512 * 5)
    np.testing.assert_array_equal(q6k.reference(raw, x8), whole)
    rows = np.array([36, 0, 7, 7, 20, 21, 22], np.int64)
    np.testing.assert_array_equal(q6k.reference(raw, x8, rows), whole[rows])


def test_oracle_on_the_extremes() -> None:
    """All scales -128, all q 0 or 63, all activations -128: the largest dots there can be, exactly."""
    raw = np.zeros((2, 8448 // 256, 210), np.uint8)
    raw[1, :, :192] = 255
    raw[:, :, 192:208] = 0x80
    raw[:, :, 208:] = np.array([65504.0], "<f2").view(np.uint8)
    x8 = np.zeros((8448 // 32, 40), np.uint8)
    x8[:, 0:2] = np.array([1.0], "<f2").view(np.uint8)
    x8[:, 4:36] = 0x80
    x8[:, 36:] = np.array([-128 * 32], "<i4").view(np.uint8)
    raw = raw.reshape(2, -1)
    got = q6k.reference(raw, x8.reshape(-1))
    want = np.array([naive_row(row.tobytes(), x8.tobytes()) for row in raw])
    np.testing.assert_array_equal(got, want)
    assert np.isfinite(got).all() and got[0] < 0 < got[1]


@pytest.mark.parametrize("seed", [0, 1])
def test_oracle_within_the_derived_bound_on_real_weights(seed: int) -> None:
    raw, shape = gguf_file.read(GGUF, "blk.0.ffn_down.weight")
    assert shape == Shape(48, 1536)
    x8 = q8.random_x8(shape.id, seed)
    exact, bound = q6k_bound(raw, x8, np.arange(48))
    got = q6k.reference(raw, x8).astype(np.float64)
    error = np.abs(got - exact)
    assert (error <= bound).all()
    assert error.max() > 0  # the oracle does round, so the bound was put to a test
    assert bound.max() < 1e-4 * np.abs(exact).max()  # and is tight enough to catch a wrong nibble


def test_the_bound_catches_one_wrong_high_bit() -> None:
    raw, shape = gguf_file.read(GGUF, "blk.0.ffn_down.weight")
    x8 = q8.random_x8(shape.id, seed=0)
    exact, bound = q6k_bound(raw, x8, np.arange(48))
    wrong = raw.copy()
    wrong[:, 130] ^= 0x20
    error = np.abs(q6k.reference(wrong, x8).astype(np.float64) - exact)
    assert (error > bound).mean() > 0.9


def test_exact_product_is_the_integer_sum() -> None:
    """float64_bound's product against Python's exact integers on one block."""
    raw, x8 = q6k.random_raw(Shape(1, 256), seed=4), q8.random_x8(256, seed=5)
    d8, x, _ = q8.unpack(x8)
    sc = raw[0, 192:208].view(np.int8)
    d = raw[0, 208:210].view("<f2")[0]
    q = q6k.decode_values(raw)[0].astype(int) - 32
    want = sum(
        float(d) * int(sc[i // 16]) * int(q[i]) * int(x[i // 32, i % 32]) * float(d8[i // 32])
        for i in range(256)
    )
    exact, bound = q6k_bound(raw, x8, np.array([0]))
    assert abs(exact[0] - want) <= 1e-6 * bound[0]


def test_random_raw_is_seeded_finite_and_varied() -> None:
    shape = Shape(64, 1024)
    raw = q6k.random_raw(shape, seed=7)
    assert raw.shape == (64, 4 * 210) and raw.dtype == np.uint8
    np.testing.assert_array_equal(raw, q6k.random_raw(shape, seed=7))
    assert (raw != q6k.random_raw(shape, seed=8)).mean() > 0.9
    d = raw.reshape(-1, 210)[:, 208:].copy().view("<f2").ravel().astype(np.float64)
    assert np.isfinite(d).all() and np.abs(d).max() < 2 and (d != 0).mean() > 0.95
    assert (np.abs(d) < 2**-14).any() and (np.abs(d) > 1).any() and (d < 0).any()
    counts = np.bincount(raw.reshape(-1, 210)[:, :208].ravel(), minlength=256)
    assert counts.min() > 0
    kquant.check_scales(raw, "random", q6k.FORM)


@pytest.mark.parametrize(
    ("bits", "text"), [(0x7C00, "inf"), (0xFC00, "-inf"), (0x7E01, "nan"), (0xFC01, "nan")]
)
def test_check_scales_names_the_block(bits: int, text: str) -> None:
    raw = q6k.random_raw(Shape(5, 768), seed=1)
    raw[3, 210 + 208 : 210 + 210] = np.array([bits], "<u2").view(np.uint8)
    with pytest.raises(BadInput, match=rf"w: d is {text} in row 3, super-block 1"):
        kquant.check_scales(raw, "w", q6k.FORM)


@pytest.mark.parametrize(
    "raw",
    [
        np.zeros((1, 209), np.uint8),
        np.zeros((1, 0), np.uint8),
        np.zeros((1, 210), np.int8),
        np.zeros((), np.uint8),
    ],
)
def test_wrong_rows_are_refused(raw: np.ndarray) -> None:
    with pytest.raises(BadInput, match="multiple of 210"):
        q6k_values(raw)


def test_activations_of_another_length_are_refused() -> None:
    raw = q6k.random_raw(Shape(1, 512), seed=0)
    with pytest.raises(BadInput, match="256 activations do not fit weight rows of 512"):
        q6k.reference(raw, q8.random_x8(256, seed=0))
    with pytest.raises(BadInput, match="256 activations do not fit weight rows of 512"):
        q6k_bound(raw, q8.random_x8(256, seed=0), np.array([0]))
    with pytest.raises(BadInput, match="rows by bytes"):
        q6k.reference(raw[0], q8.random_x8(512, seed=0))
