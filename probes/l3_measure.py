"""L3 on a GPU: one arm per variant and backend over gate and up weights, checked and timed; the sweeps."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import numpy as np

from probes import l3, l3_data, l3_geometries, l3_waves
from probes.bench import BACKENDS, Bench, Spec, bits, cap_smem, resource_row
from probes.core.rows import Row
from probes.core.types import Backend, Unavailable, WrongResult
from probes.gpu import counters, timing
from probes.gpu.kernels import Kernel, Launch, int32
from probes.gpu.memory import Buffer
from probes.gpu.partition import partition
from probes.gpu.timing import Arm, Output
from probes.l3_arms import READ, Data, Kernels, arms_of, data_of, reads

__all__ = ["READ", "Data", "Kernels", "arms_of", "data_of", "load_balance", "load_kernels", "measure"]


def load_kernels(bench: Bench, args: argparse.Namespace) -> Kernels:
    """Every L3 kernel of each backend that works here; bench.skipped says why another does not."""
    out: Kernels = {}
    if not args.geometries:
        bench.ask("l3", l3.KERNELS, args.blocks_per_sm or 0)
    for backend in BACKENDS:
        if args.backend and backend not in args.backend:
            continue
        try:
            out[backend] = bench.kernels("l3", l3.KERNELS, backend, args.blocks_per_sm or 0)
        except Unavailable as error:
            bench.skipped[backend] = str(error)
        if args.geometries and out:
            break  # it needs one
    if not out:
        raise Unavailable("; ".join(bench.skipped.values()))
    return out


def measure(bench: Bench, args: argparse.Namespace) -> Iterator[list[Row]]:
    """Rows of one case after the other, then of the sweep's points; or those of --geometries."""
    l3.check_flags(args)
    kernels = load_kernels(bench, args)
    bench.clock()  # every kernel is bound before a partition's context is current
    for backend in kernels:
        bench.harness("harness_read", backend)
    with ExitStack() as stack:
        if args.sms is not None:
            try:
                bench = replace(bench, gpu=stack.enter_context(partition(bench.gpu, args.sms)))
            except Unavailable as error:
                yield _no_partition(bench, args, kernels, str(error))
                return
        if args.geometries:
            yield from l3_geometries.measure(bench, args, kernels)
            return
        blocks = {b: k["l3_form_b"].blocks_per_sm(l3.THREADS) for b, k in kernels.items()}
        blocks = {b: min(n, args.blocks_per_sm or n) for b, n in blocks.items()}
        for case in l3.cases(args, bench.gpu.facts.sms, blocks):
            with ExitStack() as held:
                yield _case(bench, args, case, kernels, held)
        if args.sweep and not args.once:
            yield from _sweep(bench, args, kernels, blocks)


def _no_partition(bench: Bench, args: argparse.Namespace, kernels: Kernels, why: str) -> list[Row]:
    """A skipped row per variant and backend, where GPU or driver make no partitions."""
    return [
        Row(
            probe="l3", case=l3.CASES[0].id, variant=v.name, backend=backend, source="measured",
            device=bench.gpu.facts.slug, skipped=why,
        )
        for backend in kernels
        for v in l3.wanted(args)
    ]  # fmt: skip


def _case(
    bench: Bench, args: argparse.Namespace, case: l3.Case, kernels: Kernels, stack: ExitStack
) -> list[Row]:
    d = data_of(bench, args, case, kernels, stack)
    chosen = [v.name for v in l3.wanted(args)]
    names = [*chosen, *(aa for aa, of in l3.AA.items() if of in chosen)]
    arms, skipped = arms_of(bench, args, case, kernels, names, d, stack)
    arms += reads(bench, d, [b for b in kernels if not case.backends or b in case.backends], stack)
    if args.once:
        return _once(bench, arms)
    rows = bench.measure("l3", arms, {b: f"{l3.BASELINE}/{b}" for b in kernels}, case.id)
    for (spec, _), row in zip(arms, rows, strict=True):
        row.grid = spec.config.grid
        if not row.variant.startswith("read_"):
            _describe(bench, args, spec, row, kernels[spec.backend], d)
    skipped += [
        Row(probe="l3", case=case.id, variant=l3.BASELINE, backend=b, source="measured", skipped=why)
        for b, why in bench.skipped.items()
    ]
    return [*rows, *skipped]


def _describe(
    bench: Bench, args: argparse.Namespace, spec: Spec, row: Row, kernels: dict[str, Kernel], d: Data
) -> None:
    """Load balance by a traced launch (a ring has none), and what the second kernel of a step costs."""
    v = l3.variant(spec.variant)
    if v.finisher:
        res, grid = kernels[v.finisher].resources, l3.finish_config(d.case.nf).grid
        row.notes.append(f"then {v.finisher}: {grid} blocks, {res.registers} registers")
    if v.ring:
        row.notes.append("load balance is not counted: its blocks stay, and tickets make them even")
    elif spec.variant not in l3.AA:
        row.load_balance, note = load_balance(bench, args, spec, kernels[v.traced], d)
        row.notes += [note] if note else []


def load_balance(
    bench: Bench, args: argparse.Namespace, spec: Spec, traced: Kernel, d: Data
) -> tuple[float, str]:
    """(blocks of the busiest SM over the mean of all SMs, a note) from one launch of the traced twin.

    The twin's result is checked like any other. Raises Unavailable where blocks ran outside the partition.
    """
    v, sms = l3.variant(spec.variant), bench.gpu.facts.sms
    nf, nbe = int32(d.case.nf), int32(d.nbe)
    want = {"l3_matmul": bits(d.want.gu), "l3_form_a": bits(d.want.h)}.get(v.reader, d.want.q8)
    sizes = (nbe,) if v.reader == "l3_matmul" else (nf, nbe)
    smem = cap_smem(traced, l3.THREADS, args.blocks_per_sm, bench.gpu) if args.blocks_per_sm else 0
    with Buffer(4 * want.size) as out, Buffer(4 * spec.config.grid) as where:
        out.poison()
        where.poison()
        ids = (d.copy(0), d.x8.address, out.address, *sizes, where.address)
        Launch(traced, replace(spec.config, smem_bytes=smem), ids).enqueue(bench.gpu.stream)
        Output(out, want.size, want).check(f"{d.case.id} {traced.name}")
        seen = where.download(np.uint32, spec.config.grid)
    if (seen == 0xFFFFFFFF).any():
        raise WrongResult(
            f"{traced.name} left a block out", int(np.argmax(seen == 0xFFFFFFFF)), "none", "an SM"
        )
    counts = np.unique(seen, return_counts=True)[1]
    if counts.size > sms:
        raise Unavailable(
            f"blocks ran on {counts.size} SMs where there are {sms}: the partition does not hold"
        )
    mine, timed = (
        traced.blocks_per_sm(l3.THREADS, smem),
        spec.kernel.blocks_per_sm(l3.THREADS, spec.config.smem_bytes),
    )
    notes = [f"its blocks used {counts.size} of {sms} SMs"] if counts.size < sms else []
    notes += [f"load balance seen at {mine} blocks/SM, timed at {timed}"] if mine != timed else []
    return float(counts.max() / (spec.config.grid / sms)), "; ".join(notes)


def _once(bench: Bench, arms: list[tuple[Spec, Arm]]) -> list[Row]:
    """For the profiler: each arm launched once, in order, and no timing of ours; a row per kernel."""
    rows = []
    with counters.window():
        for spec, arm in arms:
            arm.poison()
            arm.launches[0].enqueue(bench.gpu.stream)
            bench.gpu.stream.sync()
            arm.check(spec.name)
            rows += [resource_row("l3", spec, bench.gpu)] * arm.launches[0].nodes
    return rows


def _sweep(
    bench: Bench, args: argparse.Namespace, kernels: Kernels, blocks: dict[Backend, int]
) -> Iterator[list[Row]]:
    """Rows of each point, 0.25 to 4 waves of form_b; one backend after the other."""
    own = l3.cases(args, bench.gpu.facts.sms, blocks)
    slots = {b: n * bench.gpu.facts.sms for b, n in blocks.items() if n}
    grids = {
        b: l3_waves.grids(n, [c.nf // l3.GROUP for c in own if not c.backends or b in c.backends], args.quick)
        for b, n in slots.items()
    }
    whole = l3.Case("sweep", l3.GROUP * max(max(g) for g in grids.values()), own[0].id_)
    quick = replace(bench, windows=l3_waves.QUICK_WINDOWS if args.quick else l3_waves.WINDOWS)
    with ExitStack() as held:
        largest = data_of(bench, args, whole, kernels, held)
        raw, want = largest.raw, largest.want
        x8 = l3_data.random_x8(whole.id_, bench.seed + 1)
    for backend, mine in kernels.items():
        for grid in grids.get(backend, []):
            case = l3.Case(l3_waves.case_id(grid), l3.GROUP * grid, whole.id_, backends=(backend,))
            with ExitStack() as held:
                part = l3_data.first_rows(raw, case.nf)
                free, _ = bench.gpu.free_bytes()
                copies = timing.rotation(part.nbytes, bench.gpu.facts.l2_bytes, free)
                weights, activations = (
                    held.enter_context(b) for b in (Buffer.of(part, copies), Buffer.of(x8))
                )
                d = Data(case, part, weights, activations, copies, want.first(case.nf))
                arms, _ = arms_of(quick, args, case, {backend: mine}, l3_waves.VARIANTS, d, held)
                rows = quick.measure("l3", arms, {backend: f"{l3.BASELINE}/{backend}"}, case.id)
                for (spec, _), row in zip(arms, rows, strict=True):
                    row.grid = spec.config.grid
                    if row.variant == "form_b":
                        _describe(bench, args, spec, row, mine, d)
            yield rows
