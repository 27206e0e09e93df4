"""Does the harness see differences that are not there? Kernels of every probe against themselves.

An A/A run times a kernel and itself as a contest would: blocks A B B A, common output slots, weights as the
contest has them, beside the other A/A pairs of its case. None may say GO by its probe's bar, and few may
claim a difference, by ends that hold what placement adds. Where a sample's place in its block, or the arm
before it, shifts it by more than 0.2 %, the harness is at fault.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from probes import cli
from probes.core.types import BadInput
from probes.engine import arms as binding
from probes.engine import block_rule, digests, probe
from probes.engine import run as engine
from probes.engine.bench import Bench, Spec
from probes.gpu import facts, sampling
from probes.gpu.memory import Buffer
from probes.gpu.sampling import Blocks
from probes.gpu.timing import Arm
from probes.report import provenance, store, tables
from probes.report.rows import Row
from probes.verdict import bars, blocks

RUNS = 60
SHIFT = 0.002
"""What a sample's place or predecessor may shift its median by."""

CLAIMS = 0.025
"""The share of A/A runs that may claim a difference: 5 of 200."""

MOST_SPACE = 64 << 20
"""Bytes at most that are held beside a run, so that its weights lie elsewhere than the last one's."""

SLOTS = ("first", "second", "third", "last")


@dataclass(frozen=True)
class Shift:
    """The median of ln(sample / its block's mean) over samples of one kind."""

    what: str
    count: int
    median: float

    @property
    def wrong(self) -> bool:
        """Whether it is beyond what may be; a handful of samples says nothing."""
        return self.count >= blocks.LEAST and abs(self.median) > SHIFT


def measure(bench: Bench, runs: int) -> Iterator[tuple[list[Row], list[Blocks]]]:
    """The A/A pairs of one case after the other, each probe's share of the runs; rows and their blocks."""
    names = probe.names()
    for k, name in enumerate(names):
        wanted = runs * (k + 1) // len(names) - runs * k // len(names)
        args = cli.parser(name).parse_args([])
        args.windows, args.blocks = cli.WINDOWS, cli.BLOCKS
        kernels = engine.load(name, bench, args)
        table = probe.table(name)
        with ExitStack() as keep:
            arms = probe.arms(name).make(bench, args, kernels, keep)
            cases = table.cases(args, bench.gpu.facts.sms, engine.fitter(kernels, args))
            judged = [c for c in cases if any(not x.cases or c.id in x.cases for x in table.CONTESTS)]
            turn = 0
            while wanted > 0:
                case = judged[turn % len(judged)]
                rows, taken = _case(name, bench, arms, case, kernels, args, wanted, turn)
                wanted, turn = wanted - max(1, len(rows)), turn + 1
                yield rows, taken


def _case(
    name: str, bench: Bench, arms: Any, case: Any, kernels: Any, args: argparse.Namespace, most: int,
    turn: int,
) -> tuple[list[Row], list[Blocks]]:  # fmt: skip
    """At most `most` A/A pairs of a case, each arm bound anew."""
    variants = probe.table(name).variants(args, case)
    again = {v.name: v.of for v in variants if v.role == "again"}
    used = [v for v in variants if v.name in again or v.name in again.values()]
    rng = np.random.default_rng((bench.seed, turn))
    with ExitStack() as stack:
        stack.enter_context(Buffer(int(rng.integers(1, MOST_SPACE))))
        material = arms.open(case, used, stack)
        mine = {b: k for b, k in kernels.items() if not case.backends or b in case.backends}
        part = probe.plan(name)
        bound, _ = binding.bind(name, part, arms, material, bench, case, used, mine, args)
        by_name: dict[str, tuple[Spec, Arm]] = {s.name: (s, arm) for s, arm in bound}
        pairs = [
            (by_name[f"{a}/{b}"], by_name[f"{of}/{b}"])
            for a, of in again.items() for b in mine if {f"{a}/{b}", f"{of}/{b}"} <= by_name.keys()
        ][:most]  # fmt: skip
        for arm in {id(arm): arm for pair in pairs for _, arm in pair}.values():
            stack.callback(arm.close)
            arm.build(bench.gpu.stream)
        taken = sampling.rounds(
            bench.gpu.stream, [(a, b) for (_, a), (_, b) in pairs], bench.looks, bench.clock(),
            bench.seed + turn, lambda look, so_far: (), bench.progress, f"{name} {case.id}",
        )  # fmt: skip
        for (_, a), (_, b) in pairs:
            a.recheck()
            b.recheck()
    rows = []
    for ((spec, _), (base, _)), own in zip(pairs, taken, strict=True):
        row = bench.row("selfcheck", replace(spec, case=replace(case, id=f"{name}_{case.id}_{turn:03d}")))
        row.role, row.of, row.baseline = "pair", spec.planned.variant.name, base.planned.variant.name
        row.variant, row.bitwise = f"{row.of}:{row.baseline}", True
        row.blocks_s, row.retaken = own.time_s, own.retaken
        row.block_clock_hz = [0.0 if math.isnan(c) else c for c in own.clock_hz]
        rows.append(row)
    return rows, taken


def judge(rows: Sequence[Row]) -> list[Row]:
    """One verdict row per A/A run; tau from the other runs of its probe. Pure."""
    out = []
    for row in rows:
        name = row.case.partition("_")[0]
        others = [r for r in rows if r is not row and r.case.partition("_")[0] == name]
        by = block_rule.BlockRule(block_rule.tau_of(others), 0.0)
        part = by.of(row, row, row)
        bar = bars.bar(probe.table(name).CONTESTS[0].bar)
        claims = part.found is not None and not part.found.low <= 1.0 <= part.found.high
        said = Row(
            probe="selfcheck", case=row.case, variant=row.variant, backend=row.backend, source="measured",
            device=row.device, kv=row.kv, noise_floor=part.noise, role="verdict", scope="each",
            baseline=row.baseline, verdict=by.decide(part, bar, None).verdict,
            reason="CLAIMS A DIFFERENCE" if claims else "claims no difference",
        )  # fmt: skip
        if part.found:
            said.ratio_to_baseline, said.ratio_low, said.ratio_high = part.found
        out.append(said)
    return out


def shifts(taken: Sequence[tuple[str, Blocks]]) -> list[Shift]:
    """Residuals by place in the block and, for the first place, by the arm before; taken: (probe, blocks)."""
    by: dict[str, list[float]] = {}
    for name, own in taken:
        t = np.log(np.reshape(own.time_s, (-1, 4)))
        for residual, after in zip(t - t.mean(axis=1, keepdims=True), own.after, strict=True):
            for slot, value in zip(SLOTS, residual, strict=True):
                by.setdefault(f"{name}, {slot} in its block", []).append(float(value))
            by.setdefault(f"{name}, after {after or 'the thrown-away sample'}", []).append(float(residual[0]))
    return [Shift(what, len(r), float(np.median(r))) for what, r in by.items()]


def text(judged: Sequence[Row], found: Sequence[Shift], markdown: bool) -> str:
    """What the runs claimed, and what shifts a sample."""
    claims = sum(r.reason == "CLAIMS A DIFFERENCE" for r in judged)
    gone = sum(r.verdict == "GO" for r in judged)
    said = f"{len(judged)} A/A runs: {gone} said GO, {claims} claimed a difference (1 % expected)"
    lines = [[s.what, str(s.count), tables.format_percent(s.median, 3, sign=True)] for s in found]
    heads = ["samples", "how many", "median shift"]
    shown = tables.table(heads, lines, markdown, left=heads[:1])
    verdicts = tables.verdict_table(judged, markdown, "The same kernel against itself")
    return f"{said}\n\n{shown}\n\n{verdicts}\n"


def wrong(judged: Sequence[Row], found: Sequence[Shift]) -> bool:
    """Whether the harness saw what is not there, or disturbs its own samples."""
    claims = sum(r.reason == "CLAIMS A DIFFERENCE" for r in judged)
    return (
        any(r.verdict == "GO" for r in judged)
        or claims > max(1, math.ceil(CLAIMS * len(judged)))
        or any(s.wrong for s in found)
    )


def main(argv: Sequence[str]) -> int:
    """Run it; exit code 1 where the harness saw a difference that is not there."""
    said = (__doc__ or "").splitlines()[0]
    p = argparse.ArgumentParser(prog="python -m probes selfcheck", description=said)
    p.add_argument("--runs", type=int, default=RUNS, metavar="N", help=f"A/A runs (default {RUNS})")
    p.add_argument("--device", type=int, default=0, metavar="N", help="GPU index (default 0)")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--out", type=cli.folder, default=Path("out") / "runs", metavar="DIR")
    p.add_argument("--record", action="store_true", help="replace the committed report under out/<device>/")
    p.add_argument("-q", "--quiet", action="store_true")
    args = p.parse_args(argv)
    return cli.guarded(lambda: _work(args))


def _work(args: argparse.Namespace) -> int:
    if args.runs < 1:
        raise BadInput(f"--runs must be at least 1, got {args.runs}")
    gpu = facts.open_gpu(args.device)
    bench = Bench(gpu, args.seed, cli.WINDOWS, cli.teller(args.quiet))
    head = provenance.collect(
        mode="measure", device=gpu.facts.slug, seed=args.seed, probes=probe.names(),
        kernels_sha256=digests.selfcheck(), driver=facts.driver_version(),
        neighbours=facts.neighbours(args.device), environment=gpu.environment,
    )  # fmt: skip
    folder = Path("out") / gpu.facts.slug if args.record else args.out
    taken: list[tuple[str, Blocks]] = []
    with store.ReportFile(folder / "selfcheck.json", head) as file:
        for rows, own in measure(bench, args.runs):
            file.add(*rows)
            taken += [(r.case.partition("_")[0], b) for r, b in zip(rows, own, strict=True)]
            bench.progress(f"{len(file.rows)} of {args.runs} A/A runs")
        judged, found = judge(list(file.rows)), shifts(taken)
        head.notes += [f"{s.what}: median shift {100 * s.median:+.3f} % of {s.count}" for s in found]
        file.add(*judged)
    print(text(judged, found, False))
    written = f"# The harness against itself\n\n{tables.first_line(head)}\n\n"
    store.write_text(folder / "selfcheck.md", written + text(judged, found, True))
    return int(wrong(judged, found))
