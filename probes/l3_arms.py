"""L3's weights on a GPU, and the arms over them: what a run, its sweep and --geometries are made of."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from probes import l3, l3_data, l3_launch
from probes.bench import Bench, Spec, bits, cap_smem, read_config, seeded_rows
from probes.core import checksum
from probes.core.rows import Row
from probes.core.types import Backend, LaunchConfig, Unavailable
from probes.gpu import timing
from probes.gpu.kernels import Kernel, Launch, Step, int32
from probes.gpu.memory import Buffer
from probes.gpu.timing import Arm, Output
from probes.l3_data import U8, Wanted
from probes.l3_launch import Planned

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


def arm_of(planned: Planned, name: str, kernels: dict[str, Kernel], d: Data, stack: ExitStack) -> Arm:
    """One variant's arm: a launch per weight copy, or a step of two; every output is checked.

    A ring's counters are the arm's own and shown to be 0 again; its launches follow one another.
    """
    v, nf = planned.variant, int32(d.case.nf)
    q8 = stack.enter_context(Buffer(4 * d.want.q8.size))
    outputs = [Output(q8, d.want.q8.size, d.want.q8)]
    target: tuple[int, ...] = (q8.address,)
    if v.finisher:  # there is an f32 intermediate, checked too
        middle = bits(d.want.gu if v.sums_alone else d.want.h)
        values = stack.enter_context(Buffer(4 * middle.size))
        target = (values.address,)
        outputs.append(Output(values, middle.size, middle))
    kept: tuple[Output, ...] = ()
    counters = 0
    if planned.counters:
        zeros = np.zeros(planned.counters, np.uint32)
        words = stack.enter_context(Buffer.of(zeros))
        kept, counters = (Output(words, zeros.size, zeros),), words.address
    launches: list[Launch | Step] = []
    for k in range(d.copies):
        args = planned.args(d.copy(k), d.x8.address, target, counters)
        reader = Launch(kernels[v.reader], planned.config, args)
        if not v.finisher:
            launches.append(reader)
            continue
        finisher = Launch(kernels[v.finisher], l3.finish_config(d.case.nf), (*target, q8.address, nf))
        launches.append(Step((reader, finisher)))
    return Arm(name, launches, outputs[0], also=tuple(outputs[1:]), kept=kept)


def make_room(bench: Bench, kernel: Kernel, planned: Planned) -> int:
    """Let a planned launch have its shared memory; the blocks that then fit on an SM.

    A ring's kernel may have all that a block can, once and for all: several geometries of it share a run.
    """
    if planned.ring:
        kernel.make_room(bench.gpu.facts.smem_per_block_max_bytes - kernel.resources.smem_bytes)
    return kernel.blocks_per_sm(planned.config.block, planned.config.smem_bytes)


def spec(planned: Planned, variant: str, kernel: Kernel, d: Data) -> Spec:
    """What the row of one variant says besides its times."""
    size = d.case.content_bytes
    return Spec(
        d.case.id, variant, kernel.backend, kernel, planned.config, d.case.shape, size, size, size * d.copies,
        READ, planned.note,
    )  # fmt: skip


def not_run(bench: Bench, case: l3.Case, variant: str, kernel: Kernel, why: str) -> Row:
    """The row of a variant that must not be launched here: what its kernel costs, and why."""
    res, facts = kernel.resources, bench.gpu.facts
    return Row(
        probe="l3", case=case.id, variant=variant, backend=kernel.backend, source="measured",
        device=facts.slug, shape=[case.shape.od, case.shape.id], content_bytes=case.content_bytes,
        traffic_bytes=case.content_bytes, registers=res.registers, spill_bytes=res.spill_bytes,
        l2_bytes=facts.l2_bytes, skipped=why,
    )  # fmt: skip


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
    held = args.blocks_per_sm or 0
    for backend, mine in kernels.items():
        if case.backends and backend not in case.backends:
            continue
        for name in variants:
            v = l3.variant(name)
            kernel = mine[v.reader]
            try:
                planned = l3_launch.plan(v, case, bench.gpu.facts, held)
                if held and not v.ring:  # a ring's grid holds its blocks
                    smem = cap_smem(kernel, l3.THREADS, held, bench.gpu)
                    planned = replace(planned, config=l3.config(v, case.nf, smem))
                fit, grid = make_room(bench, kernel, planned), planned.config.grid
                if not fit:
                    raise Unavailable("the kernel does not fit on an SM")
                at_once = fit * bench.gpu.facts.sms
                if v.ring and at_once < grid:
                    raise Unavailable(
                        f"of its {grid} blocks {at_once} fit at once, and a ring is planned for all"
                    )
            except Unavailable as error:
                skipped.append(not_run(bench, case, name, kernel, str(error)))
                continue
            said = spec(planned, name, kernel, d)
            arms.append((said, arm_of(planned, said.name, mine, d, stack)))
    return arms, skipped


def reads(bench: Bench, d: Data, backends: list[Backend], stack: ExitStack) -> list[tuple[Spec, Arm]]:
    """The large read, and a plain read of as many bytes as the weights hold."""
    arms = bench.ceiling_arms(d.case.id, backends)
    want = checksum.read_xors(d.raw.reshape(-1))
    size = d.raw.nbytes
    for backend in backends:
        said = Spec(
            d.case.id, READ, backend, bench.harness("harness_read", backend), read_config(size),
            content_bytes=size, traffic_bytes=size, rotation_bytes=size * d.copies,
        )  # fmt: skip
        out = stack.enter_context(Buffer(4 * want.size))
        arms.append((said, bench.read_arm(said.name, backend, d.weights, out, size, d.copies, want)))
    return arms
