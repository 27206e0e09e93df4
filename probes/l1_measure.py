"""L1 on a GPU: one arm per variant and backend over the same weights, checked and timed together."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import TypeAlias

from probes import l1, l1_arms, l1_launch, l1_sweep
from probes.bench import BACKENDS, Bench, Spec, cap_smem, resource_row
from probes.core.layouts import LAYOUTS
from probes.core.rows import Row
from probes.core.types import VIRTUAL_THREADS, Backend, Unavailable
from probes.gpu import counters
from probes.gpu.kernels import Kernel
from probes.gpu.timing import Arm

Kernels: TypeAlias = dict[Backend, dict[str, Kernel]]


def load_kernels(bench: Bench, args: argparse.Namespace) -> Kernels:
    """The L1 kernels of each backend that works here; bench.skipped says why another does not.

    The asked variants', and those that the dispatcher may choose for one of the cases.
    """
    out: Kernels = {}
    flips = {
        l1.dispatch(case.shape, dpl_built=True, env=l1.flip_env(side))
        for case in l1.cases(args)
        for side in l1.FLIP
    }
    names = {name for name, _, _ in l1.wanted(args)} | flips
    asked = {
        stem: [f"l1_{name}" for name, _, form in l1.variants() if form.stem == stem and name in names]
        for stem in l1.STEMS
    }
    for stem in filter(asked.get, () if args.sweep else asked):  # a sweep needs one backend
        bench.ask(stem, asked[stem], args.blocks_per_sm or 0)
    for backend in BACKENDS:
        if args.backend and backend not in args.backend:
            continue
        try:
            out[backend] = {}
            for stem in filter(asked.get, asked):
                out[backend] |= bench.kernels(stem, asked[stem], backend, args.blocks_per_sm or 0)
        except Unavailable as error:
            del out[backend]
            bench.skipped[backend] = str(error)
        if args.sweep and out:
            break  # it needs one
    if not out:
        raise Unavailable("; ".join(bench.skipped.values()))
    return out


def measure(bench: Bench, args: argparse.Namespace) -> Iterator[list[Row]]:
    """Rows of one case after the other: every variant, the flip, A/A, the reads; or a sweep's."""
    cases = l1.cases(args)
    kernels = load_kernels(bench, args)
    if args.sweep:
        backend = next(iter(kernels))
        yield from l1_sweep.measure(bench, args, cases, kernels[backend])
        return
    for case in cases:
        with ExitStack() as stack:
            yield _case(bench, args, case, kernels, stack)


def arms_of(
    bench: Bench, args: argparse.Namespace, case: l1.Case, kernels: Kernels, stack: ExitStack
) -> tuple[list[tuple[Spec, Arm]], list[Row]]:
    """One case's arms in the report's order, and a row with the reason for each that must not run.

    Device memory is held by `stack`.
    """
    chosen = l1.wanted(args)
    flip = {name: l1.dispatch(case.shape, dpl_built=True, env=l1.flip_env(name)) for name in l1.FLIP}
    by_name = {name: (lay, form) for name, lay, form in l1.variants()}
    used = {lay.name for _, lay, _ in chosen} | (set() if args.layout else {"dpl"})
    w = l1_arms.weights(bench, case, args, [lay for lay in LAYOUTS if lay.name in used], stack)
    arms: list[tuple[Spec, Arm]] = []
    skipped: list[Row] = []

    def add(variant: str, kernel_name: str, backend: Backend) -> None:
        lay, form = by_name[kernel_name]
        kernel, stride = kernels[backend][f"l1_{kernel_name}"], w.packed[lay.name].shape[1]
        held = args.blocks_per_sm or 0
        try:
            planned = l1_launch.plan(form, lay, case.shape, stride, bench.gpu.facts, held)
            if held and form.stem == "l1":  # a persistent grid holds itself to its blocks
                smem = cap_smem(kernel, VIRTUAL_THREADS, held, bench.gpu)
                planned = replace(planned, config=l1.launch_config(case.shape, smem))
            if not l1_arms.make_room(bench, kernel, planned):
                raise Unavailable("the kernel does not fit on an SM")
        except Unavailable as error:
            skipped.append(l1_arms.not_run(bench, case, variant, kernel, lay, str(error)))
            return
        spec = l1_arms.spec(case, variant, kernel, lay, planned, w)
        arms.append((spec, l1_arms.arm(bench, case, spec, lay, planned, w, stack, args.once)))

    for backend in kernels:
        names = [name for name, _, _ in chosen]
        for name in names:
            add(name, name, backend)
        for aa, of in l1.AAS.items():
            if of in names:
                add(aa, of, backend)
        if all(by_name[k][0].name in w.packed for k in flip.values()):
            for name, kernel_name in flip.items():
                add(name, kernel_name, backend)
    arms += l1_arms.reads(bench, case, w, list(kernels), stack)
    return arms, skipped


def _case(
    bench: Bench, args: argparse.Namespace, case: l1.Case, kernels: Kernels, stack: ExitStack
) -> list[Row]:
    arms, skipped = arms_of(bench, args, case, kernels, stack)
    if args.once:
        return _once(bench, arms)
    rows = bench.measure("l1", arms, {b: f"{l1.BASELINE}/{b}" for b in kernels}, case.id)
    for (spec, _), row in zip(arms, rows, strict=True):
        row.grid, row.counts = spec.config.grid, dict(case.counts)
        if row.variant in l1.FLIP:
            chosen = l1.dispatch(case.shape, dpl_built=True, env=l1.flip_env(row.variant))
            row.notes.append(f"dispatched to {chosen}")
    for backend, why in bench.skipped.items():
        skipped.append(
            Row(
                probe="l1", case=case.id, variant=l1.BASELINE, backend=backend, source="measured", skipped=why
            )
        )
    return [*rows, *skipped]


def _once(bench: Bench, arms: list[tuple[Spec, Arm]]) -> list[Row]:
    """For the profiler: one launch of each arm, in order, and no timing of ours."""
    rows = []
    with counters.window():
        for spec, arm in arms:
            arm.launches[0].enqueue(bench.gpu.stream)
            bench.gpu.stream.sync()
            arm.output.check(spec.name)
            rows.append(resource_row("l1", spec, bench.gpu))
    return rows
