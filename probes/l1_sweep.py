"""L1 swept over geometries: every candidate of ring and async, and what the tuning table should hold.

    python -m probes.l1 --sweep           GPU only; writes l1-sweep.json and .md beside the other reports

gpl is measured in every candidate, the other layouts in its fastest few, all in the first backend that works
(C++ unless --backend says otherwise). A row's variant names its geometry, such as `gpl_ring@8r2b0s-drawn`. A
candidate that makes the very launch of another is not timed twice. A sweep judges nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from probes import l1, l1_launch, l1_ring, points
from probes.core import report, tuning
from probes.core.layouts import LAYOUTS, Layout
from probes.core.rows import Row
from probes.core.tuning import Geometry, Tuned
from probes.core.types import Shape, Unavailable

if TYPE_CHECKING:
    from probes.bench import Bench, Spec
    from probes.core.device import DeviceFacts
    from probes.gpu.kernels import Kernel
    from probes.gpu.timing import Arm
    from probes.l1_arms import Weights

LEAD = "gpl"
FEW = 3
"""In so many of the lead's fastest points of a form the other layouts are measured."""


def measure(
    bench: Bench, args: argparse.Namespace, cases: Sequence[l1.Case], kernels: dict[str, Kernel]
) -> Iterator[list[Row]]:
    """Rows of one case after the other, of one backend's kernels."""
    from probes import l1_arms

    quick = replace(bench, windows=points.WINDOWS)
    asked = [lay for lay in LAYOUTS if not args.layout or lay.name in args.layout]
    asked.sort(key=lambda lay: lay.name != LEAD)
    forms = [f for f in tuning.FORMS if not args.form or f in args.form]
    for case in cases:
        with ExitStack() as stack:
            w = l1_arms.weights(quick, case, args, asked, stack)
            swept = [(asked[0], point) for point in _candidates(forms)]
            rows = _measured(quick, case, swept, w, kernels, stack)
            best = fastest(rows)
            swept = [(lay, p) for lay in asked[1:] for form in forms for p in best[form][:FEW]]
            given = {r.id for r in rows}
            more = _measured(quick, case, swept, w, kernels, stack) if swept else []
            yield [*rows, *(r for r in more if r.id not in given)]  # the reads stand there once


def _candidates(forms: Sequence[str]) -> list[str]:
    """Every point of a sweep as its rows name it: `ring@8r2b0s-drawn`."""
    return [f"{form}{report.POINT}{g}" for form in forms for g in l1_ring.CANDIDATES]


def fastest(rows: Sequence[Row], layout: str = "") -> dict[str, list[str]]:
    """Form -> its points, fastest first; of one layout's rows, or of all rows."""
    timed = sorted((r for r in rows if r.time_s and report.POINT in r.variant), key=lambda r: r.time_s or 0.0)
    timed = [r for r in timed if r.variant.startswith(layout)]
    names = [r.variant.partition("_")[2] for r in timed]
    return {form: [p for p in names if p.startswith(f"{form}{report.POINT}")] for form in tuning.FORMS}


def planned(point: str, lay: Layout, shape: Shape, stride: int, facts: DeviceFacts) -> l1_launch.Planned:
    """The launch of one point. Raises Unavailable with the reason for a SKIPPED row."""
    form, _, at = point.partition(report.POINT)
    return l1_launch.ring(form, lay, shape, stride, Geometry.parse(at), facts)


def _measured(
    bench: Bench,
    case: l1.Case,
    swept: Sequence[tuple[Layout, str]],
    w: Weights,
    kernels: dict[str, Kernel],
    stack: ExitStack,
) -> list[Row]:
    """One row per point, with a reason where it was not run, and the reads."""
    from probes import l1_arms

    arms: list[tuple[Spec, Arm]] = []
    skipped: list[Row] = []
    seen: dict[object, str] = {}
    for lay, point in swept:
        variant, stride = f"{lay.name}_{point}", w.packed[lay.name].shape[1]
        kernel = kernels[f"l1_{variant.partition(report.POINT)[0]}"]
        try:
            plan = planned(point, lay, case.shape, stride, bench.gpu.facts)
            fit = l1_arms.make_room(bench, kernel, plan)
            blocks = Geometry.parse(point.partition(report.POINT)[2]).blocks_per_sm
            points.admit(seen, (lay.name, plan.form, plan.ring), variant, fit, blocks)
        except Unavailable as error:
            skipped.append(l1_arms.not_run(bench, case, variant, kernel, lay, str(error)))
            continue
        spec = l1_arms.spec(case, variant, kernel, lay, plan, w)
        arms.append((spec, l1_arms.arm(bench, case, spec, lay, plan, w, stack)))
    backend = next(iter(kernels.values())).backend
    arms += l1_arms.reads(bench, case, w, [backend], stack)
    rows = bench.measure("l1", arms, {}, case.id)
    for (spec, _), row in zip(arms, rows, strict=True):
        row.grid = spec.config.grid
    return [*rows, *skipped]


def chosen(rows: Sequence[Row]) -> dict[str, dict[str, Tuned]]:
    """Case -> layout -> the fastest ring and async: what the tuning table should hold."""
    out: dict[str, dict[str, Tuned]] = {}
    for case in dict.fromkeys(r.case for r in rows):
        for lay in LAYOUTS:
            best = fastest([r for r in rows if r.case == case], f"{lay.name}_")
            if all(best.values()):
                found = {form: Geometry.parse(p[0].partition(report.POINT)[2]) for form, p in best.items()}
                out.setdefault(case, {})[lay.name] = found
    return out


def section(rows: Sequence[Row], markdown: bool) -> str:
    """The fastest point of each case, layout and form beside the table's own, and the rows to write."""
    title = "### " if markdown else ""
    lines = []
    for case in dict.fromkeys(r.case for r in rows):
        mine = [r for r in rows if r.case == case]
        for lay in LAYOUTS:
            for form in tuning.FORMS:
                if found := points.fastest(mine, f"{lay.name}_{form}"):
                    lines.append([case, lay.name, form, *points.cells(found, _held(found[0], lay, form))])
    heads = ["case", "layout", "form", *points.HEADS]
    table = report.table(heads, lines, markdown, left=[*heads[:3], *points.LEFT])
    text = "\n\n".join(tuning.dump(case, rows_) for case, rows_ in chosen(rows).items())
    text = f"```toml\n{text}\n```" if markdown else text
    return (
        f"{title}The fastest of each form\n\n{table}\n\n"
        f"{title}Rows for this device's file in probes/core/tuning\n\n{text or '(none: it takes both forms)'}"
    )


def _held(row: Row, lay: Layout, form: str) -> str | None:
    """The geometry that this device's table holds for a row's shape, layout and form."""
    assert row.shape, "a measured row has its shape"
    held = tuning.l1(row.device or "", Shape(row.shape[0], row.shape[1]), lay.name)
    return str(held[form]) if held else None
