"""L3's ring kernels swept over geometries, and what the tuning table should hold.

    python -m probes.l3 --geometries               GPU only; writes l3-geometries.json and .md
    python -m probes.l3 --geometries --sms 48      the same in a partition: l3-48sm-geometries

pair_ring (both its kernels) and form_c are measured on gate_up_14b, each in its candidates, in the first
backend that works (C++ unless --backend says otherwise). A row's variant names its geometry, such as
`form_c@16r2b2s4x-drawn`. A candidate that makes the very launch of another is not timed twice. A
sweep judges nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from probes import l3, l3_launch, points
from probes.core import report, tuning
from probes.core.rows import Row
from probes.core.tuning import Geometry
from probes.core.types import Shape, Unavailable

if TYPE_CHECKING:
    from probes.bench import Bench, Spec
    from probes.gpu.timing import Arm
    from probes.l3_arms import Data, Kernels

RINGS: tuple[l3.Variant, ...] = tuple(v for v in l3.VARIANTS if v.ring)


def measure(bench: Bench, args: argparse.Namespace, kernels: Kernels) -> Iterator[list[Row]]:
    """Rows of every candidate, of the first backend's kernels."""
    from probes import l3_arms

    quick = replace(bench, windows=points.WINDOWS)
    backend = next(iter(kernels))
    variants = [v for v in RINGS if not args.variant or v.name in args.variant]
    for case in l3.CASES:
        with ExitStack() as stack:
            d = l3_arms.data_of(quick, args, case, kernels, stack)
            arms, skipped = _arms(quick, variants, {backend: kernels[backend]}, d, stack)
            arms += l3_arms.reads(quick, d, [backend], stack)
            rows = quick.measure("l3", arms, {}, case.id)
            for (spec, _), row in zip(arms, rows, strict=True):
                row.grid = spec.config.grid
            yield [*rows, *skipped]


def _arms(
    bench: Bench, variants: Sequence[l3.Variant], kernels: Kernels, d: Data, stack: ExitStack
) -> tuple[list[tuple[Spec, Arm]], list[Row]]:
    """One arm per point, and a row with the reason for each that is not run."""
    from probes import l3_arms

    arms: list[tuple[Spec, Arm]] = []
    skipped: list[Row] = []
    seen: dict[object, str] = {}
    for mine in kernels.values():
        for v in variants:
            for choice in l3_launch.candidates(v):
                variant, kernel = f"{v.name}{report.POINT}{choice}", mine[v.reader]
                try:
                    planned = l3_launch.planned(v, d.case, choice, bench.gpu.facts)
                    fit = l3_arms.make_room(bench, kernel, planned)
                    launch = (v.name, planned.ring, planned.config)
                    points.admit(seen, launch, variant, fit, choice.blocks_per_sm)
                except Unavailable as error:
                    skipped.append(l3_arms.not_run(bench, d.case, variant, kernel, str(error)))
                    continue
                spec = l3_arms.spec(planned, variant, kernel, d)
                arms.append((spec, l3_arms.arm_of(planned, spec.name, mine, d, stack)))
    return arms, skipped


def chosen(rows: Sequence[Row], case: str) -> dict[str, Geometry]:
    """Variant -> its fastest geometry on one case: what the tuning table should hold."""
    mine = [r for r in rows if r.case == case]
    best = {v.name: points.fastest(mine, v.name) for v in RINGS}
    return {name: Geometry.parse(points.at(found[0])) for name, found in best.items() if found}


def section(rows: Sequence[Row], markdown: bool) -> str:
    """The fastest point of each variant beside the table's own, and the rows to write."""
    title = "### " if markdown else ""
    lines, texts = [], []
    part = next((p for r in rows if (p := tuning.device_and_part(r.device or "")[1])), "")
    for case in dict.fromkeys(r.case for r in rows):
        for v in RINGS:
            found = points.fastest([r for r in rows if r.case == case], v.name)
            if found:
                first = found[0]
                assert first.shape, "a measured row has its shape"
                held = tuning.l3(first.device or "", Shape(first.shape[0], first.shape[1]), v.name)
                cells = points.cells(found, str(held) if held else None)
                lines.append([case, v.name, first.backend, *cells])
        if best := chosen(rows, case):
            texts.append(tuning.dump_l3(case, best, part))
    heads = ["case", "variant", "backend", *points.HEADS]
    table = report.table(heads, lines, markdown, left=[*heads[:3], *points.LEFT])
    text = "\n\n".join(texts) or "(none)"
    text = f"```toml\n{text}\n```" if markdown else text
    return (
        f"{title}The fastest geometry of each ring kernel\n\n{table}\n\n"
        f"{title}Rows for this device's file in probes/core/tuning\n\n{text}"
    )
