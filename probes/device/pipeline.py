"""The geometry of a ring of stages in shared memory, for every ring kernel.

A block is a producer warp and consumer sets: a warp per virtual warp that owns a unit. Sets take rows by
turns. A stage holds rows of one ticket. `Ring` of kernels_cu/ring.cuh counts the same bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from probes.core.types import VIRTUAL_THREADS, BadInput, LaunchConfig, Unavailable
from probes.device.facts import WARP, DeviceFacts
from probes.device.tuning import Geometry

VIRTUAL_WARPS = VIRTUAL_THREADS // WARP  # of the reference order
MOST_ROWS = 32  # of a fill: each lane of the producer warp copies one
MOST_STAGES = 64
MOST_THREADS = 448
"""Of a block: what the q4_K rings are compiled for (PROBES_RING_Q4K_BOUNDS); no other has several sets."""

NEEDS: dict[str, tuple[str, tuple[int, int]]] = {
    "ring": ("bulk copies need sm_90", (9, 0)),
    "async": ("cp.async needs sm_80", (8, 0)),
}
"""How rows come into a stage, by an L1 form's name: what it takes, and since which compute capability."""

_BULK = re.compile(r"_(ring|form_c|bulk)(_plain|_entry|_late)?$")
"""Names of kernels that copy in bulk."""

DEFAULT_BLOCKS = 2  # per SM where nobody swept: what the kernels' registers are bound to (launch_bounds.py)
DEFAULT_ROWS = (8, 4, 2, 1)


@dataclass(frozen=True, slots=True)
class Plan:
    """One launch of a ring kernel. `rows`: what a ticket names; `drawn`: whether tickets are drawn."""

    config: LaunchConfig
    rows: int
    stages: int
    drawn: bool


def since(kernel: str) -> tuple[int, int]:
    """The first compute capability that has the instructions of a kernel by this name."""
    if kernel.endswith("_async"):
        return NEEDS["async"][1]
    return NEEDS["ring"][1] if _BULK.search(kernel) else (0, 0)


def consumer_warps(units: int) -> int:
    """Virtual warps that own one of a row's `units`; the others would add exactly 0.0."""
    return min(VIRTUAL_WARPS, -(-units // WARP))


def stage_bytes(rows: int, row_stride: int) -> int:
    """Shared memory of one stage: rows; twice eight sums a row, four barriers, first row and count."""
    return rows * row_stride + 2 * (rows * 4 * VIRTUAL_WARPS + 4 * 8 + 2 * 4)


def room(blocks_per_sm: int, facts: DeviceFacts) -> int:
    """Dynamic shared memory that each of so many blocks on an SM may have."""
    share = facts.smem_per_sm_bytes // blocks_per_sm - facts.smem_reserved_per_block_bytes
    return min(share, facts.smem_per_block_max_bytes) // 128 * 128


def plan(
    units: int, row_stride: int, fills: int, geometry: Geometry, facts: DeviceFacts, share: int = 1,
    others: int = 1, form: str = "ring",
) -> Plan:  # fmt: skip
    """The launch of `geometry` for `fills` tickets of rows of `units` units.

    share: kernels that are to have room on an SM at the same time, so that a successor's stages fill under
    its predecessor. others: the block's warps that do not sum. form: how rows come, a key of NEEDS.
    Raises BadInput (a geometry that makes no sense) and Unavailable with the reason for a SKIPPED row: a GPU
    without such copies, rows that do not fit into shared memory, or sets that make a block too large.
    """
    rows = geometry.rows
    if not 1 <= rows <= MOST_ROWS or geometry.blocks_per_sm < 1 or geometry.stages < 0:
        raise BadInput(f"a ring needs 1 to {MOST_ROWS} rows per fill, 1 block per SM or more, got {geometry}")
    if geometry.sets < 1:
        raise BadInput(f"a ring needs a set of consumers, got {geometry}")
    warps = consumer_warps(units)
    threads = WARP * (warps * geometry.sets + others)
    if threads > MOST_THREADS:
        made = f"{geometry.sets} x {warps} consumer warps make a block of {threads} threads"
        raise Unavailable(f"{geometry}: {made}, more than {MOST_THREADS}")
    copies, since = NEEDS[form]
    if facts.compute_capability < since:
        raise Unavailable(f"{copies}, this GPU is {facts.arch}")
    one = stage_bytes(rows, row_stride)
    most = room(geometry.blocks_per_sm * share, facts)
    grid = min(fills, facts.sms * geometry.blocks_per_sm)
    stages = min(geometry.stages or most // one, -(-fills // grid), MOST_STAGES)
    if stages < 1 or stages * one > most:
        need = f"needs {max(1, geometry.stages) * one} bytes of shared memory per block"
        raise Unavailable(
            f"{geometry}: {need}, {most} are there with {geometry.blocks_per_sm * share} per SM"
        )
    drawn = geometry.drawn and fills > stages * grid
    return Plan(LaunchConfig(grid, threads, stages * one), geometry.rows, stages, drawn)


def default_geometry(
    od: int, row_stride: int, facts: DeviceFacts, blocks_per_sm: int = DEFAULT_BLOCKS, stages: int = 1,
) -> Geometry:  # fmt: skip
    """The rule for what no tuning table speaks of: two blocks per SM, all stages that fit, drawn tickets.

    A fill holds the most rows of 8, 4, 2, 1 that fit and leave a fill for every SM. Where not even one row
    fits so often, one block per SM. stages: so many must fit.
    """
    most = room(blocks_per_sm, facts)
    fitting = [r for r in DEFAULT_ROWS if stages * stage_bytes(r, row_stride) <= most]
    if not fitting:
        return Geometry(1, 1, drawn=True)
    rows = next((r for r in fitting if -(-od // r) >= facts.sms), fitting[-1])
    return Geometry(rows, blocks_per_sm, drawn=True)
