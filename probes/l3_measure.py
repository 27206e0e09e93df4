"""L3 on a GPU: one arm per variant and backend over gate and up weights, checked and timed; the sweep."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from probes import l3, l3_data, l3_waves
from probes.bench import BACKENDS, Bench, Spec, bits, cap_smem, read_config, resource_row, seeded_rows
from probes.core import checksum
from probes.core.rows import Row
from probes.core.types import Backend, LaunchConfig, Unavailable, WrongResult
from probes.gpu import timing
from probes.gpu.kernels import Kernel, Launch, Step, int32
from probes.gpu.memory import Buffer
from probes.gpu.partition import partition
from probes.gpu.timing import Arm, Output
from probes.l3_data import U8, Wanted

Kernels: TypeAlias = dict[Backend, dict[str, Kernel]]
READ = "read_gate_up"
"""The plain read that moves as many bytes as the weights hold."""


@dataclass
class Data:
    """One case's weights on both sides, the activations, and what every kernel must return."""

    case: l3.Case
    raw: U8
    weights: Buffer
    x8: Buffer
    copies: int
    want: Wanted

    @property
    def nbe(self) -> int:
        """Super-blocks per row."""
        return self.case.shape.nbe

    def copy(self, k: int) -> int:
        """Device address of one copy of the weights."""
        return self.weights.address + k * self.weights.pitch


def load_kernels(bench: Bench, args: argparse.Namespace) -> Kernels:
    """Every L3 kernel of each backend that works here; bench.skipped says why another does not."""
    out: Kernels = {}
    for backend in BACKENDS:
        if args.backend and backend not in args.backend:
            continue
        try:
            out[backend] = bench.kernels("l3", l3.KERNELS, backend, args.blocks_per_sm or 0)
        except Unavailable as error:
            bench.skipped[backend] = str(error)
    if not out:
        raise Unavailable("; ".join(bench.skipped.values()))
    return out


def measure(bench: Bench, args: argparse.Namespace) -> Iterator[list[Row]]:
    """Rows of one case after the other, then of the sweep's points."""
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
        for v in _wanted(args)
    ]  # fmt: skip


def _wanted(args: argparse.Namespace) -> list[l3.Variant]:
    """Variants that the flags ask for; the pair is always among them."""
    return [v for v in l3.VARIANTS if not args.variant or v.name in args.variant or v.name == l3.BASELINE]


def data_of(
    bench: Bench, args: argparse.Namespace, case: l3.Case, kernels: Kernels, stack: ExitStack
) -> Data:
    """Weights, activations and what they must give. Device memory is held by `stack`.

    A seeded sample of at least 4096 rows is held to the oracle; the other rows are then those of the
    first backend's matmul, which every arm is compared with, and SwiGLU and quantising are NumPy's. With
    --once the oracle sums every row, and nothing is launched here.
    """
    bench.progress(f"{case.id}: {case.shape} q4_K weights")
    if case.gate:
        raw = l3_data.read_gate_up(args.gguf, case.gate, case.up)
    else:
        raw = l3_data.random_gate_up(case.nf, case.id_, bench.seed)
    x8 = l3_data.random_x8(case.id_, bench.seed + 1)
    free, _ = bench.gpu.free_bytes()
    if raw.nbytes > free:
        raise Unavailable(f"{case.id} needs {raw.nbytes >> 20} MiB on the GPU, {free >> 20} MiB are free")
    copies = timing.rotation(raw.nbytes, bench.gpu.facts.l2_bytes, free)
    weights, activations = (stack.enter_context(b) for b in (Buffer.of(raw, copies), Buffer.of(x8)))
    if args.once:
        gu = l3_data.oracle(raw, x8)
    else:
        matmul = next(iter(kernels.values()))["l3_matmul"]
        gu = _sums(bench, case, raw, x8, weights, activations, matmul)
    return Data(case, raw, weights, activations, copies, Wanted.of(gu, case.id))


def _sums(
    bench: Bench, case: l3.Case, raw: U8, x8: U8, weights: Buffer, activations: Buffer, matmul: Kernel
) -> l3_data.F32:
    """Every row's sum by one launch of a matmul kernel, a sample of them equal to the oracle to the bit."""
    rows = seeded_rows(2 * case.nf, bench.seed)
    want = bits(l3_data.oracle(raw, x8, rows))
    with Buffer(8 * case.nf) as out:
        out.poison()
        args = (weights.address, activations.address, out.address, int32(case.shape.nbe))
        Launch(matmul, LaunchConfig(2 * case.nf, l3.THREADS), args).enqueue(bench.gpu.stream)
        found = Output(out, 2 * case.nf, want, rows).check(f"{case.id} l3_matmul")
    return found.view(np.float32)


def arm_of(
    v: l3.Variant, name: str, config: LaunchConfig, kernels: dict[str, Kernel], d: Data, stack: ExitStack
) -> Arm:
    """One variant's arm: a launch per weight copy, or a step of two; every output is checked."""
    nf, nbe = int32(d.case.nf), int32(d.nbe)
    q8 = stack.enter_context(Buffer(4 * d.want.q8.size))
    outputs = [Output(q8, d.want.q8.size, d.want.q8)]
    target = q8.address
    sizes = (nbe,) if v.reader == "l3_matmul" else (nf, nbe)
    if v.finisher:
        middle = d.want.gu if v.reader == "l3_matmul" else d.want.h
        values = stack.enter_context(Buffer(4 * middle.size))
        outputs.append(Output(values, middle.size, bits(middle)))
        target = values.address
    launches: list[Launch | Step] = []
    for k in range(d.copies):
        reader = Launch(kernels[v.reader], config, (d.copy(k), d.x8.address, target, *sizes))
        if not v.finisher:
            launches.append(reader)
            continue
        finisher = Launch(kernels[v.finisher], l3.finish_config(d.case.nf), (target, q8.address, nf))
        launches.append(Step((reader, finisher)))
    return Arm(name, launches, outputs[0], also=tuple(outputs[1:]))


def arms_of(
    bench: Bench,
    args: argparse.Namespace,
    case: l3.Case,
    kernels: Kernels,
    variants: Sequence[str],
    d: Data,
    stack: ExitStack,
) -> tuple[list[tuple[Spec, Arm]], list[Row]]:
    """The named variants' arms of every backend, and a row with the reason for each that must not run."""
    arms: list[tuple[Spec, Arm]] = []
    skipped: list[Row] = []
    for backend, mine in kernels.items():
        if case.backends and backend not in case.backends:
            continue
        for name in variants:
            v = l3.variant(name)
            kernel = mine[v.reader]
            smem = cap_smem(kernel, l3.THREADS, args.blocks_per_sm, bench.gpu) if args.blocks_per_sm else 0
            config = l3.config(v, case.nf, smem)
            spec = Spec(
                case.id, name, backend, kernel, config, case.shape, case.content_bytes, case.content_bytes,
                case.content_bytes * d.copies, READ,
            )  # fmt: skip
            if kernel.blocks_per_sm(l3.THREADS, smem) == 0:
                row = resource_row("l3", spec, bench.gpu)
                row.skipped = "the kernel does not fit on an SM"
                skipped.append(row)
            else:
                arms.append((spec, arm_of(v, spec.name, config, mine, d, stack)))
    return arms, skipped


def _reads(bench: Bench, d: Data, backends: list[Backend], stack: ExitStack) -> list[tuple[Spec, Arm]]:
    """The large read, and a plain read of as many bytes as the weights hold."""
    arms = bench.ceiling_arms(d.case.id, backends)
    want = checksum.read_xors(d.raw.reshape(-1))
    size = d.raw.nbytes
    for backend in backends:
        spec = Spec(
            d.case.id, READ, backend, bench.harness("harness_read", backend), read_config(size),
            content_bytes=size, traffic_bytes=size, rotation_bytes=size * d.copies,
        )  # fmt: skip
        out = stack.enter_context(Buffer(4 * want.size))
        arms.append((spec, bench.read_arm(spec.name, backend, d.weights, out, size, d.copies, want)))
    return arms


def _case(
    bench: Bench, args: argparse.Namespace, case: l3.Case, kernels: Kernels, stack: ExitStack
) -> list[Row]:
    d = data_of(bench, args, case, kernels, stack)
    chosen = [v.name for v in _wanted(args)]
    names = [*chosen, *(aa for aa, of in l3.AA.items() if of in chosen)]
    arms, skipped = arms_of(bench, args, case, kernels, names, d, stack)
    arms += _reads(bench, d, [b for b in kernels if not case.backends or b in case.backends], stack)
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
    """Load balance by a traced launch, and what the second kernel of a step costs."""
    v = l3.variant(spec.variant)
    if v.finisher:
        res, grid = kernels[v.finisher].resources, l3.finish_config(d.case.nf).grid
        row.notes.append(f"then {v.finisher}: {grid} blocks, {res.registers} registers")
    if spec.variant not in l3.AA:
        row.load_balance, note = load_balance(bench, args, spec, kernels[f"{v.reader}_traced"], d)
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
