"""How many blocks of a kernel one SM holds, what limits it, and how a grid falls into waves.

The rules are those of cuda_occupancy.h (CUDA 13.0), and the answer equals the driver's
cuOccupancyMaxActiveBlocksPerMultiprocessor for kernels with one block barrier (`__syncthreads`)
and the default shared-memory carve-out; the tests hold it to that header.

- Registers are given to warps, 256 at a time, and lie in four partitions per SM: a partition holds
  floor(16384 / registers of a warp) warps, so the SM holds a multiple of four warps.
- Shared memory comes in pieces of 128 B (256 B before sm_80), with what the driver reserves on top.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from probes.core.types import BadInput, LaunchConfig, Resources
from probes.device.facts import WARP, DeviceFacts

Limiter = Literal["registers", "shared memory", "threads", "blocks"]

REGISTER_UNIT = 256
"""Registers given to a warp at a time."""

PARTITIONS = 4
"""Register files per SM, each with a quarter of the registers."""

MAX_REGISTERS = 256
"""Registers per thread above which no launch is possible (the compilers stop at 255)."""

MAX_BLOCK = 1024
"""Threads in the largest block."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Resident blocks per SM and why not more.

    `limits` holds what each resource alone would allow; `limiter` is the smallest of them, and in a
    tie a limit of the GPU (threads, blocks) is named before one of the kernel (registers, shared
    memory), because lowering the kernel's own would gain nothing. blocks_per_sm 0: no launch.
    """

    blocks_per_sm: int
    limiter: Limiter
    limits: dict[Limiter, int]


def _round_up(x: int, unit: int) -> int:
    return -(-x // unit) * unit


def _smem_unit(dev: DeviceFacts) -> int:
    return 128 if dev.compute_capability[0] >= 8 else 256


def _check(block: int, dev: DeviceFacts) -> int:
    """Warps per block, after refusing a block or a GPU that the rules do not cover."""
    if not 1 <= block <= MAX_BLOCK:
        raise BadInput(f"block must be 1 to {MAX_BLOCK} threads, got {block}")
    if dev.compute_capability < (7, 0):
        raise BadInput(f"occupancy is known for sm_70 and later, got {dev.arch}")
    return -(-block // WARP)


def occupancy(res: Resources, block: int, smem_dynamic: int, dev: DeviceFacts) -> Occupancy:
    """Blocks of `block` threads that one SM of `dev` holds at a time.

    res: registers per thread and static shared memory; smem_dynamic: bytes asked for at launch.
    Raises BadInput for a block outside 1..1024 or negative resources. A kernel that cannot launch at
    all has blocks_per_sm 0 and the reason as its limiter.
    """
    warps = _check(block, dev)
    if res.registers < 0 or res.smem_bytes < 0 or smem_dynamic < 0:
        raise BadInput(f"resources must not be negative, got {res} and {smem_dynamic} B dynamic")
    per_warp = _round_up(res.registers * WARP, REGISTER_UNIT)
    by_registers = dev.max_warps_per_sm  # no registers: nothing of theirs limits
    if res.registers > MAX_REGISTERS:
        by_registers = 0
    elif per_warp:
        by_registers = dev.regs_per_sm // PARTITIONS // per_warp * PARTITIONS // warps

    smem = _round_up(res.smem_bytes + smem_dynamic + dev.smem_reserved_per_block_bytes, _smem_unit(dev))
    fits = smem <= dev.smem_per_block_max_bytes + dev.smem_reserved_per_block_bytes
    by_smem = dev.max_blocks_per_sm
    if smem:
        by_smem = dev.smem_per_sm_bytes // smem if fits else 0

    limits: dict[Limiter, int] = {
        "threads": dev.max_threads_per_sm // WARP // warps,
        "blocks": dev.max_blocks_per_sm,
        "registers": by_registers,
        "shared memory": by_smem,
    }
    limiter = min(limits, key=lambda k: limits[k])
    return Occupancy(limits[limiter], limiter, limits)


def waves(grid: int, sms: int, blocks_per_sm: int) -> float:
    """Grid over the blocks that the GPU holds at a time: 432 / (48 x 6) = 1.5."""
    if grid < 1 or sms < 1 or blocks_per_sm < 1:
        raise BadInput(
            f"waves need a grid, SMs and blocks per SM of at least 1, got {grid}, {sms}, {blocks_per_sm}"
        )
    return grid / (sms * blocks_per_sm)


def tail_fraction(waves: float) -> float:
    """Share of all block slots that the last wave leaves empty: (ceil(w) - w) / ceil(w); 1.5 gives 0.25."""
    if not (waves > 0 and math.isfinite(waves)):
        raise BadInput(f"waves must be positive and finite, got {waves}")
    whole = math.ceil(waves)
    return (whole - waves) / whole


def last_wave(grid: int, sms: int, blocks_per_sm: int) -> int:
    """Blocks per SM that a grid's last wave holds, on the fullest SM."""
    left = grid % (sms * blocks_per_sm) or sms * blocks_per_sm
    return -(-left // sms)


def _cost(res: Resources, config: LaunchConfig, dev: DeviceFacts) -> tuple[int, int, int, int]:
    """(threads, registers, shared memory, blocks) that one block takes from an SM."""
    warps = -(-config.block // WARP)
    per_warp = -(-res.registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
    unit = 128 if dev.compute_capability[0] >= 8 else 256
    smem = -(-(res.smem_bytes + config.smem_bytes + dev.smem_reserved_per_block_bytes) // unit) * unit
    return warps * WARP, warps * per_warp, smem, 1


def beside(
    there: tuple[Resources, LaunchConfig],
    resident: int,
    new: tuple[Resources, LaunchConfig],
    dev: DeviceFacts,
) -> int:
    """Blocks of `new` that fit on an SM of `dev` that already holds `resident` blocks of `there`."""
    room = (dev.max_threads_per_sm, dev.regs_per_sm, dev.smem_per_sm_bytes, dev.max_blocks_per_sm)
    taken, wanted = _cost(*there, dev), _cost(*new, dev)
    fits = min((have - resident * a) // b for have, a, b in zip(room, taken, wanted, strict=True) if b)
    alone = occupancy(new[0], new[1].block, new[1].smem_bytes, dev).blocks_per_sm
    return max(0, min(fits, alone))
