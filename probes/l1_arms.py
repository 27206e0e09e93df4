"""L1's weights on a GPU in every layout, and the arms over them: what a run and a sweep are made of."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from probes import l1, l1_ring
from probes.bench import Bench, Spec, bits, read_config, seeded_rows
from probes.core import checksum, packing, q6k, q8, trace
from probes.core.layouts import Layout
from probes.core.rows import Row
from probes.core.types import Backend, Unavailable
from probes.gpu import timing
from probes.gpu.kernels import Kernel
from probes.gpu.memory import Buffer
from probes.gpu.timing import Arm, Output
from probes.l1_launch import Planned

U8: TypeAlias = NDArray[np.uint8]
U32: TypeAlias = NDArray[np.uint32]


@dataclass
class Weights:
    """One case's data: the packed layouts on both sides, and what every kernel must return."""

    packed: dict[str, U8]
    device: dict[str, Buffer]
    activations: Buffer
    copies: int
    rows: NDArray[np.int64]
    want: U32
    sums: dict[str, U32]
    """Row checksums of the stream form, of the rows in `rows`."""
    whole: dict[str, U32]
    """Every row's words once one variant has passed the oracle: by 'sum' or layout."""


def weights(
    bench: Bench, case: l1.Case, args: argparse.Namespace, needed: list[Layout], stack: ExitStack
) -> Weights:
    """A case's weights in the needed layouts, and what every kernel must return; held by `stack`."""
    shape, seed = case.shape, bench.seed
    bench.progress(f"{case.id}: {shape} weights, {len(needed)} layouts")
    if case.tensor:
        from probes.core import gguf_file

        raw, _ = gguf_file.read(args.gguf, case.tensor)
    else:
        raw = q6k.random_raw(shape, seed)
    x8 = q8.random_x8(shape.id, seed + 1)
    rows = seeded_rows(shape.od, seed)
    want = bits(q6k.reference(raw, x8, rows))
    packed = {lay.name: packing.pack(raw, lay) for lay in needed}
    free, _ = bench.gpu.free_bytes()
    most = max(p.nbytes for p in packed.values())
    copies = timing.rotation(most, bench.gpu.facts.l2_bytes, free // max(1, len(needed)) * 4)
    if most * len(needed) > free:
        raise Unavailable(
            f"{case.id} needs {most * len(needed) >> 20} MiB on the GPU, {free >> 20} MiB are free"
        )
    device = {name: stack.enter_context(Buffer.of(p, copies)) for name, p in packed.items()}
    sums = {lay.name: checksum.stream_sums(packed[lay.name][rows], lay, shape.nbe, x8) for lay in needed}
    return Weights(packed, device, stack.enter_context(Buffer.of(x8)), copies, rows, want, sums, {})


def spec(case: l1.Case, variant: str, kernel: Kernel, lay: Layout, planned: Planned, w: Weights) -> Spec:
    """What the row of one variant says besides its times."""
    return Spec(
        case.id, variant, kernel.backend, kernel, planned.config, case.shape, l1.content_bytes(case.shape),
        trace.traffic_bytes(lay, case.shape), w.packed[lay.name].nbytes * w.copies,
        l1.READ_OF.get(lay.name, ""), planned.note,
    )  # fmt: skip


def not_run(bench: Bench, case: l1.Case, variant: str, kernel: Kernel, lay: Layout, why: str) -> Row:
    """The row of a variant that must not be launched here: what its kernel costs, and why."""
    res, facts = kernel.resources, bench.gpu.facts
    return Row(
        probe="l1", case=case.id, variant=variant, backend=kernel.backend, source="measured",
        device=facts.slug, shape=[case.shape.od, case.shape.id],
        content_bytes=l1.content_bytes(case.shape), traffic_bytes=trace.traffic_bytes(lay, case.shape),
        registers=res.registers, spill_bytes=res.spill_bytes, l2_bytes=facts.l2_bytes, skipped=why,
    )  # fmt: skip


def make_room(bench: Bench, kernel: Kernel, planned: Planned) -> int:
    """Let a planned launch have its shared memory; the blocks that then fit on an SM.

    A ring's kernel may have all that a block can, once and for all: several geometries of it share a run.
    """
    if planned.ring:
        most = bench.gpu.facts.smem_per_block_max_bytes - kernel.resources.smem_bytes
        l1_ring.make_room(kernel, most)
    return kernel.blocks_per_sm(planned.config.block, planned.config.smem_bytes)


def arm(
    bench: Bench,
    case: l1.Case,
    spec: Spec,
    lay: Layout,
    planned: Planned,
    w: Weights,
    stack: ExitStack,
    once: bool = False,
) -> Arm:
    """One variant's arm. The first arm of a kind is held to the oracle's rows, all others to all of its rows.

    With `once` every arm is held to the oracle's rows alone, and nothing is launched here.
    """
    od, data, stream = case.shape.od, w.device[lay.name], planned.form == "stream"
    out = stack.enter_context(Buffer(4 * od))
    counter = 0
    if planned.ring and planned.ring.drawn:  # launches of a graph's arm follow each other: one word is enough
        word = stack.enter_context(Buffer.of(np.zeros(4, np.uint32)))
        counter = word.address
    launches = [
        planned.launch(
            spec.kernel, (data.address + k * data.pitch, w.activations.address, out.address), counter
        )
        for k in range(w.copies)
    ]
    sample = Output(out, od, w.sums[lay.name] if stream else w.want, w.rows)
    if once:
        return Arm(spec.name, launches, sample)
    kind = lay.name if stream else "sum"
    if kind not in w.whole:
        out.poison()
        launches[0].enqueue(bench.gpu.stream)
        w.whole[kind] = sample.check(f"{case.id} {spec.name}")
    every = w.whole[kind].copy()
    every[w.rows] = sample.want  # the oracle's rows stay the oracle's
    return Arm(spec.name, launches, Output(out, od, every))


def reads(
    bench: Bench, case: l1.Case, w: Weights, backends: list[Backend], stack: ExitStack
) -> list[tuple[Spec, Arm]]:
    """Plain reads of as many bytes as the layouts store, and the large read."""
    arms = bench.ceiling_arms(case.id, backends)
    seen: set[str] = set()
    for name, packed in w.packed.items():
        read = l1.READ_OF.get(name, f"read_{name}")
        if read in seen:
            continue
        seen.add(read)
        want = checksum.read_xors(packed.reshape(-1))
        for backend in backends:
            config = read_config(packed.nbytes)
            size = packed.nbytes
            spec = Spec(
                case.id, read, backend, bench.harness("harness_read", backend), config,
                content_bytes=size, traffic_bytes=size, rotation_bytes=size * w.copies,
            )  # fmt: skip
            out = stack.enter_context(Buffer(4 * want.size))
            arms.append(
                (spec, bench.read_arm(spec.name, backend, w.device[name], out, packed.nbytes, w.copies, want))
            )
    return arms
