"""A chain bound to device buffers: its launches in any arm, what they must give, and the proofs."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probes.core.types import Backend, LaunchConfig, Role, Unavailable, WrongResult
from probes.engine import machine_code, reads
from probes.engine.bench import Bench, Spec
from probes.engine.plan import Planned, described, occupy
from probes.engine.probe import Evidence, Variant
from probes.formats import q6k
from probes.formats.checksum import bits
from probes.formats.layer import F16
from probes.gpu import counters
from probes.gpu.graph import Eager, capture
from probes.gpu.kernels import Kernel, Launch, Launches, int32
from probes.gpu.memory import Buffer, Region
from probes.gpu.timing import Arm, Output, synchronize
from probes.l2 import chains, data, table
from probes.l2.chains import Step
from probes.l2.plan import beside, interfaces, kernel_row, launch_config, steps_of, told
from probes.l2.table import ChainCase, Launching
from probes.report.rows import Row
from probes.verdict.blocks import F64

NOTHING = LaunchConfig(1, 1)
REPLAYS = 200
"""Replays of an arm's graph that must all give the eager launches' words, as recorded."""

ORACLE_ROWS = 256
"""Rows that the oracle checks, of each launch that it looks at."""

SAFE_COPIES = 2
"""Copies (or layers) in the graph that is replayed so often."""


@dataclass
class Chain:
    """One chain of one backend. `copies` holds the buffers' addresses by name, per weight copy (or layer)."""

    case: ChainCase
    backend: Backend
    kernels: Mapping[str, Kernel]
    copies: list[dict[str, int]]
    output: Output
    smem: dict[str, int] = field(default_factory=dict)
    """Dynamic shared memory by kernel, where blocks per SM are held down."""
    rotation_bytes: int | None = None
    results: list[Buffer] = field(default_factory=list)
    """Where the result lies after each copy, if not always in the output's buffer."""
    stale: tuple[Region, ...] = ()  # what a launch writes before it reads it

    def result(self, copies: int) -> Buffer:
        """The buffer that holds the result once the first `copies` copies were run."""
        return self.results[copies - 1] if self.results else self.output.buffer

    def launches(
        self, steps: Sequence[Step], arm: Launching, stamps: int = 0, copies: int | None = None
    ) -> list[Launches]:
        """An arm's launches, several per copy; `stamps`: address of two 64-bit words per launch, 0: none."""
        pdl, stamp = table.dispatch(arm), chains.STAMP if stamps else 0
        out, k = [], 0
        for addresses in self.copies[:copies]:
            chain = []
            for step in steps:
                args = [_argument(a, addresses) for a in step.args]
                end = (int32(step.flags(arm.trigger) | stamp), stamps + 16 * k if stamps else 0)
                config = launch_config(step, self.smem.get(step.kernel, 0), pdl)
                chain.append(Launch(self.kernels[step.entry_point(arm.kind)], config, (*args, *end)))
                k += 1
            out.append(Launches(tuple(chain)))
        return out


def _argument(value: str | int | float, addresses: dict[str, int]) -> Any:
    if isinstance(value, str):
        return 0 if value == chains.NULL else addresses[value]
    return ctypes.c_float(value) if isinstance(value, float) else int32(value)


@dataclass(frozen=True)
class Overlap:
    """Seconds by which each launch started before its predecessor's end, f64[interfaces]; below 0: a gap."""

    seconds: F64
    step_s: float  # the timer's own step

    @property
    def median_s(self) -> float:
        """Over the interfaces."""
        return float(np.median(self.seconds))

    def text(self, steps: Sequence[Step]) -> str:
        """One line: how many interfaces overlap, and by how much each of a chain of several kernels."""
        n = self.seconds.size
        line = f"{int((self.seconds > 0).sum())} of {n} launches started before their predecessor's end"
        if len({s.name for s in steps}) > 1:
            each = [(s.name, self.seconds[(k - 1) % len(steps) :: len(steps)]) for k, s in enumerate(steps)]
            by = [f"{name} {1e6 * float(np.median(own)):+.2f}" for name, own in each if own.size]
            line += f" (us: {', '.join(by)})"
        return f"{line}; timer step {1e9 * self.step_s:.0f} ns"


def overlap(
    bench: Bench, chain: Chain, steps: Sequence[Step], arm: Launching, copies: int = SAFE_COPIES,
    replays: int = 15,
) -> Overlap:  # fmt: skip
    """Medians over replays of a stamped graph of the same kernels."""
    count = len(steps) * min(copies, len(chain.copies))
    clean = np.tile(np.array([2**64 - 1, 0], np.uint64), count)
    seen = []
    with Buffer.of(clean) as stamps:
        launches = chain.launches(steps, arm, stamps.address, copies)
        stream = bench.gpu.stream
        graph = (capture if arm.graph else Eager.of)(stream, launches)
        try:
            for _ in range(replays):
                stamps.upload(clean)
                graph.replay()
                synchronize()
                seen.append(stamps.download(np.uint64, 2 * count).reshape(count, 2))
        finally:
            graph.close()
    words = np.stack(seen[1:])  # the first one warmed up
    if (words == clean.reshape(count, 2)).any():
        raise WrongResult(f"{chain.case.id} {arm.name}/{chain.backend}: stamps", 0, "none", "one a kernel")
    ns = words.astype(np.int64)
    early = np.median(ns[:, :-1, 1] - ns[:, 1:, 0], axis=0) * 1e-9
    ticks = np.unique(ns)
    return Overlap(early, float(np.diff(ticks).min()) * 1e-9 if ticks.size > 1 else 0.0)


def stable(
    bench: Bench, chain: Chain, steps: Sequence[Step], plain: Sequence[Step], arm: Launching,
    replays: int = REPLAYS,
) -> str:  # fmt: skip
    """Capture, replay, and hold every replay to plain launches. Raises WrongResult."""
    copies, stream = min(SAFE_COPIES, len(chain.copies)), bench.gpu.stream
    where = chain.result(copies)
    where.poison()
    for several in chain.launches(plain, table.arm(table.BASELINE), copies=copies):
        several.enqueue(stream)
    want = Output(where, chain.output.words, where.download(np.uint32, chain.output.words))
    graph = capture(stream, chain.launches(steps, arm, copies=copies))
    try:
        for k in range(replays):
            where.poison()
            for region in chain.stale:
                region.poison()
            graph.replay()
            synchronize()
            want.check(f"{chain.case.id} {arm.name}/{chain.backend}, replay {k + 1} of {replays}")
    finally:
        graph.close()
    return f"{replays} replays equal to eager launches"


def waits(bench: Bench, chain: Chain, steps: Sequence[Step], arm: Launching) -> Evidence:
    """The waits in the machine code of an arm's kernels."""
    names = list(dict.fromkeys(s.entry_point(arm.kind) for s in steps))
    try:
        found = machine_code.kernels("l2", names, chain.backend, bench.gpu.facts.arch)
    except Unavailable as error:
        return Evidence(notes=[f"SASS not checked: {error}"])
    waiting = [n for n in names if machine_code.first(found[n], machine_code.WAIT) >= 0]
    if arm.kind == "plain":
        text = f"plain kernels wait: {', '.join(waiting)}"
        return Evidence(missing=[text]) if waiting else Evidence(notes=["SASS: no wait"])
    if lacking := [n for n in names if n not in waiting]:
        return Evidence(missing=[f"no wait in the SASS of {', '.join(lacking)}"])
    return Evidence(notes=[f"SASS: a wait in each of {len(names)} kernels"])


# What must come out


def expected(
    bench: Bench, m: chains.Matrix, raw: NDArray[np.uint8], x8: NDArray[np.uint8], plain: Kernel, weights: int
) -> NDArray[np.uint32]:
    """Words u32[launches, od] of W . rotate(x8, k), made by the kernel `plain` on the packed `weights`.

    raw: the same weights, for the oracle. Raises WrongResult where a row is not the oracle's.
    """
    n, od, pitch = table.CHAIN, m.shape.od, -(-x8.nbytes // 256) * 256
    inputs = np.zeros((n, pitch), np.uint8)
    for k in range(n):
        inputs[k, : x8.nbytes] = data.rotate(x8, k)
    with Buffer.of(inputs) as x, Buffer(4 * od * n) as out:
        out.poison()
        for k in range(n):
            pointers = (weights, x.address + k * pitch, out.address + 4 * od * k)
            args = (*pointers, int32(m.shape.nbe), int32(m.row_stride), int32(0), 0)
            Launch(plain, LaunchConfig(od, chains.BLOCK), args).enqueue(bench.gpu.stream)
        found = out.download(np.uint32, od * n).reshape(n, od)
    rng = np.random.default_rng(bench.seed + 13)
    for k in sorted({0, n - 1, *(int(x) for x in rng.integers(1, n - 1, 2))}):
        rows = np.sort(rng.choice(od, min(od, ORACLE_ROWS), replace=False)).astype(np.int64)
        own = np.ascontiguousarray(inputs[k, : x8.nbytes])
        want = bits(q6k.reference(raw, own, rows))
        data.compare(found[k, rows], want, f"{m.name} launch {k}, {plain.name}")
    return found


def check_layer(
    bench: Bench, chain: Chain, steps: Sequence[Step], shared: dict[str, Buffer], caches: Buffer,
    want: dict[str, NDArray[Any]], cache: F16,
) -> NDArray[np.uint32]:  # fmt: skip
    """Hold each kernel of the first layer to the oracle; returns the words after all layers, plainly run.

    want: buffers by name; cache: the first layer's as the oracle left it. Raises WrongResult.
    """
    where = f"/{chain.backend} at KV {chain.case.kv}"
    for name, buffer in shared.items():
        if name in chains.activation_bytes(1) or name in ("h1", "h2"):
            buffer.poison()
    layers = chain.launches(steps, table.arm(table.BASELINE))
    for step, launch in zip(steps, layers[0].launches, strict=True):
        launch.enqueue(bench.gpu.stream)
        name = chains.WRITES[step.name]
        buffer = shared[chains.hidden(1) if name == "h" else name]
        got = buffer.download(want[name].dtype, want[name].size)
        data.compare(got, want[name], f"{chain.case.id} {step.name}{where}")
    data.compare(caches.download(np.float16, cache.size), cache, f"{chain.case.id} KV cache{where}")
    for layer in layers[1:]:
        layer.enqueue(bench.gpu.stream)
    return bits(chain.output.buffer.download(np.float32, chain.output.words))


# A chain's kernels, one by one


def kernel_rows(bench: Bench, chain: Chain, steps: Sequence[Step]) -> list[Row]:
    """A row for each kernel of a chain: registers, waves, tail, what fits beside its predecessor."""
    facts, rows = bench.gpu.facts, []
    for step, before in interfaces(list(dict.fromkeys(steps))):
        kernel, there = (chain.kernels[s.entry_point("plain")] for s in (step, before))
        config, there_config = (launch_config(s, chain.smem.get(s.kernel, 0)) for s in (step, before))
        row = kernel_row(chain.case, chain.backend, step, facts)
        occupy(row, kernel.resources, config, facts, kernel.blocks_per_sm(step.block, config.smem_bytes))
        alone_ = there.blocks_per_sm(before.block, there_config.smem_bytes)
        new, old = (kernel.resources, config), (there.resources, there_config)
        row.notes += beside(step, before, new, old, alone_, facts)
        late = chain.kernels[step.entry_point("late")].resources.registers
        if late != kernel.resources.registers:
            row.notes.append(f"late kind: {late} registers")
        rows.append(row)
    return rows


def gap_rows(bench: Bench, chain: Chain, pair: Sequence[Step], variants: Sequence[Variant]) -> list[Row]:
    """A pair in a graph: how long after the first launch's end the second one starts, by the timer."""
    rows = []
    own = replace(chain, copies=[{}])
    for v in variants:
        assert isinstance(v, Launching), "an arm of L2"
        if not v.graph or v.role == "again" or (v.pdl and not table.dispatch(v)):
            continue
        seen = overlap(bench, own, pair, v, replays=60)
        own_v = Variant(name=f"pair_{v.name}", role="gap", of=v.name)
        planned = Planned(variant=own_v, kernel="", config=NOTHING)
        row = described("l2", chain.case, planned, chain.backend, "measured", bench.gpu.facts)
        row.overlap_s = seen.median_s
        row.notes.append(f"two launches in a graph; timer step {1e9 * seen.step_s:.0f} ns")
        rows.append(row)
    return rows


ALONE: tuple[Launching, ...] = (table.arm(table.BASELINE), replace(table.arm("pdl_late"), pdl=False))
"""How --counters launches a chain's kernels one at a time: without the attribute, so a late wait returns."""


def alone(
    bench: Bench, case: ChainCase, found: Sequence[Chain], arms: Sequence[tuple[Spec, Arm]]
) -> list[Row]:
    """One launch of each kernel of each chain and kind, then a plain read of its weights, in the rows' order.

    Raises WrongResult. Nobody looks at the reads' XORs.
    """
    launches: list[tuple[Spec, Launch]] = []
    most = 1
    for chain in found:
        for a in ALONE:
            steps = steps_of(case, bench.gpu.facts, chain.backend, plain=a.kind == "plain")
            most = max(most, *(s.weight_bytes for s in steps))
            _check(bench, chain, steps, a)
            launches += _one_each(chain, steps, a)
    rows: list[Row] = []
    with Buffer(4 * reads.FORMS[0].config(most).grid) as out:
        for chain in found:
            launches += _reads(bench, chain, steps_of(case, bench.gpu.facts, chain.backend), out)
        with counters.window():
            for spec, arm in arms:
                if spec.planned.variant.role != "ceiling":
                    continue
                arm.launches[0].enqueue(bench.gpu.stream)
                arm.check(spec.name)
                rows.append(bench.row("l2", spec))
            for spec, launch in launches:
                launch.enqueue(bench.gpu.stream)
                synchronize()
                rows.append(bench.row("l2", spec))
    return rows


def _check(bench: Bench, chain: Chain, steps: Sequence[Step], a: Launching) -> None:
    """Run all copies of the chain and hold the result to what its arms must give."""
    arm = Arm(f"{a.name}, one launch at a time", chain.launches(steps, a), chain.output)
    arm.poison()
    for several in arm.launches:
        several.enqueue(bench.gpu.stream)
    arm.check(f"{chain.case.id} {arm.name}")


def _one_each(chain: Chain, steps: Sequence[Step], a: Launching) -> list[tuple[Spec, Launch]]:
    """Each kernel of the first copy, in the chain's order; of a chain of one kernel the first launch."""
    made = chain.launches(steps, a, copies=1)[0].launches
    one = len({s.kernel for s in steps}) == 1
    return [
        (_spec(chain, s, a.kind, "alone", x), x)
        for s, x in list(zip(steps, made, strict=True))[: 1 if one else None]
        if a.kind != "late" or s.kernel in chains.LATE
    ]


def _spec(chain: Chain, step: Step, kind: str, role: Role, x: Launch) -> Spec:
    v = Variant(name=f"profiled_{step.name}_{kind}", role=role, of=step.name)
    note = told(step) if step.smem_bytes and role == "alone" else ""
    size = step.weight_bytes or None
    planned = Planned(variant=v, kernel=x.kernel.name, config=x.config, content_bytes=size, note=note)
    return Spec(chain.case, planned, x.kernel)


def _reads(bench: Bench, chain: Chain, steps: Sequence[Step], out: Buffer) -> list[tuple[Spec, Launch]]:
    """A plain read of what each kernel alone reads."""
    found: dict[str, tuple[Spec, Launch]] = {}
    for s in steps:
        if not s.weight_bytes or s.name in found:
            continue
        weights = next(chain.copies[0][a] for a in s.args if isinstance(a, str) and a.startswith("w."))
        form, of = reads.FORMS[0], (weights, s.weight_bytes, out.address)
        launch = reads.launch(bench, form, chain.backend, *of)
        found[s.name] = _spec(chain, s, "read", "read", launch), launch
    return list(found.values())
