"""L2's measuring code without a GPU: buffers in host memory, kernels in NumPy, a graph that replays them.

Times are made up. Chains, arms, arguments, the check of a layer, replays, rows and verdicts are real.
"""

from __future__ import annotations

import ctypes
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from probes import cli, l2, l2_buffers, l2_chains, l2_launch, l2_measure, l2_report, l2_sweep
from probes.bench import Bench
from probes.core import chains, checksum, decode, device, q4k, q6k, q8
from probes.core.device import DeviceFacts
from probes.core.layouts import layout
from probes.core.occupancy import occupancy
from probes.core.packing import unpack
from probes.core.rows import Row
from probes.core.types import Resources, WrongResult
from probes.gpu import timing
from probes.gpu.kernels import Launch
from probes.gpu.timing import Samples


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
    heads = kv_heads * decode.CONSTANTS.group
    kv_cache = at(cache, np.float16, 2 * kv_heads * kv * 128).reshape(2, kv_heads, kv, 128)
    out = decode.attention_split(at(q, np.float32, heads * 128), kv_cache, kv, scale)
    at(parts, np.float32, out.size)[:] = out.reshape(-1)


def rope_kernel(qkv: int, table: int, q: int, cache: int, heads: int, kv_heads: int, kv: int) -> None:
    values = at(qkv, np.float32, (heads + 2 * kv_heads) * 128)
    new_q, k, v = decode.rope_store(values, at(table, np.float32, 128), decode.TINY)
    at(q, np.float32, new_q.size)[:] = new_q
    kv_cache = at(cache, np.float16, 2 * kv_heads * kv * 128).reshape(2, kv_heads, kv, 128)
    kv_cache[0, :, -1], kv_cache[1, :, -1] = k, v


def combine_kernel(grid: int, parts: int, out: int, n: int) -> None:
    p = at(parts, np.float32, grid * n * decode.CONSTANTS.part).reshape(grid, n, -1)
    at(out, np.float32, grid * 128)[:] = decode.attention_combine(p)


def matmul(kind: Any, block: int, w: int, x8: int, out: int, rows: int, nbe: int) -> None:
    raw = at(w, np.uint8, rows * nbe * block).reshape(rows, -1)
    at(out, np.float32, rows)[:] = kind.reference(raw, at(x8, np.uint8, nbe * 320))


def down_kernel(grid: int, w: int, x8: int, out: int, nbe: int, stride: int) -> None:
    raw = unpack(at(w, np.uint8, grid * stride).reshape(grid, stride), layout("dpl"), nbe)
    at(out, np.float32, grid)[:] = q6k.reference(raw, at(x8, np.uint8, nbe * 320))


def store(address: int, x8: Any) -> None:
    at(address, np.uint8, x8.size)[:] = x8


def stream_kernel(grid: int, w: int, prev: int, out: int) -> None:
    tiles = checksum.read_xors(at(w, np.uint8, grid * chains.CONSTANTS.tile))
    at(out, np.uint32, grid)[:] = chains.stream(tiles, at(prev, np.uint32, grid), 1)


def compute_kernel(words: int, grid: int, prev: int, out: int, m: int, c: int, iters: int) -> None:
    assert (m, c) == (chains.FACTOR, chains.STEP)
    at(out, np.uint32, grid * 256)[:] = chains.compute(words, iters, at(prev, np.uint32, grid * 256), 1)


F = np.float32
KERNELS: dict[str, Any] = {
    "stream": stream_kernel,
    "compute": partial(compute_kernel, 4),
    "wide": partial(compute_kernel, 48),
    "empty": lambda g: None,
    "rms_quantise": lambda g, h, w, x, n, e: store(x, decode.rms_quantise(at(h, F, n), at(w, F, n), e)),
    "q4k": lambda g, w, x, o, nbe: matmul(q4k, q4k.BLOCK, w, x, o, 8 * g, nbe),
    "q6k": down_kernel,
    "rope_store": lambda g, *a: rope_kernel(*a),
    "attention_split": lambda g, *a: split_kernel(*a),
    "attention_combine": combine_kernel,
    "quantise": lambda g, x, o: store(o, q8.quantise(at(x, F, 256 * g))),
    "swiglu_quantise": lambda g, x, o, nf: store(o, decode.swiglu_quantise(at(x, F, 2 * nf))),
    "add": lambda g, a, b, o: at(o, F, 256 * g).__setitem__(np.s_[:], at(a, F, 256 * g) + at(b, F, 256 * g)),
}  # fmt: skip
"""Kernel -> what it does with (grid, its own arguments)."""


class HostKernel:
    """A kernel with made-up resources."""

    def __init__(self, name: str, facts: DeviceFacts) -> None:
        self.name, self.facts, self.resources = name, facts, Resources(64 if "wide" in name else 32)

    def blocks_per_sm(self, block: int, smem_bytes: int = 0) -> int:
        return occupancy(self.resources, block, smem_bytes, self.facts).blocks_per_sm

    def allow_smem(self, smem_bytes: int) -> None:
        pass


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
    **{f: getattr(device.load("h200"), f) for f in DeviceFacts.__dataclass_fields__},
    "sms": 1, "max_threads_per_sm": 512, "l2_bytes": 1024,
})  # fmt: skip
TIMES = {"pdl_entry": 0.99, "pdl_entry_trigger": 0.98, "pdl_late": 0.95, "pdl_late_trigger": 0.9}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A bench whose GPU is this machine, and chains small enough for it."""
    tiny = decode.TINY
    for module in (l2_buffers, l2_launch):
        monkeypatch.setattr(module, "Buffer", HostBuffer)
    monkeypatch.setattr(l2_launch, "capture", HostGraph)
    monkeypatch.setattr(l2_launch, "Eager", HostGraph)
    monkeypatch.setattr(l2_launch.overlap, "__defaults__", (2, 3))
    monkeypatch.setattr(l2_launch.stable, "__defaults__", (3,))
    monkeypatch.setattr(timing, "rotation", lambda *a: 2)
    monkeypatch.setattr(l2_chains, "layer_bytes", lambda kv: 4096 * kv)
    for name in ("decode_steps", "activation_bytes"):
        monkeypatch.setattr(l2_chains, name, partial(getattr(l2_chains, name), layer=tiny))
    monkeypatch.setattr(decode, "LAYER_14B", tiny)
    monkeypatch.setattr(decode, "run_layer", partial(decode.run_layer, layer=tiny))
    monkeypatch.setattr(l2_chains, "stream_steps", partial(l2_chains.stream_steps, tiles=2, launches=4))
    monkeypatch.setattr(l2_chains, "compute_steps", partial(l2_chains.compute_steps, launches=4))
    monkeypatch.setattr(l2_chains, "empty_steps", partial(l2_chains.empty_steps, launches=4))
    monkeypatch.setattr(l2_chains, "COMPUTE_ITERS", 4)
    monkeypatch.setattr(l2, "KVS", (9, 5))

    time = [0]

    def enqueue(self: Launch, stream: Any) -> None:
        assert all(isinstance(a, (int, ctypes.c_int32, ctypes.c_float)) for a in self.args)
        *args, flags, stamps = (a if isinstance(a, int) else a.value for a in self.args)
        name = self.kernel.name.removeprefix("l2_").rpartition("_")[0]
        assert bool(flags & 2) == bool(stamps)
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


def arguments(*argv: str) -> Any:
    return cli.parser("l2").parse_args(list(argv))


def rows_of(bench: Bench, *argv: str) -> list[Row]:
    rows = [r for rows in l2_measure.measure(bench, arguments("--backend", "cu", *argv)) for r in rows]
    for row in rows:  # these chains are too small to be cold
        row.notes = [n for n in row.notes if not n.startswith("hot")]
    return rows


def test_every_chain_and_arm_runs_checked_and_proven(bench: Bench) -> None:
    rows = rows_of(bench)
    for row in rows:
        row.check()
    groups = list(dict.fromkeys(r.group for r in rows))
    assert groups == ["bandwidth24", "compute24", "decode13@9", "decode13@5", "empty"]
    assert len({r.id for r in rows}) == len(rows)
    for group in groups:
        mine = {r.variant: r for r in rows if r.group == group}
        assert [v for v in mine if v in {a.name for a in l2.ARMS}] == [a.name for a in l2.ARMS]
        launches = 13 if "decode13" in group else 4
        late = mine["pdl_late_trigger"]
        assert late.bitwise is (None if group == "empty" else True)
        assert late.overlap_s == pytest.approx(-400e-9)
        assert late.gain_per_interface_s == pytest.approx(1e-5 / launches, rel=0.01)
        notes = " ".join(late.notes)
        assert "3 replays equal to eager launches" in notes
        assert "edges programmatic" in notes and l2.MISSING not in notes.replace("proof missing: no wait", "")
        assert mine["pdl_late_off"].notes[-1].startswith("0 of ")
        assert mine["eager"].notes and not any("edges" in n for n in mine["eager"].notes)
        assert late.event_loop_time_s is None
    kernels = [r for r in rows if r.group == "decode13@9" and r.variant.startswith("kernel_")]
    assert len(kernels) == 13 and all(r.waves and r.blocks_per_sm and r.notes for r in kernels)
    assert {r.variant for r in rows if r.variant.startswith("pair_")} >= {"pair_plain", "pair_pdl_entry"}


def test_verdicts_need_an_overlap_and_both_kv_lengths(bench: Bench) -> None:
    rows = rows_of(bench, "--case", "decode13")
    verdicts = {(r.variant, r.backend): r for r in l2_report.judge(rows, 0)}
    assert [k[0] for k in verdicts] == list(l2.JUDGED)
    entry = verdicts["pdl_entry", "cu"]
    assert entry.verdict == "INCONCLUSIVE" and "no overlap seen" in (entry.reason or "")
    for row in rows:  # now as a GPU would show it
        if row.variant.startswith("pdl_"):
            row.overlap_s = 3e-6
        elif row.variant == "plain":
            row.overlap_s = -1e-6
    verdicts = {(r.variant, r.backend): r for r in l2_report.judge(rows, 0)}
    entry = verdicts["pdl_entry", "cu"]
    assert (entry.verdict, entry.recorded, entry.agrees) == ("GO", "NO-GO", False)
    assert "3.00 us before" in (entry.reason or "") and "PROBES_PDL=0" in (entry.reason or "")
    assert l2_report.judge(rows, 0)[0].to_json() == l2_report.judge(rows, 0)[0].to_json()
    one = [r for r in rows if r.kv == 9]
    assert {r.verdict for r in l2_report.judge(one, 0)} == {"INCONCLUSIVE"}
    for markdown in (False, True):
        text = "\n".join(l2_report.sections(rows, markdown))
        assert "pdl_late_trigger +11." in text and "slower: none" in text
    assert "+11." in l2_report.readme(rows)


def test_a_missing_proof_keeps_an_arm_from_a_verdict(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBES_PDL", "0")
    rows = rows_of(bench, "--case", "decode13", "--arm", "pdl_entry")
    assert {r.variant for r in rows if r.samples_s} == {*l2.AA, "pdl_entry"}
    (row,) = l2_report.judge(rows, 0)
    assert row.verdict == "INCONCLUSIVE" and "PROBES_PDL=0" in (row.reason or "")


def test_a_wrong_kernel_is_caught_and_named(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Launch.enqueue

    def wrong(self: Launch, stream: Any) -> None:
        right(self, stream)
        if self.kernel.name == "l2_add_plain":
            at(self.args[2], np.float32, 4)[2] += 1

    monkeypatch.setattr(Launch, "enqueue", wrong)
    with pytest.raises(WrongResult, match="decode13 add/cu at KV 9"):
        rows_of(bench, "--case", "decode13", "--kv", "9")


def test_the_sweep_yields_points_a_text_and_a_plot(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(l2_sweep, "cap_smem", lambda kernel, block, blocks, gpu: 0)
    monkeypatch.setattr(l2, "SWEEP_WAVES", (1.0, 1.5))
    rows = rows_of(bench, "--case", "compute24", "--sweep")
    sweep = [r for r in rows if r.case.startswith("sweep_")]
    assert {r.case for r in sweep} == {
        f"sweep_{k}_b2_w{w}" for k in ("compute", "wide") for w in ("1", "1.5")
    }
    text = "\n".join(l2_report.sections(rows, True))
    assert "No tax was found in this range" in text and "12 faster and 0 slower" in text
    blocks = l2_report.plots(rows, tmp_path / "l2.md")
    assert blocks and ((tmp_path / "l2_sweep.svg").exists() or "matplotlib" in blocks[0])


def test_an_older_gpu_is_skipped_with_the_reason(bench: Bench) -> None:
    from dataclasses import replace

    bench.gpu.facts = replace(FACTS, arch="sm_80")
    rows = rows_of(bench)
    assert rows and all("sm_90 or later, this GPU is sm_80" in (r.skipped or "") for r in rows)
    assert not l2_report.judge(rows, 0)
