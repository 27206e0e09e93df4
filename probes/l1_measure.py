"""L1 on a GPU: weights in every layout, one arm per variant and backend, checked and timed together."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from probes import l1
from probes.bench import BACKENDS, Bench, Spec, bits, cap_smem, read_config, resource_row, seeded_rows
from probes.core import checksum, packing, q6k, q8, trace
from probes.core.layouts import LAYOUTS, Layout
from probes.core.rows import Row
from probes.core.types import Backend, Unavailable
from probes.gpu import timing
from probes.gpu.kernels import Kernel, Launch, int32
from probes.gpu.memory import Buffer
from probes.gpu.timing import Arm, Output

U8: TypeAlias = NDArray[np.uint8]
U32: TypeAlias = NDArray[np.uint32]
READ_OF = {"padded": "read_padded", "gs": "read_padded", "dpl": "read_dpl", "gpl": "read_dpl"}
"""The plain read that moves as many bytes as a layout stores."""


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


def _weights(
    bench: Bench, case: l1.Case, args: argparse.Namespace, needed: list[Layout], stack: ExitStack
) -> Weights:
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


def _arm(
    case: l1.Case,
    spec: Spec,
    lay: Layout,
    form: str,
    w: Weights,
    bench: Bench,
    stack: ExitStack,
    once: bool = False,
) -> Arm:
    """One variant's arm. The first arm of a kind is held to the oracle's rows, all others to all of its rows.

    With `once` every arm is held to the oracle's rows alone, and nothing is launched here.
    """
    shape = case.shape
    l1.check_launch(lay, form, shape, w.packed[lay.name].shape[1])
    out = stack.enter_context(Buffer(4 * shape.od))
    data = w.device[lay.name]
    tail = (w.activations.address, out.address, int32(shape.nbe), int32(w.packed[lay.name].shape[1]))
    launches = [
        Launch(spec.kernel, spec.config, (data.address + k * data.pitch, *tail)) for k in range(w.copies)
    ]
    if once:
        return Arm(
            spec.name,
            launches,
            Output(out, shape.od, w.sums[lay.name] if form == "stream" else w.want, w.rows),
        )
    kind = lay.name if form == "stream" else "sum"
    sample = Output(out, shape.od, w.sums[lay.name] if form == "stream" else w.want, w.rows)
    if kind not in w.whole:
        out.poison()
        launches[0].enqueue(bench.gpu.stream)
        w.whole[kind] = sample.check(f"{case.id} {spec.name}")
    every = w.whole[kind].copy()
    every[w.rows] = sample.want  # the oracle's rows stay the oracle's
    return Arm(spec.name, launches, Output(out, shape.od, every))


def _reads(
    bench: Bench, case: l1.Case, w: Weights, backends: list[Backend], stack: ExitStack
) -> list[tuple[Spec, Arm]]:
    """Plain reads of as many bytes as the layouts store, and the large read."""
    arms = bench.ceiling_arms(case.id, backends)
    seen: set[str] = set()
    for name, packed in w.packed.items():
        read = READ_OF.get(name, f"read_{name}")
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


def _wanted(args: argparse.Namespace) -> list[tuple[str, Layout, l1.Form]]:
    """Variants that the flags ask for; padded_loop, the baseline, is always among them."""
    chosen = []
    for name, lay, form in l1.variants():
        asked = (not args.layout or lay.name in args.layout) and (not args.form or form.name in args.form)
        if asked or name == l1.BASELINE:
            chosen.append((name, lay, form))
    return chosen


def load_kernels(bench: Bench, args: argparse.Namespace) -> dict[Backend, dict[str, Kernel]]:
    """Every L1 kernel of each backend that works here; bench.skipped says why another does not."""
    out: dict[Backend, dict[str, Kernel]] = {}
    names = [f"l1_{name}" for name, _, _ in l1.variants()]
    for backend in BACKENDS:
        if args.backend and backend not in args.backend:
            continue
        try:
            out[backend] = bench.kernels("l1", names, backend, args.blocks_per_sm or 0)
        except Unavailable as error:
            bench.skipped[backend] = str(error)
    if not out:
        raise Unavailable("; ".join(bench.skipped.values()))
    return out


def measure(bench: Bench, args: argparse.Namespace) -> Iterator[list[Row]]:
    """Rows of one case after the other: every variant, the dispatcher's flip, A/A, the reads."""
    cases = l1.cases(args)
    kernels = load_kernels(bench, args)
    for case in cases:
        with ExitStack() as stack:
            yield _case(bench, args, case, kernels, stack)


def arms_of(
    bench: Bench,
    args: argparse.Namespace,
    case: l1.Case,
    kernels: dict[Backend, dict[str, Kernel]],
    stack: ExitStack,
) -> tuple[list[tuple[Spec, Arm]], list[Row]]:
    """One case's arms in the report's order, and a row with the reason for each that must not run.

    Device memory is held by `stack`.
    """
    chosen = _wanted(args)
    flip = {name: l1.dispatch(case.shape, dpl_built=True, env=env) for name, env in l1.FLIP.items()}
    by_name = {name: (lay, form) for name, lay, form in l1.variants()}
    needed = [lay for lay in LAYOUTS if lay.name in {x.name for _, x, _ in chosen} | {"dpl"}]
    if args.layout:
        needed = [lay for lay in LAYOUTS if lay.name in {x.name for _, x, _ in chosen}]
    w = _weights(bench, case, args, needed, stack)
    arms: list[tuple[Spec, Arm]] = []
    skipped: list[Row] = []

    def add(variant: str, kernel_name: str, backend: Backend) -> None:
        lay, form = by_name[kernel_name]
        kernel = kernels[backend][f"l1_{kernel_name}"]
        smem = cap_smem(kernel, 256, args.blocks_per_sm, bench.gpu) if args.blocks_per_sm else 0
        spec = Spec(
            case.id, variant, backend, kernel, l1.launch_config(case.shape, smem), case.shape,
            l1.content_bytes(case.shape), trace.traffic_bytes(lay, case.shape),
            w.packed[lay.name].nbytes * w.copies, READ_OF.get(lay.name, ""),
        )  # fmt: skip
        why = form.refuses(case.shape)
        if not why and spec.kernel.blocks_per_sm(256, smem) == 0:
            why = "the kernel does not fit on an SM"
        if why:
            row = resource_row("l1", spec, bench.gpu)
            row.skipped = why
            skipped.append(row)
        else:
            arms.append((spec, _arm(case, spec, lay, form.name, w, bench, stack, args.once)))

    for backend in kernels:
        for name, _, _ in chosen:
            add(name, name, backend)
        add(l1.AA, l1.BASELINE, backend)
        if all(by_name[k][0].name in w.packed for k in flip.values()):
            for name, kernel_name in flip.items():
                add(name, kernel_name, backend)
    arms += _reads(bench, case, w, list(kernels), stack)
    return arms, skipped


def _case(
    bench: Bench,
    args: argparse.Namespace,
    case: l1.Case,
    kernels: dict[Backend, dict[str, Kernel]],
    stack: ExitStack,
) -> list[Row]:
    arms, skipped = arms_of(bench, args, case, kernels, stack)
    if args.once:
        return _once(bench, arms)
    rows = bench.measure("l1", arms, {b: f"{l1.BASELINE}/{b}" for b in kernels}, case.id)
    for row in rows:
        row.counts = dict(case.counts)
        if row.variant in l1.FLIP:
            chosen = l1.dispatch(case.shape, dpl_built=True, env=l1.FLIP[row.variant])
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
    for spec, arm in arms:
        arm.launches[0].enqueue(bench.gpu.stream)
        bench.gpu.stream.sync()
        arm.output.check(spec.name)
        rows.append(resource_row("l1", spec, bench.gpu))
    return rows
