"""How each L1 form is launched on a device.

    loop, pf, pf3, stream   a block per row, of a warp per virtual warp that owns a unit
    ring, async             a persistent grid; its geometry out of device/tuned, or by the default rule

A ring's block is a warp per virtual warp that owns a unit, and a producer warp, which copies in bulk (ring;
sm_90 and up) or 16 bytes at a time (async; sm_80 and up).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from probes.core.types import Backend, BadInput, LaunchConfig, Shape, Unavailable
from probes.device import pipeline, tuning
from probes.device.facts import WARP, DeviceFacts
from probes.device.tuning import Geometry
from probes.engine.plan import Planned
from probes.engine.probe import Case, Variant
from probes.formats import traffic
from probes.formats.layouts import LAYOUTS, check_stride
from probes.l1 import table
from probes.l1.table import RINGS, Matvec
from probes.report.rows import Row

CANDIDATES: tuple[Geometry, ...] = tuple(
    Geometry(rows, blocks, stages, drawn)
    for rows, blocks, stages in (
        (1, 1, 0), (1, 2, 0), (1, 3, 0), (1, 4, 0), (2, 1, 0), (2, 2, 0), (2, 3, 0), (2, 4, 0),
        (4, 1, 0), (4, 2, 0), (4, 3, 0), (4, 2, 3), (8, 1, 0), (8, 2, 0), (4, 2, 1), (2, 4, 1),
        (2, 2, 2), (4, 1, 2), (10, 2, 0), (16, 2, 0),
    )
    for drawn in (False, True)
    if not (drawn and stages == 1)
)  # fmt: skip
"""What a sweep measures. One stage and all rows in flight at once suits a matrix of a few rows per SM."""

LEAD = "gpl"
FEW = 3
"""A sweep measures the lead layout in every candidate, the others in so many of its fastest."""

UNITS_AHEAD = {"pf": 2, "pf3": 3}
"""Units that a thread has asked for at a time, by form; 1 for the others."""


def kernels(args: argparse.Namespace) -> dict[str, list[str]]:
    """Kernel file -> symbols that the flags need."""
    out: dict[str, list[str]] = {}
    whole = table.cases(args, 0, lambda symbol: {}) if args.gguf is None else list(table.CASES)
    found = [v for case in whole for v in table.variants(args, case) if isinstance(v, Matvec)]
    if args.gguf is not None:  # the dispatcher may choose any of these for a file's shape
        found += [v for v in table.every() if v.form.name in ("loop", "pf")]
    if args.sweep:
        found += [v for v in table.every() if v.form.name in RINGS]
    for v in found:
        out.setdefault(v.form.stem, []).append(v.symbol)
    return {stem: list(dict.fromkeys(names)) for stem, names in out.items()}


def tuned(slug: str, shape: Shape, layout: str, form: str) -> Geometry | None:
    """What was chosen for a shape (a built-in case's or a file's tensor's), layout and form."""
    case = next((c.id for c in table.CASES if c.shape == shape), "")
    row = tuning.row(slug, "l1", case, layout)
    if row is None:
        return None
    if row.keys() != set(RINGS):
        raise BadInput(f"[l1.{case}] {layout}: a row holds {' and '.join(RINGS)}, got {', '.join(row)}")
    found = row[form]
    if not isinstance(found, Geometry) or found.sets != 1:
        raise BadInput(f"[l1.{case}] {layout}: {form} is a geometry with one consumer group, got {found}")
    return found


def launch_config(shape: Shape) -> LaunchConfig:
    """Of loop, pf, pf3 and stream: one row per block, without the warps that would own no unit."""
    return LaunchConfig(grid=shape.od, block=WARP * pipeline.consumer_warps(shape.nunits))


def default_geometry(shape: Shape, row_stride: int, facts: DeviceFacts) -> Geometry:
    """The rule for what no tuning table speaks of: at least two stages, so that one fills in the meantime."""
    return pipeline.default_geometry(shape.od, row_stride, facts, stages=2)


def plan(v: Variant, case: Case, facts: DeviceFacts, args: argparse.Namespace, backend: Backend) -> Planned:
    """The launch of one variant; --blocks-per-sm replaces the persistent forms' own count.

    Raises BadInput (a stride that cannot be) and Unavailable with the reason for a SKIPPED row.
    """
    assert isinstance(v, Matvec), "a variant of L1"
    form, shape, held = v.form, case.matrix, args.blocks_per_sm or 0
    stride = v.layout.row_stride(shape.nbe)
    if refusal := form.refuses(shape):
        raise Unavailable(refusal)
    if form.name in RINGS:
        found = tuned(facts.slug, shape, v.layout.name, form.name)
        source = "tuned" if found else "by the default rule"
        geometry = found or default_geometry(shape, stride, facts)
        if held:
            geometry, source = replace(geometry, blocks_per_sm=held), "as asked"
        return ring(v, shape, geometry, facts, source)
    check_stride(v.layout, shape.nbe, stride)
    asked = traffic.requests(v.layout, shape)
    return Planned(
        variant=v, kernel=v.symbol, config=launch_config(shape), content_bytes=table.content_bytes(shape),
        traffic_bytes=traffic.traffic_bytes(v.layout, shape), read=table.READ_OF.get(v.layout.name, ""),
        in_flight_bytes=traffic.UNIT_BYTES * UNITS_AHEAD.get(form.name, 1),
        requested_bytes=asked.requested_bytes, wavefronts=asked.wavefronts,
    )  # fmt: skip


def ring(v: Matvec, shape: Shape, geometry: Geometry, facts: DeviceFacts, source: str = "") -> Planned:
    """The form ring or async in one geometry.

    Raises BadInput (a geometry that makes no sense) and Unavailable with the reason for a SKIPPED row: a GPU
    before sm_90 (async: sm_80), or rows that do not fit into shared memory.
    """
    stride = v.layout.row_stride(shape.nbe)
    check_stride(v.layout, shape.nbe, stride)
    fills = -(-shape.od // max(1, geometry.rows))  # pipeline.plan refuses fewer than one
    made = pipeline.plan(shape.nunits, stride, fills, geometry, facts, form=v.form.name)
    stages = f"{made.stages} stage{'s' if made.stages > 1 else ''}"
    asked = traffic.requests(v.layout, shape)
    weights = len(traffic.weight_loads(v.layout, 1))
    return Planned(
        variant=v, kernel=v.symbol, config=made.config, ring=made, content_bytes=table.content_bytes(shape),
        traffic_bytes=traffic.traffic_bytes(v.layout, shape), read=table.READ_OF.get(v.layout.name, ""),
        note=f"geometry {geometry}, {stages}{', ' + source if source else ''}", geometry=str(geometry),
        in_flight_bytes=made.rows * made.stages * stride / made.config.block,
        # activations are register-resident: the weights alone go through L1, row after row
        requested_bytes=asked.weight_requested_bytes,
        wavefronts=sum(x.wavefronts for x in asked.loads[:weights]),
    )  # fmt: skip


def points(
    kind: str, case: Case, facts: DeviceFacts, args: argparse.Namespace, rows: Sequence[Row]
) -> list[tuple[str, Callable[[], Planned]]]:
    """The lead layout in every candidate; then the others in its fastest few of each form; then nothing."""
    layouts = [lay for lay in LAYOUTS if not args.layout or lay.name in args.layout]
    layouts.sort(key=lambda lay: lay.name != LEAD)
    forms = [f for f in RINGS if not args.form or f in args.form]
    swept = {table.variant(r.of).layout.name for r in rows if r.of and r.role == "point"}
    every = [(layouts[0], form, g) for form in forms for g in CANDIDATES]
    if swept:
        timed = sorted((r for r in rows if r.time_s and r.role == "point"), key=lambda r: r.time_s or 0.0)
        best = {f: [r for r in timed if r.of and table.variant(r.of).form.name == f][:FEW] for f in forms}
        left = [lay for lay in layouts if lay.name not in swept]
        every = [(x, f, Geometry.parse(r.geometry or "")) for x in left for f in forms for r in best[f]]
    found = [(table.variant(f"{lay.name}_{form}"), g) for lay, form, g in every]
    return [(f"{v.name}@{g}", partial(_point, v, case.matrix, g, facts)) for v, g in found]


def _point(v: Matvec, shape: Shape, geometry: Geometry, facts: DeviceFacts) -> Planned:
    made = ring(v, shape, geometry, facts)
    own = replace(v, name=f"{v.name}@{geometry}", role="point", of=v.name, baseline="")
    return replace(made, variant=own)


def predicted(
    case: Case, variants: Sequence[Variant], facts: DeviceFacts, args: argparse.Namespace, backend: Backend
) -> list[Row] | None:
    """By the engine's account."""
    return None


def digest(file: str, device: str) -> list[object]:
    """The launches of a report: every variant's on its shape, and the tuned rows; a sweep's candidates."""
    if file == "l1-sweep":
        return [CANDIDATES]
    out: list[object] = [
        (c.id, v.name, launch_config(c.shape))
        for c in table.CASES
        for v in table.every()
        if c.shape and v.form.stem == "l1" and not v.form.refuses(c.shape)
    ]
    rows: Mapping[str, Mapping[str, tuning.Chosen]] = tuning.of(device, "l1")
    return out + [(case, lay, dict(row)) for case, mine in rows.items() for lay, row in mine.items()]
