"""A full GPU, a damaged kernel, a carve-out and attached tools, on a real driver (tests/gpu has its fake)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from probes.core import environment
from probes.core.types import BadInput, Binary, Fault, Unavailable
from probes.gpu import carveout, facts
from probes.gpu.driver import call
from probes.gpu.kernels import bind
from probes.gpu.memory import Buffer

pytestmark = pytest.mark.gpu

MIB = 1 << 20
ROOT = Path(__file__).resolve().parents[2]
OPEN = "from probes.gpu.facts import open_gpu; print(*open_gpu().environment, sep='\\n')"


@pytest.fixture(scope="module", autouse=True)
def gpu() -> facts.Gpu:
    return facts.open_gpu()


def test_more_than_there_is() -> None:
    """Only a driver refuses memory."""
    for size in (1 << 45, 1 << 46):
        with pytest.raises(Unavailable, match="no room left"):
            Buffer(size)


def test_a_device_that_is_not_there() -> None:
    """Only a driver counts its devices."""
    with pytest.raises(BadInput, match="there is no device 99"):
        facts.open_gpu(99)


@pytest.mark.parametrize("left", [420, 60])
def test_a_full_gpu_is_one_line(left: int, gpu: facts.Gpu, tmp_path: Path) -> None:
    """Only a GPU can be full."""
    if gpu.host_memory:
        pytest.skip("a GPU that shares the host's memory cannot be filled safely")
    free, _ = gpu.free_bytes()
    with Buffer(free - left * MIB):
        run = subprocess.run(
            [sys.executable, "-m", "probes.l1", "--quick", "-q", "--out", str(tmp_path)],
            cwd=ROOT, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
    assert run.returncode == 2, run.stderr
    assert len(run.stderr.splitlines()) == 1 and run.stderr.startswith("error: "), run.stderr


def test_noise_in_place_of_a_kernel_and_a_wrong_address() -> None:
    """Only a driver loads kernels and knows addresses."""

    with pytest.raises(Unavailable, match="loading noise"):
        bind(Binary("noise", "numba", "noise", b"\x7fELF" + bytes(range(256))))
    with pytest.raises(Fault, match="cuMemsetD8: CUDA_ERROR_INVALID_VALUE"):
        call("cuMemsetD8", 16, 0, 64)


def test_a_carve_out_is_taken_back() -> None:
    """Only a GPU has an L2 to set aside."""
    from cuda.bindings import driver

    limit = driver.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE
    call("cuCtxSetLimit", limit, 16 * MIB)
    if not call("cuCtxGetLimit", limit):
        pytest.skip("this GPU sets nothing aside")
    assert carveout.reset() == [] and call("cuCtxGetLimit", limit) == 0


@pytest.mark.parametrize("tool", ["compute-sanitizer", "ncu", "nsys"])
def test_an_attached_tool_is_seen(tool: str, tmp_path: Path) -> None:
    """Only a GPU's tools attach themselves."""
    if not shutil.which(tool):
        pytest.skip(f"no {tool} here")
    argv = [
        tool,
        *(["profile", "-o", str(tmp_path / "x")] if tool == "nsys" else []),
        sys.executable,
        "-c",
        OPEN,
    ]
    run = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert environment.beside([x for x in run.stdout.splitlines() if "attached" in x]), (
        run.stdout + run.stderr
    )


def test_nothing_is_told_of_an_ordinary_process() -> None:
    """Only a real driver has a process without anything to tell."""
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("CUDA", "NUMBA", "NVCC"))}
    run = subprocess.run(
        [sys.executable, "-c", OPEN], cwd=ROOT, capture_output=True, text=True, timeout=300, env=plain
    )
    assert run.returncode == 0 and run.stdout.strip() == "", run.stdout + run.stderr
