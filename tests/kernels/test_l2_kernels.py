"""L2's kernels without a GPU: the C++ ones on host fibers, the Numba ones by hand, to the oracle's bits."""

from __future__ import annotations

import ctypes
import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probes import l2_chains
from probes.core.types import Shape
from probes.device import pipeline
from probes.formats import chains, checksum, q4k, q6k, q8
from probes.formats import layer as decode_layer
from probes.formats.layer import TINY
from probes.formats.layouts import layout
from probes.formats.packing import pack
from tests.host_calls import FAULTS, aligned

HERE = Path(__file__).parent


def bits(array: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def run(
    lib: ctypes.CDLL, step: l2_chains.Step, buffers: dict[str, NDArray[Any]], kind: str, seed: int
) -> None:
    args: list[Any] = []
    for a in step.args:
        if isinstance(a, str):
            args.append(ctypes.c_void_p(buffers[a].ctypes.data))
        else:
            args.append(ctypes.c_float(a) if isinstance(a, float) else ctypes.c_int32(a))
    end = (0, ctypes.c_void_p(), step.grid, step.block, ctypes.c_uint(seed))
    getattr(lib, f"run_{step.kernel}_{kind}")(*args, *end)


def tiny_buffers(kv: int) -> tuple[decode_layer.Data, dict[str, NDArray[Any]]]:
    data = decode_layer.data(TINY, 3)
    buffers: dict[str, NDArray[Any]] = {
        name: np.full(size, 0xFF, np.uint8) for name, size in l2_chains.activation_bytes(kv, TINY).items()
    }
    buffers |= {
        "in": data.hidden, "out": np.full(TINY.hidden, np.nan, np.float32), "gamma0": data.gamma[0].copy(),
        "gamma1": data.gamma[1].copy(), "table": decode_layer.rope_table(kv - 1), "w.qkv": data.qkv, "w.o": data.o,
        "w.gate_up": data.gate_up, "w.down": pack(data.down, layout("dpl")),
        "w.cache": decode_layer.cache(TINY, kv, 4),
    }  # fmt: skip
    return data, buffers


@pytest.mark.parametrize(
    ("kv", "kind", "seed"), [(1, "entry", 0), (63, "plain", 1), (70, "entry", 7), (128, "plain", 8)]
)
def test_a_layer_of_13_kernels_equals_the_oracle(
    l2_on_host: ctypes.CDLL, kv: int, kind: str, seed: int
) -> None:
    """Threads in order, backwards and shuffled; every buffer of the layer, to the bit."""
    data, buffers = tiny_buffers(kv)
    cache = buffers["w.cache"].copy()
    want = decode_layer.run_layer(data, cache, data.hidden, buffers["table"], TINY)
    for step in l2_chains.decode_steps(kv, TINY):
        run(l2_on_host, step, buffers, kind, seed)
        name = l2_chains.WRITES[step.name]
        got = buffers["out" if name == "h" else name]
        np.testing.assert_array_equal(bits(got), bits(want[name]), err_msg=step.name)
    np.testing.assert_array_equal(bits(buffers["w.cache"]), bits(cache))


def guarded(array: NDArray[Any]) -> NDArray[Any]:
    """The array with a few KiB of NaN after its end, of both float widths: what is read there shows."""
    return np.concatenate([bits(array), np.full(1 << 14, 0xFF, np.uint8)])


def random_parts(splits: int) -> NDArray[np.float32]:
    """attention_split's results for TINY's heads, tops far enough apart that some weights vanish."""
    rng = np.random.default_rng(splits)
    parts = rng.standard_normal((TINY.heads, splits, decode_layer.CONSTANTS.part), dtype=np.float32)
    parts[:, :, 128] *= 20
    parts[:, :, 129] = rng.uniform(1, 64, parts.shape[:2])
    return parts


@pytest.mark.parametrize("kv", [1, 2, 33, 64, 65, 97, 128])
@pytest.mark.parametrize(("kind", "seed"), [("plain", 0), ("entry", 1), ("late", 7)])
def test_a_split_of_any_length_equals_the_oracle(
    l2_on_host: ctypes.CDLL, kv: int, kind: str, seed: int
) -> None:
    """Nothing past the last position counts, and nothing but the parts is written."""
    q = np.random.default_rng(kv).standard_normal(TINY.heads * 128).astype(np.float32)
    cache = decode_layer.cache(TINY, kv, kv + 1)
    want = decode_layer.attention_split(q, cache, kv)
    buffers = {"q": guarded(q), "w.cache": guarded(cache), "parts": guarded(want * np.float32("nan"))}
    run(l2_on_host, l2_chains.decode_steps(kv, TINY)[3], buffers, kind, seed)
    np.testing.assert_array_equal(buffers["parts"], guarded(want))


@pytest.mark.parametrize("splits", [1, 2, 16, 17, 63, 64, 65, 128, 129, 255, 256])
@pytest.mark.parametrize(("kind", "seed"), [("plain", 0), ("entry", 7)])
def test_any_number_of_splits_combines_as_the_oracle_says(
    l2_on_host: ctypes.CDLL, splits: int, kind: str, seed: int
) -> None:
    parts = random_parts(splits)
    want = decode_layer.attention_combine(parts)
    buffers = {"parts": guarded(parts), "attention": guarded(want * np.float32("nan"))}
    run(l2_on_host, l2_chains.decode_steps(splits * 64, TINY)[4], buffers, kind, seed)
    np.testing.assert_array_equal(buffers["attention"], guarded(want))


@pytest.mark.parametrize("kind", ["plain", "late"])
def test_the_stream_chain_equals_the_oracle(l2_on_host: ctypes.CDLL, kind: str) -> None:
    tiles = 3
    w = np.random.default_rng(1).integers(0, 256, tiles * chains.CONSTANTS.tile, dtype=np.uint8)
    start = chains.start(tiles, 2)
    buffers: dict[str, NDArray[Any]] = {
        **{f"w.{k}": w for k in range(4)}, "start": start, "a": start * 0, "b": start * 0,
    }  # fmt: skip
    for step in l2_chains.stream_steps(tiles, 4):
        run(l2_on_host, step, buffers, kind, 7)
    np.testing.assert_array_equal(buffers["b"], chains.stream(checksum.read_xors(w), start, 4))


@pytest.mark.parametrize(("kernel", "words"), [("compute", 4), ("wide", 48)])
@pytest.mark.parametrize("iters", [2, 13])
def test_the_compute_chain_equals_the_oracle(
    l2_on_host: ctypes.CDLL, kernel: str, words: int, iters: int
) -> None:
    start = chains.start(2 * 256, 5)
    buffers: dict[str, NDArray[Any]] = {"start": start, "a": start * 0, "b": start * 0}
    for step in l2_chains.compute_steps(2, kernel, iters, 4):
        run(l2_on_host, step, buffers, "entry", 3)
    np.testing.assert_array_equal(buffers["b"], chains.compute_fast(words, iters, start, 4))


RINGS = {"q4k_ring": ("q4_K", 4, q4k.reference), "q6k_ring": ("q6_K", 8, q6k.reference)}


@pytest.mark.parametrize("kernel", RINGS)
@pytest.mark.parametrize("shape", [Shape(5, 256), Shape(37, 5120), Shape(9, 13824), Shape(4, 25600)], ids=str)
def test_a_ring_equals_the_oracle_and_hands_its_activations_on(
    l2_on_host: ctypes.CDLL, kernel: str, shape: Shape
) -> None:
    """Every kind, blocks and threads in any order; the successor's activations are these, a unit further."""
    kind, per_block, reference = RINGS[kernel]
    raw = decode_layer.weights(shape, 3, kind)
    x8 = q8.quantise(np.random.default_rng(4).standard_normal(shape.id).astype(np.float32))
    packed = raw if kernel == "q4k_ring" else pack(raw, layout("dpl"))
    w, act, stride = aligned(packed), aligned(x8), packed.shape[1]
    want, rotated = reference(raw, x8), np.roll(x8.reshape(-1, 40), 1, axis=0).reshape(-1)
    for number, (rows, stages, grid, ahead) in enumerate(
        [(1, 1, 1, 0), (2, 3, 2, 1), (4, 2, 3, 2), (3, 1, 2, 9)]
    ):
        for seed in (0, 1, 2):
            out, following = np.full(shape.od + 1, np.nan, np.float32), np.zeros_like(x8)
            fault = getattr(l2_on_host, f"run_{kernel}")(
                (number + seed) % 3, *(ctypes.c_void_p(a.ctypes.data) for a in (w, act, following, out)),
                shape.nbe, stride, shape.od, rows, stages, ahead, grid,
                32 * (pipeline.consumer_warps(shape.nbe * per_block) + 1),
                ctypes.c_int64(stages * pipeline.stage_bytes(rows, stride)), seed,
            )  # fmt: skip
            assert FAULTS[fault] == "none"
            np.testing.assert_array_equal(out[:-1].view(np.uint32), want.view(np.uint32))
            np.testing.assert_array_equal(following, rotated)
            assert np.isnan(out[-1])


def test_only_the_late_kind_prefetches_and_not_past_the_end(l2_on_host: ctypes.CDLL) -> None:
    shape = Shape(12, 256)
    raw = decode_layer.weights(shape, 3, "q4_K")
    w, x8, out = aligned(raw), aligned(q8.random_x8(256, 1)), np.zeros(12, np.float32)
    for kind, ahead, want in ((0, 3, 0), (1, 3, 0), (2, 3, 3), (2, 99, 10), (2, 0, 0)):
        at = (ctypes.c_void_p(a.ctypes.data) for a in (w, x8))
        l2_on_host.run_q4k_ring(
            kind, *at, None, ctypes.c_void_p(out.ctypes.data), 1, 144, 12, 1, 2, ahead, 1, 64,
            ctypes.c_int64(2 * pipeline.stage_bytes(1, 144)), 0,
        )  # fmt: skip
        assert l2_on_host.prefetches() == want
        np.testing.assert_array_equal(out.view(np.uint32), q4k.reference(raw, x8).view(np.uint32))


# The Numba kernels' Python on host threads: some blocks of each, against the same oracle


@cache
def emulator() -> Any:
    """tests/nogpu/numba_on_host.py, which is no test and no package's module."""
    spec = importlib.util.spec_from_file_location("numba_on_host", HERE / "numba_on_host.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TYPES = {
    "x8": np.uint32, "a8": np.uint32, "m8": np.uint32, "f8": np.uint32, "w.cache": np.uint16,
}  # fmt: skip
BYTES = {"w.qkv", "w.o", "w.gate_up", "w.down"}


def typed(name: str, kernel: str, array: NDArray[Any]) -> NDArray[Any]:
    """A buffer as the kernel's own pointer type."""
    if name in BYTES or (kernel in ("q4k", "q6k") and name in TYPES):
        return array.reshape(-1).view(np.uint8)
    if name == "w.cache":
        return array.reshape(-1).view(np.uint16 if kernel == "rope_store" else np.uint8)
    return array.reshape(-1).view(TYPES.get(name, np.float32))


@pytest.mark.parametrize("number", range(13))
def test_a_numba_kernel_s_blocks_equal_the_oracle(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle's own buffers go in, and what the first and last block write must be the oracle's words."""
    from kernels_numba import l2 as twins

    kv = 70
    data, buffers = tiny_buffers(kv)
    cache = buffers["w.cache"].copy()
    want = decode_layer.run_layer(data, cache, data.hidden, buffers["table"], TINY)
    step = l2_chains.decode_steps(kv, TINY)[number]
    written = l2_chains.WRITES[step.name]
    name = "out" if written == "h" else written
    inputs = {k: v for k, v in want.items() if k != written} | {
        k: v for k, v in buffers.items() if k.startswith(("w.", "gamma", "table", "in"))
    }
    if step.kernel != "rope_store":
        inputs["w.cache"] = cache
    out = np.full(want[written].nbytes, 0xFF, np.uint8)
    args = []
    for a in step.args:
        if isinstance(a, str):
            args.append(typed(a, step.kernel, out if a == name else inputs[a].copy()))
        else:
            args.append(np.float32(a) if isinstance(a, float) else np.int32(a))
    blocks = sorted({0, step.grid - 1})
    emulator().launch(monkeypatch, twins._FORMS[step.kernel][0], args, step.grid, step.block, blocks)
    got, expected = out.view(np.uint32), bits(want[written]).view(np.uint32)
    hit = got != 0xFFFFFFFF
    np.testing.assert_array_equal(got[hit], expected[hit])
    if step.kernel == "rope_store":  # its last block writes values into the cache, not q
        stored = args[3].reshape(2, TINY.kv_heads, kv, 128)
        np.testing.assert_array_equal(stored[1, :, kv - 1], cache.view(np.uint16)[1, :, kv - 1])
        assert hit.sum() == 256
    elif step.kernel == "attention_split":  # five heads of KV head 0, first split; of the last, last split
        assert hit.sum() == 2 * 5 * decode_layer.CONSTANTS.part
    else:
        assert hit.sum() == got.size * len(blocks) // step.grid


@pytest.mark.parametrize("kv", [1, 33, 64, 65])
def test_a_numba_split_of_any_length_equals_the_oracle(kv: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last KV head's last split: an index past the cache's end raises."""
    from kernels_numba import l2 as twins

    q = np.random.default_rng(kv).standard_normal(TINY.heads * 128).astype(np.float32)
    cache, n = decode_layer.cache(TINY, kv, kv + 1), decode_layer.splits(kv)
    want = decode_layer.attention_split(q, cache, kv)
    got = np.full_like(want, np.nan)
    args = [
        q,
        cache.reshape(-1).view(np.uint8),
        got,
        *map(np.int32, (2, kv, n)),
        np.float32(decode_layer.SCALE),
    ]
    emulator().launch(monkeypatch, twins._FORMS["attention_split"][0], args, 2 * n, 256, [2 * n - 1])
    np.testing.assert_array_equal(bits(got[5:, -1]), bits(want[5:, -1]))
    assert np.isnan(got).sum() == got.size - 5 * decode_layer.CONSTANTS.part


@pytest.mark.parametrize("splits", [1, 64, 65, 129, 256])
def test_numba_combines_any_number_of_splits(splits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last head: an index past the parts' end raises."""
    from kernels_numba import l2 as twins

    parts, last = random_parts(splits), TINY.heads - 1
    got = np.full(TINY.heads * 128, np.nan, np.float32)
    form = twins._FORMS["attention_combine"][0]
    emulator().launch(monkeypatch, form, [parts, got, np.int32(splits)], TINY.heads, 128, [last])
    np.testing.assert_array_equal(
        bits(got[last * 128 :]), bits(decode_layer.attention_combine(parts)[last * 128 :])
    )
    assert np.isnan(got[: last * 128]).all()


def test_numba_s_synthetic_kernels_equal_the_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels_numba import l2 as twins

    w = np.random.default_rng(1).integers(0, 256, 2 * chains.CONSTANTS.tile, dtype=np.uint8)
    start = chains.start(2, 2)
    out = np.zeros(2, np.uint32)
    emulator().launch(monkeypatch, twins._FORMS["stream"][0], [w, start, out], 2, 256, [0, 1])
    np.testing.assert_array_equal(out, chains.stream(checksum.read_xors(w), start, 1))
    for kernel, words in (("compute", 4), ("wide", 48)):
        start = chains.start(512, 5)
        out = np.zeros(512, np.uint32)
        (step,) = l2_chains.compute_steps(2, kernel, 5, 1)
        args = [start, out, *(np.int32(a) for a in step.args[2:])]
        emulator().launch(monkeypatch, twins._FORMS[kernel][0], args, 2, 256, [0, 1])
        np.testing.assert_array_equal(out, chains.compute_fast(words, 5, start, 1))
