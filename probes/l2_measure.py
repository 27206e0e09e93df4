"""L2 on a GPU: every chain made, its arms checked, proven and timed together; then the sweeps."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np

from probes import l2, l2_chains, l2_once, l2_ring_sweep, l2_sweep
from probes.bench import BACKENDS, Bench, Spec, resource_row
from probes.core.coresident import beside, last_wave
from probes.core.rows import Row
from probes.core.types import Unavailable
from probes.gpu.timing import Output
from probes.l2_buffers import Kernels
from probes.l2_launch import Chain, ChainArm, arms_of, machine_code, overlap, stable
from probes.l2_make import Chains
from probes.l2_ring import told

SAFE_COPIES = 2
"""Copies (or layers) in the graph that is replayed 200 times."""


def measure(bench: Bench, args: argparse.Namespace) -> Iterator[list[Row]]:
    """Rows of one chain after the other; then those of the sweep where --sweep asks for it."""
    cases = l2.cases(args)
    if args.once:  # an empty kernel has nothing to count
        cases = [case for case in cases if case.id != "empty"]
    if bench.gpu.facts.compute_capability < (9, 0):
        for case in cases:
            yield _refused(bench, args, case, f"{l2.NEEDS}, this GPU is {bench.gpu.facts.arch}")
        return
    kernels = load_kernels(bench, args)
    with ExitStack() as keep:
        made = Chains(bench, args, kernels, keep)
        for case in cases:
            with ExitStack() as stack:
                try:
                    found = made.of(case, stack)
                except Unavailable as error:
                    if case.id not in l2.RING:
                        raise
                    yield _refused(bench, args, case, str(error))
                    continue
                if args.once:
                    rows = l2_once.rows_of(bench, case, found)
                else:
                    rows = run_case(bench, args, case, found)
            yield rows
        if args.once:
            return
        if args.sweep and any(case.id == "compute24" for case in cases):
            yield from l2_sweep.measure(bench, kernels)
        if args.sweep:
            yield from l2_ring_sweep.measure(made, [case for case in cases if case.id in l2.RING])


def _refused(bench: Bench, args: argparse.Namespace, case: l2.Case, why: str) -> list[Row]:
    return [
        Row(
            probe="l2", case=case.id, variant=a.name, backend=backend, source="measured",
            device=bench.gpu.facts.slug, kv=case.kv, skipped=why,
        )
        for backend in BACKENDS
        if not args.backend or backend in args.backend
        for a in l2.arms(args, case.id)
    ]  # fmt: skip


def load_kernels(bench: Bench, args: argparse.Namespace) -> Kernels:
    """Every L2 kernel of each backend that works here; bench.skipped says why another does not."""
    out: Kernels = {}
    bench.ask("l2", l2_chains.kernel_names(), args.blocks_per_sm or 0)
    for backend in BACKENDS:
        if args.backend and backend not in args.backend:
            continue
        try:
            out[backend] = bench.kernels("l2", l2_chains.kernel_names(), backend, args.blocks_per_sm or 0)
        except Unavailable as error:
            bench.skipped[backend] = str(error)
    if not out:
        raise Unavailable("; ".join(bench.skipped.values()))
    return out


def run_case(bench: Bench, args: argparse.Namespace, case: l2.Case, found: list[Chain]) -> list[Row]:
    """Proofs, then times of every arm; then a row for each kernel of the chain."""
    chosen = l2.arms(args, case.id)
    arms = arms_of(found, chosen)
    proofs = {
        f"{a.name}/{chain.backend}": _proofs(bench, chain, a)
        for chain in found
        for a in chosen
        if a.name not in l2.AA[1:]
    }
    extra = bench.ceiling_arms(case.id, [c.backend for c in found]) if found[0].content_bytes else []
    backends = [c.backend for c in found]
    rows = bench.measure("l2", [*arms, *extra], {b: f"{l2.BASELINE}/{b}" for b in backends}, case.id)
    steps = {c.backend: c.steps for c in found}
    plain = {r.backend: r.time_s for r in rows if r.variant == l2.BASELINE}
    for (spec, arm), row in zip([*arms, *extra], rows, strict=True):
        row.kv = case.kv
        if case.id == "empty" and row.samples_s and not row.variant.startswith("read_"):
            row.bitwise = None  # an empty kernel writes nothing that could be right or wrong
        if not isinstance(arm, ChainArm):
            continue
        if spec.variant in l2.READS:
            row.event_loop_time_s = None
            continue
        _describe(row, arm, proofs.get(spec.name), plain.get(row.backend), steps[row.backend])
    for chain in found:
        rows += kernel_rows(bench, chain)
        if case.id == "empty":
            rows += pair_rows(bench, chain, chosen)
    return [*rows, *_skipped(bench, case)]


def _proofs(bench: Bench, chain: Chain, a: l2.Arm) -> tuple[float, list[str]]:
    """(median overlap in seconds, notes): overlap, waits in the machine code, 200 equal replays."""
    bench.progress(f"{chain.case.id} {a.name}/{chain.backend}: proofs")
    seen = overlap(bench, chain, a)
    notes = [seen.text(chain.steps), machine_code(bench, chain, a)]
    if a.graph and l2.dispatch(a):
        copies = min(SAFE_COPIES, len(chain.copies))
        where = chain.result(copies)
        where.poison()
        for step in chain.launches(l2.arm(l2.BASELINE), copies=copies):
            step.enqueue(bench.gpu.stream)
        words = where.download(np.uint32, chain.output.words)
        notes.append(stable(bench, chain, a, Output(where, chain.output.words, words), copies))
    return seen.median_s, notes


def _describe(
    row: Row, arm: ChainArm, proof: tuple[float, list[str]] | None, plain_s: float | None,
    steps: tuple[l2_chains.Step, ...],
) -> None:  # fmt: skip
    """What only a chain's row says: overlap, edges, gain per interface; the proofs as notes."""
    a = l2.arm(row.variant)
    row.event_loop_time_s = None  # a host may be slower than short launches: the eager arm is that comparison
    if proof:
        row.overlap_s = proof[0]
        row.notes += proof[1]
    if plain_s and row.time_s and a.name != l2.BASELINE:
        row.gain_per_interface_s = (plain_s - row.time_s) / len(steps)
    if a.graph:
        found, edges = arm.edges
        row.notes.append(f"{found} of {edges} edges programmatic")
        if l2.dispatch(a) and found < edges:
            row.notes.append(f"{l2.MISSING}{edges - found} edges of the graph are not programmatic")
        if not l2.dispatch(a) and found:
            row.notes.append(f"{l2.MISSING}{found} edges are programmatic without the attribute")
    if a.pdl and not l2.dispatch(a) and a.env is None:
        row.notes.append(f"{l2.MISSING}PROBES_PDL=0: launched without the attribute")
    if len({s.kernel for s in steps}) > 1:  # each kernel has a row of its own
        row.registers = row.spill_bytes = row.smem_bytes = row.blocks_per_sm = row.grid = None
        row.waves = row.tail_fraction = row.limiter = None


def kernel_rows(bench: Bench, chain: Chain) -> list[Row]:
    """A row for each kernel of a chain: registers, waves, tail, what fits beside its predecessor."""
    facts, rows = bench.gpu.facts, []
    steps = list(dict.fromkeys(chain.steps))
    if len({s.kernel for s in steps}) == 1:
        steps = steps[:1]
    for k, step in enumerate(steps):
        kernel = chain.kernels[step.entry_point("plain")]
        config = chain.config(step)
        row = resource_row(
            "l2", Spec(chain.case.id, f"kernel_{step.name}", chain.backend, kernel, config), bench.gpu
        )
        row.kv, row.content_bytes, row.grid = chain.case.kv, step.weight_bytes or None, step.grid
        before = steps[k - 1]
        there = chain.kernels[before.entry_point("plain")]
        there_config = chain.config(before)
        alone = there.blocks_per_sm(before.block, there_config.smem_bytes)
        last = last_wave(before.grid, facts.sms, max(1, alone))
        fits = beside((there.resources, there_config), last, (kernel.resources, config), facts)
        row.notes.append(f"beside {before.name}'s last wave ({last} blocks/SM at most): {fits} blocks/SM")
        late = chain.kernels[step.entry_point("late")].resources.registers
        if late != kernel.resources.registers:
            row.notes.append(f"late kind: {late} registers")
        if step.smem_bytes:
            row.notes.append(told(step))
        rows.append(row)
    return rows


def pair_rows(bench: Bench, chain: Chain, chosen: list[l2.Arm]) -> list[Row]:
    """An empty pair in a graph: how long after the first launch's end the second one starts, by the timer."""
    rows = []
    pair = Chain(chain.case, chain.backend, chain.kernels, chain.steps[:2], [{}], chain.output)
    for a in chosen:
        if not a.graph or a.name in l2.AA[1:] or (a.pdl and not l2.dispatch(a)):
            continue
        seen = overlap(bench, pair, a, replays=60)
        row = Row(
            probe="l2", case=chain.case.id, variant=f"pair_{a.name}", backend=chain.backend,
            source="measured", device=bench.gpu.facts.slug, overlap_s=seen.median_s,
        )  # fmt: skip
        row.notes.append(f"two launches in a graph; timer step {1e9 * seen.step_s:.0f} ns")
        rows.append(row)
    return rows


def _skipped(bench: Bench, case: l2.Case) -> list[Row]:
    return [
        Row(
            probe="l2", case=case.id, variant=l2.BASELINE, backend=backend, source="measured", kv=case.kv,
            skipped=why,
        )
        for backend, why in bench.skipped.items()
    ]  # fmt: skip
