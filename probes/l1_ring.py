"""L1's kernels past the record, on the host's side: geometry of the forms ring and async, checked first.

Of both, a block is one warp per virtual warp that owns a unit, and one that feeds: by bulk copies (ring;
sm_90 and up) or by copies of 16 bytes (async; sm_80 and up).

Which of CANDIDATES is best for each on a device is measured (`python -m probes.l1 --sweep`) and stands in
core/tuning; `default_geometry` is for devices and shapes that nobody swept. Every number that a kernel gets
is computed here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from probes.core import ring
from probes.core.layouts import Layout, check_stride
from probes.core.ring import Plan
from probes.core.tuning import Geometry
from probes.core.types import Shape

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


def default_geometry(shape: Shape, row_stride: int, facts: DeviceFacts) -> Geometry:
    """The rule for what no tuning table speaks of: at least two stages, so that one fills in the meantime."""
    return ring.default_geometry(shape.od, row_stride, facts, stages=2)


def plan(
    shape: Shape, lay: Layout, row_stride: int, geometry: Geometry, facts: DeviceFacts, form: str = "ring"
) -> Plan:
    """The launch of `geometry` on this device.

    Raises BadInput (a stride that cannot be, a geometry that makes no sense) and Unavailable with the reason
    for a SKIPPED row: a GPU before sm_90 (async: sm_80), or rows that do not fit into shared memory.
    """
    check_stride(lay, shape.nbe, row_stride)
    fills = -(-shape.od // max(1, geometry.rows))  # ring.plan refuses fewer than one
    return ring.plan(shape.nunits, row_stride, fills, geometry, facts, form=form)


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
