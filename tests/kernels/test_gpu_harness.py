"""The harness on a GPU: what gates a time, graphs of its own kernels, and blocks per SM that are held."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from probes.core.types import LaunchConfig, Shape, WrongResult
from probes.engine import reads
from probes.engine.bench import cap_smem
from probes.engine.probe import Case
from probes.formats import checksum, packing, q6k, q8
from probes.formats.checksum import bits
from probes.formats.layouts import layout
from probes.l1 import plan

pytestmark = pytest.mark.gpu


def arm_of(bench: Any, kernel: Any, stack: ExitStack, spoil: bool = False) -> Any:
    from probes.gpu.kernels import Launch, int32
    from probes.gpu.memory import Buffer
    from probes.gpu.timing import Arm, Output

    shape, lay = Shape(64, 1024), layout("padded")
    raw, x8 = q6k.random_raw(shape, 5), q8.random_x8(shape.id, 6)
    packed, want = packing.pack(raw, lay), bits(q6k.reference(raw, x8)).copy()
    if spoil:
        want[17] ^= 1
    w, x = stack.enter_context(Buffer.of(packed, 5)), stack.enter_context(Buffer.of(x8))
    out = stack.enter_context(Buffer(4 * shape.od))
    tail = (x.address, out.address, int32(shape.nbe), int32(packed.shape[1]))
    config = plan.launch_config(shape)
    launches = [Launch(kernel, config, (w.address + k * w.pitch, *tail)) for k in range(5)]
    return Arm("padded_loop", launches, Output(out, shape.od, want))


def test_no_time_without_a_check(gpu: Any) -> None:
    """Only a GPU has a clock and graphs; on the stand-in tests/gpu/test_harness.py says the same."""
    from probes.gpu import sampling

    bench, kernel = gpu.bench, gpu.kernel("l1_padded_loop")
    with ExitStack() as stack:
        wrong = arm_of(bench, kernel, stack, spoil=True)
        with pytest.raises(WrongResult, match="element 17"):
            wrong.build(bench.gpu.stream)
        with pytest.raises(AssertionError, match="build"):
            sampling.survey(bench.gpu.stream, [wrong], 2, bench.clock(), 0)
        right = arm_of(bench, kernel, stack)
        right.build(bench.gpu.stream)
        assert [g.nodes for g in right.graphs] == [5, 10]
        found = sampling.survey(bench.gpu.stream, [right], 3, bench.clock(), 0)["padded_loop"]
        assert found.time_s.shape == (3, 2)
        assert np.nanmedian(found.clock_hz) > 1e8
        right.close()


@pytest.mark.small
def test_a_read_is_checked_too(gpu: Any) -> None:
    """Only a GPU replays a graph of reads, after which they are checked again; as dependents, too."""
    from probes.gpu.memory import Buffer

    bench, case = gpu.bench, Case(id="test")
    reads.load(bench, gpu.backend)
    data = np.random.default_rng(1).integers(0, 256, 5 * checksum.READ_TILE_BYTES + 160, dtype=np.uint8)
    with ExitStack() as stack:
        buffer = stack.enter_context(Buffer.of(data, 3))
        source = reads.Source.of(data, buffer, 3, stack)
        found = reads.arms(bench, case, "read_test", source, [gpu.backend])
        assert len(found) == len(reads.forms(bench)) >= 3
        for _, arm in found:
            arm.build(bench.gpu.stream)
            arm.recheck()
            arm.close()


def test_an_empty_launch(gpu: Any) -> None:
    """Only a GPU has graphs of launches."""
    from probes.gpu.graph import capture
    from probes.gpu.kernels import Launch

    stream = gpu.bench.gpu.stream
    graph = capture(stream, [Launch(gpu.kernel("harness_empty"), LaunchConfig(1, 32), ())] * 7)
    assert graph.nodes == 7
    graph.replay()
    stream.sync()
    graph.close()


def test_blocks_per_sm_are_held(gpu: Any) -> None:
    """Only a driver counts the blocks of a loaded kernel that share an SM."""
    kernel = gpu.kernel("l1_padded_loop")
    most = kernel.blocks_per_sm(256)
    for blocks in range(1, most + 1):
        assert kernel.blocks_per_sm(256, cap_smem(kernel, 256, blocks, gpu.bench.gpu)) == blocks
