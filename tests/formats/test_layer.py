"""The decode layer's oracle against naive loops to the bit, and against float64 within a bound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from probes.core.types import BadInput, Shape
from probes.formats import chains, q4k, q6k, q8
from probes.formats import layer as decode_layer
from probes.formats.layer import CONSTANTS, LAYER_14B, SCALE
from probes.formats.swiglu import exp
from tests.host_calls import TINY

F = np.float32


def butterfly(lanes: list[np.float32]) -> np.float32:
    """Lane by lane, as a warp does it."""
    for offset in (16, 8, 4, 2, 1):
        lanes = [lanes[k] + lanes[k ^ offset] for k in range(32)]
    assert len({x.tobytes() for x in lanes}) == 1
    return lanes[0]


def test_rms_is_what_its_order_says() -> None:
    rng = np.random.default_rng(1)
    x, gamma = rng.standard_normal((2, 768)).astype(F)
    acc = [F(0)] * 256
    for i, v in enumerate(x):
        acc[i % 256] = acc[i % 256] + v * v
    total = F(0)
    for warp in range(8):
        total = total + butterfly(acc[32 * warp : 32 * warp + 32])
    r = F(1) / np.sqrt(total / F(768) + F(decode_layer.EPS))
    want = np.array([(v * r) * g for v, g in zip(x, gamma, strict=True)])
    got = decode_layer.rms(x, gamma)
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), blocks=st.integers(1, 20))
def test_rms_is_near_float64(seed: int, blocks: int) -> None:
    rng = np.random.default_rng(seed)
    x, gamma = (rng.standard_normal((2, 256 * blocks)) * 2.0 ** rng.integers(-6, 6)).astype(F)
    wide = x.astype(np.float64)
    want = wide / np.sqrt((wide**2).mean() + decode_layer.EPS) * gamma
    # half the sum's relative error (blocks + 14 roundings), plus: / n, + eps, sqrt, 1 /, * r, * gamma
    bound = ((blocks + 14) / 2 + 6) * 2.0**-24
    np.testing.assert_allclose(decode_layer.rms(x, gamma), want, rtol=bound, atol=0)


def test_rotation_is_near_float64_and_keeps_lengths() -> None:
    x = np.random.default_rng(3).standard_normal((5, 128)).astype(F)
    table = decode_layer.rope_table(3253)
    z = (x[:, :64] + 1j * x[:, 64:]).astype(np.complex128) * (table[:64] + 1j * table[64:])
    want = np.concatenate([z.real, z.imag], axis=1)
    size = np.concatenate([np.abs(x[:, :64]) + np.abs(x[:, 64:])] * 2, axis=1)
    assert (np.abs(decode_layer.rotate(x, table) - want) <= 2 * 2.0**-24 * size).all()
    np.testing.assert_allclose(np.abs(table[:64] + 1j * table[64:]), 1.0, atol=1e-7)
    np.testing.assert_array_equal(decode_layer.rope_table(0), [1.0] * 64 + [0.0] * 64)


def attention_inputs(kv: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.float16]]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal(TINY.heads * 128).astype(F), decode_layer.cache(TINY, kv, seed + 1)


@pytest.mark.parametrize("kv", [1, 64, 70])
def test_a_split_is_what_its_order_says(kv: int) -> None:
    q, cache = attention_inputs(kv, 5)
    got = decode_layer.attention_split(q, cache, kv)
    assert got.shape == (10, decode_layer.splits(kv), CONSTANTS.part)
    head = 7
    keys, values = cache[0, head // 5].astype(F), cache[1, head // 5].astype(F)
    mine = q.reshape(-1, 128)[head]
    for split in range(decode_layer.splits(kv)):
        first, last = 64 * split, min(64 * split + 64, kv)
        scores = []
        for p in range(first, last):
            lanes = []
            for lane in range(32):
                acc = mine[4 * lane] * keys[p, 4 * lane]
                for k in range(1, 4):
                    acc = acc + mine[4 * lane + k] * keys[p, 4 * lane + k]
                lanes.append(acc)
            scores.append(butterfly(lanes) * F(SCALE))
        top = max(scores)
        weights = [F(exp(np.array([s - top]))[0]) for s in scores] + [F(0)] * (64 - len(scores))
        mass = butterfly([weights[k] + weights[k + 32] for k in range(32)])
        half = [np.zeros(128, F), np.zeros(128, F)]
        for p in range(first, last):
            half[p % 2] = half[p % 2] + weights[p - first] * values[p]
        want = np.concatenate([half[0] + half[1], [top, mass, F(0), F(0)]]).astype(F)
        np.testing.assert_array_equal(got[head, split].view(np.uint32), want.view(np.uint32))


def test_combining_is_what_its_order_says() -> None:
    q, cache = attention_inputs(200, 8)
    parts = decode_layer.attention_split(q, cache, 200)
    got = decode_layer.attention_combine(parts).reshape(10, 128)
    for head in (0, 9):
        top = parts[head, :, 128].max()
        mass, acc = F(0), np.zeros(128, F)
        for split in range(4):
            w = F(exp(np.array([parts[head, split, 128] - top]))[0])
            mass, acc = mass + parts[head, split, 129] * w, acc + parts[head, split, :128] * w
        np.testing.assert_array_equal(got[head], acc / mass)


@pytest.mark.parametrize("kv", [1, 128, 500])
def test_attention_is_near_float64(kv: int) -> None:
    q, cache = attention_inputs(kv, 11)
    got = decode_layer.attention_combine(decode_layer.attention_split(q, cache, kv)).reshape(10, 128)
    keys, values = cache.astype(np.float64)
    for head in range(10):
        s = keys[head // 5] @ q.reshape(-1, 128)[head].astype(np.float64) / np.sqrt(128)
        p = np.exp(s - s.max())
        want = p @ values[head // 5] / p.sum()
        # a score of a few errs by some 10 roundings of its largest partial sums, so its weight by as much
        size = p @ np.abs(values[head // 5]) / p.sum()
        assert (np.abs(got[head] - want) <= 300 * 2.0**-24 * size).all()


def test_a_cache_that_does_not_fit_is_refused() -> None:
    q, cache = attention_inputs(70, 1)
    with pytest.raises(BadInput, match="71 positions"):
        decode_layer.attention_split(q, cache, 71)


def test_layers_in_a_row_stay_sane_and_the_new_position_is_stored() -> None:
    data, h = decode_layer.data(TINY, 2), decode_layer.data(TINY, 2).hidden
    table = decode_layer.rope_table(69)
    for layer in range(8):
        cache = decode_layer.cache(TINY, 70, layer)
        before = cache.copy()
        out = decode_layer.run_layer(data, cache, h, table, TINY)
        assert all(np.isfinite(v).all() for v in out.values() if v.dtype == np.float32)
        assert (cache[:, :, -1] != before[:, :, -1]).mean() > 0.9
        np.testing.assert_array_equal(cache[:, :, :-1], before[:, :, :-1])
        assert not np.array_equal(out["h"], h)
        h = out["h"]
        assert 0.1 < np.sqrt((h.astype(np.float64) ** 2).mean()) < 100


@pytest.mark.parametrize(("kind", "form"), [("q4_K", q4k), ("q6_K", q6k)])
def test_weights_keep_a_unit_sized_input_unit_sized(kind: str, form: object) -> None:
    width = LAYER_14B.hidden if kind == "q4_K" else LAYER_14B.ffn
    raw = decode_layer.weights(Shape(64, width), 3, kind)
    x = np.random.default_rng(1).standard_normal(width).astype(F)
    y = form.reference(raw, q8.quantise(x))
    assert 0.3 < np.sqrt((y.astype(np.float64) ** 2).mean()) < 3
    np.testing.assert_array_equal(raw, decode_layer.weights(Shape(64, width), 3, kind))
    with pytest.raises(BadInput, match="q5_K"):
        decode_layer.weights(Shape(1, 256), 0, "q5_K")


def test_the_layer_is_a_14b_model_s() -> None:
    names = [str(s) for s in (LAYER_14B.qkv, LAYER_14B.o, LAYER_14B.gate_up, LAYER_14B.down)]
    assert names == ["7168x5120", "5120x5120", "27648x5120", "5120x13824"]
    assert (LAYER_14B.heads, LAYER_14B.kv_heads, CONSTANTS.head) == (40, 8, 128)


# The synthetic chains


def test_a_stream_chain_by_hand() -> None:
    tiles, prev = [5, 9], [1, 2]
    for _ in range(3):
        prev = [((t ^ prev[1 - b]) * 0x9E3779B1 + 1) % 2**32 for b, t in enumerate(tiles)]
    got = chains.stream(np.array(tiles, np.uint32), np.array([1, 2], np.uint32), 3)
    assert got.tolist() == prev


@pytest.mark.parametrize(("words", "iters"), [(4, 5), (48, 2)])
def test_a_compute_chain_by_hand_and_compiled(words: int, iters: int) -> None:
    threads = 6
    start = chains.start(threads, 1)
    prev = start.tolist()
    for _ in range(2):
        out = []
        for i in range(threads):
            total = 0
            for s in range(words):
                x = i * words + s
                for k in range(iters):
                    if k == iters // 2:
                        x ^= prev[threads - 1 - i]
                    x = (x * chains.FACTOR + chains.STEP) % 2**32
                total += x
            out.append(total % 2**32)
        prev = out
    np.testing.assert_array_equal(chains.compute_fast(words, iters, start, 2), np.array(prev, np.uint32))


def test_every_launch_of_a_chain_matters() -> None:
    """One stale predecessor anywhere changes the result: what a missing wait would do."""
    start = chains.start(64, 3)
    tiles = np.random.default_rng(4).integers(0, 2**32, 64, dtype=np.uint64).astype(np.uint32)
    right = chains.stream(tiles, start, 6)
    for stale in range(1, 6):
        before, now = chains.stream(tiles, start, stale - 1), chains.stream(tiles, start, stale)
        now[17] = before[17]
        assert not np.array_equal(chains.stream(tiles, now, 6 - stale), right)
