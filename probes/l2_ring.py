"""L2's chains of ring kernels as tables: geometry on a device, launches, and the activations they hand on.

A block streams rows of its matrix through stages of shared memory and never ends before its last row, so a
successor finds only what shared memory is left. A geometry that names no stages takes at most its `SHARE` of
an SM, so that the successor's first stages fill while it still sums; one that names them takes those, and
where that is all of it, a successor's block starts when the first of its SM's blocks ends. Tickets are dealt,
so that no launch waits for a counter that another one uses. The PDL arms of a chain have one geometry, and
the plain graph the one that suits it best: `chosen`, from core/tuning where a sweep was run
(`python -m probes.l2 --sweep`), else by rule.

A launch writes the activations, rotated by one unit, for its successor: launch k multiplies rotate(x8, k).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from probes import l2, l2_chains
from probes.core import chains, q4k, q8, ring, tuning
from probes.core.layouts import layout
from probes.core.tuning import ChainRing, Geometry
from probes.core.types import Shape
from probes.l2_chains import NULL, Step

if TYPE_CHECKING:
    from probes.core.device import DeviceFacts

SHARE = 2
"""Launches that are to have room on an SM at the same time: a launch and its successor."""

DEFAULT_ROWS = (8, 4, 2, 1)
"""Rows per fill where nobody swept, the best first."""

Choices = Mapping[str, ChainRing]
"""Geometries by a matrix's name, in place of the chosen ones."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """One matrix of a chain: q4_K as stored, or q6_K in the dpl layout."""

    name: str
    form: str
    shape: Shape

    @property
    def row_stride(self) -> int:
        """Bytes from one row to the next."""
        nbe = self.shape.nbe
        return nbe * q4k.BLOCK if self.form == "q4k" else layout("dpl").row_stride(nbe)

    @property
    def units(self) -> int:
        """What a row's virtual threads share: units of 64 values (q4_K) or of 32 (q6_K)."""
        return self.shape.nbe * (4 if self.form == "q4k" else 8)


MATRICES: dict[str, Matrix] = {
    "ffn_down24": Matrix("ffn_down", "q6k", Shape(5120, 13824)),
    "attn_v24": Matrix("attn_v", "q6k", Shape(1024, 5120)),
}
"""The chains of one matrix."""


def default_geometry(m: Matrix, facts: DeviceFacts) -> Geometry:
    """The rule for what no tuning table speaks of: one block per SM, dealt tickets, two stages at least.

    A fill holds the most rows of 8, 4, 2, 1 that fit twice beside the successor and leave each SM a fill.
    """
    most = ring.room(SHARE, facts)
    fitting = [r for r in DEFAULT_ROWS if 2 * ring.stage_bytes(r, m.row_stride) <= most]
    if not fitting:
        return Geometry(1, 1)
    return Geometry(next((r for r in fitting if -(-m.shape.od // r) >= facts.sms), fitting[-1]), 1)


def chosen(case: str, m: Matrix, facts: DeviceFacts) -> ChainRing:
    """The geometry of one matrix on a device: its tuning table's, else the rule's."""
    return tuning.l2(facts.slug, case, m.name) or ChainRing(default_geometry(m, facts))


def step_of(
    m: Matrix, buffers: tuple[str, str, str, str], choice: ChainRing, facts: DeviceFacts, plain: bool = False
) -> Step:
    """One launch; `buffers`: weights, activations, where they go on to, result. plain: in the plain graph.

    Raises Unavailable with the reason for a SKIPPED row (see `core.ring.plan`).
    """
    od, nbe = m.shape.od, m.shape.nbe
    geometry = replace(choice.plain if plain and choice.plain else choice.ring, drawn=False)
    fills = -(-od // max(1, geometry.rows))
    share = 1 if geometry.stages else SHARE
    made = ring.plan(m.units, m.row_stride, fills, geometry, facts, share=share)
    return Step(
        m.name, f"{m.form}_ring", made.config.grid,
        (*buffers, nbe, m.row_stride, od, made.rows, made.stages, choice.ahead),
        made.config.block, od * m.row_stride, made.config.smem_bytes,
    )  # fmt: skip


def steps(
    case: l2.Case, facts: DeviceFacts, choices: Choices | None = None, plain: bool = False
) -> tuple[Step, ...]:
    """The launches of a chain of ring kernels, in PDL arms or in the plain graph. Raises as `step_of`."""
    given = choices or {}

    def step(m: Matrix, buffers: tuple[str, str, str, str]) -> Step:
        return step_of(m, buffers, given.get(m.name) or chosen(case.id, m, facts), facts, plain)

    if case.id in MATRICES:
        m = MATRICES[case.id]
        hands = [l2_chains.ping_pong(k) for k in range(chains.CHAIN)]
        return tuple(step(m, (f"w.{k}", f"{a}8", f"{b}8", f"out.{k}")) for k, (a, b) in enumerate(hands))
    assert case.kv, "a decode layer has a KV length"
    out = []
    for s in l2_chains.decode_steps(case.kv):
        if found := matrix_of(s):
            w, x8, result = (str(a) for a in s.args[:3])
            s = step(found, (w, x8, NULL, result))
        out.append(s)
    return tuple(out)


def matrix_of(step: Step) -> Matrix | None:
    """The matrix of a decode layer's launch, None where it is no matrix."""
    if step.kernel not in ("q4k", "q6k"):
        return None
    od = step.grid * (8 if step.kernel == "q4k" else 1)  # a row per warp, a row per block
    return Matrix(step.name, step.kernel, Shape(od, 256 * int(step.args[3])))


def told(step: Step) -> str:
    """A ring's geometry in words."""
    *_, rows, stages, ahead = step.args
    return f"ring: {stages} stages of {rows} rows, {ahead} fills prefetched beyond them in the late kind"


def activations(m: Matrix, seed: int) -> NDArray[np.uint8]:
    """What the first launch reads: seeded values of size 1, pad40 bytes."""
    values = np.random.default_rng(seed).standard_normal(m.shape.id, dtype=np.float32)
    return q8.quantise(values)


def rotate(x8: NDArray[np.uint8], count: int) -> NDArray[np.uint8]:
    """pad40 bytes rotated by so many units of 32 values: unit u becomes unit (u + count) % units."""
    return np.roll(x8.reshape(-1, q8.PAD40), count, axis=0).reshape(-1)
