"""L1's kernels past the record, on the host's side: geometry of the forms ring and async, checked first.

    ring    one block = one warp per virtual warp that owns a unit, and one that feeds; sm_90 and up
    async   one block = one warp per virtual warp that owns a unit; any GPU

Which of CANDIDATES is best on a device is measured (`python -m probes.l1 --sweep`) and stands in
core/tuning; `default_geometry` is for devices and shapes that nobody swept. Every number that a kernel gets
is computed here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from probes.core.layouts import Layout, check_stride
from probes.core.tuning import Geometry
from probes.core.types import BadInput, LaunchConfig, Shape, Unavailable

if TYPE_CHECKING:
    from probes.core.device import DeviceFacts
    from probes.gpu.kernels import Kernel, Launch

VIRTUAL_WARPS = 8
"""Virtual warps of 32 threads in the reference order's 256."""

MOST_ROWS = 32
"""Rows of one fill at most: a lane of the feeder each."""

MOST_STAGES = 64


CANDIDATES: tuple[Geometry, ...] = tuple(
    Geometry(rows, blocks, stages, drawn)
    for rows, blocks, stages in (
        (1, 1, 0), (1, 2, 0), (1, 3, 0), (1, 4, 0), (2, 1, 0), (2, 2, 0), (2, 3, 0), (2, 4, 0),
        (4, 1, 0), (4, 2, 0), (4, 3, 0), (4, 2, 3), (8, 1, 0), (8, 2, 0), (4, 2, 1), (2, 4, 1),
    )
    for drawn in (False, True)
    if not (drawn and stages == 1)
)  # fmt: skip
"""What a sweep measures. One stage and all rows in flight at once suits a matrix of a few rows per SM."""

ASYNC_CANDIDATES = (1, 2, 3, 4)
"""Blocks per SM of the async form that a sweep measures."""

DEFAULT_BLOCKS = 2
"""Blocks per SM where nobody swept: what the kernels' registers are bound to (core/bounds.py)."""

DEFAULT_ROWS = (8, 4, 2, 1)


@dataclass(frozen=True, slots=True)
class Plan:
    """One launch of the ring form."""

    config: LaunchConfig
    rows: int
    stages: int
    drawn: bool


def consumer_warps(shape: Shape) -> int:
    """Virtual warps that own a unit; the others would add exactly 0.0."""
    return min(VIRTUAL_WARPS, -(-shape.nunits // 32))


def stage_bytes(rows: int, row_stride: int) -> int:
    """Shared memory of one stage: rows, eight warp sums a row, two barriers, first row and count."""
    return rows * (row_stride + 4 * VIRTUAL_WARPS) + 2 * 8 + 2 * 4


def room(blocks_per_sm: int, facts: DeviceFacts) -> int:
    """Dynamic shared memory that each of so many blocks on an SM may have."""
    share = facts.smem_per_sm_bytes // blocks_per_sm - facts.smem_reserved_per_block_bytes
    return min(share, facts.smem_per_block_max_bytes) // 128 * 128


def default_geometry(shape: Shape, row_stride: int, facts: DeviceFacts) -> Geometry:
    """The rule for what no tuning table speaks of: two blocks per SM, all stages that fit, drawn tickets.

    A fill holds the most rows of 8, 4, 2, 1 that fit and leave a fill for every SM. Where not even one row
    fits twice, one block per SM.
    """
    fitting = [r for r in DEFAULT_ROWS if stage_bytes(r, row_stride) <= room(DEFAULT_BLOCKS, facts)]
    if not fitting:
        return Geometry(1, 1, drawn=True)
    rows = next((r for r in fitting if -(-shape.od // r) >= facts.sms), fitting[-1])
    return Geometry(rows, DEFAULT_BLOCKS, drawn=True)


def plan(shape: Shape, lay: Layout, row_stride: int, geometry: Geometry, facts: DeviceFacts) -> Plan:
    """The launch of `geometry` on this device.

    Raises BadInput (a stride that cannot be, a geometry that makes no sense) and Unavailable with the reason
    for a SKIPPED row: a GPU before sm_90, or rows that do not fit into shared memory.
    """
    check_stride(lay, shape.nbe, row_stride)
    if not 1 <= geometry.rows <= MOST_ROWS or geometry.blocks_per_sm < 1 or geometry.stages < 0:
        raise BadInput(f"a ring needs 1 to {MOST_ROWS} rows per fill, 1 block per SM or more, got {geometry}")
    if facts.compute_capability < (9, 0):
        raise Unavailable(f"bulk copies need sm_90, this GPU is {facts.arch}")
    one = stage_bytes(geometry.rows, row_stride)
    most = room(geometry.blocks_per_sm, facts)
    fills = -(-shape.od // geometry.rows)
    grid = min(fills, facts.sms * geometry.blocks_per_sm)
    stages = min(geometry.stages or most // one, -(-fills // grid), MOST_STAGES)
    if stages < 1 or stages * one > most:
        need = max(1, geometry.stages) * one
        raise Unavailable(
            f"{geometry}: needs {need} bytes of shared memory per block, {most} are there "
            f"with {geometry.blocks_per_sm} per SM"
        )
    threads = 32 * (consumer_warps(shape) + 1)
    drawn = geometry.drawn and fills > stages * grid
    return Plan(LaunchConfig(grid, threads, stages * one), geometry.rows, stages, drawn)


def ring_launch(
    kernel: Kernel,
    made: Plan,
    pointers: tuple[int, int, int],
    counter: int,
    nbe: int,
    row_stride: int,
    od: int,
) -> Launch:
    """A launch of weights, activations and result at `pointers`; `counter`: one word that is 0.

    Launches that may run at the same time need counters of their own.
    """
    from probes.gpu.kernels import Launch, int32

    ints = (nbe, row_stride, od, made.rows, made.stages)
    args = (*pointers, counter if made.drawn else 0, *(int32(v) for v in ints))
    return Launch(kernel, made.config, args)


def make_room(kernel: Kernel, smem_bytes: int) -> None:
    """Let launches ask for so much dynamic shared memory, and give it preference over L1."""
    from cuda.bindings import driver

    from probes.gpu.driver import call

    kernel.allow_smem(smem_bytes)
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
    handle = driver.CUkernel(int(kernel.handle.handle))
    call(driver.cuKernelSetAttribute, attribute, 100, handle, call(driver.cuCtxGetDevice))


def async_rows(shape: Shape, lay: Layout) -> int:
    """Rows of one pass of the async form: as both twins choose it from the units per thread."""
    most = 4 if lay.order == "group" else 2
    return max(1, most // (-(-shape.nunits // 256)))


def async_plan(
    shape: Shape, lay: Layout, row_stride: int, blocks_per_sm: int, facts: DeviceFacts
) -> LaunchConfig:
    """The async form's launch with so many blocks per SM, or one pass per block where that is fewer."""
    check_stride(lay, shape.nbe, row_stride)
    if blocks_per_sm < 1:
        raise BadInput(f"at least one block per SM, got {blocks_per_sm}")
    passes = -(-shape.od // async_rows(shape, lay))
    return LaunchConfig(min(passes, facts.sms * blocks_per_sm), 32 * consumer_warps(shape))


def async_launch(
    kernel: Kernel, config: LaunchConfig, pointers: tuple[int, int, int], nbe: int, row_stride: int, od: int
) -> Launch:
    """A launch of weights, activations and result at `pointers`."""
    from probes.gpu.kernels import Launch, int32

    return Launch(kernel, config, (*pointers, int32(nbe), int32(row_stride), int32(od)))
