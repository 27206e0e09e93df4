"""A chain's launches on a device, arm by arm; and what a chain takes at best, without a GPU.

Ordinary launches take their kernels' times and one launch gap each (`launch_s`). Waiting at entry can at best
remove the gaps, waiting late can at best keep DRAM busy all the time: bounds, not estimates.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from probes.core.types import Backend, LaunchConfig, Resources, Unavailable, Work
from probes.device import model, occupancy, resources, tuning
from probes.device.facts import DeviceFacts
from probes.device.tuning import Geometry
from probes.engine.plan import Planned, described, occupy, refused
from probes.engine.probe import Case, Variant
from probes.formats import chains as words
from probes.formats.layouts import layout
from probes.l2 import chains, table
from probes.l2.chains import ChainRing, Choices, Step
from probes.l2.table import ChainCase, Launching
from probes.report.rows import Row

KINDS = ("plain", "entry", "late")
IMADS_PER_CYCLE = 64
"""Integer multiply-adds that an SM does per cycle, sm_80 to sm_121."""

IN_FLIGHT = {"stream": 64.0, "q4k": 48.0, "q6k": 68.0, "attention_split": 128.0}
"""Bytes that a thread of a kernel has asked for at a time; a ring's are what its stages hold."""


def kernels(args: argparse.Namespace) -> dict[str, list[str]]:
    """Every kind of every kernel of the chains that the flags ask for, and what vouches for the rings."""
    found: list[str] = []
    for name in table.names(args):
        decode = [s.kernel for s in chains.decode_steps(1)]
        found += {
            "bandwidth24": ["stream"],
            "compute24": ["compute", "wide"] if args.sweep else ["compute"],
            "decode13": decode,
            "decode13_ring": [*decode, "q4k_ring", "q6k_ring"],
            "empty": ["empty"],
        }.get(name, ["q6k_ring", "q6k", *(r.kernel for r in table.READS.values()), *table.ROWS.get(name, ())])
    return {"l2": [f"l2_{k}_{kind}" for k in dict.fromkeys(found) for kind in kinds(k)]}


def kinds(kernel: str) -> list[str]:
    """The kinds that a kernel is compiled in."""
    return [
        k for k in KINDS
        if (k != "late" or kernel in chains.LATE) and (k != "entry" or kernel not in chains.ENDS)
    ]  # fmt: skip


def steps_of(
    case: ChainCase, facts: DeviceFacts, backend: Backend, plain: bool = False, choices: Choices | None = None
) -> tuple[Step, ...]:
    """A chain's launches on a device. Raises Unavailable where a ring does not fit."""
    if case.chain in table.RING:
        return chains.steps(case, facts, choices, plain)
    if case.chain in table.DECODE:
        assert case.kv, "a decode layer has a KV length"
        return chains.decode_steps(case.kv)
    if case.chain == "compute24":
        grid = chains.tail_grid(facts.sms, max(1, case.blocks.get(backend, 1)), case.waves)
        iters = chains.wide_iters() if case.kernel == "wide" else chains.COMPUTE_ITERS
        return chains.compute_steps(grid, case.kernel, iters)
    return chains.stream_steps() if case.chain == "bandwidth24" else chains.empty_steps()


def plan(v: Variant, case: Case, facts: DeviceFacts, args: argparse.Namespace, backend: Backend) -> Planned:
    """One arm's launches of a chain. Raises Unavailable with the reason for a SKIPPED row."""
    assert isinstance(v, Launching) and isinstance(case, ChainCase), "an arm of L2, on a chain"
    if v.form:
        return of_steps(v, case, row_steps(case.chain, v.form))
    return of_steps(v, case, steps_of(case, facts, backend, plain=v.kind == "plain"))


def stored(chain: str) -> dict[str, str]:
    """How a matrix chain's weights lie on the device: layout -> what its buffers' names begin with."""
    own = dict.fromkeys(f.partition("_")[0] for f in table.ROWS[chain])
    return {"dpl": "w"} | {name: f"w.{name}" for name in own if name != "dpl"}


def row_steps(chain: str, form: str) -> tuple[Step, ...]:
    """The launches of a matrix chain by a row per block; the words that they write are the rings'.

    Raises Unavailable for a row that the kernel is not made for.
    """
    m, (name, _, each) = chains.MATRICES[chain], form.partition("_")
    if not (0 < m.units <= 256 if each == "one" else 256 < m.units <= 512):
        raise Unavailable(f"{form} does not suit a row of {m.units} units: {each} to each of 256 threads")
    nbe, stride, w = m.shape.nbe, layout(name).row_stride(m.shape.nbe), stored(chain)[name]
    hands = [chains.ping_pong(k) for k in range(table.CHAIN)]
    return tuple(
        Step(
            m.name, form, m.shape.od, (f"{w}.{k}", f"{a}8", f"{b}8", f"out.{k}", nbe, stride),
            weight_bytes=m.shape.od * stride,
        )
        for k, (a, b) in enumerate(hands)
    )  # fmt: skip


def of_steps(v: Launching, case: ChainCase, steps: tuple[Step, ...]) -> Planned:
    """A plan out of its launches."""
    first, size, read = steps[0], sum(s.weight_bytes for s in steps), ""
    content = size
    if (m := chains.MATRICES.get(case.chain)) and v.role != "read":
        content = len(steps) * m.shape.od * m.row_stride
        read = ("read_chain_pdl" if v.pdl else "read_chain") if content == size else ""
    return Planned(
        variant=v, kernel=first.entry_point(v.kind), config=launch_config(first), steps=steps,
        content_bytes=content or None, traffic_bytes=size or None, read=read,
        weights=tuple(str(*s.args[:1]).startswith("w.") for s in steps),
    )  # fmt: skip


def told(step: Step) -> str:
    """A ring's geometry in words."""
    *_, rows, stages, ahead = step.args
    return f"ring: {stages} stages of {rows} rows, {ahead} fills prefetched beyond them in the late kind"


def interfaces(steps: Sequence[Step]) -> list[tuple[Step, Step]]:
    """Each different kernel of a chain with the one before it; of a chain of one kernel, that one twice."""
    if len({s.kernel for s in steps}) == 1:
        return [(steps[0], steps[0])]
    return [(s, steps[k - 1]) for k, s in enumerate(steps)]


def launch_config(step: Step, smem_bytes: int = 0, pdl: bool = False) -> LaunchConfig:
    """The launch configuration of one step; `smem_bytes` where blocks per SM are held down by it."""
    return LaunchConfig(step.grid, step.block, step.smem_bytes or smem_bytes, pdl)


FAMILIES: dict[str, tuple[str, ...]] = {
    "ffn_down": ("ffn_down",), "attn_v": ("attn_v",), "q4k": ("qkv", "o", "gate_up"), "down": ("down",),
}  # fmt: skip
"""Matrices that a point of the sweep over rings changes together."""

NOW, NOW_PLAIN = "now", "now_plain"
ARM = {"end": "pdl_late", "start": "pdl_late_trigger", "tail": "pdl_late_tail", "plain": table.BASELINE}
"""The arm that a point is launched as."""


@dataclass(frozen=True, slots=True)
class RingPoint:
    """Rows a stage, blocks per SM, stages (0: what fits beside the successor); how it is launched; fills
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


_P = RingPoint
MATRIX_POINTS: tuple[RingPoint, ...] = (
    _P(2, 2, 5), _P(4, 1, 5), _P(8, 1, 2), _P(4, 2, 2), _P(2, 2), _P(4, 1), _P(4, 2, 1), _P(2, 2, 2),
    _P(2, 2, 5, ahead=2), _P(2, 2, 5, ahead=4), _P(2, 2, 5, "start"), _P(4, 2, 1, "start"),
    _P(2, 2, 5, "end"), _P(2, 2, 5, "plain"), _P(2, 2, 2, "plain"), _P(8, 1, 2, "plain"),
    _P(4, 2, 2, "plain"), _P(4, 2, 1, "plain"),
)  # fmt: skip
DECODE_POINTS: tuple[RingPoint, ...] = (
    *(_P(r, b, s, of="q4k") for r, b, s in (
        (8, 4, 2), (4, 4, 2), (8, 2, 4), (8, 2, 0), (8, 4, 0), (4, 4, 0), (16, 2, 2), (4, 6, 2),
    )),
    *(_P(r, b, s, of="down") for r, b, s in (
        (2, 2, 5), (4, 1, 5), (8, 1, 2), (2, 2, 0), (4, 1, 0), (2, 2, 3),
    )),
    _P(8, 4, 2, "start", of="q4k"), _P(8, 4, 2, ahead=2, of="q4k"), _P(2, 2, 3, ahead=2, of="down"),
    _P(8, 4, 2, "plain", of="q4k"), _P(4, 4, 2, "plain", of="q4k"), _P(4, 4, 4, "plain", of="q4k"),
    _P(2, 2, 2, "plain", of="down"), _P(8, 1, 2, "plain", of="down"),
)  # fmt: skip


def ring_points(chain: str) -> list[tuple[str, str, RingPoint]]:
    """(row's variant, family, point) of a chain, without `now`."""
    own = DECODE_POINTS if chain in table.DECODE else MATRIX_POINTS
    pairs = [(p.of or table.MATRICES[chain][0], p) for p in own]
    return [(p.name(family), family, p) for family, p in pairs]


def points(
    kind: str, case: Case, facts: DeviceFacts, args: argparse.Namespace, rows: Sequence[Row]
) -> list[tuple[str, Callable[[], Planned]]]:
    """Every point of a ring chain in one round; `now` and `now_plain` are the geometries as they stand."""
    if rows:
        return []
    assert isinstance(case, ChainCase), "a case of L2 is a chain"
    now = [(NOW, "", _P(1, 1)), (NOW_PLAIN, "", _P(1, 1, launched="plain"))]
    return [
        (name, partial(_ring_point, name, family, point, case, facts))
        for name, family, point in [*now, *ring_points(case.chain)]
    ]


def _ring_point(name: str, family: str, point: RingPoint, case: ChainCase, facts: DeviceFacts) -> Planned:
    given = dict.fromkeys(FAMILIES.get(family, ()), point.choice)
    arm = table.arm(ARM[point.launched])
    steps = chains.steps(case, facts, given, plain=point.launched == "plain")
    own = replace(arm, name=name, role="point", of=arm.name, baseline="")
    rings = {s.name: told(s) for s in steps if s.smem_bytes}
    return replace(
        of_steps(own, case, steps), note="; ".join(f"{matrix}, {text}" for matrix, text in rings.items())
    )


def digest(file: str, device: str) -> list[object]:
    """The launches of every chain and arm, the tuned rings, the rule beside them, and the sweep's points."""
    steps = [*chains.stream_steps(), *chains.compute_steps(1), *chains.empty_steps()]
    for kv in table.KVS:
        steps += chains.decode_steps(kv)
    out: list[object] = [(s.name, s.args, LaunchConfig(s.grid, s.block)) for s in steps]
    out += [(a.name, a.kind, a.pdl, a.trigger, a.graph, dict(a.env or {}), a.form) for a in table.ARMS]
    out.append(table.COMPUTE_WAVES)
    out += [
        (case, {k: chains.as_ring(row, k) for k, row in rows.items()})
        for case, rows in tuning.of(device, "l2").items()
    ]
    rule: list[object] = [chains.MATRICES, chains.SHARE, chains.DEFAULT_ROWS, (MATRIX_POINTS, DECODE_POINTS)]
    return [*out, *rule, table.READS, table.ROWS]


# Predicted


def predicted(
    case: Case, variants: Sequence[Variant], facts: DeviceFacts, args: argparse.Namespace, backend: Backend
) -> list[Row] | None:
    """A row for each kernel of a chain, and for some arms what they take at best."""
    assert isinstance(case, ChainCase), "a case of L2 is a chain"
    plain = table.arm(table.BASELINE)
    try:
        planned = of_steps(plain, case, steps_of(case, facts, backend))
        known = {
            name: resources.recorded_resources(backend, name, facts.arch)
            for name in dict.fromkeys(s.entry_point("plain") for s in planned.steps)
        }
    except Unavailable as error:
        return [refused("l2", case, plain, backend, "predicted", facts, str(error))]
    rows = [_kernel_row(case, backend, s, before, known, facts) for s, before in interfaces(planned.steps)]
    gap = facts.launch_s
    if gap is None:
        return rows
    body = sum(_body(s, known[s.entry_point("plain")], facts) for s in planned.steps)
    times = _at_best(body, planned, gap, facts)
    asked = {v.name: v for v in variants}
    of = case, backend, planned, facts, times["plain"][0]
    return [*(_arm_row(*of, asked[name], *said) for name, said in times.items() if name in asked), *rows]


def _at_best(body: float, planned: Planned, gap: float, facts: DeviceFacts) -> dict[str, tuple[float, str]]:
    """Arm -> (seconds, how they came about)."""
    content, n = planned.content_bytes or 0, len(planned.steps)
    said = "at best: DRAM never rests" if content else "at best: no gap is left"
    late = content / facts.ceiling_bps or body or gap, said
    return {
        "plain": (body + n * gap, f"a launch gap of {gap * 1e6:.1f} us each"),
        "pdl_entry": (body or gap, "at best: no gap is left"),
        "pdl_late": late,
        "pdl_late_tail": late,
    }


def _arm_row(
    case: ChainCase, backend: Backend, planned: Planned, facts: DeviceFacts, plain_s: float, v: Variant,
    time_s: float, note: str,
) -> Row:  # fmt: skip
    row = described("l2", case, replace(planned, variant=v, note=note), backend, "predicted", facts)
    row.time_s, row.traffic_bytes = time_s, None
    row.ratio_to_baseline = time_s / plain_s
    row.gain_per_interface_s = (plain_s - time_s) / len(planned.steps) if v.name != "plain" else None
    if row.content_bytes:
        row.content_gbps, row.read_ceiling_gbps = row.content_bytes / time_s / 1e9, facts.ceiling_bps / 1e9
        row.fraction_of_ceiling = row.content_gbps / row.read_ceiling_gbps
    return row


def _kernel_row(
    case: ChainCase, backend: Backend, step: Step, before: Step, known: dict[str, Resources],
    facts: DeviceFacts,
) -> Row:  # fmt: skip
    res, config = known[step.entry_point("plain")], launch_config(step)
    row = kernel_row(case, backend, step, facts)
    occupy(row, res, config, facts)
    there, there_config = known[before.entry_point("plain")], launch_config(before)
    alone = occupancy.occupancy(there, before.block, before.smem_bytes, facts).blocks_per_sm
    row.source = "predicted"
    row.notes += beside(step, before, (res, config), (there, there_config), alone, facts)
    return row


def kernel_row(case: ChainCase, backend: Backend, step: Step, facts: DeviceFacts) -> Row:
    """The row of one kernel of a chain, without its resources."""
    v = Variant(name=f"kernel_{step.name}", role="kernel", of=step.name)
    size = step.weight_bytes or None
    planned = Planned(variant=v, kernel=step.kernel, config=launch_config(step), content_bytes=size)
    return described("l2", case, planned, backend, "measured", facts)


def beside(
    step: Step, before: Step, new: tuple[Resources, LaunchConfig], there: tuple[Resources, LaunchConfig],
    alone: int, facts: DeviceFacts,
) -> list[str]:  # fmt: skip
    """What a kernel's row says of its predecessor's last wave, and of its ring."""
    last = occupancy.last_wave(before.grid, facts.sms, max(1, alone))
    fits = occupancy.beside(there, last, new, facts)
    out = [f"beside {before.name}'s last wave ({last} blocks/SM at most): {fits} blocks/SM"]
    return out + ([told(step)] if step.smem_bytes else [])


def _body(step: Step, res: Resources, facts: DeviceFacts) -> float:
    """Seconds of one kernel without its launch; 0 where neither bytes nor multiply-adds are counted."""
    config = launch_config(step)
    if step.kernel in ("compute", "wide") and facts.sm_clock_hz:
        each = words.CONSTANTS.wide if step.kernel == "wide" else words.CONSTANTS.narrow
        blocks = occupancy.occupancy(res, step.block, 0, facts).blocks_per_sm
        whole = math.ceil(occupancy.waves(step.grid, facts.sms, blocks))
        iters = int(step.args[-1])
        return whole * blocks * step.block * each * iters / IMADS_PER_CYCLE / facts.sm_clock_hz
    if not step.weight_bytes:
        return 0.0
    work = Work(step.weight_bytes, step.weight_bytes)
    flying = step.smem_bytes / step.block if step.smem_bytes else IN_FLIGHT[step.kernel]
    found = model.predict(work, res, config, facts, flying, step.weight_bytes)
    return found.time_s - found.terms.get("launch", 0.0)
