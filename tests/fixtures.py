"""The stand-in GPU and each probe's tables made small for it; and the kernels of one .cu file on host fibers.

`small_l1` and its like are the only places that know what a probe's tables are called.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from probes.core.types import Shape, Unavailable
from probes.engine import machine_code
from probes.engine.bench import Bench
from probes.engine.probe import Case
from probes.formats import layer as decode_layer
from probes.formats.layouts import LAYOUTS
from probes.gpu import facts, timing
from probes.l1 import table as l1
from probes.l2 import chains as l2_chains
from probes.l2 import overlap as l2_overlap
from probes.l2 import table as l2
from probes.l3 import table as l3
from tests import host_calls, host_cpp, host_driver
from tests.host_calls import TINY
from tests.host_gpu import H200, TWO_SMS, HostGpu, Launched, Running
from tests.host_run import Commands

host_gpu = host_driver.host_gpu

EMULATOR = Path(__file__).parent / "cuda_on_host"


def on_host(name: str, folder: Path) -> ctypes.CDLL:
    """cuda_on_host/NAME.cpp built and loaded; skips without a host compiler, fails in CI."""
    from kernels_cu import build

    try:
        compiler = host_cpp.compiler()
    except Unavailable as error:
        if os.environ.get("CI"):
            pytest.fail(f"CI needs a host compiler: {error}")
        pytest.skip(str(error))
    (folder / "constants.gen.cuh").write_text(build.constants_header())
    (folder / "layouts.gen.cuh").write_text(build.layouts_header((*LAYOUTS, host_calls.MIRROR)))
    out = folder / f"{name}.so"
    includes = [f"-I{p}" for p in (folder, EMULATOR, build.HERE)]
    command = [compiler, *host_cpp.FLAGS, *includes, str(EMULATOR / f"{name}.cpp"), "-o", str(out)]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(out))


@pytest.fixture(scope="session")
def harness_on_host(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The harness' reads, run on the host."""
    return on_host("harness", tmp_path_factory.mktemp("harness_on_host"))


@pytest.fixture(scope="session")
def l1_on_host(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The L1 kernels of l1.cu, run on the host."""
    return on_host("l1", tmp_path_factory.mktemp("l1_on_host"))


@pytest.fixture(scope="session")
def l1_ring_on_host(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """L1's ring and async kernels, run on the host."""
    return on_host("l1_ring", tmp_path_factory.mktemp("l1_ring_on_host"))


@pytest.fixture(scope="session")
def l2_on_host(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The L2 kernels, run on the host."""
    return on_host("l2", tmp_path_factory.mktemp("l2_on_host"))


@pytest.fixture(scope="session")
def l3_on_host(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The L3 kernels, run on the host."""
    return on_host("l3", tmp_path_factory.mktemp("l3_on_host"))


@pytest.fixture
def host_h200(host_gpu: HostGpu, monkeypatch: pytest.MonkeyPatch) -> HostGpu:
    """The stand-in as an H200, and no tool that follows the process."""
    monkeypatch.setattr(facts, "_attached", list)
    host_gpu.facts = H200
    return host_gpu


@pytest.fixture
def opened(host_gpu: HostGpu) -> facts.Gpu:
    """The stand-in, opened."""
    return facts.open_gpu(0)


@pytest.fixture
def commands(
    host_gpu: HostGpu,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Commands:
    """Whole commands, with reports in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    return Commands(host_gpu, tmp_path, capsys)


@pytest.fixture
def two_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every weight rotates over two copies: small ones would else have thousands."""
    monkeypatch.setattr(timing, "rotation", lambda *a: 2)


L1_CASES = (
    Case(id="ffn_down_14b", shape=Shape(40, 10240), counts={"14b": 2}),
    Case(id="attn_v_14b", shape=Shape(24, 512), counts={"14b": 3}),
    Case(id="ffn_down_7b", shape=Shape(24, 18944), counts={"7b": 1}),
)


def l1_seconds(x: Launched) -> float:
    """By the bytes: a plain read at their own speed, then rings (two rows a fill best), then all else."""
    if x.kernel.startswith("harness_read"):
        return 16 * x.args[2] / 3.36e10
    if x.kernel == "harness_clock":
        return 1e-7
    form = x.kernel.rpartition("_")[2]
    if form not in ("ring", "async"):
        return 1.6 * x.grid * x.args[4] / 3.36e10
    stride, od, rows, _ = x.args[5:]
    return {"ring": 1.1, "async": 1.3}[form] * {2: 0.97, 4: 1.0}.get(rows, 1.05) * od * stride / 3.36e10


@pytest.fixture
def small_l1(host_gpu: HostGpu, two_copies: None, monkeypatch: pytest.MonkeyPatch) -> HostGpu:
    """L1 on matrices small enough for the stand-in."""
    monkeypatch.setattr(l1, "CASES", L1_CASES)
    whole = {m: frozenset(c.id for c in L1_CASES if m in c.counts) for m in ("14b", "7b")}
    monkeypatch.setattr(l1, "CONTESTS", tuple(replace(c, whole=whole) for c in l1.CONTESTS))
    host_gpu.seconds = l1_seconds
    return host_gpu


L2_LAUNCHES = 4
L2_SHAPE = Shape(512, 256)
"""A matrix whose rows in the dpl layout are whole tiles to read, and 8 units long."""
L2_FACTS = replace(TWO_SMS, name="One SM", slug="one-sm", sms=1, max_threads_per_sm=512, max_warps_per_sm=16)
L2_POINTS = {("q6k", 2, 5, 2, 4): 0.8, ("q6k", 8, 2, 0, 0): 0.1, ("q4k", 8, 2, 0, 4): 0.8}
"""(format, rows, stages, fills ahead, flags) of a sweep's fastest points -> their share of the usual time."""


def l2_seconds(x: Launched) -> float:
    """25 us a launch, less as a dependent; what has no late kind costs next to nothing."""
    name, _, kind = x.kernel.removeprefix("l2_").rpartition("_")
    if x.kernel.startswith("harness"):
        return 1e-7 if x.kernel == "harness_clock" else 1e-6 + 16 * x.args[2] / 4e12
    if name not in (*l2_chains.LATE, "empty"):
        return 1e-9
    flags = x.args[-2] & ~l2_chains.STAMP
    early = {0: 0.99, 1: 0.98, 4: 0.97} if kind == "entry" else {0: 0.95, 1: 0.9, 4: 0.85}
    share = (0.9 if flags and name == "empty" else early[flags]) if x.pdl else 1.0
    if name.startswith("stream") and x.grid > 2:  # a chain that only reads what a chain of rings reads
        share = 0.68 if x.pdl else 0.7
    if name in l2_chains.RINGS:
        share *= L2_POINTS.get((name[:3], *x.args[7:10], flags), 1.0)
    return 2.5e-5 * share


def waits_by_name(probe: str, names: Any, *rest: Any) -> dict[str, list[str]]:
    """In the place of a disassembly: a wait where a kernel's name says that there is one."""
    return {n: [] if n.endswith("_plain") else [machine_code.WAIT] for n in names}


@pytest.fixture
def small_l2(host_gpu: HostGpu, two_copies: None, monkeypatch: pytest.MonkeyPatch) -> HostGpu:
    """L2 with short chains, a tiny decode layer and small matrices; 3 replays in the place of 200."""
    tiny = TINY
    host_gpu.facts, host_gpu.seconds = L2_FACTS, l2_seconds
    monkeypatch.setattr(machine_code, "kernels", waits_by_name)
    monkeypatch.setattr(l2_overlap.overlap, "__defaults__", (2, 3))
    monkeypatch.setattr(l2_overlap.stable, "__defaults__", (3,))
    monkeypatch.setattr(l2_chains, "layer_bytes", lambda kv: 4096 * kv)
    for name in ("decode_steps", "activation_bytes"):
        monkeypatch.setattr(l2_chains, name, partial(getattr(l2_chains, name), layer=tiny))
    monkeypatch.setattr(decode_layer, "LAYER_14B", tiny)
    monkeypatch.setattr(decode_layer, "run_layer", partial(decode_layer.run_layer, layer=tiny))
    for name, own in (("stream_steps", {"tiles": 2}), ("compute_steps", {}), ("empty_steps", {})):
        short = partial(getattr(l2_chains, name), **own, launches=L2_LAUNCHES)
        monkeypatch.setattr(l2_chains, name, short)
    monkeypatch.setattr(l2_chains, "COMPUTE_ITERS", 4)
    kvs = (9, 5)
    monkeypatch.setattr(l2, "KVS", kvs)
    own = [{f"{c.cases[0]}@{kv}": f"KV {kv}" for kv in kvs} if c.groups else {} for c in l2.CONTESTS]
    contests = tuple(replace(c, groups=g) for c, g in zip(l2.CONTESTS, own, strict=True))
    monkeypatch.setattr(l2, "CONTESTS", contests)
    monkeypatch.setattr(l2, "CHAIN", L2_LAUNCHES)
    for name, matrix in l2_chains.MATRICES.items():
        monkeypatch.setitem(l2_chains.MATRICES, name, replace(matrix, shape=L2_SHAPE))
    return host_gpu


def l3_seconds(x: Launched) -> float:
    """100 us a step, form_b's by its waves (one block fits an SM); rings of four rows a ticket take 90."""
    if x.kernel.startswith("harness"):
        return 1e-7 if x.kernel == "harness_clock" else 1e-6 + 16 * x.args[2] / 4e12
    if x.kernel.startswith("l3_form_b"):
        return 1e-4 * x.grid / x.sms
    if x.kernel in ("l3_matmul_ring", "l3_form_c"):
        return 1e-4 * (0.9 if x.args[-2] == 4 else 1.0)
    return 1e-4 if x.kernel in ("l3_matmul", "l3_form_a") else 1e-9


@pytest.fixture
def l3_gpu(host_gpu: HostGpu, two_copies: None) -> HostGpu:
    """L3 on the stand-in, for as few rows as --nf says."""
    host_gpu.seconds = l3_seconds
    return host_gpu


@pytest.fixture
def small_l3(l3_gpu: HostGpu, monkeypatch: pytest.MonkeyPatch) -> HostGpu:
    """The same, and its built-in shape small."""
    monkeypatch.setattr(l3, "CASES", (Case(id="gate_up_14b", shape=Shape(704, 512)),))
    return l3_gpu


@pytest.fixture
def l3_on_fibers(l3_gpu: HostGpu, l3_on_host: ctypes.CDLL) -> HostGpu:
    """The same with the C++ kernels themselves, on host fibers."""

    def fibers(name: str) -> Callable[..., None]:
        def run(x: Running, *args: int) -> None:
            x.anywhere()
            own = x.launch
            host_calls.run(l3_on_host, name, args, own.grid, own.block, own.smem, at_once=name == "l3_form_c")

        return run

    for name, kernel in l3_gpu.kernels.items():
        if name.startswith("l3_"):
            l3_gpu.kernels[name] = replace(kernel, run=fibers(name))
    return l3_gpu


@pytest.fixture
def host_bench(host_gpu: HostGpu) -> Bench:
    """A bench on the stand-in, for tests of what a probe makes rather than of what it says."""
    return Bench(facts.open_gpu(0), 0, 8, lambda line: None)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three copies of the weights instead of 4 GiB of them."""
    monkeypatch.setattr(timing, "rotation", lambda *sizes: 3)
