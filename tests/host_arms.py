"""A small arm on the stand-in GPU, made of what probes.gpu has and no probe's parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from probes.core.types import LaunchConfig
from probes.formats import checksum
from probes.gpu.kernels import Kernel, Launch, bind, int64
from probes.gpu.memory import Buffer
from probes.gpu.timing import Arm, Output
from tests.host_core import load
from tests.host_gpu import HostGpu

TILES = 4
SIZE = TILES * checksum.READ_TILE_BYTES


def kernel(gpu: HostGpu, name: str, backend: Any = "cu") -> Kernel:
    return bind(load(gpu, backend, "harness", [name], "sm_90", 0, print)[name])


def arm(gpu: HostGpu, name: str = "read", copies: int = 4, which: Sequence[int] | None = None) -> Arm:
    """A read of `copies` copies of four tiles; `which`: the copy of each launch, all of them by turns."""
    host = np.random.default_rng(1).integers(0, 256, SIZE, dtype=np.uint8)
    data, out, read = Buffer.of(host, copies), Buffer(4 * TILES), kernel(gpu, "harness_read")
    launches = [
        Launch(
            read, LaunchConfig(TILES, 256), (data.address + k * data.pitch, out.address, int64(SIZE // 16))
        )
        for k in which or range(copies)
    ]
    return Arm(name, launches, Output(out, TILES, checksum.read_xors(host)))
