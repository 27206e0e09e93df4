"""Plans bound to buffers: what of a case can be launched here, and a row with the reason for the rest."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from probes.core.types import Backend, Unavailable
from probes.engine.bench import Bench, Spec, cap_smem
from probes.engine.plan import Planned, check_fit, refused
from probes.engine.probe import Arms, Case, PlanPart, Variant
from probes.gpu.kernels import Kernel
from probes.gpu.timing import Arm
from probes.report.rows import Row

Kernels = Mapping[Backend, Mapping[str, Kernel]]  # by symbol


def room(bench: Bench, kernel: Kernel, planned: Planned) -> int:
    """Let a launch have its shared memory; the blocks that then fit on an SM."""
    if planned.ring:  # all that a block can have, once and for all: several geometries of it share a run
        kernel.make_room(bench.gpu.facts.smem_per_block_max_bytes - kernel.resources.smem_bytes)
    return kernel.blocks_per_sm(planned.config.block, planned.config.smem_bytes)


def fitted(bench: Bench, kernel: Kernel, planned: Planned, held: int) -> Planned:
    """The plan as it can be launched here, held to `held` blocks per SM (0: not held). Raises Unavailable."""
    if planned.steps:  # a chain's arms hold their own blocks, and so does a persistent grid
        return planned
    if held and not planned.ring:
        smem = cap_smem(kernel, planned.config.block, held, bench.gpu)
        planned = replace(planned, config=replace(planned.config, smem_bytes=smem))
    check_fit(planned, room(bench, kernel, planned), bench.gpu.facts)
    return planned


def bind(
    probe: str, part: PlanPart, arms: Arms, material: Any, bench: Bench, case: Case,
    variants: Sequence[Variant], kernels: Kernels, args: argparse.Namespace,
) -> tuple[list[tuple[Spec, Arm]], list[Row]]:  # fmt: skip
    """A case's arms in the report's order, and the rows of what must not run, each with the reason."""
    bound: list[tuple[Spec, Arm]] = []
    skipped: list[Row] = []
    for backend, mine in kernels.items():
        if case.backends and backend not in case.backends:
            continue
        for v in variants:
            planned: Planned | None = None
            try:
                planned = part.plan(v, case, bench.gpu.facts, args, backend)
                planned = fitted(bench, mine[planned.kernel], planned, args.blocks_per_sm or 0)
            except Unavailable as error:
                row = refused(probe, case, v, backend, "measured", bench.gpu.facts, str(error), planned)
                if planned:
                    resources = mine[planned.kernel].resources
                    row.registers, row.spill_bytes = resources.registers, resources.spill_bytes
                skipped.append(row)
                continue
            bound.append(made(arms, material, planned, case, mine[planned.kernel]))
    return bound, skipped


def made(arms: Arms, material: Any, planned: Planned, case: Case, kernel: Kernel) -> tuple[Spec, Arm]:
    """One plan's arm, and what its row says."""
    arm = arms.arm(material, planned, f"{planned.variant.name}/{kernel.backend}", kernel.backend)
    return Spec(case, planned, kernel, material.rotation_bytes(planned)), arm
