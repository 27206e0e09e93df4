"""L3 on a GPU: gate and up weights, copied until they are cold, and the arms over them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import numpy as np

from probes.core.types import Backend, LaunchConfig, Unavailable, WrongResult
from probes.engine import reads
from probes.engine.arms import Kernels
from probes.engine.bench import Bench, Spec, cap_smem
from probes.engine.plan import Planned
from probes.engine.probe import Arms, Case, Evidence, Variant
from probes.engine.profile import once
from probes.formats import checksum
from probes.formats.checksum import bits
from probes.gpu import timing
from probes.gpu.kernels import Kernel, Launch, Launches, int32
from probes.gpu.memory import Buffer
from probes.gpu.timing import Arm, Output
from probes.l3 import data, plan, table
from probes.l3.data import F32, U8, Wanted
from probes.l3.table import Fusion
from probes.report.rows import Row


@dataclass
class GateUp:
    """One case on both sides: weights, activations, and what every kernel must return."""

    case: Case
    raw: U8
    weights: Buffer
    x8: Buffer
    copies: int
    want: Wanted
    stack: ExitStack
    _slots: dict[tuple[str, int], Buffer] = field(default_factory=dict)

    def slots(self, what: str, words: int, zero: bool = False) -> Buffer:
        """Room for so many words for each copy of the weights, the same for every arm."""
        key = (what, words)
        if key not in self._slots:
            made = (
                Buffer.of(np.zeros(words, np.uint32), self.copies)
                if zero
                else Buffer.slots(4 * words, self.copies)
            )
            self._slots[key] = self.stack.enter_context(made)
        return self._slots[key]

    def rotation_bytes(self, planned: Planned) -> int:
        """Bytes that a variant's launches rotate over."""
        return self.raw.nbytes * self.copies

    def copy(self, k: int) -> int:
        """Device address of one copy of the weights."""
        return self.weights.address + k * self.weights.pitch


class FusionArms(Arms):
    """See `probes.engine.probe.Arms`. `largest`: the sweep's weights, of which each point takes its rows."""

    def __init__(self, bench: Bench, args: argparse.Namespace, kernels: Kernels) -> None:
        self.bench, self.args, self.kernels = bench, args, kernels
        self.largest: tuple[U8, Wanted] | None = None

    def open(self, case: Case, variants: Sequence[Variant], stack: ExitStack) -> GateUp:
        """Weights, activations and what they must give. Raises Unavailable without room.

        A seeded sample of at least 4096 rows is held to the oracle; the other sums are the first backend's
        matmul's, and SwiGLU and quantising are NumPy's. With --once the oracle sums every row, and nothing is
        launched here.
        """
        self.bench.progress(f"{case.id}: {case.matrix} q4_K weights")
        x8 = data.random_x8(case.matrix.id, self.bench.seed + 1)
        raw, want = self._swept(case, x8) if case.sweep == table.WAVES else (self._raw(case), None)
        free, _ = self.bench.gpu.free_bytes()
        if raw.nbytes > free:
            raise Unavailable(f"{case.id} needs {raw.nbytes >> 20} MiB on the GPU, {free >> 20} MiB are free")
        copies = timing.rotation(raw.nbytes, self.bench.gpu.facts.l2_bytes, free)
        weights, activations = (stack.enter_context(b) for b in (Buffer.of(raw, copies), Buffer.of(x8)))
        if want is None:
            gu = data.oracle(raw, x8) if self.args.once else self._sums(case, raw, x8, weights, activations)
            want = Wanted.of(gu, case.id)
        return GateUp(case, raw, weights, activations, copies, want, stack)

    def _raw(self, case: Case) -> U8:
        if case.tensors:
            return data.read_gate_up(self.args.gguf, *case.tensors)[0]
        return data.random_gate_up(table.nf_of(case), case.matrix.id, self.bench.seed)

    def _swept(self, case: Case, x8: U8) -> tuple[U8, Wanted]:
        """The first rows of the largest point's weights, which are summed and checked once."""
        if self.largest is None:
            fit = {b: k["l3_form_b"].blocks_per_sm(plan.THREADS) for b, k in self.kernels.items()}
            fit = {b: min(n, self.args.blocks_per_sm or n) for b, n in fit.items()}
            cases = table.sweep_cases(table.WAVES, self.args, self.bench.gpu.facts.sms, lambda _: fit)
            most = max(cases, key=table.nf_of)
            raw = self._raw(most)
            with Buffer.of(raw) as weights, Buffer.of(x8) as activations:
                self.largest = raw, Wanted.of(self._sums(most, raw, x8, weights, activations), most.id)
        nf = table.nf_of(case)
        return data.first_rows(self.largest[0], nf), self.largest[1].first(nf)

    def _sums(self, case: Case, raw: U8, x8: U8, weights: Buffer, activations: Buffer) -> F32:
        """Every row's sum by one launch of a matmul kernel, a sample of them equal to the oracle's."""
        od = case.matrix.od
        matmul = next(iter(self.kernels.values()))["l3_matmul"]
        rows = checksum.sampled_rows(od, self.bench.seed)
        want = bits(data.oracle(raw, x8, rows))
        with Buffer(4 * od) as out:
            out.poison()
            args = (weights.address, activations.address, out.address, int32(case.matrix.nbe))
            Launch(matmul, LaunchConfig(od, plan.THREADS), args).enqueue(self.bench.gpu.stream)
            found = Output(out, od, want, rows).check(f"{case.id} l3_matmul")
        return found.view(np.float32)

    def arm(self, material: GateUp, planned: Planned, name: str, backend: Backend) -> Arm:
        """One variant's arm: a launch per weight copy, or a step of two; every output is checked.

        A launch writes to its copy's slots. A ring's counters are shown to be 0 again.
        """
        d, v, kernels = material, planned.variant, self.kernels[backend]
        assert isinstance(v, Fusion), "a variant of L3"
        nf = table.nf_of(d.case)
        want = [d.want.q8]
        if v.finisher:  # there is an f32 intermediate, checked too
            want.append(bits(d.want.gu if v.sums_alone else d.want.h))
        outputs = [
            Output(d.slots(what, w.size), w.size, w, slots=d.copies)
            for what, w in zip(("q8", "values"), want, strict=False)
        ]
        kept: tuple[Output, ...] = ()
        if count := plan.counters(planned, nf):
            counters = d.slots("counters", count, zero=True)
            kept = (Output(counters, count, np.zeros(count, np.uint32), slots=d.copies),)
        launches: list[Launch | Launches] = []
        for k in range(d.copies):
            q8, *values = (o.buffer.address + k * o.buffer.pitch for o in outputs)
            words = kept[0].buffer.address + k * kept[0].buffer.pitch if kept else 0
            target = tuple(values) or (q8,)
            reader = _reader(planned, kernels[v.reader], d, d.copy(k), target, words)
            if not v.finisher:
                launches.append(reader)
                continue
            args = (*target, q8, int32(nf))
            launches.append(Launches((reader, Launch(kernels[v.finisher], plan.finish_config(nf), args))))
        return Arm(name, launches, outputs[0], also=tuple(outputs[1:]), kept=kept)

    def reads(self, material: GateUp, backends: Sequence[Backend]) -> list[tuple[Spec, Arm]]:
        """A plain read of as many bytes as the weights hold; none in the sweep over waves."""
        d = material
        if d.case.sweep == table.WAVES:
            return []
        source = reads.Source.of(d.raw.reshape(-1), d.weights, d.copies, d.stack)
        return reads.arms(self.bench, d.case, plan.READ, source, backends)

    def prove(self, material: GateUp, planned: Planned, spec: Spec) -> Evidence:
        """Load balance by a traced launch (a ring has none), and what the second kernel of a step costs."""
        v, d = planned.variant, material
        assert isinstance(v, Fusion), "a variant of L3"
        if d.case.sweep and v.name != "form_b":
            return Evidence()
        kernels, out = self.kernels[spec.backend], Evidence()
        if v.finisher:
            res, grid = kernels[v.finisher].resources, plan.finish_config(table.nf_of(d.case)).grid
            out.notes.append(f"then {v.finisher}: {grid} blocks, {res.registers} registers")
        if v.ring:
            out.notes.append("load balance is not counted: its blocks stay, and tickets make them even")
        elif v.role != "again":
            out.load_balance, note = self._load_balance(spec, kernels[v.traced], d)
            out.notes += [note] if note else []
        return out

    def _load_balance(self, spec: Spec, traced: Kernel, d: GateUp) -> tuple[float, str]:
        """(blocks of the busiest SM over the mean of all SMs, a note) from one checked launch of the twin.

        Raises Unavailable where blocks ran outside the partition.
        """
        v, sms, launch = spec.planned.variant, self.bench.gpu.facts.sms, spec.planned.config
        assert isinstance(v, Fusion), "a variant of L3"
        held = self.args.blocks_per_sm
        smem = cap_smem(traced, plan.THREADS, held, self.bench.gpu) if held else 0
        want = {"l3_matmul": bits(d.want.gu), "l3_form_a": bits(d.want.h)}.get(v.reader, d.want.q8)
        with Buffer(4 * want.size) as out, Buffer(4 * launch.grid) as where:
            out.poison()
            where.poison()
            pointers, ints = plan.arguments(spec.planned, d.case, d.copy(0), d.x8.address, (out.address,))
            args = (*pointers, *map(int32, ints), where.address)
            Launch(traced, replace(launch, smem_bytes=smem), args).enqueue(self.bench.gpu.stream)
            Output(out, want.size, want).check(f"{d.case.id} {traced.name}")
            seen = where.download(np.uint32, launch.grid)
        if (seen == 0xFFFFFFFF).any():
            first = int(np.argmax(seen == 0xFFFFFFFF))
            raise WrongResult(f"{traced.name} left a block out", first, "none", "an SM")
        counts = np.unique(seen, return_counts=True)[1]
        if counts.size > sms:
            told = f"blocks ran on {counts.size} SMs where there are {sms}"
            raise Unavailable(f"{told}: the partition does not hold")
        mine = traced.blocks_per_sm(plan.THREADS, smem)
        timed = spec.kernel.blocks_per_sm(plan.THREADS, launch.smem_bytes)
        notes = [f"its blocks used {counts.size} of {sms} SMs"] if counts.size < sms else []
        notes += [f"load balance seen at {mine} blocks/SM, timed at {timed}"] if mine != timed else []
        return float(counts.max() / (launch.grid / sms)), "; ".join(notes)

    def once(self, material: GateUp, arms: Sequence[tuple[Spec, Arm]]) -> list[Row]:
        """Each arm once."""
        return once("l3", self.bench, arms)


def _reader(planned: Planned, kernel: Kernel, d: GateUp, w: int, out: tuple[int, ...], words: int) -> Launch:
    pointers, ints = plan.arguments(planned, d.case, w, d.x8.address, out, words)
    return Launch(kernel, planned.config, (*pointers, *map(int32, ints)))


def make(bench: Bench, args: argparse.Namespace, kernels: Kernels, keep: ExitStack) -> Arms:
    """L3's arms; the sweep's host weights outlive a case."""
    return FusionArms(bench, args, kernels)
