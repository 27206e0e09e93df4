"""Rows for a device that is not there: plan, recorded resources and facts give occupancy, waves and a time.

Every row's source is `predicted`; the record's figures stand beside it as `recorded`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import suppress

from probes.core.types import BACKENDS, Backend, BadInput, Resources, Unavailable, Work
from probes.device import model, occupancy, resources, tuning
from probes.device.facts import DeviceFacts
from probes.engine import probe
from probes.engine.plan import Planned, check_fit, described, occupy, refused
from probes.engine.probe import Case, Variant
from probes.gpu import partition
from probes.report import tables
from probes.report.rows import Row


def known(backend: Backend, symbol: str, arch: str, held: int) -> Resources:
    """Recorded resources of a kernel, as compiled for `held` blocks per SM where that is asked."""
    return resources.recorded_resources(backend, f"{symbol}@{held}" if held else symbol, arch)


def predicted(name: str, facts: DeviceFacts, args: argparse.Namespace) -> Iterator[list[Row]]:
    """Each case's rows for a device profile, then the record's. Raises BadInput for what needs a GPU."""
    table = probe.table(name)
    for flag in table.sweeps(args).values():
        what = "geometries" if table.alone(args) else "launches"
        raise BadInput(f"{flag} measures {what}, and this run would predict: it needs a GPU")
    probe.data(name).show()
    if (sms := getattr(args, "sms", None)) is not None:
        partition.check(sms, facts.sms, partition.granularity(facts))
        facts = facts if sms == facts.sms else partition.name_of(facts, sms)
    wanted = [b for b in BACKENDS if not args.backend or b in args.backend]

    def fit(symbol: str) -> dict[Backend, int]:
        held, out = args.blocks_per_sm or 0, dict[Backend, int]()
        for backend in wanted:
            with suppress(Unavailable):  # its rows will say so
                res = known(backend, symbol, facts.arch, held)
                fits = occupancy.occupancy(res, 256, 0, facts).blocks_per_sm
                out[backend] = min(fits, held or fits)
        return out

    for case in table.cases(args, facts.sms, fit):
        probe.data(name).check(case, args)
        backends = [b for b in wanted if not case.backends or b in case.backends]
        rows = [row for b in backends for row in _rows(name, case, b, facts, args)]
        yield [*rows, *probe.report(name).recorded(case)]


def _rows(name: str, case: Case, backend: Backend, facts: DeviceFacts, args: argparse.Namespace) -> list[Row]:
    table = probe.table(name)
    variants = [v for v in table.variants(args, case) if v.role == "variant"]
    since, why = table.NEEDS
    if facts.compute_capability < since:
        why = f"{why}, {facts.slug} is {facts.arch}"
        return [refused(name, case, variants[0], backend, "predicted", facts, why)]
    own = probe.plan(name).predicted(case, variants, facts, args, backend)
    if own is not None:
        return own
    rows = [_row(name, case, v, backend, facts, args) for v in variants]
    times = {v.name: r.time_s for v, r in zip(variants, rows, strict=True)}
    for v, row in zip(variants, rows, strict=True):
        if row.time_s and (base := times.get(v.baseline)):
            row.ratio_to_baseline = row.time_s / base
    return rows


def _row(
    name: str, case: Case, v: Variant, backend: Backend, facts: DeviceFacts, args: argparse.Namespace
) -> Row:
    """One variant: resources, occupancy, waves and a time, or the reason why not."""
    held = args.blocks_per_sm or 0
    planned: Planned | None = None
    try:
        planned = probe.plan(name).plan(v, case, facts, args, backend)
        res = known(backend, planned.kernel, facts.arch, held)
    except Unavailable as error:
        return refused(name, case, v, backend, "predicted", facts, str(error), planned)
    row = described(name, case, planned, backend, "predicted", facts)
    occupy(row, res, planned.config, facts)
    if held and not planned.ring:  # a persistent grid holds its own blocks
        occupy(row, res, planned.config, facts, min(row.blocks_per_sm or 0, held))
    try:
        check_fit(planned, row.blocks_per_sm or 0, facts)
    except Unavailable as error:  # what it costs says why
        row.skipped, row.waves, row.tail_fraction, row.notes = str(error), None, None, []
        return row
    tail = row.tail_fraction or 0.0
    if not planned.ring and tail >= 0.05:  # a persistent grid has no last wave
        most = tables.format_percent(tail / (1 - tail))
        row.notes.append(f"a last wave as slow as a full one would add {most}")
    if tuning.device_and_part(facts.slug)[1]:
        row.notes.append("no time: what these SMs alone can read is not known")
        return row
    work = Work(planned.content_bytes or 0, planned.traffic_bytes or 0)
    found = model.predict(
        work, res, planned.config, facts, planned.in_flight_bytes, planned.requested_bytes,
        l1_wavefronts=planned.wavefronts,
    )  # fmt: skip
    row.time_s, row.content_gbps = found.time_s, work.content_bytes / found.time_s / 1e9
    row.read_ceiling_gbps = facts.ceiling_bps / 1e9
    row.fraction_of_ceiling = row.content_gbps / row.read_ceiling_gbps
    row.notes.append(f"binds: {found.limiter} (a roofline, blind to waves)")
    return row
