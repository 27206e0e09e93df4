"""Launch bounds: the blocks per SM that each kernel form is compiled for, in one place for both languages.

A bound is a register budget: 65536 registers / (256 threads x blocks). With too few a load waits for another
to arrive, and its latency shows twice. Each form has the tightest bound at which ptxas (CUDA 13.0,
sm_90 and sm_121) issues every load of a unit before the first dot product. `--blocks-per-sm N` replaces them.
"""

from __future__ import annotations

import re

MIN_BLOCKS: dict[str, int] = {
    "loop": 6,  # 40 registers, all 8 to 11 loads in flight; at 8 (32 registers) half of them wait, dpl spills
    "pf": 4,  # 64 registers for two units (48 in group order, 5 blocks); at 5 the gguf order spills
    # 62 to 64 registers, 21 to 27 of 27 loads first in group order, 8 bytes spilt by Numba's dpl, sm_121; at
    # 3 all come first and nothing spills, but gpl is 10 % slower on an H200: a block per SM less
    "pf3": 4,
    "stream": 6,  # as the loop form, so that both see the same occupancy
    "ring": 2,  # of 320 threads (q6_K) or 448 (q4_K): 85 to 96 and 72 registers, activations held
    "form_c": 2,  # a ring too: its block and its registers
    "async": 2,  # a ring too; Numba's spills 80 to 112 bytes on sm_80 and sm_89, none on sm_90
    "matmul": 4,  # 48 registers on sm_90 (so 5 blocks), 53 on sm_121; at 5 three of 8 loads wait there
    "form_a": 4,  # 64 registers for two rows; all 11 loads first on sm_90, 8 on sm_121 (where 72 would do)
    "form_b": 5,  # 47 registers, all 8 loads first on both; at 6 (40 registers) it spills and one load waits
    "q4k": 4,  # L2's warp per row: all 8 loads of a chunk first
    "q6k": 6,  # as the loop form
    "attention_split": 4,  # 64 registers: a decode layer's 408 blocks at once on an H200
    "form_b_staged": 4,  # 56 registers on sm_90, 64 on sm_121; at 5 the staged weights spill
}
"""Kernel form (the last part of a kernel's name) -> blocks per SM at 256 threads; absent: no bound."""

RINGS = ("ring", "async", "form_c")
"""Forms with a persistent grid and blocks larger than 256 threads."""


def min_blocks(kernel: str, override: int = 0) -> int:
    """Blocks per SM that `kernel` is compiled for; 0 leaves the registers to the compiler.

    A traced twin (`l3_form_b_traced`) has its form's bound, and so have the kinds of one (`l2_q4k_late`).
    `override` does not reach the rings, whose grid holds their blocks.
    """
    name = re.sub(r"_(traced|plain|entry|late)$", "", kernel)
    form = next((form for form in MIN_BLOCKS if name.endswith(f"_{form}")), "")
    return MIN_BLOCKS.get(form, 0) if form in RINGS or not override else override
