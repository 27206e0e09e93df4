"""L1 for a device that is not there: occupancy, waves, a roofline, and the record's figures beside them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np

from probes import l1, l1_launch
from probes.core import gguf_file, packing, q6k, q8, recorded, trace
from probes.core import predict as roofline
from probes.core.device import DeviceFacts
from probes.core.layouts import LAYOUTS, Layout
from probes.core.occupancy import occupancy, tail_fraction, waves
from probes.core.rows import Row
from probes.core.types import Backend, BadInput, Shape, Unavailable, Work, WrongResult

BACKENDS: tuple[Backend, ...] = ("cu", "numba")


def predict(facts: DeviceFacts, args: argparse.Namespace) -> Iterator[list[Row]]:
    """Each case's rows for a device profile: ledger, sectors, occupancy, waves, a first roofline estimate.

    Before anything is said, the layouts are shown right at a small size: every layout unpacks to the
    very bytes it was packed from, and so gives the oracle's own result.
    """
    l1.check_flags(args)
    if args.sweep:
        raise BadInput("--sweep measures geometries, and this run would predict: it needs a GPU")
    _show_layouts()
    for case in l1.cases(args):
        if case.tensor:
            gguf_file.read(args.gguf, case.tensor)  # refuses what no kernel could be trusted with
        rows = [
            _predicted(facts, case, name, lay, form, backend)
            for backend in BACKENDS
            if not args.backend or backend in args.backend
            for name, lay, form in l1.wanted(args)
        ]
        for backend in BACKENDS:
            base = next((r.time_s for r in rows if r.backend == backend and r.variant == l1.BASELINE), None)
            for row in rows:
                if row.backend == backend and row.time_s and base:
                    row.ratio_to_baseline = row.time_s / base
        yield [*rows, *_recorded(case)]


def _show_layouts() -> None:
    shape = Shape(3, 1280)
    raw, x8 = q6k.random_raw(shape, 1), q8.random_x8(shape.id, 2)
    want = q6k.reference(raw, x8)
    for lay in LAYOUTS:
        back = packing.unpack(packing.pack(raw, lay), lay, shape.nbe)
        bad = np.flatnonzero(q6k.reference(back, x8).view(np.uint32) != want.view(np.uint32))
        if bad.size or not np.array_equal(back, raw):
            raise WrongResult(
                f"layout {lay.name} does not give back its weights", int(bad[0]) if bad.size else 0, back, raw
            )


def _predicted(
    facts: DeviceFacts, case: l1.Case, name: str, lay: Layout, form: l1.Form, backend: Backend
) -> Row:
    shape = case.shape
    row = Row(
        probe="l1", case=case.id, variant=name, backend=backend, source="predicted", device=facts.slug,
        shape=[shape.od, shape.id], content_bytes=l1.content_bytes(shape),
        traffic_bytes=trace.traffic_bytes(lay, shape), l2_bytes=facts.l2_bytes, counts=dict(case.counts),
    )  # fmt: skip
    try:
        planned = l1_launch.plan(form, lay, shape, lay.row_stride(shape.nbe), facts)
        res = recorded.recorded_resources(backend, f"l1_{name}", facts.arch)
    except Unavailable as error:
        row.skipped = str(error)
        return row
    config = planned.config
    limits = occupancy(res, config.block, config.smem_bytes, facts)
    row.registers, row.spill_bytes = res.registers, res.spill_bytes
    row.smem_bytes = res.smem_bytes + config.smem_bytes
    row.blocks_per_sm, row.limiter = limits.blocks_per_sm, limits.limiter
    if not limits.blocks_per_sm:
        row.skipped = f"the kernel does not fit on an SM: {limits.limiter}"
        return row
    row.grid, row.waves = config.grid, waves(config.grid, facts.sms, limits.blocks_per_sm)
    row.tail_fraction = tail_fraction(row.waves)
    asked = trace.requests(lay, shape)
    requested, wavefronts = asked.requested_bytes, asked.wavefronts
    if (
        form.stem == "l1_ring"
    ):  # activations are held in registers: the weights alone go through L1, row after row
        requested = asked.weight_requested_bytes
        wavefronts = sum(x.wavefronts for x in asked.loads[: len(trace.weight_loads(lay, shape.nbe))])
    estimate = roofline.predict(
        Work(row.content_bytes or 0, row.traffic_bytes or 0), res, config, facts,
        _flying(planned), requested, l1_wavefronts=wavefronts,
    )  # fmt: skip
    row.time_s = estimate.time_s
    row.content_gbps = (row.content_bytes or 0) / estimate.time_s / 1e9
    row.read_ceiling_gbps = facts.ceiling_bps / 1e9
    row.fraction_of_ceiling = row.content_gbps / row.read_ceiling_gbps
    row.notes += [planned.note] if planned.note else []
    row.notes.append(f"binds: {estimate.limiter}")
    return row


def _flying(planned: l1_launch.Planned) -> float:
    """Weight bytes that a thread has asked for at a time: through a ring its share of the stages."""
    if planned.ring:
        return planned.ring.rows * planned.ring.stages * planned.row_stride / planned.config.block
    return trace.UNIT_BYTES * {"pf": 2, "pf3": 3}.get(planned.form, 1)


def _recorded(case: l1.Case) -> list[Row]:
    """The record's own figures for a case, as rows."""
    rows = []
    for layout in ("padded", "dpl", "gs"):
        rate = recorded.figure("l1", case.id, layout, "content_gbps")
        change = recorded.figure("l1", case.id, layout, "time_change")
        if rate is None and change is None:
            continue
        row = Row(probe="l1", case=case.id, variant=layout, backend="cu", source="recorded", device="gb10")
        row.shape, row.content_bytes = [case.shape.od, case.shape.id], l1.content_bytes(case.shape)
        if rate is not None:
            row.content_gbps = rate.number
            row.time_s = row.content_bytes / rate.number / 1e9
        row.ratio_to_baseline = 1.0 + change.number if change else None
        rows.append(row)
    return rows
