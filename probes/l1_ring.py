"""L1's kernels past the record, on the host's side: geometry of the forms ring and async, checked first.

    ring    one block = one warp per virtual warp that owns a unit, and one that feeds; sm_90 and up
    async   one block = one warp per virtual warp that owns a unit; any GPU

Which of CANDIDATES is best on a device is measured (`python -m probes.l1 --sweep`) and stands in
core/tuning; `default_geometry` is for devices and shapes that nobody swept. Every number that a kernel gets
is computed here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from probes.core import ring
from probes.core.layouts import Layout, check_stride
from probes.core.ring import Plan, consumer_warps
from probes.core.tuning import Geometry
from probes.core.types import BadInput, LaunchConfig, Shape

if TYPE_CHECKING:
    from probes.core.device import DeviceFacts
    from probes.gpu.kernels import Kernel, Launch

CANDIDATES: tuple[Geometry, ...] = tuple(
    Geometry(rows, blocks, stages, drawn)
    for rows, blocks, stages in (
        (1, 1, 0), (1, 2, 0), (1, 3, 0), (1, 4, 0), (2, 1, 0), (2, 2, 0), (2, 3, 0), (2, 4, 0),
        (4, 1, 0), (4, 2, 0), (4, 3, 0), (4, 2, 3), (8, 1, 0), (8, 2, 0), (4, 2, 1), (2, 4, 1),
        (2, 2, 2), (4, 1, 2), (10, 2, 0), (16, 2, 0),
    )
    for drawn in (False, True)
    if not (drawn and stages == 1)
)  # fmt: skip
"""What a sweep measures. One stage and all rows in flight at once suits a matrix of a few rows per SM."""

ASYNC_CANDIDATES = (1, 2, 3, 4)
"""Blocks per SM of the async form that a sweep measures."""

DEFAULT_BLOCKS = ring.DEFAULT_BLOCKS
"""Blocks per SM of the async form where nobody swept: as of the ring."""


def default_geometry(shape: Shape, row_stride: int, facts: DeviceFacts) -> Geometry:
    """The rule for what no tuning table speaks of."""
    return ring.default_geometry(shape.od, row_stride, facts)


def plan(shape: Shape, lay: Layout, row_stride: int, geometry: Geometry, facts: DeviceFacts) -> Plan:
    """The launch of `geometry` on this device.

    Raises BadInput (a stride that cannot be, a geometry that makes no sense) and Unavailable with the reason
    for a SKIPPED row: a GPU before sm_90, or rows that do not fit into shared memory.
    """
    check_stride(lay, shape.nbe, row_stride)
    fills = -(-shape.od // max(1, geometry.rows))  # ring.plan refuses fewer than one
    return ring.plan(shape.nunits, row_stride, fills, geometry, facts)


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
    kernel.make_room(smem_bytes)


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
    return LaunchConfig(min(passes, facts.sms * blocks_per_sm), 32 * consumer_warps(shape.nunits))


def async_launch(
    kernel: Kernel, config: LaunchConfig, pointers: tuple[int, int, int], nbe: int, row_stride: int, od: int
) -> Launch:
    """A launch of weights, activations and result at `pointers`."""
    from probes.gpu.kernels import Launch, int32

    return Launch(kernel, config, (*pointers, int32(nbe), int32(row_stride), int32(od)))
