"""What stands for a GPU in L2's tests: buffers in host memory, kernels in NumPy, a graph that replays them.

Times are made up. Chains, arms, arguments, the check of a layer, replays, rows and verdicts are real.
"""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from probes.bench import Bench

from probes import (
    cli,
    l2,
    l2_buffers,
    l2_chains,
    l2_decode,
    l2_launch,
    l2_measure,
    l2_once,
    l2_ring,
    l2_ring_buffers,
)
from probes.core.types import Resources, Shape
from probes.device import facts as profiles
from probes.device import pipeline
from probes.device.facts import DeviceFacts
from probes.device.occupancy import occupancy
from probes.formats import chains, checksum, q4k, q6k, q8
from probes.formats import layer as decode_layer
from probes.formats.layouts import layout
from probes.formats.packing import unpack
from probes.gpu import counters, timing
from probes.gpu.kernels import Launch
from probes.gpu.timing import Samples
from probes.report.rows import Row


class HostBuffer:
    """A device buffer in host memory, with guards that no kernel may touch."""

    GUARD = 256

    def __init__(self, size: int) -> None:
        self.size = self.pitch = size
        self._raw = np.full(size + 2 * self.GUARD + 256, 0x5A, np.uint8)
        self._at = -self._raw.ctypes.data % 256 + self.GUARD
        self._mine = self._raw[self._at : self._at + size]
        self.address = self._mine.ctypes.data

    @classmethod
    def of(cls, array: Any, copies: int = 1, align: int = 256) -> HostBuffer:
        pitch = -(-array.nbytes // align) * align
        buffer = cls(pitch * copies)
        buffer.pitch = pitch
        for k in range(copies):
            buffer.upload(array, k * pitch)
        return buffer

    def upload(self, array: Any, offset: int = 0) -> None:
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._mine[offset : offset + flat.size] = flat

    def download(self, dtype: Any, count: int, offset: int = 0) -> Any:
        return self._mine[offset : offset + count * np.dtype(dtype).itemsize].view(dtype).copy()

    def poison(self) -> None:
        self._mine[:] = 0xFF

    def __enter__(self) -> HostBuffer:
        return self

    def __exit__(self, *exc: object) -> None:
        rest = np.delete(self._raw, np.s_[self._at : self._at + self.size])
        assert (rest == 0x5A).all(), "a kernel wrote past a buffer"


def at(address: int, kind: Any, count: int) -> Any:
    """Host memory as an array."""
    size = count * np.dtype(kind).itemsize
    return np.frombuffer((ctypes.c_uint8 * size).from_address(address), kind)


def split_kernel(q: int, cache: int, parts: int, kv_heads: int, kv: int, n: int, scale: float) -> None:
    heads = kv_heads * decode_layer.CONSTANTS.group
    kv_cache = at(cache, np.float16, 2 * kv_heads * kv * 128).reshape(2, kv_heads, kv, 128)
    out = decode_layer.attention_split(at(q, np.float32, heads * 128), kv_cache, kv, scale)
    at(parts, np.float32, out.size)[:] = out.reshape(-1)


def rope_kernel(qkv: int, table: int, q: int, cache: int, heads: int, kv_heads: int, kv: int) -> None:
    values = at(qkv, np.float32, (heads + 2 * kv_heads) * 128)
    new_q, k, v = decode_layer.rope_store(values, at(table, np.float32, 128), decode_layer.TINY)
    at(q, np.float32, new_q.size)[:] = new_q
    kv_cache = at(cache, np.float16, 2 * kv_heads * kv * 128).reshape(2, kv_heads, kv, 128)
    kv_cache[0, :, -1], kv_cache[1, :, -1] = k, v


def combine_kernel(grid: int, parts: int, out: int, n: int) -> None:
    p = at(parts, np.float32, grid * n * decode_layer.CONSTANTS.part).reshape(grid, n, -1)
    at(out, np.float32, grid * 128)[:] = decode_layer.attention_combine(p)


def matmul(kind: Any, block: int, w: int, x8: int, out: int, rows: int, nbe: int) -> None:
    raw = at(w, np.uint8, rows * nbe * block).reshape(rows, -1)
    at(out, np.float32, rows)[:] = kind.reference(raw, at(x8, np.uint8, nbe * 320))


def down_kernel(grid: int, w: int, x8: int, out: int, nbe: int, stride: int) -> None:
    raw = unpack(at(w, np.uint8, grid * stride).reshape(grid, stride), layout("dpl"), nbe)
    at(out, np.float32, grid)[:] = q6k.reference(raw, at(x8, np.uint8, nbe * 320))


def ring_kernel(
    form: str, grid: int, w: int, x8: int, next8: int, out: int, nbe: int, stride: int, od: int, *ring: int
) -> None:
    raw = at(w, np.uint8, od * stride).reshape(od, stride)
    kind = q4k if form == "q4k" else q6k
    raw = raw if form == "q4k" else unpack(raw, layout("dpl"), nbe)
    given = at(x8, np.uint8, nbe * 320)
    at(out, F, od)[:] = kind.reference(raw, given)
    if next8:  # unit u of these becomes unit u + 1 of those
        store(next8, np.concatenate([given[-q8.PAD40 :], given[: -q8.PAD40]]))


def store(address: int, x8: Any) -> None:
    at(address, np.uint8, x8.size)[:] = x8


def stream_kernel(grid: int, w: int, prev: int, out: int) -> None:
    tiles = checksum.read_xors(at(w, np.uint8, grid * chains.CONSTANTS.tile))
    at(out, np.uint32, grid)[:] = chains.stream(tiles, at(prev, np.uint32, grid), 1)


def compute_kernel(words: int, grid: int, prev: int, out: int, m: int, c: int, iters: int) -> None:
    assert (m, c) == (chains.FACTOR, chains.STEP)
    at(out, np.uint32, grid * 256)[:] = chains.compute_fast(words, iters, at(prev, np.uint32, grid * 256), 1)


F = np.float32
KERNELS: dict[str, Any] = {
    "stream": stream_kernel,
    "compute": partial(compute_kernel, 4),
    "wide": partial(compute_kernel, 48),
    "empty": lambda g: None,
    "rms_quantise": lambda g, h, w, x, n, e: store(x, decode_layer.rms_quantise(at(h, F, n), at(w, F, n), e)),
    "q4k": lambda g, w, x, o, nbe: matmul(q4k, q4k.BLOCK, w, x, o, 8 * g, nbe),
    "q6k": down_kernel,
    "q4k_ring": partial(ring_kernel, "q4k"),
    "q6k_ring": partial(ring_kernel, "q6k"),
    "rope_store": lambda g, *a: rope_kernel(*a),
    "attention_split": lambda g, *a: split_kernel(*a),
    "attention_combine": combine_kernel,
    "quantise": lambda g, x, o: store(o, q8.quantise(at(x, F, 256 * g))),
    "swiglu_quantise": lambda g, x, o, nf: store(o, decode_layer.swiglu_quantise(at(x, F, 2 * nf))),
    "add": lambda g, a, b, o: at(o, F, 256 * g).__setitem__(np.s_[:], at(a, F, 256 * g) + at(b, F, 256 * g)),
}  # fmt: skip
"""Kernel -> what it does with (grid, its own arguments)."""


class HostKernel:
    """A kernel with made-up resources."""

    def __init__(self, name: str, facts: DeviceFacts) -> None:
        self.name, self.facts, self.resources = name, facts, Resources(64 if "wide" in name else 32)
        self.percent = -1

    def blocks_per_sm(self, block: int, smem_bytes: int = 0) -> int:
        return occupancy(self.resources, block, smem_bytes, self.facts).blocks_per_sm

    def allow_smem(self, smem_bytes: int) -> None:
        pass

    def prefer_smem(self, percent: int) -> None:
        self.percent = percent


class HostGraph:
    def __init__(self, stream: Any, steps: Any) -> None:
        self.steps = list(steps)
        self.nodes = sum(s.nodes for s in self.steps)
        flat = [x for s in self.steps for x in getattr(s, "launches", (s,))]
        self.edges = self.nodes - 1
        self.programmatic = sum(x.config.pdl for x in flat[1:])

    def replay(self) -> None:
        for step in self.steps:
            step.enqueue(None)

    def close(self) -> None:
        pass


FACTS = DeviceFacts(**{
    **{f: getattr(profiles.load("h200"), f) for f in DeviceFacts.__dataclass_fields__},
    "sms": 1, "max_threads_per_sm": 512, "l2_bytes": 1024,
})  # fmt: skip
TIMES = {
    "pdl_entry": 0.99, "pdl_entry_trigger": 0.98, "pdl_late": 0.95, "pdl_late_trigger": 0.9,
    "pdl_late_tail": 0.85, "read_chain": 0.7, "read_chain_pdl": 0.68, "now": 0.9,
    "ffn_down_2r2b5s-dealt_a2_tail": 0.8, "ffn_down_8r1b2s-dealt_a0_plain": 0.1,
    "q4k_8r4b2s-dealt_a0_tail": 0.8,
}  # fmt: skip
"""Arm, or point of a sweep -> its made-up time, of 100 us."""

SMALL = Shape(512, 256)
"""A matrix whose rows in the dpl layout are whole tiles to read, and 8 units long."""

LAUNCHES = 4


CASES = [l2.Case("ffn_down24"), l2.Case("attn_v24"), l2.Case("decode13_ring", 128)]
"""The chains of ring kernels."""


def arguments(*argv: str) -> Any:
    """Flags of a run."""
    return cli.parser("l2").parse_args(list(argv))


def rows_of(bench: Bench, *argv: str) -> list[Row]:
    """All rows of a run of the C++ kernels."""
    return [r for rows in l2_measure.measure(bench, arguments("--backend", "cu", *argv)) for r in rows]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A bench whose GPU is this machine, and chains small enough for it."""
    tiny = decode_layer.TINY
    for module in (l2_buffers, l2_launch, l2_decode, l2_ring_buffers, l2_once):
        monkeypatch.setattr(module, "Buffer", HostBuffer)
    monkeypatch.setattr(counters, "window", nullcontext)
    monkeypatch.setattr(l2_launch, "capture", HostGraph)
    monkeypatch.setattr(l2_launch, "Eager", HostGraph)
    monkeypatch.setattr(l2_launch.overlap, "__defaults__", (2, 3))
    monkeypatch.setattr(l2_launch.stable, "__defaults__", (3,))
    monkeypatch.setattr(timing, "rotation", lambda *a: 2)
    monkeypatch.setattr(l2_chains, "layer_bytes", lambda kv: 4096 * kv)
    for name in ("decode_steps", "activation_bytes"):
        monkeypatch.setattr(l2_chains, name, partial(getattr(l2_chains, name), layer=tiny))
    monkeypatch.setattr(decode_layer, "LAYER_14B", tiny)
    monkeypatch.setattr(decode_layer, "run_layer", partial(decode_layer.run_layer, layer=tiny))
    for name, own in (("stream_steps", {"tiles": 2}), ("compute_steps", {}), ("empty_steps", {})):
        short = partial(getattr(l2_chains, name), **own, launches=LAUNCHES)
        monkeypatch.setattr(l2_chains, name, short)
    monkeypatch.setattr(l2_chains, "COMPUTE_ITERS", 4)
    monkeypatch.setattr(l2, "KVS", (9, 5))
    monkeypatch.setattr(chains, "CHAIN", LAUNCHES)
    for name, matrix in l2_ring.MATRICES.items():
        monkeypatch.setitem(l2_ring.MATRICES, name, replace(matrix, shape=SMALL))

    time = [0]

    def enqueue(self: Launch, stream: Any) -> None:
        if self.kernel.name == "harness_read":
            data, out, words = (a if isinstance(a, int) else a.value for a in self.args)
            at(out, np.uint32, self.config.grid)[:] = checksum.read_xors(at(data, np.uint8, 16 * words))
            return
        assert all(isinstance(a, (int, ctypes.c_int32, ctypes.c_float)) for a in self.args)
        *args, flags, stamps = (a if isinstance(a, int) else a.value for a in self.args)
        name = self.kernel.name.removeprefix("l2_").rpartition("_")[0]
        assert bool(flags & 2) == bool(stamps)
        if name in l2_chains.RINGS:
            *_, nbe, stride, _, rows, stages, _ = args
            assert self.config.smem_bytes == stages * pipeline.stage_bytes(rows, stride)
            units = nbe * (4 if name == "q4k_ring" else 8)
            assert self.config.block == 32 * (pipeline.consumer_warps(units) + 1)
            assert self.kernel.percent == 100
        KERNELS[name](self.config.grid, *args)
        if stamps:
            time[0] += 1000  # 600 ns each, 400 ns apart
            at(stamps, np.uint64, 2)[:] = time[0], time[0] + 600

    def sample(stream: Any, arms: Any, windows: int, clock: Any, seed: int, *rest: Any) -> dict[str, Samples]:
        rng = np.random.default_rng(seed)
        out = {}
        for arm in arms:
            factor = TIMES.get(arm.name.split("/")[0], 1.0)
            noise = 1 + 1e-4 * rng.standard_normal((windows, 2))
            out[arm.name] = Samples(1e-4 * factor * noise, np.full((windows, 2), 1.9e9))
            arm.recheck()
        return out

    monkeypatch.setattr(Launch, "enqueue", enqueue)
    monkeypatch.setattr(timing, "sample", sample)
    monkeypatch.setattr(timing, "event_loop_s", lambda stream, arm: 2e-4)
    monkeypatch.setattr(Bench, "clock", lambda self: None)
    monkeypatch.setattr(Bench, "ceiling_arms", lambda self, case, backends: [])
    monkeypatch.setattr(
        Bench, "kernels", lambda self, p, names, b, m=0: {n: HostKernel(n, self.gpu.facts) for n in names}
    )
    stream = SimpleNamespace(sync=lambda: None)
    gpu = SimpleNamespace(facts=FACTS, stream=stream, free_bytes=lambda: (1 << 33, 1 << 33))
    return Bench(gpu, 0, 8, lambda line: None)
