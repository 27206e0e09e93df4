"""Launch bounds: the blocks per SM that each kernel form is compiled for; figures and reasons in the TOML."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
RINGS: dict[str, int] = _TABLE["persistent"]
MIN_BLOCKS: dict[str, int] = {**_TABLE["blocks_per_sm"], **RINGS}


def min_blocks(kernel: str, override: int = 0) -> int:
    """Blocks per SM that `kernel` is compiled for; 0 leaves the registers to the compiler.

    A traced twin (`l3_form_b_traced`) has its form's bound, and so have the kinds of one (`l2_q4k_late`).
    `override`, of --blocks-per-sm, does not reach the rings, whose grid holds their blocks.
    """
    name = re.sub(r"_(traced|plain|entry|late)$", "", kernel)
    form = next((form for form in MIN_BLOCKS if name.endswith(f"_{form}")), "")
    return MIN_BLOCKS.get(form, 0) if form in RINGS or not override else override
