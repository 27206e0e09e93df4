"""How each L3 variant's reader is launched: geometry and arguments of all of them, in one place.

    matmul, form_a, form_b, form_b_staged   a grid that follows from nf (l3.config)
    matmul_ring, form_c                     a persistent grid; its geometry out of core/tuning, or by a rule

A ticket names rows of gate and up as they lie. form_c's are so ordered that a group's parts lie far apart,
and its sums meet in memory: see kernels_cu/ring_gated.cuh.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from probes import l3
from probes.core import ring, tuning
from probes.core.ring import Plan
from probes.core.tuning import Geometry
from probes.core.types import BadInput, LaunchConfig

if TYPE_CHECKING:
    from probes.core.device import DeviceFacts

CANDIDATES: tuple[str, ...] = (
    "8r2b2s3x-drawn", "8r2b2s2x-drawn", "8r2b2s4x-drawn", "8r2b3s3x-drawn", "8r2b3s4x-drawn",
    "8r2b4s4x-drawn", "8r2b4s3x-drawn", "12r2b2s3x-drawn", "12r2b3s4x-drawn", "16r2b2s4x-drawn",
    "16r2b2s4x-dealt", "16r2b2s3x-drawn", "8r1b8s4x-drawn", "16r1b4s4x-drawn", "8r4b2s-drawn",
    "4r4b4s-drawn", "8r3b3s2x-drawn", "12r3b2s2x-drawn",
)  # fmt: skip
"""What --geometries measures: the good ones of a far wider trial, on a whole H200 and on 48 of its SMs."""


def candidates(v: l3.Variant) -> tuple[Geometry, ...]:
    """Those that one variant can be launched with."""
    every = (Geometry.parse(text) for text in CANDIDATES)
    return tuple(g for g in every if not tuning.gate_up_fault(v.name, g))


@dataclass(frozen=True, slots=True)
class Planned:
    """One variant's launches: what every one of them shares. `note` is what a row says of the geometry."""

    variant: l3.Variant
    case: l3.Case
    config: LaunchConfig
    note: str = ""
    ring: Plan | None = None

    @property
    def counters(self) -> int:
        """32-bit words that must be 0 before every launch, and are 0 after it.

        The tickets' counter; of form_c before it two words per row pair, in which blocks hand sums over.
        """
        if self.ring is None:
            return 0
        return int(self.ring.drawn) + (0 if self.variant.finisher else 2 * self.case.nf)

    def args(self, w: int, x8: int, out: tuple[int, ...], counters: int = 0) -> tuple[Any, ...]:
        """What the reader takes, its addresses first.

        out: its results.
        counters: so many words that are 0, of no other launch that may run meanwhile.
        """
        from probes.gpu.kernels import int32

        nf, nbe = self.case.nf, self.case.shape.nbe
        if self.ring is None:
            sizes: tuple[int, ...] = (nbe,) if self.variant.sums_alone else (nf, nbe)
            return (w, x8, *out, *map(int32, sizes))
        made = self.ring
        drawn = counters + 4 * (self.counters - 1) if made.drawn else 0  # the tickets' counter, or null
        words = (drawn,) if self.variant.sums_alone else (counters, drawn)
        rows = self.case.shape.od if self.variant.sums_alone else nf
        return (w, x8, *out, *words, *map(int32, (nbe, rows, made.rows, made.stages)))


def default_choice(case: l3.Case, facts: DeviceFacts, blocks_per_sm: int = 0) -> Geometry:
    """The rule for what no tuning table speaks of: ring.default_geometry, with two stages at least.

    One is summed while the other fills.
    """
    blocks = blocks_per_sm or ring.DEFAULT_BLOCKS
    return ring.default_geometry(case.shape.od, _stride(case), facts, blocks, stages=2)


def plan(v: l3.Variant, case: l3.Case, facts: DeviceFacts, blocks_per_sm: int = 0) -> Planned:
    """The launch of one variant on a device or a partition of it.

    blocks_per_sm: a ring's too, in the default rule's geometry where the table has another number; the other
    kernels' callers hold them by shared memory.
    Raises BadInput, and Unavailable with the reason for a SKIPPED row.
    """
    if not v.ring:
        return Planned(v, case, l3.config(v, case.nf))
    tuned = tuning.l3(facts.slug, case.shape, v.name)
    if tuned and blocks_per_sm in (0, tuned.blocks_per_sm):
        return planned(v, case, tuned, facts, "tuned")
    source = "blocks as asked" if blocks_per_sm else "by the default rule"
    return planned(v, case, default_choice(case, facts, blocks_per_sm), facts, source)


def planned(v: l3.Variant, case: l3.Case, choice: Geometry, facts: DeviceFacts, source: str = "") -> Planned:
    """A ring variant in one geometry. Raises BadInput and Unavailable as `plan`."""
    if wrong := tuning.gate_up_fault(v.name, choice):
        raise BadInput(f"{v.name}: {wrong}")
    made = ring.plan(
        case.shape.nbe * 4, _stride(case), -(-case.shape.od // choice.rows), choice, facts,
        others=1 if v.finisher else 2,
    )  # fmt: skip
    stages = f"{made.stages} stage{'s' if made.stages > 1 else ''}"
    note = f"geometry {choice}, {stages}{', ' + source if source else ''}; a persistent grid, "
    return Planned(v, case, made.config, f"{note}tickets {'drawn' if made.drawn else 'dealt'}", made)


def _stride(case: l3.Case) -> int:
    return case.shape.nbe * l3.Q4K_BLOCK_BYTES
