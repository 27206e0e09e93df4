"""The ring chains swept over their geometry: every point, the fastest, and what the tuning table should hold.

    python -m probes.l2 --sweep           among the other chains; --case ffn_down24 for one

A point changes the rows per fill, blocks per SM, stages and fills prefetched of some matrices of a chain, and
when launches let their successor start; `now` and `now_plain` are the geometries as they stand. All points of
a chain are timed together, in the first backend that works (C++ unless --backend says otherwise),
decode13_ring at its first KV length. Rows for the tuning table come from the points that the bar's arm could
take (late, with the tail), and from the plain ones for the plain graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from probes import l2
from probes.core import report, tuning
from probes.core.rows import Row
from probes.core.tuning import ChainRing, Geometry
from probes.core.types import Unavailable

if TYPE_CHECKING:
    from probes.bench import Spec
    from probes.gpu.timing import Arm
    from probes.l2_make import Chains

WINDOWS = 4
CASE = f"{report.SWEEP}ring_"
"""What a swept chain's case begins with."""

NOW, NOW_PLAIN = "now", "now_plain"
FAMILIES: dict[str, tuple[str, ...]] = {
    "ffn_down": ("ffn_down",), "attn_v": ("attn_v",), "q4k": ("qkv", "o", "gate_up"), "down": ("down",),
}  # fmt: skip
"""Matrices that a point changes together."""

SAME = "the same launches as {}"

ARM = {"end": "pdl_late", "start": "pdl_late_trigger", "tail": "pdl_late_tail", "plain": l2.BASELINE}
"""The arm that a point is launched as."""


@dataclass(frozen=True, slots=True)
class Point:
    """Rows per fill, blocks per SM, stages (0: what fits beside the successor); how it is launched; fills
    ahead; `of`: its family, if a chain has two."""

    rows: int
    blocks: int
    stages: int = 0
    launched: str = "tail"
    ahead: int = 0
    of: str = ""

    @property
    def choice(self) -> ChainRing:
        """As it stands in a tuning table."""
        return ChainRing(Geometry(self.rows, self.blocks, self.stages), self.ahead)

    def name(self, family: str) -> str:
        """The variant of its row."""
        return f"{family}_{self.choice.ring}_a{self.ahead}_{self.launched}"


MATRIX_POINTS: tuple[Point, ...] = (
    Point(2, 2, 5), Point(4, 1, 5), Point(8, 1, 2), Point(4, 2, 2), Point(2, 2), Point(4, 1), Point(4, 2, 1),
    Point(2, 2, 2), Point(2, 2, 5, ahead=2), Point(2, 2, 5, ahead=4), Point(2, 2, 5, "start"),
    Point(4, 2, 1, "start"), Point(2, 2, 5, "end"), Point(2, 2, 5, "plain"), Point(2, 2, 2, "plain"),
    Point(8, 1, 2, "plain"), Point(4, 2, 2, "plain"), Point(4, 2, 1, "plain"),
)  # fmt: skip
DECODE_POINTS: tuple[Point, ...] = (
    *(Point(r, b, s, of="q4k") for r, b, s in (
        (8, 4, 2), (4, 4, 2), (8, 2, 4), (8, 2, 0), (8, 4, 0), (4, 4, 0), (16, 2, 2), (4, 6, 2),
    )),
    *(Point(r, b, s, of="down") for r, b, s in (
        (2, 2, 5), (4, 1, 5), (8, 1, 2), (2, 2, 0), (4, 1, 0), (2, 2, 3),
    )),
    Point(8, 4, 2, "start", of="q4k"), Point(8, 4, 2, ahead=2, of="q4k"), Point(2, 2, 3, ahead=2, of="down"),
    Point(8, 4, 2, "plain", of="q4k"), Point(4, 4, 2, "plain", of="q4k"), Point(4, 4, 4, "plain", of="q4k"),
    Point(2, 2, 2, "plain", of="down"), Point(8, 1, 2, "plain", of="down"),
)  # fmt: skip
POINTS = (MATRIX_POINTS, DECODE_POINTS)


def points(case: str) -> list[tuple[str, str, Point]]:
    """(row's variant, family, point) of a chain, without `now`."""
    own = DECODE_POINTS if case in l2.DECODE else MATRIX_POINTS
    pairs = [(p.of or tuning.CHAINS[case][0], p) for p in own]
    return [(p.name(family), family, p) for family, p in pairs]


def measure(made: Chains, cases: Sequence[l2.Case]) -> Iterator[list[Row]]:
    """Rows of one chain after the other; a point that cannot be launched says why."""
    first = next(iter(made.kernels))
    one = replace(made, kernels={first: made.kernels[first]})
    for case in {c.id: c for c in reversed(cases)}.values():
        with ExitStack() as stack:
            rows = _swept(one, case, stack)
        yield rows


def _swept(made: Chains, case: l2.Case, stack: ExitStack) -> list[Row]:
    from probes import l2_launch, l2_ring

    bench = replace(made.bench, windows=WINDOWS)
    named = l2.Case(f"{CASE}{case.id}", case.kv)
    arms: list[tuple[Spec, Arm]] = []
    out: list[Row] = []
    backend = next(iter(made.kernels))

    def refused(variant: str, why: str) -> Row:
        return Row(
            probe="l2", case=named.id, variant=variant, backend=backend, source="measured",
            device=bench.gpu.facts.slug, kv=case.kv, skipped=why,
        )  # fmt: skip

    try:
        (chain,) = made.of(case, stack)
    except Unavailable as error:
        return [refused(NOW, str(error))]
    seen: dict[object, str] = {}
    now = [(NOW, "", Point(1, 1)), (NOW_PLAIN, "", Point(1, 1, launched="plain"))]
    for variant, family, point in [*now, *points(case.id)]:
        bench.progress(f"sweep: {case.id} {variant}")
        given = dict.fromkeys(FAMILIES.get(family, ()), point.choice)
        arm = l2.arm(ARM[point.launched])
        try:
            steps = l2_ring.steps(case, bench.gpu.facts, given, plain=point.launched == "plain")
            same = seen.setdefault((steps, arm.name), variant)
            if same != variant:
                raise Unavailable(SAME.format(same))
            mine = replace(chain, case=named, steps=steps, plain_steps=())
            l2_launch.make_room(bench, mine, stack)
        except Unavailable as error:
            out.append(refused(variant, str(error)))
            continue
        spec, made_arm = l2_launch.arm_of(mine, arm, variant)
        rings = {s.name: l2_ring.told(s) for s in steps if s.smem_bytes}
        note = "; ".join(f"{name}, {text}" for name, text in rings.items())
        arms.append((replace(spec, note=note), made_arm))
    if chain.reads:
        reads = replace(chain.reads, case=named)
        arms += [l2_launch.arm_of(reads, l2.arm(of), name) for name, of in l2.READS.items()]
    rows = bench.measure("l2", arms, {}, named.id)
    for row in rows:
        row.kv, row.event_loop_time_s = case.kv, None
        if case.kv:  # the first kernel's resources are not the chain's
            row.registers = row.spill_bytes = row.smem_bytes = row.blocks_per_sm = None
            row.waves = row.tail_fraction = row.limiter = None
    return [*rows, *out]


# The report's block


def of_case(rows: Sequence[Row], case: str) -> dict[str, Row]:
    """A swept chain's rows by variant, those with a time."""
    return {r.variant: r for r in rows if r.case == f"{CASE}{case}" and r.time_s}


def fastest(rows: Sequence[Row], case: str, family: str, launched: str = "tail") -> str:
    """The fastest point of a family that is launched so, `now` among them; '' without rows."""
    mine = of_case(rows, case)
    now = NOW_PLAIN if launched == "plain" else NOW
    names = [now, *(v for v, f, p in points(case) if f == family and p.launched == launched)]
    timed = [v for v in names if v in mine]
    return min(timed, key=lambda v: mine[v].time_s or 0.0, default="")


def _held(rows: Sequence[Row], case: str, matrix: str, launched: str) -> ChainRing | None:
    """The fastest choice of one matrix; None where `now` wins and stands in no table and at no point."""
    family = next(f for f, of in FAMILIES.items() if matrix in of)
    own = {v: p.choice for v, f, p in points(case) if f == family and p.launched == launched}
    now = NOW_PLAIN if launched == "plain" else NOW
    device = next((r.device for r in of_case(rows, case).values()), None) or ""
    variant = fastest(rows, case, family, launched)
    if variant == now:
        same = {
            r.variant for r in rows if r.case == f"{CASE}{case}" and r.skipped == SAME.format(now)
        }  # `now` stands for the point that makes the same launches
        variant = next((v for v in own if v in same), now)
    if variant in own:
        return own[variant]
    held = tuning.l2(device, case, matrix) if variant else None
    return ChainRing(held.plain or held.ring) if held and launched == "plain" else held


def best(rows: Sequence[Row], case: str) -> dict[str, ChainRing]:
    """Matrix -> what the tuning table should hold."""
    out = {}
    for matrix in tuning.CHAINS[case]:
        late, plain = (_held(rows, case, matrix, launched) for launched in ("tail", "plain"))
        if late:
            out[matrix] = replace(late, plain=plain.ring if plain and plain.ring != late.ring else None)
    return out


def section(rows: Sequence[Row], markdown: bool) -> str:
    """Every point of every swept chain, the fastest of its family marked, and the rows to write."""
    lines, texts = [], []
    for case in l2.RING:
        mine = of_case(rows, case)
        if not mine:
            continue
        own = [f for f, of in FAMILIES.items() if set(of) & {*tuning.CHAINS[case]}]
        win = {
            fastest(rows, case, f, launched): f"the fastest {said}"
            for f in own
            for launched, said in (("tail", "with the tail"), ("plain", "plain"))
        }
        n = l2.launches(case)
        for variant, row in sorted(mine.items(), key=lambda x: x[1].time_s or 0.0):
            mark = win.get(variant, "")
            cells = [case, variant, report.format_time((row.time_s or 0.0) / n)]
            lines.append([*cells, report.format_percent(row.fraction_of_same_bytes_read), mark])
        found = best(rows, case)
        if found:
            texts.append(tuning.dump_l2(case, found))
    heads = ["chain", "point", "per launch", "of same-bytes read", ""]
    table = report.table(heads, lines, markdown, left=[heads[0], heads[1], heads[-1]])
    refused = [f"- {r.case.removeprefix(CASE)} {r.variant}: {r.skipped}" for r in rows if r.skipped]
    text = "\n\n".join(texts)
    title = "### " if markdown else ""
    return "\n\n".join(
        [
            f"{title}The ring chains swept\n\n{table}",
            *(["Not launched:\n\n" + "\n".join(refused)] if refused else []),
            f"{title}Rows for this device's file in probes/core/tuning\n\n"
            + (f"```toml\n{text}\n```" if markdown else text),
        ]
    )
