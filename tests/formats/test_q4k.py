"""q4_K: ggml's dequantiser to the bit, and an oracle held by two independent computations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.core.types import BadInput, Shape
from probes.formats import gguf as gguf_file
from probes.formats import kquant, q4k, q8
from tests.formats.bounds import q4k_bound, q4k_values

DATA = Path(__file__).parents[1] / "data"
GGUF = DATA / "minilm-ffn_down-48rows.gguf"


def scale_min(p: bytes, j: int) -> tuple[int, int]:
    """Sub-block j's scale and minimum out of the 12 packed bytes (ggml's get_scale_min_k4)."""
    if j < 4:
        return p[j] & 63, p[j + 4] & 63
    return (p[j + 4] & 15) | ((p[j - 4] >> 6) << 4), (p[j + 4] >> 4) | ((p[j] >> 6) << 4)


def naive_row(row: bytes, x8: bytes) -> np.float32:
    """One row's product, written from the format's and the order's definition, value by value."""
    f32 = np.float32
    acc = [f32(0.0)] * 256
    for u in range(len(row) // 144 * 4):
        block = row[(u >> 2) * 144 : (u >> 2) * 144 + 144]
        chunk = u & 3
        d, dmin = (f32(v) for v in np.frombuffer(block[:4], "<f2"))
        parts = []
        for half in (0, 1):
            act = x8[(2 * u + half) * 40 : (2 * u + half) * 40 + 40]
            d8 = f32(np.frombuffer(act[0:2], "<f2")[0])
            x = [int(v) for v in np.frombuffer(act[4:36], np.int8)]
            q = [(block[16 + 32 * chunk + i] >> (4 * half)) & 15 for i in range(32)]
            s, m = scale_min(block[4:16], 2 * chunk + half)
            dot, sx = sum(a * b for a, b in zip(q, x, strict=True)), sum(x)
            left = f32(f32(f32(s) * d) * f32(dot))
            right = f32(f32(f32(m) * dmin) * f32(sx))
            parts.append(f32(d8 * f32(left - right)))
        acc[u % 256] = f32(acc[u % 256] + f32(parts[0] + parts[1]))
    total = f32(0.0)
    for warp in range(8):
        lanes = acc[warp * 32 : warp * 32 + 32]
        for offset in (16, 8, 4, 2, 1):
            lanes = [f32(lanes[i] + lanes[i ^ offset]) for i in range(32)]
        total = f32(total + lanes[0])
    return total


def test_dequantise_matches_ggml_to_the_bit() -> None:
    golden = np.load(DATA / "ggml-golden.npz")
    got = q4k_values(golden["q4k_rows"])
    np.testing.assert_array_equal(got.view(np.uint32), golden["q4k_dequant"].view(np.uint32))
    assert np.abs(got - golden["f32"]).max() < 0.1 * np.abs(golden["f32"]).max()


@pytest.mark.parametrize("id_", [256, 16384, 16640, 33024])
def test_oracle_is_the_naive_loop_to_the_bit(id_: int) -> None:
    shape = Shape(2, id_)
    raw, x8 = q4k.random_raw(shape, seed=id_), q8.random_x8(id_, seed=id_ + 1)
    want = np.array([naive_row(row.tobytes(), x8.tobytes()) for row in raw])
    np.testing.assert_array_equal(q4k.reference(raw, x8).view(np.uint32), want.view(np.uint32))


@settings(max_examples=15, deadline=None)
@given(nbe=st.integers(1, 6), od=st.integers(1, 4), seed=st.integers(0, 2**32))
def test_oracle_is_the_naive_loop_on_any_small_shape(nbe: int, od: int, seed: int) -> None:
    raw, x8 = q4k.random_raw(Shape(od, nbe * 256), seed), q8.random_x8(nbe * 256, seed + 1)
    want = np.array([naive_row(row.tobytes(), x8.tobytes()) for row in raw])
    np.testing.assert_array_equal(q4k.reference(raw, x8).view(np.uint32), want.view(np.uint32))


def test_oracle_takes_rows_and_chunks_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    raw, x8 = q4k.random_raw(Shape(37, 512), seed=1), q8.random_x8(512, seed=2)
    whole = q4k.reference(raw, x8)
    monkeypatch.setattr(kquant, "CHUNK_VALUES", 512 * 5)
    np.testing.assert_array_equal(q4k.reference(raw, x8), whole)
    rows = np.array([36, 0, 7, 7, 20], np.int64)
    np.testing.assert_array_equal(q4k.reference(raw, x8, rows), whole[rows])


@pytest.mark.parametrize("seed", [0, 1])
def test_oracle_within_the_derived_bound_on_real_weights(seed: int) -> None:
    raw, shape = gguf_file.read(GGUF, "blk.0.ffn_down_q4.weight", "Q4_K")
    assert shape == Shape(48, 1536)
    x8 = q8.random_x8(shape.id, seed)
    exact, bound = q4k_bound(raw, x8, np.arange(48))
    error = np.abs(q4k.reference(raw, x8).astype(np.float64) - exact)
    assert (error <= bound).all()
    assert error.max() > 0
    assert bound.max() < 1e-4 * np.abs(exact).max()


def test_the_bound_catches_one_wrong_bit_of_a_scale() -> None:
    raw, shape = gguf_file.read(GGUF, "blk.0.ffn_down_q4.weight", "Q4_K")
    x8 = q8.random_x8(shape.id, seed=0)
    exact, bound = q4k_bound(raw, x8, np.arange(48))
    wrong = raw.copy()
    wrong[:, 4] ^= 1
    error = np.abs(q4k.reference(wrong, x8).astype(np.float64) - exact)
    assert (error > bound).mean() > 0.9


def test_the_order_of_the_values_and_random_raw() -> None:
    raw = q4k.random_raw(Shape(16, 512), seed=5)
    np.testing.assert_array_equal(raw, q4k.random_raw(Shape(16, 512), seed=5))
    q = q4k._decode(kquant.blocks(raw, q4k.FORM)).reshape(16, 512)
    assert q.shape == (16, 512) and q.min() == 0 and q.max() == 15
    block = raw[2, 144:288]
    assert q[2, 256 + 64 + 7] == block[16 + 32 + 7] & 15
    assert q[2, 256 + 64 + 32 + 7] == block[16 + 32 + 7] >> 4
    halves = raw.reshape(-1, 144)[:, :4].copy().view("<f2").astype(np.float64)
    assert np.isfinite(halves).all() and np.abs(halves).max() < 2
    kquant.check_scales(raw, "random", q4k.FORM)


@pytest.mark.parametrize(("at", "name"), [(0, "d"), (2, "dmin")])
@pytest.mark.parametrize(("bits", "text"), [(0x7C00, "inf"), (0xFC00, "-inf"), (0x7E01, "nan")])
def test_check_scales_names_the_block(at: int, name: str, bits: int, text: str) -> None:
    raw = q4k.random_raw(Shape(5, 768), seed=1)
    raw[3, 288 + at : 288 + at + 2] = np.array([bits], "<u2").view(np.uint8)
    with pytest.raises(BadInput, match=rf"w: {name} is {text} in row 3, super-block 2"):
        kquant.check_scales(raw, "w", q4k.FORM)


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(BadInput, match="multiple of 144"):
        q4k_values(np.zeros((1, 210), np.uint8))
    with pytest.raises(BadInput, match="256 activations do not fit weight rows of 512"):
        q4k.reference(q4k.random_raw(Shape(1, 512), seed=0), q8.random_x8(256, seed=0))
