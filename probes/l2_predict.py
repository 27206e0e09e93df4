"""L2 without a GPU: geometry, waves, a gap model and the recorded figures, as predicted and recorded rows.

The gap model. A chain of ordinary launches takes the sum of its kernels' times and one launch gap each
(the device's `launch_s`). Waiting at entry can at best remove the gaps; waiting late can at best keep DRAM
busy all the time. Both are bounds, not estimates: their rows say `at best`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence

from probes import l2, l2_chains, l2_ring
from probes.core import chains, recorded
from probes.core import predict as roofline
from probes.core.coresident import beside, last_wave
from probes.core.device import DeviceFacts
from probes.core.occupancy import occupancy, tail_fraction, waves
from probes.core.rows import Row
from probes.core.types import Backend, BadInput, LaunchConfig, Resources, Unavailable, Work

BACKENDS: tuple[Backend, ...] = ("cu", "numba")
IMADS_PER_CYCLE = 64
"""Integer multiply-adds that an SM does per cycle, sm_80 to sm_121."""

IN_FLIGHT = {"stream": 64.0, "q4k": 48.0, "q6k": 68.0, "attention_split": 128.0}
"""Bytes that a thread of a kernel has asked for at a time; a ring's are what its stages hold."""


def predict(facts: DeviceFacts, args: argparse.Namespace) -> Iterator[list[Row]]:
    """Each chain's rows for a device profile; nothing is run."""
    if args.sweep:
        raise BadInput("--sweep measures launches, and this run would predict: it needs a GPU")
    for case in l2.cases(args):
        rows: list[Row] = []
        for backend in BACKENDS:
            if not args.backend or backend in args.backend:
                rows += _chain(facts, args, case, backend)
        yield [*rows, *recorded_rows(case)]


def steps_of(case: l2.Case, facts: DeviceFacts, resources: Resources | None) -> tuple[l2_chains.Step, ...]:
    """A case's launches on a device; `resources` are compute24's kernel's, for its grid.

    Raises Unavailable where a ring does not fit on the device.
    """
    if case.id in l2.RING:
        return l2_ring.steps(case, facts)
    if case.id == "decode13":
        assert case.kv, "decode13 has a KV length"
        return l2_chains.decode_steps(case.kv)
    if case.id == "compute24":
        blocks = occupancy(resources, l2_chains.BLOCK, 0, facts).blocks_per_sm if resources else 1
        return l2_chains.compute_steps(
            l2_chains.tail_grid(facts.sms, max(1, blocks), l2_chains.COMPUTE_WAVES)
        )
    return l2_chains.stream_steps() if case.id == "bandwidth24" else l2_chains.empty_steps()


def _chain(facts: DeviceFacts, args: argparse.Namespace, case: l2.Case, backend: Backend) -> list[Row]:
    def row(variant: str) -> Row:
        return Row(
            probe="l2", case=case.id, variant=variant, backend=backend, source="predicted", device=facts.slug,
            kv=case.kv, l2_bytes=facts.l2_bytes,
        )  # fmt: skip

    if facts.compute_capability < (9, 0):
        out = row(l2.BASELINE)
        out.skipped = f"{l2.NEEDS}, {facts.slug} is {facts.arch}"
        return [out]
    try:
        grid = recorded.recorded_resources(backend, "l2_compute_plain", facts.arch)
        steps = steps_of(case, facts, grid)
        known = {
            name: recorded.recorded_resources(backend, name, facts.arch)
            for name in dict.fromkeys(s.entry_point("plain") for s in steps)
        }
    except Unavailable as error:
        out = row(l2.BASELINE)
        out.skipped = str(error)
        return [out]
    rows = [_kernel_row(row(f"kernel_{s.name}"), s, before, known, facts) for s, before in _interfaces(steps)]
    body = sum(_body(s, known[s.entry_point("plain")], facts) for s in steps)
    content = sum(s.weight_bytes for s in steps)
    gap = facts.launch_s
    if gap is None:
        return rows
    late = (
        content / facts.ceiling_bps or body or gap,
        "at best: DRAM never rests" if content else "at best: no gap is left",
    )
    times = {
        "plain": (body + len(steps) * gap, f"a launch gap of {gap * 1e6:.1f} us each"),
        "pdl_entry": (body or gap, "at best: no gap is left"),
        "pdl_late": late,
        "pdl_late_tail": late,
    }
    out_rows: list[Row] = []
    asked = {a.name for a in l2.arms(args, case.id)}
    for name, (time_s, note) in times.items():
        if name not in asked:
            continue
        r = row(name)
        r.time_s, r.content_bytes = time_s, content or None
        r.ratio_to_baseline = time_s / times["plain"][0]
        r.gain_per_interface_s = (times["plain"][0] - time_s) / len(steps) if name != "plain" else None
        if content:
            r.content_gbps, r.read_ceiling_gbps = content / time_s / 1e9, facts.ceiling_bps / 1e9
            r.fraction_of_ceiling = r.content_gbps / r.read_ceiling_gbps
        r.notes.append(note)
        out_rows.append(r)
    return [*out_rows, *rows]


def _interfaces(
    steps: Sequence[l2_chains.Step],
) -> list[tuple[l2_chains.Step, l2_chains.Step]]:
    """Each different kernel of a chain with the one before it."""
    if len({s.kernel for s in steps}) == 1:
        return [(steps[0], steps[0])]
    return [(s, steps[k - 1]) for k, s in enumerate(steps)]


def _kernel_row(
    row: Row, step: l2_chains.Step, before: l2_chains.Step, known: dict[str, Resources], facts: DeviceFacts
) -> Row:
    res, config = known[step.entry_point("plain")], _config(step)
    limits = occupancy(res, step.block, step.smem_bytes, facts)
    row.registers, row.spill_bytes = res.registers, res.spill_bytes
    row.smem_bytes = res.smem_bytes + step.smem_bytes
    row.blocks_per_sm, row.limiter, row.grid = limits.blocks_per_sm, limits.limiter, step.grid
    row.waves = waves(step.grid, facts.sms, limits.blocks_per_sm)
    row.tail_fraction = tail_fraction(row.waves)
    row.content_bytes = step.weight_bytes or None
    there = known[before.entry_point("plain")], _config(before)
    alone = occupancy(there[0], before.block, before.smem_bytes, facts).blocks_per_sm
    last = last_wave(before.grid, facts.sms, alone)
    fits = beside(there, last, (res, config), facts)
    row.notes.append(f"beside {before.name}'s last wave ({last} blocks/SM at most): {fits} blocks/SM")
    if step.smem_bytes:
        row.notes.append(l2_ring.told(step))
    return row


def _config(step: l2_chains.Step) -> LaunchConfig:
    return LaunchConfig(step.grid, step.block, step.smem_bytes)


def _body(step: l2_chains.Step, res: Resources, facts: DeviceFacts) -> float:
    """Seconds of one kernel without its launch; 0 where neither bytes nor multiply-adds are counted."""
    config = _config(step)
    if step.kernel in ("compute", "wide") and facts.sm_clock_hz:
        words = chains.CONSTANTS.wide if step.kernel == "wide" else chains.CONSTANTS.narrow
        iters = int(step.args[-1])
        blocks = occupancy(res, step.block, 0, facts).blocks_per_sm
        whole = math.ceil(waves(step.grid, facts.sms, blocks))
        return whole * blocks * step.block * words * iters / IMADS_PER_CYCLE / facts.sm_clock_hz
    if not step.weight_bytes:
        return 0.0
    work = Work(step.weight_bytes, step.weight_bytes)
    flying = step.smem_bytes / step.block if step.smem_bytes else IN_FLIGHT[step.kernel]
    found = roofline.predict(work, res, config, facts, flying, step.weight_bytes)
    return found.time_s - found.terms.get("launch", 0.0)


def recorded_rows(case: l2.Case) -> list[Row]:
    """The record's own figures for a case, as rows."""
    out = []

    def row(variant: str, ratio: float | None, note: str) -> None:
        r = Row(probe="l2", case=case.id, variant=variant, backend="cu", source="recorded", device="gb10")
        r.kv, r.ratio_to_baseline = case.kv, ratio
        if note:
            r.notes.append(note)
        out.append(r)

    change = recorded.figure("l2", case.id, l2.RECORDED, "time_change")
    if change:
        row(l2.RECORDED, 1.0 + change.number, change.note)
    if case.id == "decode13" and case.kv in l2.KVS:
        names = ("14b_tg128", "14b_tg128_again") if case.kv == l2.KVS[0] else ("14b_3254",)
        for name in names:
            figure = recorded.figure("l2", "decode13", l2.RECORDED, f"throughput_change_{name}")
            if figure:
                row(l2.RECORDED, 1.0 / (1.0 + figure.number), f"tokens per second in situ; {figure.note}")
    gap = recorded.figure("l2", case.id, "plain", "gap_per_launch_s")
    if gap:
        row("plain", None, f"about {gap.number * 1e6:.0f} us per launch inside a graph")
        out[-1].time_s = chains.CHAIN * gap.number
    return out
