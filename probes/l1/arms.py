"""L1 on a GPU: a case's weights in every layout, copied until they are cold, and the arms over them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from probes.core.types import Backend, Unavailable
from probes.engine import reads
from probes.engine.arms import Kernels
from probes.engine.bench import Bench, Spec
from probes.engine.plan import Planned
from probes.engine.probe import Arms, Case, Variant
from probes.engine.profile import once
from probes.formats.layouts import LAYOUTS
from probes.gpu import timing
from probes.gpu.kernels import Kernel, Launch, int32
from probes.gpu.memory import Buffer
from probes.gpu.timing import Arm, Output
from probes.l1 import data, table
from probes.l1.table import Matvec
from probes.report.rows import Row


@dataclass
class Layouts:
    """One case on the device: its weights by layout, and what every kernel must return."""

    case: Case
    host: data.Weights
    device: dict[str, Buffer]
    activations: Buffer
    outs: Buffer
    counters: Buffer
    """Results and ring counters: a slot for each copy of the weights, the same for every arm."""
    copies: int
    stack: ExitStack
    whole: dict[str, data.U32]
    """Every row's words once one variant has passed the oracle: by 'sum', or by layout of the stream form."""

    def rotation_bytes(self, planned: Planned) -> int:
        """Bytes that a variant's launches rotate over."""
        v = planned.variant
        assert isinstance(v, Matvec), "a variant of L1"
        return self.host.packed[v.layout.name].nbytes * self.copies


class LayoutArms(Arms):
    """See `probes.engine.probe.Arms`."""

    def __init__(self, bench: Bench, args: argparse.Namespace, kernels: Kernels) -> None:
        self.bench, self.args, self.kernels = bench, args, kernels

    def open(self, case: Case, variants: Sequence[Variant], stack: ExitStack) -> Layouts:
        """The weights in the layouts that the variants read. Raises Unavailable where they have no room."""
        used = {v.layout.name for v in variants if isinstance(v, Matvec)}
        needed = [lay for lay in LAYOUTS if lay.name in used]
        self.bench.progress(f"{case.id}: {case.matrix} weights, {len(needed)} layouts")
        host = data.weights(case, needed, self.bench.seed, self.args.gguf)
        free, _ = self.bench.gpu.free_bytes()
        # the smallest layout must be cold too; an arm again has weights of its own
        least, most = (f(p.nbytes for p in host.packed.values()) for f in (min, max))
        held = len(needed) + len(self.kernels) * sum(v.role == "again" for v in variants)
        copies = timing.rotation(least, self.bench.gpu.facts.l2_bytes, free // held * 4)
        if (size := most * held) > free:
            raise Unavailable(f"{case.id} needs {size >> 20} MiB on the GPU, {free >> 20} MiB are free")
        keep = stack.enter_context
        return Layouts(
            case, host, {name: keep(Buffer.of(p, copies)) for name, p in host.packed.items()},
            keep(Buffer.of(host.x8)), keep(Buffer.slots(4 * case.matrix.od, copies)),
            keep(Buffer.of(np.zeros(4, np.uint32), copies)), copies, stack, {},
        )  # fmt: skip

    def arm(self, material: Layouts, planned: Planned, name: str, backend: Backend) -> Arm:
        """One variant's arm. The first of a kind is held to the oracle's rows, all others to all of its rows.

        An arm again reads weights of its own: where weights lie is part of what it is to show. Under --once
        every arm is held to the oracle's rows, and nothing is launched here.
        """
        v, w = planned.variant, material
        assert isinstance(v, Matvec), "a variant of L1"
        od, weights, stream = w.case.matrix.od, w.device[v.layout.name], v.form.name == "stream"
        if v.role == "again":
            weights = w.stack.enter_context(weights.copied())
        drawn = planned.ring is not None and planned.ring.drawn
        kernel = self.kernels[backend][planned.kernel]
        launches = []
        for k in range(w.copies):
            read, out, counter = (b.address + k * b.pitch for b in (weights, w.outs, w.counters))
            launches.append(launch(planned, kernel, w, (read, out), counter if drawn else 0))
        want = w.host.streamed[v.layout.name] if stream else w.host.want
        sample = Output(w.outs, od, want, w.host.rows, w.copies)
        kept = (Output(w.counters, 1, np.zeros(1, np.uint32), slots=w.copies),) if drawn else ()
        if self.args.once:
            return Arm(name, launches, sample, kept=kept)
        kind = v.layout.name if stream else "sum"
        if kind not in w.whole:
            w.outs.poison()
            launches[0].enqueue(self.bench.gpu.stream)
            w.whole[kind] = sample.check(f"{w.case.id} {name}")
        every = w.whole[kind].copy()
        every[w.host.rows] = sample.want  # the oracle's rows stay the oracle's
        return Arm(name, launches, Output(w.outs, od, every, slots=w.copies), kept=kept)

    def reads(self, material: Layouts, backends: Sequence[Backend]) -> list[tuple[Spec, Arm]]:
        """Plain reads of as many bytes as the layouts store."""
        out: dict[str, list[tuple[Spec, Arm]]] = {}
        w, hot = material, list[tuple[Spec, Arm]]()
        for layout, packed in w.host.packed.items():
            family = table.READ_OF.get(layout, f"read_{layout}")
            if family not in out:
                source = reads.Source.of(packed.reshape(-1), w.device[layout], w.copies, w.stack)
                out[family] = reads.arms(self.bench, w.case, family, source, backends)
                if not hot and not w.case.sweep and not self.args.once:
                    hot = [reads.control(self.bench, w.case, family, source, backends[0])]
        return [*(arm for arms in out.values() for arm in arms), *hot]

    def settle(self, material: Layouts, planned: Planned, arm: Arm, row: Row, rows: Sequence[Row]) -> None:
        """What a dispatcher chose; and, once, whether the hot control was faster."""
        if planned.variant.role == "control":
            reads.hold(rows)
        if planned.variant.role == "choice":
            row.notes.append(f"dispatched to {planned.variant.of}")

    def once(self, material: Layouts, arms: Sequence[tuple[Spec, Arm]]) -> list[Row]:
        """Each arm once."""
        return once("l1", self.bench, arms)


def launch(planned: Planned, kernel: Kernel, w: Layouts, pointers: tuple[int, int], counter: int) -> Launch:
    """A launch of weights and result at `pointers`.

    counter: for a ring, the address of one word that is 0, of no other launch that may run meanwhile.
    """
    v, shape = planned.variant, w.case.matrix
    assert isinstance(v, Matvec), "a variant of L1"
    args = (pointers[0], w.activations.address, pointers[1])
    stride = v.layout.row_stride(shape.nbe)
    if planned.ring is None:
        return Launch(kernel, planned.config, (*args, int32(shape.nbe), int32(stride)))
    made = planned.ring
    ints = (shape.nbe, stride, shape.od, made.rows, made.stages)
    return Launch(kernel, planned.config, (*args, counter if made.drawn else 0, *(int32(n) for n in ints)))


def make(bench: Bench, args: argparse.Namespace, kernels: Kernels, keep: ExitStack) -> Arms:
    """L1's arms; nothing of them outlives a case."""
    return LayoutArms(bench, args, kernels)
