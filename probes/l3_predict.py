"""L3 for a device that is not there: occupancy, waves, a roofline, and the record's figures beside them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np

from probes import l3, l3_data, l3_launch
from probes.core import predict as roofline
from probes.core import q8, recorded, report
from probes.core.device import DeviceFacts
from probes.core.occupancy import occupancy, tail_fraction, waves
from probes.core.rows import Row
from probes.core.types import Backend, BadInput, Resources, Unavailable, Work, WrongResult
from probes.gpu import partition
from probes.l3_launch import Planned

BACKENDS: tuple[Backend, ...] = ("cu", "numba")
RECORD = l3.CASES[0].id
UNIT_BYTES, UNIT_REQUESTED = 48, 128
"""Per unit of 64 values: weight bytes loaded, and bytes asked of L1 with the activations."""


def _resources(backend: Backend, kernel: str, arch: str, held: int | None) -> Resources:
    return recorded.recorded_resources(backend, f"{kernel}@{held}" if held else kernel, arch)


def predict(facts: DeviceFacts, args: argparse.Namespace) -> Iterator[list[Row]]:
    """Rows for a device profile: registers, occupancy, waves, a roofline; beside them the record's.

    Before anything is said, the oracle's q8 is shown to hold its SwiGLU at a small size.
    """
    l3.check_flags(args)
    if args.sweep:
        raise BadInput("--sweep measures launches, and this run would predict: it needs a GPU")
    if args.geometries:
        raise BadInput("--geometries measures geometries, and this run would predict: it needs a GPU")
    _show_q8()
    if args.sms is not None:
        partition.check(args.sms, facts.sms, partition.granularity(facts))
        if args.sms == facts.sms:  # the whole GPU
            args = argparse.Namespace(**vars(args) | {"sms": None})
        else:
            facts = partition.name_of(facts, args.sms)
    asked = [b for b in BACKENDS if not args.backend or b in args.backend]
    blocks: dict[Backend, int] = {}
    if args.match_waves is not None:
        for backend in asked:
            res = _resources(backend, "l3_form_b", facts.arch, args.blocks_per_sm)
            fits = occupancy(res, l3.THREADS, 0, facts).blocks_per_sm
            blocks[backend] = min(fits, args.blocks_per_sm or fits)
    for case in l3.cases(args, facts.sms, blocks):
        rows = _recorded(case) if case.id == RECORD else []
        for backend in asked:
            if case.backends and backend not in case.backends:
                continue
            rows += [_predicted(facts, args, case, v, backend) for v in l3.wanted(args)]
        yield rows


def _show_q8() -> None:
    raw, x8 = l3_data.random_gate_up(64, 256, 1), l3_data.random_x8(256, 2)
    want = l3_data.Wanted.of(l3_data.oracle(raw, x8))
    d, _, _ = q8.unpack(want.q8.view(np.uint8))
    # half a step of rounding, and d's own rounding to f16 on up to 127 steps
    room = np.repeat(d.astype(np.float64), 32) * (0.5 + 128 * 2.0**-11)
    off = np.abs(q8.dequantise(want.q8.view(np.uint8)).astype(np.float64) - want.h)
    if (off > room).any():
        worst = int(np.argmax(off - room))
        raise WrongResult("q8 does not hold SwiGLU", worst, float(off[worst]), float(room[worst]))


def _predicted(
    facts: DeviceFacts, args: argparse.Namespace, case: l3.Case, v: l3.Variant, backend: Backend
) -> Row:
    held = args.blocks_per_sm
    row = Row(
        probe="l3", case=case.id, variant=v.name, backend=backend, source="predicted", device=facts.slug,
        shape=[case.shape.od, case.shape.id], content_bytes=case.content_bytes,
        traffic_bytes=case.content_bytes, l2_bytes=facts.l2_bytes,
    )  # fmt: skip
    try:
        planned = l3_launch.plan(v, case, facts, held or 0)
        res = _resources(backend, v.reader, facts.arch, held)
    except Unavailable as error:
        row.skipped = str(error)
        return row
    config = planned.config
    limits = occupancy(res, config.block, config.smem_bytes, facts)
    row.grid, row.limiter = config.grid, limits.limiter
    row.registers, row.spill_bytes = res.registers, res.spill_bytes
    row.smem_bytes = res.smem_bytes + config.smem_bytes
    row.blocks_per_sm = limits.blocks_per_sm
    if held and not v.ring:  # a ring's grid holds its blocks
        row.blocks_per_sm = min(limits.blocks_per_sm, held)
    if not row.blocks_per_sm:
        row.skipped = "the kernel does not fit on an SM"
        return row
    if v.ring and row.blocks_per_sm * facts.sms < config.grid:
        fit = row.blocks_per_sm
        row.skipped = f"of its {config.grid} blocks {fit} fit on an SM: a ring has them all at once"
        return row
    row.waves = waves(config.grid, facts.sms, row.blocks_per_sm)
    row.tail_fraction = tail_fraction(row.waves)
    row.notes += [planned.note] if planned.note else []
    if row.tail_fraction >= 0.05 and not v.ring:
        most = row.tail_fraction / (1 - row.tail_fraction)
        row.notes.append(f"a last wave as slow as a full one would add {report.format_percent(most)}")
    if args.sms is not None:
        row.notes.append("no time: what these SMs alone can read is not known")
        return row
    units = 2 * case.nf * case.shape.nbe * 4
    # a ring's activations are held in registers: the weights alone are read row after row
    asked = units * (UNIT_BYTES if v.ring else UNIT_REQUESTED)
    work = Work(case.content_bytes, case.content_bytes)
    estimate = roofline.predict(work, res, config, facts, _flying(planned), asked)
    row.time_s = estimate.time_s
    row.content_gbps = case.content_bytes / estimate.time_s / 1e9
    row.read_ceiling_gbps = facts.ceiling_bps / 1e9
    row.fraction_of_ceiling = row.content_gbps / row.read_ceiling_gbps
    row.notes.append(f"binds: {estimate.limiter} (a roofline, blind to waves)")
    return row


def _flying(planned: Planned) -> float:
    """Weight bytes that a thread has asked for at a time: of a ring its share of the stages."""
    if planned.ring:
        return planned.config.smem_bytes / planned.config.block
    return UNIT_BYTES * (2 if planned.variant.name in ("form_a", "form_b_staged") else 1)


def _recorded(case: l3.Case) -> list[Row]:
    """The record's own figures, as rows."""
    rows = []
    for name in ("pair", "form_b"):
        found = {f.metric: f.number for f in recorded.figures("l3", RECORD, name) if f.metric != "verdict"}
        row = Row(probe="l3", case=case.id, variant=name, backend="cu", source="recorded", device="gb10")
        row.shape, row.content_bytes = [case.shape.od, case.shape.id], case.content_bytes
        row.time_s, row.content_gbps = found["time_s"], found["content_gbps"]
        row.ratio_to_baseline = 1.0 + found.get("time_change", 0.0)
        if "grid" in found:
            row.grid, row.blocks_per_sm = int(found["grid"]), int(found["blocks_per_sm"])
            row.waves = found["waves"]
            row.tail_fraction = tail_fraction(row.waves)
            row.notes.append(f"{report.format_percent(found['time_change'], sign=True)} against the pair")
        rows.append(row)
    return rows
