"""--counters on L2: the kernels of a chain launched one at a time, for the profiler.

A profiler lets no launch overlap another, so an arm has no meaning here. Each kernel of a chain is launched
as the plain graph launches it and, where it has a late kind, as the PDL arms do but without the attribute:
its wait returns at once. Beside each kernel with weights stands a plain read of them. The chain was run in
both kinds before, unprofiled, and gave the words that its arms must give.
"""

from __future__ import annotations

from dataclasses import replace

from probes import l2, l2_chains
from probes.bench import Bench, Spec, read_config, resource_row
from probes.core.rows import Row
from probes.gpu import counters
from probes.gpu.kernels import Launch, int64
from probes.gpu.memory import Buffer
from probes.l2_launch import Chain, arm_of
from probes.l2_ring import told

KINDS: tuple[l2.Arm, ...] = (l2.arm(l2.BASELINE), replace(l2.arm("pdl_late"), pdl=False))
"""How the kernels are launched: both without the attribute."""


def rows_of(bench: Bench, case: l2.Case, found: list[Chain]) -> list[Row]:
    """One launch of each kernel of each chain and kind, in the order of the rows. Raises WrongResult."""
    for chain in found:
        for a in KINDS:
            _check(bench, chain, a)
    launches = [x for chain in found for a in KINDS for x in _launches(chain, a)]
    large = bench.ceiling_arms(case.id, [c.backend for c in found]) if found[0].content_bytes else []
    rows: list[Row] = []
    most = max((s.weight_bytes for chain in found for s in chain.steps), default=0)
    with Buffer(4 * read_config(max(1, most)).grid) as out:
        reads = [x for chain in found for x in _reads(bench, chain, out)]
        with counters.window():
            for spec, arm in large:
                arm.launches[0].enqueue(bench.gpu.stream)
                arm.check(spec.name)
                rows.append(resource_row("l2", spec, bench.gpu))
            for spec, launch in [*launches, *reads]:
                launch.enqueue(bench.gpu.stream)
                bench.gpu.stream.sync()
                rows.append(resource_row("l2", spec, bench.gpu))
                rows[-1].grid = spec.config.grid
    for row in rows:
        row.kv = case.kv
    return rows


def _check(bench: Bench, chain: Chain, a: l2.Arm) -> None:
    """Run all copies of the chain and hold the result to what its arms must give."""
    spec, arm = arm_of(chain, a, f"{a.name}, one launch at a time")
    arm.poison()
    for step in arm.launches:
        step.enqueue(bench.gpu.stream)
    arm.check(spec.name)


def _launches(chain: Chain, a: l2.Arm) -> list[tuple[Spec, Launch]]:
    """Each kernel of the first copy, in the chain's order; of a chain of one kernel the first launch."""
    steps = chain.steps_of(a)
    made = chain.launches(a, copies=1)[0].launches
    one = len({s.kernel for s in steps}) == 1
    return [
        (
            Spec(
                chain.case.id, f"{l2.PROFILED}{s.name}_{a.kind}", chain.backend, x.kernel, x.config,
                content_bytes=s.weight_bytes or None,
                note=told(s) if s.smem_bytes else "",
            ),
            x,
        )
        for s, x in list(zip(steps, made, strict=True))[: 1 if one else None]
        if a.kind != "late" or s.kernel in l2_chains.LATE
    ]  # fmt: skip


def _reads(bench: Bench, chain: Chain, out: Buffer) -> list[tuple[Spec, Launch]]:
    """A plain read of what each of those kernels alone reads; nobody looks at its XORs."""
    found: dict[str, tuple[Spec, Launch]] = {}
    for s in chain.steps:
        if not s.weight_bytes or s.name in found:
            continue
        kernel, config = bench.harness("harness_read", chain.backend), read_config(s.weight_bytes)
        weights = next(chain.copies[0][a] for a in s.args if isinstance(a, str) and a.startswith("w."))
        spec = Spec(
            chain.case.id, f"{l2.PROFILED}{s.name}_read", chain.backend, kernel, config,
            content_bytes=s.weight_bytes,
        )  # fmt: skip
        found[s.name] = spec, Launch(kernel, config, (weights, out.address, int64(s.weight_bytes // 16)))
    return list(found.values())
