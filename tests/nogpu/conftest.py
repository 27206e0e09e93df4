"""Fixtures of the tests that need no GPU."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

import pytest

from probes.core.types import Unavailable

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def fibers(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """L2's C++ kernels, run on the host by fibers: see cuda_on_host."""
    from kernels_cu import build

    try:
        compiler = build.find_host_compiler()
    except Unavailable as error:
        if os.environ.get("CI"):
            pytest.fail(f"CI needs a host compiler: {error}")
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("fibers")
    (folder / "constants.gen.cuh").write_text(build.constants_header())
    (folder / "layouts.gen.cuh").write_text(build.layouts_header())
    emulator, out = HERE / "cuda_on_host", folder / "l2.so"
    includes = [f"-I{p}" for p in (folder, emulator, build.HERE)]
    command = [compiler, *build.HOST_FLAGS, *includes, str(emulator / "l2.cpp"), "-o", str(out)]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(out))
