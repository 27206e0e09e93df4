"""The C++ of the kernels built for the host: what a GPU and the host compute alike."""

from __future__ import annotations

import ctypes
import os
import shutil

from kernels_cu import build
from probes.core.types import Unavailable
from probes.formats.layouts import LAYOUTS, Layout

FLAGS = ("-O2", "-std=c++17", "-ffp-contract=off", "-fno-fast-math", "-shared", "-fPIC")


def compiler() -> str:
    """The host C++ compiler. Raises Unavailable where there is none."""
    found = shutil.which(os.environ.get("CXX", "g++"))
    if not found:
        raise Unavailable("no host C++ compiler: install g++, or set CXX to one")
    return found


def library(layouts: tuple[Layout, ...] = LAYOUTS) -> ctypes.CDLL:
    """kernels_cu/host.cpp, the unit functions. Raises Unavailable without a host compiler."""
    program = compiler()
    # internals: kept in the build folder as the kernels are
    path = build._compile([program], build._version(program), FLAGS, "host.cpp", layouts, "host.so")
    return ctypes.CDLL(str(path.resolve()))
