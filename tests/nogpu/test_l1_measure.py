"""L1's measuring code without a GPU: buffers in host memory, kernels in NumPy, a graph that replays them.

Times are made up. Arms, plans, arguments, checks, rows, the sweep and what the report says of it are real.
"""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from probes import bench as bench_module
from probes import cli, l1, l1_arms, l1_limit, l1_measure, l1_report, l1_ring, l1_sweep, points
from probes.bench import Bench
from probes.core import checksum, device, q6k, report, ring, tuning
from probes.core.layouts import layout
from probes.core.occupancy import occupancy
from probes.core.packing import unpack
from probes.core.rows import Row
from probes.core.stats import Interval
from probes.core.tuning import Geometry
from probes.core.types import BadInput, Resources, Shape
from probes.gpu import counters, timing
from probes.gpu.kernels import Launch
from probes.gpu.timing import Samples

CASES = (
    l1.Case("ffn_down_14b", Shape(40, 10240), {"14b": 2}),
    l1.Case("attn_v_14b", Shape(24, 512), {"14b": 3}),
    l1.Case("ffn_down_7b", Shape(24, 18944), {"7b": 1}),
)
FACTS = replace(device.load("h200"), sms=2, l2_bytes=1024, slug="two-sms")


class HostBuffer:
    """A device buffer in host memory."""

    def __init__(self, size: int) -> None:
        self.size = self.pitch = size
        self._raw = np.zeros(size + 256, np.uint8)
        self._at = -self._raw.ctypes.data % 256
        self.address = self._raw.ctypes.data + self._at

    @classmethod
    def of(cls, array: Any, copies: int = 1, align: int = 256) -> HostBuffer:
        pitch = -(-array.nbytes // align) * align
        buffer = cls(pitch * copies)
        buffer.pitch = pitch
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        for k in range(copies):
            buffer._raw[buffer._at + k * pitch :][: flat.size] = flat
        return buffer

    def download(self, dtype: Any, count: int, offset: int = 0) -> Any:
        return self._raw[self._at + offset :][: count * np.dtype(dtype).itemsize].view(dtype).copy()

    def poison(self) -> None:
        self._raw[self._at : self._at + self.size] = 0xFF

    def __enter__(self) -> HostBuffer:
        return self

    def __exit__(self, *error: object) -> None:
        self.poison()


def at(address: int, kind: Any, count: int) -> Any:
    """Host memory as an array."""
    return np.frombuffer((ctypes.c_uint8 * (count * np.dtype(kind).itemsize)).from_address(address), kind)


class HostKernel:
    """A kernel with made-up resources."""

    def __init__(self, name: str, backend: Any) -> None:
        self.name, self.backend = name, backend
        self.resources = Resources(96 if name.endswith(("ring", "async")) else 40, 32)

    def blocks_per_sm(self, block: int, smem_bytes: int = 0) -> int:
        return occupancy(self.resources, block, smem_bytes, FACTS).blocks_per_sm

    def allow_smem(self, smem_bytes: int) -> None:
        pass


class HostGraph:
    def __init__(self, stream: Any, launches: Any) -> None:
        self.launches = list(launches)
        self.nodes = len(self.launches)

    def replay(self) -> None:
        for launch in self.launches:
            launch.enqueue(None)

    def close(self) -> None:
        pass


def enqueue(self: Launch, stream: Any) -> None:
    """What each kernel does with its own arguments, which must be the ones that its form takes."""
    assert all(isinstance(a, (int, ctypes.c_int32, ctypes.c_int64)) for a in self.args)
    args = [a if isinstance(a, int) else a.value for a in self.args]
    if self.kernel.name == "harness_read":
        data, out, words = args
        xors = checksum.read_xors(at(data, np.uint8, 16 * words))
        at(out, np.uint32, self.config.grid)[:] = xors
        return
    _, lay, form = self.kernel.name.split("_")
    w, x8, out, *rest = args
    if form == "ring":
        counter, nbe, stride, od, rows, stages = rest
        assert self.config.smem_bytes == stages * ring.stage_bytes(rows, stride)
        assert self.config.block == 32 * (ring.consumer_warps(nbe * 8) + 1)
        assert not counter or at(counter, np.uint32, 1)[0] == 0
    elif form == "async":
        nbe, stride, od = rest
    else:
        (nbe, stride), od = rest, self.config.grid
    packed = at(w, np.uint8, od * stride).reshape(od, stride)
    x = at(x8, np.uint8, nbe * 320)
    if form == "stream":
        at(out, np.uint32, od)[:] = checksum.stream_sums(packed, layout(lay), nbe, x)
    else:
        at(out, np.float32, od)[:] = q6k.reference(unpack(packed, layout(lay), nbe), x)


def seconds(name: str) -> float:
    """A made-up time: rings at the bytes' own speed, two rows per fill the best of them."""
    variant = name.split("/")[0]
    slow = 1.0 if variant.startswith(("dpl", "gpl", "read_dpl", "dispatch_dpl")) else 224 / 210
    if variant.startswith("read_"):
        return 1e-5 * slow
    if "_ring" in variant:
        return 1.1e-5 * slow * (1.0 if "@2r" in variant else 1.05 if "@" in variant else 1.0)
    return (1.3e-5 if "_async" in variant else 1.6e-5) * slow


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A bench whose GPU is this machine, and cases small enough for it."""

    def sample(stream: Any, arms: Any, windows: int, clock: Any, seed: int, *rest: Any) -> dict[str, Samples]:
        rng, out = np.random.default_rng(seed), {}
        for arm in arms:
            noise = 1 + 1e-4 * rng.standard_normal((windows, 2))
            out[arm.name] = Samples(seconds(arm.name) * noise, np.full((windows, 2), 1.9e9))
            arm.recheck()
        return out

    monkeypatch.setattr(l1, "CASES", CASES)
    for module in (l1_arms, bench_module):
        monkeypatch.setattr(module, "Buffer", HostBuffer)
    monkeypatch.setattr(l1_ring, "make_room", lambda kernel, smem: None)
    monkeypatch.setattr(counters, "window", nullcontext)
    monkeypatch.setattr(timing, "rotation", lambda *a: 2)
    monkeypatch.setattr(timing, "capture", HostGraph)
    monkeypatch.setattr(timing, "sample", sample)
    monkeypatch.setattr(Launch, "enqueue", enqueue)
    monkeypatch.setattr(Bench, "clock", lambda self: None)
    monkeypatch.setattr(Bench, "ceiling_arms", lambda self, case, backends: [])
    files: list[str] = []

    def kernels(self: Bench, stem: str, names: Any, backend: Any, blocks: int = 0) -> dict[str, HostKernel]:
        files.append(stem)
        return {n: HostKernel(n, backend) for n in names}

    monkeypatch.setattr(Bench, "kernels", kernels)
    gpu = SimpleNamespace(
        facts=FACTS, stream=SimpleNamespace(sync=lambda: None), free_bytes=lambda: (1 << 33, 1 << 33)
    )
    made = Bench(gpu, 0, 8, lambda line: None)
    made.files = files  # type: ignore[attr-defined]
    return made


def rows_of(bench: Bench, *argv: str) -> list[Row]:
    args = cli.parser("l1").parse_args(list(argv))
    rows = [r for rows in l1_measure.measure(bench, args) for r in rows]
    for row in rows:  # these weights are too small to be cold
        row.check()
        row.notes = [n for n in row.notes if not n.startswith("hot")]
    assert len({r.id for r in rows}) == len(rows)
    return rows


def test_every_form_runs_with_its_own_arguments_and_is_checked(bench: Bench) -> None:
    rows = rows_of(bench)
    by = {(r.case, r.variant): r for r in rows if r.backend == "cu"}
    want = {name for name, _, _ in l1.variants()} | set(l1.AAS) | set(l1.FLIP)
    for case in CASES:
        assert want <= {v for c, v in by if c == case.id}
    skipped = {"ffn_down_14b": ("pf3",), "attn_v_14b": ("pf", "pf3"), "ffn_down_7b": ("pf",)}
    for case, forms in skipped.items():
        found = {r.variant for r in rows if r.case == case and r.skipped}
        assert found == {f"{lay}_{form}" for lay in l1.READ_OF for form in forms}
    assert all(r.bitwise and r.ratio_to_baseline for r in rows if r.samples_s and "read" not in r.variant)
    ring, plain = by["ffn_down_14b", "gpl_ring"], by["ffn_down_14b", "gpl_loop"]
    assert (ring.grid, plain.grid) == (4, 40)
    assert (ring.waves, ring.blocks_per_sm) == (1.0, 2)
    assert ring.notes == ["geometry 8r2b0s-drawn, 1 stage, by the default rule"]
    assert by["ffn_down_14b", "gpl_async"].notes == ["geometry 2b, by the default rule"]
    assert set(bench.files) == {"l1", "l1_ring", "harness"}  # type: ignore[attr-defined]


def test_a_form_alone_and_what_it_needs(bench: Bench) -> None:
    rows = rows_of(bench, "--form", "ring", "--layout", "gpl", "--backend", "cu", "--case", "attn_v_14b")
    assert [r.variant for r in rows] == [
        "padded_loop", "padded_ring", "gpl_ring", "padded_loop_aa", "padded_ring_aa",
        "read_padded", "read_dpl",
    ]  # fmt: skip
    rows = rows_of(bench, "--form", "loop", "--case", "attn_v_14b")
    assert not [r for r in rows if "ring" in r.variant]


def test_blocks_per_sm_holds_the_grid(bench: Bench) -> None:
    argv = ["--blocks-per-sm", "1", "--form", "async", "--form", "ring", "--backend", "cu"]
    by = {r.variant: r for r in rows_of(bench, *argv, "--layout", "gpl", "--case", "ffn_down_14b")}
    assert (by["gpl_ring"].grid, by["gpl_async"].grid) == (2, 2)
    assert "8r1b0s-drawn" in by["gpl_ring"].notes[0]
    assert by["padded_loop"].blocks_per_sm == 1


def test_an_older_gpu_skips_ring_with_the_reason(bench: Bench) -> None:
    bench.gpu.facts = replace(FACTS, arch="sm_86")
    rows = rows_of(bench, "--backend", "cu", "--case", "attn_v_14b")
    skipped = {r.variant: r.skipped for r in rows if r.skipped and not r.variant.endswith(("_pf", "_pf3"))}
    assert set(skipped) == {f"{lay}_ring" for lay in l1.READ_OF} | {"padded_ring_aa"}
    assert set(skipped.values()) == {"bulk copies need sm_90, this GPU is sm_86"}
    assert {r.variant for r in rows if r.variant.endswith("async") and r.bitwise}


def test_the_ring_is_judged_and_the_limit_shown(bench: Bench) -> None:
    rows = rows_of(bench)
    judged = {(r.case, r.variant): r for r in l1_report.judge(rows, 0) if r.backend == "cu"}
    found = judged["ffn_down_14b", "dpl_ring"]
    assert found.verdict == "GO" and found.recorded is None
    assert found.ratio_to_baseline == pytest.approx(210 / 224, abs=1e-3)
    assert "fewer bytes: the gain is the bytes, no more and no less" in (found.reason or "")
    assert judged["model_14b", "dpl_ring"].verdict == "GO"
    padded = next(r for r in rows if (r.case, r.variant, r.backend) == ("ffn_down_14b", "padded_ring", "cu"))
    assert "in geometry" not in (found.reason or "")
    padded.notes = ["geometry 4r2b0s-dealt, 2 stages, tuned"]
    again = {(r.case, r.variant, r.backend): r for r in l1_report.judge(rows, 0)}
    assert "in geometry 8r2b0s-drawn against 4r2b0s-dealt" in (
        again["ffn_down_14b", "dpl_ring", "cu"].reason or ""
    )
    best = l1_limit.nearest(rows, "ffn_down_14b", "cu")
    assert best is not None
    assert best.row.variant in ("dpl_ring", "gpl_ring")
    assert best.fraction == pytest.approx(1 / 1.1, abs=1e-3) and best.said == "reached"
    assert best.ratio.ratio == pytest.approx(1.1 / 1.6 * 210 / 224, abs=1e-3)
    text = l1_report.readme([*rows, *l1_report.judge(rows, 0)])
    assert "What beats the recorded kernels here" in text and "| reached" in text
    assert "What beats the recorded kernels here" in l1_report.sections(rows, False)[0]


@pytest.mark.parametrize(
    ("fraction", "low", "high", "target", "want"),
    [
        (0.96, 0.955, 0.965, 0.95, "reached"),
        (0.949, 0.945, 0.953, 0.95, "not reached (within the interval)"),
        (0.951, 0.947, 0.955, 0.95, "reached (within the interval)"),
        (0.90, 0.89, 0.91, 0.95, "not reached"),
        (0.90, 0.89, 0.91, None, ""),
    ],
)
def test_a_target_is_reached_or_not(
    fraction: float, low: float, high: float, target: float | None, want: str
) -> None:
    row = Row(probe="l1", case="c", variant="gpl_ring", backend="cu", source="measured")
    assert l1_limit.Nearest(row, Interval(1.0, 1.0, 1.0), fraction, low, high, target).said == want


def test_the_reads_and_the_stream_form_are_no_kernel_that_beats_anything(bench: Bench) -> None:
    rows = rows_of(bench, "--form", "stream", "--form", "loop", "--case", "attn_v_14b", "--backend", "cu")
    for row in rows:
        if row.variant.endswith("stream"):
            row.time_s = 1e-9
    best = l1_limit.nearest(rows, "attn_v_14b", "cu")
    assert best is not None and best.row.variant.endswith("_loop")
    assert l1_limit.nearest([r for r in rows if r.variant != "dispatch_padded"], "attn_v_14b", "cu") is None
    assert l1_limit.section([], "", True) == []


def test_what_is_left_to_a_plain_read_is_told_of_every_form_past_the_record() -> None:
    row = Row(
        probe="l1", case="attn_v_14b", variant="gpl_ring", backend="cu", source="measured", device="x",
        time_s=4e-6, same_bytes_read_s=3e-6, read_ceiling_gbps=4000.0, grid=100, smem_bytes=1 << 20,
        dram_bytes_read=8_000_000, profiler_time_s=4e-6,
    )  # fmt: skip
    (text,) = l1_limit.left([row], "", True)
    for word in ("2000", "50.0 %", "100.00 MiB", "4.00 µs", "1.00 µs", "75.0 %"):
        assert word in text, word
    (text,) = l1_limit.left([replace(row, variant="gpl_async")], "", True)
    assert "75.0 %" in text and "100.00 MiB" not in text, "no copies fill its shared memory"
    for without in (
        {"variant": "gpl_loop"}, {"variant": "padded_ring_aa"}, {"variant": "read_dpl"},
        {"profiler_time_s": None},
    ):  # fmt: skip
        assert l1_limit.left([replace(row, **without)], "", True) == []
    assert {f.name for f in l1.FORMS} > set(l1.RECORDED)


def test_a_sweep_names_every_geometry_once_and_what_to_write(bench: Bench) -> None:
    rows = rows_of(bench, "--sweep", "--case", "ffn_down_14b")
    variants = [r.variant for r in rows]
    assert len(set(variants)) == len(variants)
    tried = {v for v in variants if v.startswith("gpl_")}
    assert tried == {f"gpl_ring@{g}" for g in l1_ring.CANDIDATES} | {f"gpl_async@{b}b" for b in (1, 2, 3, 4)}
    assert {r.backend for r in rows} == {"cu"} and {r.windows for r in rows if r.samples_s} == {
        points.WINDOWS
    }
    assert sum(v.startswith("padded_") for v in variants) == sum(l1_sweep.FEW.values())
    why = {r.variant: r.skipped for r in rows if r.skipped}
    assert {w.rstrip("0123456789rbs-dealtwn") for w in why.values() if w} >= {"the same launch as gpl_ring@"}
    assert any("blocks of it fit on an SM" in (w or "") for w in why.values())
    chosen = l1_sweep.chosen(rows)["ffn_down_14b"]
    assert set(chosen) == set(l1.READ_OF) and {t.ring.rows for t in chosen.values()} == {2}
    text = tuning.dump("ffn_down_14b", chosen)
    head = 'devices = ["x"]\nwhere = "a test"\n\n'
    assert tuning.parse(head + text).l1 == {"ffn_down_14b": chosen}
    (section,) = l1_report.sections(rows, True)
    assert f"```toml\n{text}\n```" in section
    assert l1_report.judge(rows, 0) == []
    assert report.POINT in rows[0].variant


def test_a_sweep_of_one_form_and_layout(bench: Bench) -> None:
    rows = rows_of(bench, "--sweep", "--form", "async", "--layout", "padded", "--case", "attn_v_14b")
    assert {r.variant for r in rows if report.POINT in r.variant} == {
        f"padded_async@{b}b" for b in (1, 2, 3, 4)
    }
    assert "it takes both forms" in l1_report.sections(rows, False)[0]
    for argv in (["--form", "loop"], ["--counters"], ["--processes", "2"], ["--blocks-per-sm", "2"]):
        with pytest.raises(BadInput, match="--sweep"):
            rows_of(bench, "--sweep", *argv)


def test_once_launches_every_arm_in_the_order_of_its_rows(bench: Bench) -> None:
    rows = rows_of(bench, "--once", "--backend", "cu", "--case", "attn_v_14b")
    assert {"gpl_ring", "gpl_async", "padded_ring_aa"} <= {r.variant for r in rows}
    assert not [r for r in rows if r.samples_s]


def test_a_geometry_is_read_as_it_is_written() -> None:
    for geometry in l1_ring.CANDIDATES:
        assert Geometry.parse(str(geometry)) == geometry
    with pytest.raises(BadInput, match="8r2b0s-drawn"):
        Geometry.parse("8r 2b drawn")
