"""compute24 swept over blocks/SM, registers and the last wave's tail: is there a point where PDL costs time?

Blocks per SM are held down by dynamic shared memory, registers set by the kernel (`compute` few, `wide`
many), the tail by the grid. Every point is a case `sweep_<kernel>_b<blocks>_w<waves>`, in the first backend
that works (C++ unless --backend says otherwise).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

from probes import l2, l2_chains
from probes.bench import Bench, cap_smem
from probes.core.rows import Row
from probes.l2_buffers import Kernels, compute_chain
from probes.l2_launch import ChainArm, arms_of


def measure(bench: Bench, kernels: Kernels) -> Iterator[list[Row]]:
    """Rows of one point after the other. A point whose blocks/SM cannot be reached is left out."""
    backend = next(iter(kernels))
    mine = kernels[backend]
    chosen = [l2.arm(name) for name in l2.SWEEP_ARMS]
    quick = replace(bench, windows=l2.SWEEP_WINDOWS)
    for kernel in l2.SWEEP_KERNELS:
        kinds = [mine[f"l2_{kernel}_{kind}"] for kind in ("plain", "entry", "late")]
        seen: set[int] = set()
        for asked in l2.SWEEP_BLOCKS:
            smem = max(cap_smem(k, l2_chains.BLOCK, asked, bench.gpu) for k in kinds)
            for k in kinds:
                k.allow_smem(smem)
            blocks = min(k.blocks_per_sm(l2_chains.BLOCK, smem) for k in kinds)
            if not blocks or blocks in seen:
                continue
            seen.add(blocks)
            for waves in l2.SWEEP_WAVES:
                bench.progress(f"sweep: {kernel}, {blocks} blocks/SM, {waves:g} waves")
                case = l2.Case(f"sweep_{kernel}_b{blocks}_w{waves:g}")
                with ExitStack() as stack:
                    chain = compute_chain(quick, case, backend, mine, kernel, waves, smem, stack)
                    arms = arms_of([chain], chosen)
                    rows = quick.measure("l2", arms, {backend: f"{l2.BASELINE}/{backend}"}, case.id)
                plain = rows[0].time_s
                for (_, arm), row in zip(arms, rows, strict=True):
                    assert isinstance(arm, ChainArm)
                    row.event_loop_time_s = None
                    if plain and row.time_s and row.variant != l2.BASELINE:
                        row.gain_per_interface_s = (plain - row.time_s) / len(chain.steps)
                yield rows
