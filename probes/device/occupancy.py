"""How many blocks of a kernel one SM holds, what limits it, and how a grid falls into waves.

The rules are those of cuda_occupancy.h (CUDA 13.0), to which the tests hold it, for kernels with one block
barrier (`__syncthreads`) and the default shared-memory carve-out.

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

REGISTER_UNIT = 256  # registers given to a warp at a time
PARTITIONS = 4  # register files per SM, each with a quarter of the registers
MAX_REGISTERS = 256  # per thread, above which no launch is possible (the compilers stop at 255)
MAX_BLOCK = 1024  # threads in the largest block


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Resident blocks per SM (0: no launch), and why not more.

    `limits` holds what each resource alone allows; `limiter` is the smallest. In a tie a limit of the GPU
    (threads, blocks) comes before one of the kernel: lowering the kernel's own would gain nothing.
    """

    blocks_per_sm: int
    limiter: Limiter
    limits: dict[Limiter, int]


def _round_up(x: int, unit: int) -> int:
    return -(-x // unit) * unit


def _cost(res: Resources, block: int, smem_dynamic: int, dev: DeviceFacts) -> tuple[int, int, int, int]:
    """(threads, registers, shared memory, blocks) that one block takes from an SM."""
    warps = -(-block // WARP)
    unit = 128 if dev.compute_capability[0] >= 8 else 256
    smem = _round_up(res.smem_bytes + smem_dynamic + dev.smem_reserved_per_block_bytes, unit)
    return warps * WARP, warps * _round_up(res.registers * WARP, REGISTER_UNIT), smem, 1


def occupancy(res: Resources, block: int, smem_dynamic: int, dev: DeviceFacts) -> Occupancy:
    """Blocks of `block` threads that one SM of `dev` holds at a time.

    res: registers per thread and static shared memory; smem_dynamic: bytes asked for at launch.
    Raises BadInput for a block outside 1..1024 or negative resources. A kernel that cannot launch at
    all has blocks_per_sm 0 and the reason as its limiter.
    """
    if not 1 <= block <= MAX_BLOCK:
        raise BadInput(f"block must be 1 to {MAX_BLOCK} threads, got {block}")
    if dev.compute_capability < (7, 0):
        raise BadInput(f"occupancy is known for sm_70 and later, got {dev.arch}")
    if res.registers < 0 or res.smem_bytes < 0 or smem_dynamic < 0:
        raise BadInput(f"resources must not be negative, got {res} and {smem_dynamic} B dynamic")
    threads, registers, smem, _ = _cost(res, block, smem_dynamic, dev)
    warps = threads // WARP
    by_registers = dev.max_warps_per_sm  # no registers: nothing of theirs limits
    if res.registers > MAX_REGISTERS:
        by_registers = 0
    elif registers:
        by_registers = dev.regs_per_sm // PARTITIONS // (registers // warps) * PARTITIONS // warps
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
        got = f"{grid}, {sms}, {blocks_per_sm}"
        raise BadInput(f"waves need a grid, SMs and blocks per SM of at least 1, got {got}")
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


def beside(
    there: tuple[Resources, LaunchConfig], resident: int, new: tuple[Resources, LaunchConfig],
    dev: DeviceFacts,
) -> int:  # fmt: skip
    """Blocks of `new` that fit on an SM of `dev` that already holds `resident` blocks of `there`."""
    room = (dev.max_threads_per_sm, dev.regs_per_sm, dev.smem_per_sm_bytes, dev.max_blocks_per_sm)
    taken, wanted = (_cost(res, launch.block, launch.smem_bytes, dev) for res, launch in (there, new))
    fits = min((have - resident * a) // b for have, a, b in zip(room, taken, wanted, strict=True) if b)
    alone = occupancy(new[0], new[1].block, new[1].smem_bytes, dev).blocks_per_sm
    return max(0, min(fits, alone))
