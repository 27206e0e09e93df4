"""How each L3 variant's reader is launched.

    matmul, form_a, form_b, form_b_staged   a grid that follows from nf
    matmul_ring, form_c                     a persistent grid; its geometry out of device/tuned, or by a rule

A ticket names rows of gate and up as they lie. form_c's are so ordered that a group's parts lie far apart,
and its sums meet in memory: see kernels_cu/ring_gated.cuh.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from probes.core.types import Backend, BadInput, LaunchConfig, Shape
from probes.device import pipeline, tuning
from probes.device.facts import DeviceFacts
from probes.device.tuning import Geometry
from probes.engine.plan import Planned
from probes.engine.probe import Case, Variant
from probes.l3 import table
from probes.l3.table import Fusion
from probes.report.rows import Row

THREADS = 256
READ = "read_gate_up"
"""The plain read that moves as many bytes as the weights hold."""

UNIT_BYTES, UNIT_REQUESTED = 48, 128
"""Per unit of 64 values: weight bytes loaded, and bytes asked of L1 with the activations."""

AHEAD = {"form_a": 2, "form_b_staged": 2}
"""Units that a thread has asked for at a time; 1 for the others."""

ROWS: dict[str, tuple[int, ...]] = {"pair_ring": tuple(range(1, 33)), "form_c": (1, 2, 4, 8, 16, 32)}
"""Rows that a ticket of each ring variant may name: form_c's divide a group of 32."""

CANDIDATES: tuple[str, ...] = (
    "8r2b2s3x-drawn", "8r2b2s2x-drawn", "8r2b2s4x-drawn", "8r2b3s3x-drawn", "8r2b3s4x-drawn",
    "8r2b4s4x-drawn", "8r2b4s3x-drawn", "12r2b2s3x-drawn", "12r2b3s4x-drawn", "16r2b2s4x-drawn",
    "16r2b2s4x-dealt", "16r2b2s3x-drawn", "8r1b8s4x-drawn", "16r1b4s4x-drawn", "8r4b2s-drawn",
    "4r4b4s-drawn", "8r3b3s2x-drawn", "12r3b2s2x-drawn",
)  # fmt: skip
"""What --geometries measures: the good ones of a far wider trial, on a whole H200 and on 48 of its SMs."""


def candidates(v: Fusion) -> tuple[Geometry, ...]:
    """Those that one variant can be launched with."""
    every = (Geometry.parse(text) for text in CANDIDATES)
    return tuple(g for g in every if not fault(v.name, g))


def fault(variant: str, choice: Geometry) -> str:
    """What a ring variant cannot be launched with, '' for nothing."""
    if choice.sets < 1:
        return f"a block has a consumer group at least, got {choice}"
    if choice.rows not in ROWS[variant]:
        return f"rows are one of {', '.join(map(str, ROWS[variant]))}, got {choice}"
    return ""


def kernels(args: argparse.Namespace) -> dict[str, list[str]]:
    """The readers, traced twins and finishers that the flags need.

    Always matmul, for the sums that arms are held to, and form_b, whose blocks per SM --match-waves takes.
    """
    found = [v for v in table.variants(args, table.CASES[0]) if isinstance(v, Fusion)]
    found += [table.variant("form_b"), *(table.variant(n) for n in table.SWEPT if args.sweep)]
    names = ["l3_matmul", *(k for v in found for k in (v.reader, v.traced, v.finisher) if k)]
    return {"l3": list(dict.fromkeys(names))}


def config(v: Fusion, nf: int) -> LaunchConfig:
    """Geometry of the kernel that reads the weights, where it is no ring."""
    return LaunchConfig(2 * nf // v.rows_per_block, THREADS)


def finish_config(nf: int) -> LaunchConfig:
    """Geometry of the kernel after it: a warp per q8 block."""
    return LaunchConfig(-(-nf // THREADS), THREADS)


def tuned(slug: str, shape: Shape, variant: str) -> Geometry | None:
    """What was chosen for a shape and a ring variant. Raises BadInput for a row that cannot be."""
    case = next((c.id for c in table.CASES if c.shape == shape), "")
    row = tuning.row(slug, "l3", case, variant)
    if row is None:
        return None
    found = row.get("ring")
    if row.keys() != {"ring"} or not isinstance(found, Geometry):
        raise BadInput(f'[l3.{case}] {variant}: a row is {{ ring = "8r2b2s3x-drawn" }}, got {dict(row)}')
    if wrong := fault(variant, found):
        raise BadInput(f"[l3.{case}] {variant}: {wrong}")
    return found


def default_choice(shape: Shape, facts: DeviceFacts, blocks_per_sm: int = 0) -> Geometry:
    """The rule for what no tuning table speaks of: two stages at least, one summed while the other fills."""
    blocks = blocks_per_sm or pipeline.DEFAULT_BLOCKS
    return pipeline.default_geometry(shape.od, _stride(shape), facts, blocks, stages=2)


def plan(v: Variant, case: Case, facts: DeviceFacts, args: argparse.Namespace, backend: Backend) -> Planned:
    """The launch of one variant on a device or a partition of it.

    --blocks-per-sm is a ring's too, in the default rule's geometry where the table has another number.
    Raises BadInput, and Unavailable with the reason for a SKIPPED row.
    """
    assert isinstance(v, Fusion), "a variant of L3"
    shape, held = case.matrix, args.blocks_per_sm or 0
    if not v.ring:
        return _planned(v, case, config(v, table.nf_of(case)))
    found = tuned(facts.slug, shape, v.of or v.name)
    if found and held in (0, found.blocks_per_sm):
        return ring(v, case, found, facts, "tuned")
    source = "blocks as asked" if held else "by the default rule"
    return ring(v, case, default_choice(shape, facts, held), facts, source)


def _planned(v: Fusion, case: Case, launch: LaunchConfig) -> Planned:
    size, units = table.content_bytes(case), case.matrix.od * case.matrix.nbe * 4
    ahead = AHEAD.get(v.of or v.name, 1)
    return Planned(
        variant=v, kernel=v.reader, config=launch, content_bytes=size, traffic_bytes=size, read=READ,
        in_flight_bytes=UNIT_BYTES * ahead, requested_bytes=units * UNIT_REQUESTED,
    )  # fmt: skip


def ring(v: Fusion, case: Case, choice: Geometry, facts: DeviceFacts, source: str = "") -> Planned:
    """A ring variant in one geometry. Raises BadInput and Unavailable as `plan`."""
    shape = case.matrix
    if wrong := fault(v.of or v.name, choice):
        raise BadInput(f"{v.name}: {wrong}")
    fills, others = -(-shape.od // choice.rows), 1 if v.finisher else 2
    made = pipeline.plan(shape.nbe * 4, _stride(shape), fills, choice, facts, others=others)
    stages = f"{made.stages} stage{'s' if made.stages > 1 else ''}"
    tickets = f"a persistent grid, tickets {'drawn' if made.drawn else 'dealt'}"
    return replace(
        _planned(v, case, made.config), ring=made, together=True, geometry=str(choice),
        note=f"geometry {choice}, {stages}{', ' + source if source else ''}; {tickets}",
        # activations are register-resident: the weights alone are read row after row
        requested_bytes=shape.od * shape.nbe * 4 * UNIT_BYTES,
        in_flight_bytes=made.config.smem_bytes / made.config.block,
    )  # fmt: skip


def _stride(shape: Shape) -> int:
    return shape.nbe * table.Q4K_BLOCK_BYTES


def counters(planned: Planned, nf: int) -> int:
    """32-bit words that are 0 before and after a launch: tickets' counter, and form_c's two a row pair."""
    if planned.ring is None:
        return 0
    assert isinstance(planned.variant, Fusion), "a variant of L3"
    return int(planned.ring.drawn) + (0 if planned.variant.finisher else 2 * nf)


def arguments(
    planned: Planned, case: Case, w: int, x8: int, out: tuple[int, ...], words: int = 0
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What the reader takes: addresses, then 32-bit integers.

    out: its results. words: so many words that are 0, of no other launch that may run meanwhile.
    """
    v, nf = planned.variant, table.nf_of(case)
    assert isinstance(v, Fusion), "a variant of L3"
    nbe = case.matrix.nbe
    if planned.ring is None:
        return (w, x8, *out), ((nbe,) if v.sums_alone else (nf, nbe))
    made = planned.ring
    drawn = words + 4 * (counters(planned, nf) - 1) if made.drawn else 0  # the tickets' counter, or null
    rows = case.matrix.od if v.sums_alone else nf
    pointers = (drawn,) if v.sums_alone else (words, drawn)
    return (w, x8, *out, *pointers), (nbe, rows, made.rows, made.stages)


def points(
    kind: str, case: Case, facts: DeviceFacts, args: argparse.Namespace, rows: Sequence[Row]
) -> list[tuple[str, Callable[[], Planned]]]:
    """Every candidate of the ring variants, in one round."""
    if rows:
        return []
    return [
        (f"{v.name}@{g}", partial(_point, v, case, g, facts))
        for v in table.VARIANTS
        if v.ring and (not args.variant or v.name in args.variant)
        for g in candidates(v)
    ]


def _point(v: Fusion, case: Case, choice: Geometry, facts: DeviceFacts) -> Planned:
    own = replace(v, name=f"{v.name}@{choice}", role="point", of=v.name, baseline="")
    return ring(own, case, choice, facts)


def predicted(
    case: Case, variants: Sequence[Variant], facts: DeviceFacts, args: argparse.Namespace, backend: Backend
) -> list[Row] | None:
    """By the engine's account."""
    return None


def digest(file: str, device: str) -> list[object]:
    """The launches of a report: grids, and the device's tuned rows; of --geometries its candidates."""
    if file.endswith(f"-{table.GEOMETRIES}"):
        return [(v.name, candidates(v)) for v in table.VARIANTS if v.ring]
    out: list[object] = [
        (c.id, v.name, config(v, table.nf_of(c))) for c in table.CASES for v in table.VARIANTS if not v.ring
    ]
    rows = tuning.of(device, "l3")
    return out + [(case, v, row.get("ring")) for case, mine in rows.items() for v, row in mine.items()]
