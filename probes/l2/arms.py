"""L2's chains on a GPU: weights, results, the words that must come out, and the arms over them.

A ring chain must give the words of decode13's one-row-per-block kernel (`l2_q6k_plain`) on activations that
the host rotated; rows of some launches are held to the NumPy oracle. Every kernel of a decode layer is held
to the oracle, buffer by buffer; every arm of both chains and backends must then give the same last words.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from probes.core.types import Backend, Unavailable
from probes.engine.arms import Kernels
from probes.engine.bench import Bench, Spec, cap_smem
from probes.engine.plan import Planned
from probes.engine.probe import Arms, Case, Evidence, Variant
from probes.formats import chains as words
from probes.formats import checksum
from probes.formats import layer as decode_layer
from probes.formats.layouts import layout
from probes.formats.packing import pack
from probes.gpu import timing
from probes.gpu.kernels import Kernel
from probes.gpu.memory import Buffer, Region, addresses, place
from probes.gpu.timing import Arm, Output
from probes.l2 import chains, data, plan, table
from probes.l2.chains import Step
from probes.l2.overlap import (
    Chain,
    alone,
    check_layer,
    expected,
    gap_rows,
    kernel_rows,
    overlap,
    stable,
    waits,
)  # fmt: skip
from probes.l2.table import ChainCase, Launching
from probes.report.rows import Row

NO_PREFERENCE, ALL_SHARED = -1, 100
"""Per cent of an SM's L1 that a kernel wants as shared memory."""

EMPTY_COPIES = 8
"""Empty chains in a replay: 192 launches, so that a slope is not lost in the events' own step."""


@dataclass
class Opened:
    """A case's chain of each backend; for a matrix's, by tile size, those that read `size` bytes a launch."""

    case: ChainCase
    chains: dict[Backend, Chain]
    reads: dict[int, dict[Backend, Chain]] = field(default_factory=dict)
    size: int = 0

    def rotation_bytes(self, planned: Planned) -> int | None:
        """Bytes that the launches rotate over."""
        return next(iter(self.chains.values())).rotation_bytes


class ChainArms(Arms):
    """See `probes.engine.probe.Arms`."""

    def __init__(self, bench: Bench, args: argparse.Namespace, kernels: Kernels, keep: ExitStack) -> None:
        self.bench, self.args, self.kernels, self.keep = bench, args, kernels, keep
        self.layers: data.LayerOnDevice | None = None

    # Opening a case

    def open(self, case: Case, variants: Sequence[Variant], stack: ExitStack) -> Opened:
        """A case's chain of each backend. Raises Unavailable where it does not fit, or has no room."""
        assert isinstance(case, ChainCase), "a case of L2 is a chain"
        mine = {b: k for b, k in self.kernels.items() if not case.backends or b in case.backends}
        if case.chain in table.DECODE:
            return self._decode(case, mine, stack)
        if case.chain in chains.MATRICES:
            return self._matrix(case, mine, stack)
        if case.chain == "bandwidth24":
            return self._stream(case, mine, stack)
        if case.chain == "compute24":
            return Opened(case, {b: self._compute(case, b, k, stack) for b, k in mine.items()})
        kept = Output(stack.enter_context(Buffer(16)), 1, np.array([0xFFFFFFFF], np.uint32))
        return Opened(case, {b: Chain(case, b, k, [{}] * EMPTY_COPIES, kept) for b, k in mine.items()})

    def _capped(self, kernels: Sequence[str], mine: Any, held: int) -> dict[str, int]:
        """Shared memory by kernel that holds it to `held` blocks per SM; empty for 0. A ring holds itself."""
        out = {}
        for name in sorted(set(kernels) - set(chains.RINGS)) if held else ():
            kinds = [k for n, k in mine.items() if n.rpartition("_")[0] == f"l2_{name}"]
            smem = max(cap_smem(k, chains.BLOCK, held, self.bench.gpu) for k in kinds)
            for k in kinds:
                k.allow_smem(smem)
            out[name] = smem
        return out

    def _copies(self, what: str, size: int, spare: int = 1) -> int:
        """Copies of `size` bytes to rotate over. Raises Unavailable without room for `spare` times them."""
        free, _ = self.bench.gpu.free_bytes()
        count = timing.rotation(size, self.bench.gpu.facts.l2_bytes, free)
        if (whole := spare * size * count) > free:
            raise Unavailable(f"{what} needs {whole >> 20} MiB on the GPU, {free >> 20} are free")
        return count

    def _stream(self, case: ChainCase, mine: Kernels, stack: ExitStack) -> Opened:
        """bandwidth24: copies of one seeded weight, 24 to a chain."""
        steps = chains.stream_steps()
        size, tiles, n = steps[0].weight_bytes, steps[0].grid, len(steps)
        raw = np.random.SFC64(self.bench.seed).random_raw(size // 8).view(np.uint8)
        count = self._copies(case.id, size * n)
        weights = stack.enter_context(Buffer.of(raw, n * count))
        start = words.start(tiles, self.bench.seed)
        own = place(stack, start=start, a=4 * tiles, b=4 * tiles)
        output = Output(own["b"], tiles, words.stream(checksum.read_xors(raw), start, n))
        copies, held = _copied(addresses(own), {"w": weights}, n, count), self.args.blocks_per_sm or 0
        return Opened(case, {
            b: Chain(case, b, k, copies, output, self._capped(["stream"], k, held), size * n * count)
            for b, k in mine.items()
        })  # fmt: skip

    def _compute(self, case: ChainCase, backend: Backend, mine: Any, stack: ExitStack) -> Chain:
        """A compute chain: launches of `waves` waves, at the blocks per SM that the case counts with."""
        smem = self._capped([case.kernel], mine, case.held)
        kinds = [k for n, k in mine.items() if n.rpartition("_")[0] == f"l2_{case.kernel}"]
        blocks = min(k.blocks_per_sm(chains.BLOCK, smem.get(case.kernel, 0)) for k in kinds)
        if blocks != case.blocks[backend]:
            raise Unavailable(f"{case.kernel} has {blocks} blocks per SM, not {case.blocks[backend]}")
        steps = plan.steps_of(case, self.bench.gpu.facts, backend)
        threads, wide = steps[0].grid * chains.BLOCK, case.kernel == "wide"
        start = words.start(threads, self.bench.seed)
        own = place(stack, start=start, a=4 * threads, b=4 * threads)
        each = words.CONSTANTS.wide if wide else words.CONSTANTS.narrow
        want = words.compute_fast(each, int(steps[0].args[-1]), start, len(steps))
        return Chain(case, backend, mine, [addresses(own)] * 2, Output(own["b"], threads, want), smem)

    def _matrix(self, case: ChainCase, mine: Kernels, stack: ExitStack) -> Opened:
        """A chain of one matrix in every layout that its kernels read, and those that read the same bytes."""
        m, n, seed = chains.MATRICES[case.chain], table.CHAIN, self.bench.seed
        self._room(case, mine, stack)
        self.bench.progress(f"{case.id}: {n} matrices of {m.shape}")
        raw = decode_layer.weights(m.shape, seed + 11, "q6_K")
        x8, stored = data.activations(m, seed + 12), plan.stored(case.chain)
        packed = {name: pack(raw, layout(name)) for name in stored}
        size, od = packed["dpl"].nbytes, m.shape.od
        assert size % words.CONSTANTS.tile == 0, "a read chain reads whole tiles"
        count = self._copies(case.id, size * n, len(packed))
        weights = {stored[x]: stack.enter_context(Buffer.of(p, n * count)) for x, p in packed.items()}
        start = words.start(size // min(r.tile for r in table.READS.values()), seed)
        each = {"a8": x8.nbytes, "b8": x8.nbytes, "out": 4 * od * n, "a": start.nbytes, "b": start.nbytes}
        shared = place(stack, start8=x8, start=start, **each)
        fixed = addresses(shared)
        fixed |= {f"out.{k}": fixed["out"] + 4 * od * k for k in range(n)}
        copies = _copied(fixed, weights, n, count)
        at = weights["w"].address
        want = expected(self.bench, m, raw, x8, next(iter(mine.values()))["l2_q6k_plain"], at)
        output = Output(shared["out"], want.size, want.reshape(-1))

        def bound(to: Output) -> dict[Backend, Chain]:
            rotation = size * n * count
            return {b: Chain(case, b, k, copies, to, rotation_bytes=rotation) for b, k in mine.items()}

        reading = {}
        for tile in {r.tile for r in table.READS.values()}:
            xors, k = checksum.read_xors(packed["dpl"].reshape(-1), tile), size // tile
            reading[tile] = bound(Output(shared["b"], k, words.stream(xors, start[:k], n)))
        return Opened(case, bound(output), reading, size)

    def _room(self, case: ChainCase, mine: Kernels, stack: ExitStack) -> None:
        """Give the kernels of a ring chain all shared memory, until the stack closes.

        An SM splits its L1 anew only when it is empty, so a kernel with another split could not start beside
        a ring. Raises Unavailable where a launch does not fit on the SMs at once.
        """
        facts = self.bench.gpu.facts
        for backend, kernels in mine.items():
            each = [plan.steps_of(case, facts, backend, plain) for plain in (False, True)]
            for step in dict.fromkeys(s for steps in each for s in steps):
                for kind in plan.KINDS:
                    kernel = kernels[step.entry_point(kind)]
                    kernel.prefer_smem(ALL_SHARED)
                    stack.callback(kernel.prefer_smem, NO_PREFERENCE)
                    if step.smem_bytes:
                        kernel.allow_smem(facts.smem_per_block_max_bytes - kernel.resources.smem_bytes)
                        self._fits(kernel, step)

    def _fits(self, kernel: Kernel, step: Step) -> None:
        fit = kernel.blocks_per_sm(step.block, step.smem_bytes)
        if fit * self.bench.gpu.facts.sms < step.grid:
            raise Unavailable(f"{step.grid} blocks of {kernel.name}, of which {fit} fit on an SM")

    def _layers(self) -> data.LayerOnDevice:
        """Seeded weights of one layer, copied until the layers are cold; made once a run."""
        if self.layers is None:
            self.bench.progress("decode13: weights of a 14B layer")
            host = decode_layer.data(decode_layer.LAYER_14B, self.bench.seed)
            count = self._copies("decode13", chains.layer_bytes(1), spare=2)
            weights = (
                ("w.qkv", host.qkv), ("w.o", host.o), ("w.gate_up", host.gate_up),
                ("w.down", pack(host.down, layout("dpl"))),
            )  # fmt: skip
            size = host.hidden.nbytes
            shared = place(
                self.keep, gamma0=host.gamma[0], gamma1=host.gamma[1], h0=host.hidden, h1=size, h2=size
            )
            device = {name: self.keep.enter_context(Buffer.of(array, count)) for name, array in weights}
            self.layers = data.LayerOnDevice(data.LayerOracle(host), device, shared, count)
        return self.layers

    def _decode(self, case: ChainCase, mine: Kernels, stack: ExitStack) -> Opened:
        """A decode chain at one KV length, its first layer held to the oracle, kernel by kernel."""
        assert case.kv, "a decode layer has a KV length"
        if ring := case.chain in table.RING:
            self._room(case, mine, stack)
        w, kv = self._layers(), case.kv
        cache = decode_layer.cache(decode_layer.LAYER_14B, kv, self.bench.seed + 9)
        caches = stack.enter_context(Buffer.of(cache, w.count))
        sizes = chains.activation_bytes(kv)
        shared = {**w.shared, **place(stack, table=decode_layer.rope_table(kv - 1), **sizes)}
        fixed = addresses(shared)
        copies = []
        for k in range(w.count):
            own = {name: b.address + k * b.pitch for name, b in (*w.device.items(), ("w.cache", caches))}
            copies.append({**fixed, **own, "in": fixed[chains.hidden(k)], "out": fixed[chains.hidden(k + 1)]})
        at, *size = decode_layer.last_position(cache)  # stored, then read: a stale value would be right
        new = [Region(caches.address + k * caches.pitch + at, *size) for k in range(w.count)]
        self.bench.progress(f"{case.id} at KV {kv}: the oracle of a layer")
        want, left = w.layer.oracle(kv, cache)
        found, plain = {}, chains.decode_steps(kv)
        for backend, kernels in mine.items():
            steps = plan.steps_of(case, self.bench.gpu.facts, backend)
            last = Output(shared[chains.hidden(w.count)], w.layer.host.hidden.size, np.empty(0, np.uint32))
            capped = self._capped([s.kernel for s in steps], kernels, self.args.blocks_per_sm or 0)
            after = [shared[chains.hidden(k + 1)] for k in range(w.count)]
            rotation = chains.layer_bytes(kv) * w.count
            chain = Chain(case, backend, kernels, copies, last, capped, rotation, after, tuple(new))
            if ring and kv not in w.finals:  # decode13 was left out: its kernels give the words all the same
                w.finals[kv] = check_layer(self.bench, chain, plain, shared, caches, want, left)
            final = check_layer(self.bench, chain, steps, shared, caches, want, left)
            known = w.finals.setdefault(kv, final)
            data.compare(final, known, f"{case.id} at KV {kv}, {backend} against decode13's first backend")
            chain.output = replace(chain.output, want=known)
            found[backend] = chain
        return Opened(case, found)

    # Arms and what is said of them

    def arm(self, material: Opened, planned: Planned, name: str, backend: Backend) -> Arm:
        """A chain launched as one arm."""
        v, chain = planned.variant, material.chains[backend]
        assert isinstance(v, Launching), "an arm of L2"
        for step in planned.steps:
            if step.smem_bytes:
                self._fits(chain.kernels[step.entry_point(v.kind)], step)
        own = chain.launches(planned.steps, v)
        return Arm(name, own, chain.output, stale=chain.stale, whole=True, graph=v.graph)

    def reads(self, material: Opened, backends: Sequence[Backend]) -> list[tuple[Spec, Arm]]:
        """Chains that only read the same bytes, in every form."""
        out: list[tuple[Spec, Arm]] = []
        for backend in material.chains if material.reads else ():
            for name, read in table.READS.items():
                chain = material.reads[read.tile][backend]
                steps = chains.stream_steps(tiles=material.size // read.tile, launches=table.CHAIN, form=read)
                v = replace(table.arm(read.arm), name=name, role="read", of=read.of, baseline="")
                planned = plan.of_steps(v, material.case, steps)
                kernel = chain.kernels[planned.kernel]
                if read.smem_bytes:  # as many blocks on an SM as it has shared memory for
                    kernel.make_room(read.smem_bytes)
                spec = Spec(material.case, planned, kernel, chain.rotation_bytes)
                out.append((spec, Arm(spec.name, chain.launches(steps, v), chain.output, whole=True)))
        return out

    def prove(self, material: Opened, planned: Planned, spec: Spec) -> Evidence:
        """Overlap, waits in the machine code, 200 equal replays; the baseline's repetitions need none."""
        v, chain = planned.variant, material.chains[spec.backend]
        assert isinstance(v, Launching), "an arm of L2"
        if v.role == "again" or material.case.sweep:
            return Evidence()
        self.bench.progress(f"{material.case.id} {v.name}/{chain.backend}: proofs")
        seen = overlap(self.bench, chain, planned.steps, v)
        out = waits(self.bench, chain, planned.steps, v)
        out.overlap_s, out.notes = seen.median_s, [seen.text(planned.steps), *out.notes]
        if v.graph and table.dispatch(v):
            plain = plan.steps_of(material.case, self.bench.gpu.facts, spec.backend, plain=True)
            out.notes.append(stable(self.bench, chain, planned.steps, plain, v))
        return out

    def settle(self, material: Opened, planned: Planned, arm: Arm, row: Row, rows: Sequence[Row]) -> None:
        """Edges of the graph, and the gain per interface; a slow host says nothing of short launches."""
        v = planned.variant
        row.event_loop_time_s = None
        if not isinstance(v, Launching) or v.role == "read":
            return
        if material.case.chain == "empty":
            row.bitwise = None  # an empty kernel writes nothing that could be right or wrong
        plain = next((r for r in rows if r.variant == v.baseline and r.backend == row.backend), None)
        if plain and plain is not row and plain.time_s and row.time_s:
            row.gain_per_interface_s = (plain.time_s - row.time_s) / len(planned.steps)
        if material.case.sweep:
            return
        if v.graph:
            found, edges = arm.edges
            row.notes.append(f"{found} of {edges} edges programmatic")
            if table.dispatch(v) and found < edges:
                row.missing.append(f"{edges - found} edges of the graph are not programmatic")
            if not table.dispatch(v) and found:
                row.missing.append(f"{found} edges are programmatic without the attribute")
        if v.pdl and not table.dispatch(v) and v.env is None:
            row.missing.append("PROBES_PDL=0: launched without the attribute")

    def more(self, material: Opened, variants: Sequence[Variant]) -> list[Row]:
        """A row for each kernel of a chain; of the empty chain, the gap in a pair of launches."""
        rows: list[Row] = []
        for backend, chain in material.chains.items() if not material.case.sweep else ():
            steps = plan.steps_of(material.case, self.bench.gpu.facts, backend)
            rows += kernel_rows(self.bench, chain, steps)
            if material.case.chain == "empty":
                rows += gap_rows(self.bench, chain, steps[:2], variants)
        return rows

    def once(self, material: Opened, arms: Sequence[tuple[Spec, Arm]]) -> list[Row]:
        """Each kernel of each chain alone, once the chain was run in both kinds and gave its words."""
        return alone(self.bench, material.case, list(material.chains.values()), arms)


def _copied(fixed: dict[str, int], weights: dict[str, Buffer], n: int, count: int) -> list[dict[str, int]]:
    """Addresses by name per copy of a chain of `n` launches with weights of their own, `w.0` and on."""
    at = {(x, k): b.address + k * b.pitch for x, b in weights.items() for k in range(n * count)}
    return [
        {**fixed, **{f"{x}.{k}": at[x, c * n + k] for x in weights for k in range(n)}} for c in range(count)
    ]


def make(bench: Bench, args: argparse.Namespace, kernels: Kernels, keep: ExitStack) -> Arms:
    """L2's arms; the decode layers' weights live as long as `keep`."""
    return ChainArms(bench, args, kernels, keep)
