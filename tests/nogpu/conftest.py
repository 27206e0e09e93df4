"""Kernels of one .cu file on host fibers: `l1_on_host` and its like, built once a session."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

import pytest

from probes.core.types import Unavailable

EMULATOR = Path(__file__).parent / "cuda_on_host"


def on_host(name: str, folder: Path) -> ctypes.CDLL:
    """cuda_on_host/NAME.cpp built and loaded; skips without a host compiler, fails in CI."""
    from kernels_cu import build

    try:
        compiler = build.find_host_compiler()
    except Unavailable as error:
        if os.environ.get("CI"):
            pytest.fail(f"CI needs a host compiler: {error}")
        pytest.skip(str(error))
    (folder / "constants.gen.cuh").write_text(build.constants_header())
    (folder / "layouts.gen.cuh").write_text(build.layouts_header())
    out = folder / f"{name}.so"
    includes = [f"-I{p}" for p in (folder, EMULATOR, build.HERE)]
    command = [compiler, *build.HOST_FLAGS, *includes, str(EMULATOR / f"{name}.cpp"), "-o", str(out)]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(out))


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
