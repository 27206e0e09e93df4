"""L1 swept over geometries: every candidate of ring and async, and what the tuning table should hold.

    python -m probes.l1 --sweep           GPU only; writes l1-sweep.json and .md beside the other reports

gpl is measured in every candidate, the other layouts in its fastest few, all in the first backend that works
(C++ unless --backend says otherwise). A row's variant names its geometry, `gpl_ring@8r2b0s-drawn` or
`gpl_async@3b`. A candidate that makes the very launch of another is not timed twice. A sweep judges nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from probes import l1, l1_launch, l1_ring
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

WINDOWS = 4
LEAD = "gpl"
FEW = {"ring": 3, "async": 2}
"""The forms that are swept, and in how many of the lead's fastest points the other layouts are measured."""


def measure(
    bench: Bench, args: argparse.Namespace, cases: Sequence[l1.Case], kernels: dict[str, Kernel]
) -> Iterator[list[Row]]:
    """Rows of one case after the other, of one backend's kernels."""
    from probes import l1_arms

    quick = replace(bench, windows=WINDOWS)
    asked = [lay for lay in LAYOUTS if not args.layout or lay.name in args.layout]
    asked.sort(key=lambda lay: lay.name != LEAD)
    forms = [f for f in FEW if not args.form or f in args.form]
    for case in cases:
        with ExitStack() as stack:
            w = l1_arms.weights(quick, case, args, asked, stack)
            points = [(asked[0], point) for point in _candidates(forms)]
            rows = _measured(quick, case, points, w, kernels, stack)
            best = fastest(rows)
            points = [(lay, p) for lay in asked[1:] for form in forms for p in best[form][: FEW[form]]]
            given = {r.id for r in rows}
            more = _measured(quick, case, points, w, kernels, stack) if points else []
            yield [*rows, *(r for r in more if r.id not in given)]  # the reads stand there once


def _candidates(forms: Sequence[str]) -> list[str]:
    """Every point of a sweep as its rows name it: `ring@8r2b0s-drawn`, `async@3b`."""
    points = [f"ring@{g}" for g in l1_ring.CANDIDATES] + [f"async@{b}b" for b in l1_ring.ASYNC_CANDIDATES]
    return [p for p in points if p.partition("@")[0] in forms]


def fastest(rows: Sequence[Row], layout: str = "") -> dict[str, list[str]]:
    """Form -> its points, fastest first; of one layout's rows, or of all rows."""
    timed = sorted((r for r in rows if r.time_s and report.POINT in r.variant), key=lambda r: r.time_s or 0.0)
    timed = [r for r in timed if r.variant.startswith(layout)]
    points = [r.variant.partition("_")[2] for r in timed]
    return {form: [p for p in points if p.startswith(f"{form}@")] for form in FEW}


def planned(point: str, lay: Layout, shape: Shape, stride: int, facts: DeviceFacts) -> l1_launch.Planned:
    """The launch of one point. Raises Unavailable with the reason for a SKIPPED row."""
    form, _, at = point.partition("@")
    if form == "ring":
        return l1_launch.ring(lay, shape, stride, Geometry.parse(at), facts)
    return l1_launch.asynchronous(lay, shape, stride, int(at.removesuffix("b")), facts)


def _measured(
    bench: Bench,
    case: l1.Case,
    points: Sequence[tuple[Layout, str]],
    w: Weights,
    kernels: dict[str, Kernel],
    stack: ExitStack,
) -> list[Row]:
    """One row per point, with a reason where it was not run, and the reads."""
    from probes import l1_arms

    arms: list[tuple[Spec, Arm]] = []
    skipped: list[Row] = []
    seen: dict[object, str] = {}
    for lay, point in points:
        variant, stride = f"{lay.name}_{point}", w.packed[lay.name].shape[1]
        kernel = kernels[f"l1_{variant.partition('@')[0]}"]
        try:
            plan = planned(point, lay, case.shape, stride, bench.gpu.facts)
            fit = l1_arms.make_room(bench, kernel, plan)
            if plan.ring and fit < Geometry.parse(point.partition("@")[2]).blocks_per_sm:
                raise Unavailable(f"only {fit} blocks of it fit on an SM")
            same = seen.setdefault((lay.name, plan.form, plan.ring or plan.config), variant)
            if same != variant:
                raise Unavailable(f"the same launch as {same}")
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
            if best["ring"] and best["async"]:
                ring, blocks = (best[form][0].partition("@")[2] for form in FEW)
                found = Tuned(Geometry.parse(ring), int(blocks.removesuffix("b")))
                out.setdefault(case, {})[lay.name] = found
    return out


def is_sweep(rows: Sequence[Row]) -> bool:
    """Whether these rows are a sweep's."""
    return any(report.POINT in r.variant for r in rows)


def section(rows: Sequence[Row], markdown: bool) -> str:
    """The fastest point of each case, layout and form beside the table's own, and the rows to write."""
    title = "### " if markdown else ""
    lines = []
    for case in dict.fromkeys(r.case for r in rows):
        mine = {r.variant: r for r in rows if r.case == case}
        for lay in LAYOUTS:
            best = fastest(list(mine.values()), f"{lay.name}_")
            for form in FEW:
                if best[form]:
                    lines.append(_line(mine, lay, form, best[form]))
    heads = ["case", "layout", "form", "fastest", "time", "of same-bytes read", "the next", "its time"]
    heads += ["the table says", "its time"]
    table = report.table(heads, lines, markdown, left=[*heads[:4], heads[6], heads[8]])
    text = "\n\n".join(tuning.dump(case, rows_) for case, rows_ in chosen(rows).items())
    text = f"```toml\n{text}\n```" if markdown else text
    return (
        f"{title}The fastest of each form\n\n{table}\n\n"
        f"{title}Rows for this device's file in probes/core/tuning\n\n{text or '(none: it takes both forms)'}"
    )


def _line(mine: dict[str, Row], lay: Layout, form: str, best: Sequence[str]) -> list[str]:
    first = mine[f"{lay.name}_{best[0]}"]
    cells = [first.case, lay.name, form, best[0].partition("@")[2], report.format_time(first.time_s)]
    cells.append(report.format_percent(first.fraction_of_same_bytes_read))
    second = mine[f"{lay.name}_{best[1]}"] if len(best) > 1 else None
    cells += [best[1].partition("@")[2], report.format_time(second.time_s)] if second else ["", ""]
    assert first.shape, "a measured row has its shape"
    held = tuning.l1(first.device or "", Shape(first.shape[0], first.shape[1]), lay.name)
    if held is None:
        return [*cells, "(no row)", ""]
    at = str(held.ring) if form == "ring" else f"{held.async_blocks}b"
    row = mine.get(f"{lay.name}_{form}@{at}")
    return [*cells, at, report.format_time(row.time_s) if row else ""]
