"""What still fits on an SM beside another kernel's blocks: how far a successor can start early.

The rules are those of `core.occupancy`, with the registers of all partitions taken together.
"""

from __future__ import annotations

from probes.core.device import WARP, DeviceFacts
from probes.core.occupancy import REGISTER_UNIT, occupancy
from probes.core.types import LaunchConfig, Resources


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
