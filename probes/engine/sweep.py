"""Launches swept over geometries: points timed in rounds, and what a tuning table should hold.

A row is a point, `kernel@geometry`: timed, not judged. A sweep runs in the first backend that works.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from probes.core.types import Unavailable
from probes.device import tuning
from probes.device.tuning import Chosen, Geometry
from probes.engine import arms as binding
from probes.engine import reads
from probes.engine.arms import Kernels
from probes.engine.bench import Bench, Spec
from probes.engine.plan import Planned, refused
from probes.engine.probe import Arms, Case, PlanPart, Variant
from probes.gpu.kernels import Kernel
from probes.gpu.timing import Arm
from probes.report import tables
from probes.report.rows import Row

WINDOWS = 4
HEADS = ("fastest", "time", "of same-bytes read", "the next", "its time", "the table says", "its time")
LEFT = (HEADS[0], HEADS[3], HEADS[5])  # those of the columns of `cells` that are words
SAME = "the same launch as {}"


def rows_of(
    probe: str, part: PlanPart, arms: Arms, bench: Bench, kind: str, case: Case, variants: Sequence[Variant],
    kernels: Kernels, args: argparse.Namespace,
) -> Iterator[list[Row]]:  # fmt: skip
    """Rows of one case's points, round after round as the probe asks for them, and of the reads beside."""
    quick, facts = replace(bench, windows=WINDOWS), bench.gpu.facts
    backend = next(iter(kernels))
    case = replace(case, sweep=kind)
    found: list[Row] = []
    with ExitStack() as stack:
        try:
            material = arms.open(case, variants, stack)
        except Unavailable as error:
            v = Variant(name=kind, role="point")
            yield [refused(probe, case, v, backend, "measured", facts, str(error))]
            return
        while points := part.points(kind, case, facts, args, found):
            bound, skipped, seen = list[tuple[Spec, Arm]](), list[Row](), dict[object, str]()
            for name, plan in points:
                try:
                    planned = plan()
                    kernel = kernels[backend][planned.kernel]
                    _admit(seen, planned, name, bench, kernel)
                    bound.append(binding.made(arms, material, planned, case, kernel))
                except Unavailable as error:
                    v = Variant(name=name, role="point", of=name.partition("@")[0] if "@" in name else "")
                    skipped.append(refused(probe, case, v, backend, "measured", facts, str(error)))
            read = [*reads.ceilings(bench, case, [backend]), *arms.reads(material, [backend])]
            timed = quick.measure(probe, [*bound, *read], case.id, contests=False)
            for (spec, arm), row in zip([*bound, *read], timed, strict=True):
                arms.settle(material, spec.planned, arm, row, timed)
            given = {r.id for r in found}
            new = [r for r in [*timed, *skipped] if r.id not in given]  # the reads stand there once
            found += new
            yield new


def _admit(seen: dict[object, str], planned: Planned, name: str, bench: Bench, kernel: Kernel) -> None:
    """Unavailable with the reason for a SKIPPED row: too few blocks fit, or `seen` holds the very launch."""
    if not planned.steps:
        fit = binding.room(bench, kernel, planned)
        if fit < Geometry.parse(planned.geometry).blocks_per_sm:
            raise Unavailable(f"only {fit} blocks of it fit on an SM")
    launch = (planned.variant.of, planned.ring, planned.config, planned.steps)
    same = seen.setdefault(launch, name)
    if same != name:
        raise Unavailable(SAME.format(same))


def swept(rows: Sequence[Row]) -> bool:
    """Whether these rows are a sweep's alone."""
    return any(r.role == "point" for r in rows) and all(r.sweep or r.verdict for r in rows)


def at(row: Row) -> Geometry:
    """The geometry of a point."""
    return Geometry.parse(row.geometry or "")


def fastest(rows: Sequence[Row], of: str) -> list[Row]:
    """The timed points of one kernel, fastest first."""
    points = [r for r in rows if r.time_s and r.of == of and r.role == "point"]
    return sorted(points, key=lambda r: r.time_s or 0.0)


def cells(found: Sequence[Row], held: str | None) -> list[str]:
    """One kernel's points, fastest first, as cells: the best, the next, what the tuning table holds."""
    (first, its_time), *rest = [(r.geometry or "", tables.format_time(r.time_s)) for r in found]
    share = tables.format_percent(found[0].fraction_of_same_bytes_read)
    by_geometry = dict(reversed([(first, its_time), *rest]))  # of equal ones the fastest stays
    says = ["(no row)", ""] if held is None else [held, by_geometry.get(held, "")]
    return [first, its_time, share, *(rest[0] if rest else ("", "")), *says]


def section(
    title: str, text: str, probe: str, chosen: Sequence[tuple[str, Mapping[str, Chosen]]], markdown: bool,
    none: str = "", part: str = "",
) -> str:  # fmt: skip
    """A sweep's table, and the rows that this device's tuning table should hold."""
    head = "### " if markdown else ""
    rows = "\n\n".join(tuning.dump(probe, case, found, part) for case, found in chosen)
    body = rows or (f"(none: {none})" if none else "(none)")
    body = f"```toml\n{body}\n```" if markdown else body
    return f"{head}{title}\n\n{text}\n\n{head}Rows for this device's file in probes/device/tuned\n\n{body}"
