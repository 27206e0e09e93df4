"""The stand-in GPU itself: it refuses what a GPU refuses, and sees what a GPU would let pass."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cuda.core import EventOptions

from probes.core.types import LaunchConfig, Unavailable
from probes.formats import checksum
from probes.gpu import counters, graph
from probes.gpu.facts import Gpu
from probes.gpu.kernels import Launch, int32, int64
from probes.gpu.memory import Buffer
from probes.gpu.partition import partition
from probes.gpu.timing import Output
from tests.host_arms import SIZE, TILES, arm, kernel
from tests.host_gpu import HostGpu, Running
from tests.host_kernels import KERNELS


def test_what_nobody_waited_for_has_not_happened(host_gpu: HostGpu, gpu: Gpu) -> None:
    mine = arm(host_gpu)
    mine.output.buffer.poison()
    mine.launches[0].enqueue(gpu.stream)
    assert (host_gpu.at(mine.output.buffer.address, np.uint32, TILES) == 0xFFFFFFFF).all()
    gpu.stream.sync()
    mine.output.check("read")
    event = gpu.dev.create_event(EventOptions(timing_enabled=True))
    gpu.stream.record(event)
    with pytest.raises(RuntimeError, match="not been reached"):
        event - event


def test_a_write_past_a_buffer_and_a_read_outside_are_found(host_gpu: HostGpu, gpu: Gpu) -> None:
    def past(x: Running, data: int, out: int, vectors: int) -> None:
        ctypes.c_uint8.from_address(out + 4 * TILES).value = 1

    mine = arm(host_gpu)
    with pytest.raises(AssertionError, match="of 16 bytes"):
        host_gpu.at(mine.output.buffer.address, np.uint32, TILES + 2)
    with pytest.raises(AssertionError, match="no device memory"):
        host_gpu.at(64, np.uint32, 1)
    host_gpu.kernels["harness_read"] = replace(KERNELS["harness_read"], run=past)
    mine.launches[0].enqueue(gpu.stream)
    with pytest.raises(AssertionError, match="a write past 16 bytes"):
        mine.output.buffer.free()


def test_wrong_arguments_and_too_much_shared_memory_do_not_launch(host_gpu: HostGpu, gpu: Gpu) -> None:
    read = kernel(host_gpu, "harness_read")
    with pytest.raises(AssertionError, match="harness_read takes ppq, not ppi"):
        Launch(read, LaunchConfig(1, 256), (0, 0, int32(1))).enqueue(gpu.stream)
    assert read.blocks_per_sm(256, 64 << 10) == 0, "more than 48 KiB were not asked for"
    read.allow_smem(64 << 10)
    assert read.blocks_per_sm(256, 64 << 10) == 3
    with pytest.raises(Exception, match="CUDA_ERROR_INVALID_VALUE"):
        Launch(read, LaunchConfig(1, 256, 65 << 10), (0, 0, int64(1))).enqueue(gpu.stream)


def test_nothing_else_is_done_while_a_stream_captures(host_gpu: HostGpu, gpu: Gpu) -> None:
    class Allocates:
        def enqueue(self, stream: Any) -> None:
            Buffer(16)

    with pytest.raises(RuntimeError, match="cuMemAlloc: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"):
        graph.capture(gpu.stream, [Allocates()])
    mine = arm(host_gpu)
    assert graph.capture(gpu.stream, mine.launches).nodes == 4, "and the stream is of use again"


def test_the_window_and_the_partition(host_gpu: HostGpu, gpu: Gpu) -> None:
    mine = arm(host_gpu)
    mine.launches[0].enqueue(gpu.stream)
    with counters.window():
        mine.launches[1].enqueue(gpu.stream)
    with partition(gpu, 1) as part:
        assert (part.facts.sms, part.facts.slug) == (1, "two-sms-1sm")
        mine.launches[2].enqueue(part.stream)
    assert [(x.profiled, x.sms) for x in host_gpu.launched] == [(False, 2), (True, 2), (False, 1)]
    host_gpu.fail["split"] = "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"
    with pytest.raises(Unavailable, match="INVALID_RESOURCE_CONFIGURATION"), partition(gpu, 1):
        pass


def test_the_same_launch_on_other_content_is_run_again(host_gpu: HostGpu, gpu: Gpu) -> None:
    """Launches whose inputs did not change are not computed twice, and nobody can tell."""
    mine = arm(host_gpu, copies=1)
    data = mine.launches[0].args[0]
    for k in range(4):
        host = np.full(SIZE, k % 2 + 1, np.uint8)
        host[0] = 77
        host_gpu.at(data, np.uint8, SIZE)[:] = host
        host_gpu.allocation(data).written()
        mine.poison()
        mine.launches[0].enqueue(gpu.stream)
        Output(mine.output.buffer, TILES, checksum.read_xors(host)).check("read")


def test_every_kernel_takes_what_its_twins_take() -> None:
    from kernels_numba import harness, l1, l1_ring, l2, l3

    letters = {"int32": "i", "int64": "q", "float32": "f"}
    twins = {}
    for module in (harness, l1, l1_ring, l2, l3):
        for name, (_, signature) in module.kernels().items():
            twins[name] = "".join(letters.get(str(a), "p") for a in signature.args)
    del twins["l2_sleeper"]  # of the GPU's tests
    assert twins == {name: k.args for name, k in KERNELS.items()}
