"""How each L3 variant's reader is launched: geometry and arguments of all of them, in one place.

    matmul, form_a, form_b, form_b_staged   a grid that follows from nf (l3.config)
    matmul_ring, form_c                     a persistent grid; its geometry out of core/tuning, or by a rule

A ticket of matmul_ring names rows of gate and up as they lie. A fill of form_c is gate rows, and the same up
rows with them, so a stage holds twice as many. Each of its blocks makes `own` groups of 32 rows by itself.
All others are shared: their fills are drawn before the last `late` own ones, and their sums meet in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from probes import l3
from probes.core import ring, tuning
from probes.core.ring import Plan
from probes.core.tuning import GateUp
from probes.core.types import BadInput, LaunchConfig

if TYPE_CHECKING:
    from probes.core.device import DeviceFacts

CANDIDATES: dict[str, tuple[str, ...]] = {
    "pair_ring": (
        "8r2b2s3x-drawn", "8r2b2s2x-drawn", "8r2b2s4x-drawn", "8r2b3s3x-drawn", "8r2b3s4x-drawn",
        "8r2b4s4x-drawn", "12r2b2s3x-drawn", "12r2b3s4x-drawn", "16r2b2s4x-drawn", "16r2b2s4x-dealt",
        "8r1b8s4x-drawn", "16r1b4s4x-drawn", "8r4b2s-drawn", "4r4b4s-drawn", "8r3b3s2x-drawn",
        "12r3b2s2x-drawn",
    ),
    "form_c": (
        "4r2b2s2x-drawn-own1-late2", "4r2b2s2x-drawn-own1-late4", "4r2b2s2x-drawn-own1-late8",
        "4r2b2s2x-drawn-own0-late0", "4r2b2s3x-drawn-own1-late3", "4r1b4s4x-drawn-own3-late8",
        "4r1b4s4x-drawn-own3-late18", "8r1b2s4x-drawn-own1-late4", "8r1b2s4x-drawn-own3-late4",
        "8r1b2s4x-drawn-own3-late12", "8r2b2s4x-drawn-own1-late1", "8r2b2s4x-drawn-own1-late4",
        "8r2b2s4x-drawn-own3-late6", "8r2b2s4x-drawn-own0-late0", "4r4b2s-drawn-own0-late0",
        "16r1b2s4x-drawn-own1-late2", "4r2b3s3x-drawn-own1-late4",
    ),
}  # fmt: skip
"""What --geometries measures: the good ones of a far wider trial, on a whole H200 and on 48 of its SMs."""


def candidates(v: l3.Variant) -> tuple[GateUp, ...]:
    """Those of one variant."""
    return tuple(GateUp.parse(text) for text in CANDIDATES[v.name])


@dataclass(frozen=True, slots=True)
class Planned:
    """One variant's launches: what every one of them shares. `note` is what a row says of the geometry.

    own, late: of form_c, groups that a block makes by itself, and its own fills for after the drawn ones.
    """

    variant: l3.Variant
    case: l3.Case
    config: LaunchConfig
    note: str = ""
    ring: Plan | None = None
    own: int = 0
    late: int = 0

    @property
    def counters(self) -> int:
        """32-bit words that must be 0 before every launch, and are 0 after it.

        The tickets' counter; of form_c before it two words per row pair, in which blocks hand sums over.
        """
        if self.ring is None:
            return 0
        return int(self.ring.drawn) if self.variant.finisher else 2 * self.case.nf + 1

    @property
    def shared(self) -> int:
        """form_c: the first pair whose sums are handed over; those before never leave the block."""
        return self.own * self.config.grid * l3.GROUP

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
        if self.variant.sums_alone:
            sizes = (nbe, self.case.shape.od, made.rows, made.stages)
        else:
            sizes = (nf, nbe, made.rows, made.stages, self.own, self.late)
        return (w, x8, *out, counters, *map(int32, sizes))


def default_choice(v: l3.Variant, case: l3.Case, facts: DeviceFacts, blocks_per_sm: int = 0) -> GateUp:
    """The rule for what no tuning table speaks of: ring.default_geometry over what a ticket names.

    A block of form_c ends with one group of its own, after all that it draws.
    """
    each = _rows_each(v)
    blocks = blocks_per_sm or ring.DEFAULT_BLOCKS
    # two stages at least: one is summed while the other fills
    found = ring.default_geometry(case.shape.od // each, _stride(case), facts, blocks, each, stages=2)
    return GateUp(found) if v.finisher else GateUp(found, 1, l3.GROUP // found.rows)


def plan(v: l3.Variant, case: l3.Case, facts: DeviceFacts, blocks_per_sm: int = 0) -> Planned:
    """The launch of one variant on a device or a partition of it.

    blocks_per_sm: a ring's too, in the default rule's geometry where the table has another number; the other
    kernels' callers hold them by shared memory.
    Raises BadInput, and Unavailable with the reason for a SKIPPED row.
    """
    if not v.ring:
        return Planned(v, case, l3.config(v, case.nf))
    tuned = tuning.l3(facts.slug, case.shape, v.name)
    if tuned and blocks_per_sm in (0, tuned.ring.blocks_per_sm):
        return planned(v, case, tuned, facts, "tuned")
    source = "blocks as asked" if blocks_per_sm else "by the default rule"
    return planned(v, case, default_choice(v, case, facts, blocks_per_sm), facts, source)


def planned(v: l3.Variant, case: l3.Case, choice: GateUp, facts: DeviceFacts, source: str = "") -> Planned:
    """A ring variant in one geometry. Raises BadInput and Unavailable as `plan`.

    A block of form_c has no more own groups than there are for every block, and no more late fills than own
    ones; none are late where none are drawn.
    """
    if wrong := tuning.gate_up_fault(v.name, choice):
        raise BadInput(f"{v.name}: {wrong}")
    rows, groups = choice.ring.rows * _rows_each(v), case.nf // l3.GROUP
    made = ring.plan(
        case.shape.nbe * 4, _stride(case), -(-case.shape.od // rows), choice.ring, facts, rows,
        others=1 if v.finisher else 2, most_blocks=0 if v.finisher else groups,
    )  # fmt: skip
    stages = f"{made.stages} stage{'s' if made.stages > 1 else ''}"
    note = f"geometry {choice}, {stages}{', ' + source if source else ''}; a persistent grid, "
    if v.finisher:
        return Planned(v, case, made.config, f"{note}tickets {'drawn' if made.drawn else 'dealt'}", made)
    own = min(choice.own or 0, groups // made.config.grid)
    left = groups - own * made.config.grid
    late = min(choice.late or 0, own * l3.GROUP // made.rows) if left else 0
    note += f"own {own} group{'s' if own > 1 else ''} a block, {left} groups shared, {late} fills late"
    return Planned(v, case, made.config, note, made, own, late)


def _rows_each(v: l3.Variant) -> int:
    """Rows of a stage for each row that a ticket names."""
    return 1 if v.finisher else 2


def _stride(case: l3.Case) -> int:
    return case.shape.nbe * l3.Q4K_BLOCK_BYTES
