"""Does the harness see differences that are not there? Kernels of every probe against themselves.

An A/A run times a kernel and itself as a contest would: blocks A B B A, common output slots, weights as the
contest has them, beside the other A/A pairs of its case. None may say GO by its probe's bar, and few may
claim a difference, by ends that hold what placement adds. Where a sample's place in its block, or the arm
before it, shifts it by more than 0.2 %, the harness is at fault.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from probes import cli
from probes.core import children, flags
from probes.core.types import BadInput
from probes.engine import arms as binding
from probes.engine import block_rule, digests, probe
from probes.engine import run as engine
from probes.engine.bench import Bench, Spec
from probes.engine.probe import Case, Variant
from probes.gpu import facts, sampling
from probes.gpu.memory import Buffer
from probes.gpu.sampling import Blocks
from probes.gpu.timing import Arm
from probes.report import files, provenance, store, tables
from probes.report.rows import Row
from probes.verdict import bars, blocks

RUNS = 60
SHIFT = 0.002
"""What a sample's place or predecessor may shift its median by."""

CLAIMS = 0.025
"""The share of A/A runs that may claim a difference: 5 of 200."""

MOST_SPACE = 64 << 20
"""Bytes at most that are held beside a run, so that its weights lie elsewhere than the last one's."""

MOST_BINDINGS = 4
ENOUGH = 0.6
"""How often a case's arms are bound anew, and the share of memory that must still be free for it."""

MOST_PLANTED = 1.5
"""What is planted is this times what was asked for at most: the launches are whole."""

FOUND = 0.95
"""The share of planted slowdowns that must be found."""

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


def measure(bench: Bench, runs: int, planted: float = 0.0) -> Iterator[tuple[list[Row], list[Blocks]]]:
    """The A/A pairs of one case after the other, each probe's share of the runs; rows and their blocks.

    planted: the share by which one side of each pair is made slower.
    """
    names, turn = probe.names(), count()
    for k, name in enumerate(names):
        args = cli.parser(name).parse_args([])
        kernels = engine.load(name, bench, args)
        table = probe.table(name)
        with ExitStack() as keep:
            arms = probe.arms(name).make(bench, args, kernels, keep)
            cases = table.cases(args, bench.gpu.facts.sms, engine.fitter(kernels, args))
            judged = [c for c in cases if any(not x.cases or c.id in x.cases for x in table.CONTESTS)]
            left = runs * (k + 1) // len(names) - runs * k // len(names)
            before = left + 1
            while 0 < left < before:  # until a round over all cases gives nothing
                before, each = left, max(1, left // len(judged))
                for case in judged if left else ():
                    asked = _Asked(name, bench, arms, case, kernels, args, planted)
                    for rows, taken in _case(asked, min(each, left), turn):
                        left -= len(rows)
                        yield rows, taken


@dataclass(frozen=True)
class _Asked:
    """A case of a probe, and what its arms are made of."""

    name: str
    bench: Bench
    arms: Any
    case: Case
    kernels: binding.Kernels
    args: argparse.Namespace
    planted: float = 0.0


def _case(
    asked: _Asked, wanted: int, turns: Iterator[int]
) -> Iterator[tuple[list[Row], list[Blocks]]]:  # fmt: skip
    """`wanted` A/A pairs of a case, opened once; its arms are bound anew while memory lasts."""
    variants = probe.table(asked.name).variants(asked.args, asked.case)
    again = {v.name: v.of for v in variants if v.role == "again"}
    used = [v for v in variants if v.name in again or v.name in again.values()]
    with ExitStack() as stack:
        before, _ = asked.bench.gpu.free_bytes()
        material = asked.arms.open(asked.case, used, stack)
        for _ in range(MOST_BINDINGS):
            rows, taken = _pairs(asked, material, used, again, wanted, next(turns))
            wanted -= len(rows)
            yield rows, taken
            if wanted <= 0 or not rows or asked.bench.gpu.free_bytes()[0] < ENOUGH * before:
                return


def _plant(arm: Arm, share: float) -> bool:
    """Make an arm slower by a share of its launches once more; False where one launch is too much of it."""
    count = len(arm.launches)
    arm.extra = max(1, round(share * count))
    if arm.extra > MOST_PLANTED * share * count:
        return False
    arm.launches = [*arm.launches, *arm.launches[: arm.extra]]
    return True


def _pairs(
    asked: _Asked, material: Any, used: Sequence[Variant], again: Mapping[str, str], most: int, turn: int
) -> tuple[list[Row], list[Blocks]]:  # fmt: skip
    """At most `most` pairs, each of two arms bound anew, timed as a contest's."""
    name, bench, case = asked.name, asked.bench, asked.case
    rng = np.random.default_rng((bench.seed, turn))
    with ExitStack() as stack:
        stack.enter_context(Buffer(int(rng.integers(1, MOST_SPACE))))
        mine = {b: k for b, k in asked.kernels.items() if not case.backends or b in case.backends}
        part = probe.plan(name)
        bound, _ = binding.bind(name, part, asked.arms, material, bench, case, used, mine, asked.args)
        by_name: dict[str, tuple[Spec, Arm]] = {s.name: (s, arm) for s, arm in bound}
        pairs = [
            (by_name[f"{a}/{b}"], by_name[f"{of}/{b}"])
            for a, of in again.items() for b in mine if {f"{a}/{b}", f"{of}/{b}"} <= by_name.keys()
        ][:most]  # fmt: skip
        if asked.planted:
            pairs = [p for p in pairs if _plant(p[0][1], asked.planted)]
        arms = {id(arm): arm for pair in pairs for _, arm in pair}.values()
        for arm in arms:
            stack.callback(arm.close)
            arm.build(bench.gpu.stream)
        taken = sampling.rounds(
            bench.gpu.stream, [(a, b) for (_, a), (_, b) in pairs], bench.looks, bench.clock(),
            bench.seed + turn, lambda look, so_far: (), bench.progress, f"{name} {case.id}",
        )  # fmt: skip
        for arm in arms:
            arm.recheck()
    rows = []
    for ((spec, _), (base, _)), own in zip(pairs, taken, strict=True):
        row = bench.row("selfcheck", replace(spec, case=replace(case, id=f"{name}_{case.id}_{turn:03d}")))
        row.role, row.of, row.baseline = "contest", spec.planned.variant.name, base.planned.variant.name
        row.variant, row.bitwise = f"{row.of}:{row.baseline}", True
        row.blocks_s, row.retaken = own.time_s, own.retaken
        row.block_clock_hz = [0.0 if math.isnan(c) else c for c in own.clock_hz]
        rows.append(row)
    return rows, taken


def judge(rows: Sequence[Row], planted: bool = False) -> list[Row]:
    """One verdict row per run; tau from the other A/A runs of its probe, else its prior. Pure."""
    out = []
    for row in rows:
        name = _probe(row)
        others = [] if planted else [r for r in rows if r is not row and _probe(r) == name]
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


def _probe(row: Row) -> str:
    return row.case.partition("_")[0]


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


def text(judged: Sequence[Row], found: Sequence[Shift], markdown: bool, planted: float = 0.0) -> str:
    """What the runs claimed, and what shifts a sample."""
    claims = sum(r.reason == "CLAIMS A DIFFERENCE" for r in judged)
    gone = sum(r.verdict == "GO" for r in judged)
    said = f"{len(judged)} A/A runs: {gone} said GO, {claims} claimed a difference (1 % expected)"
    if planted:
        amount = tables.format_percent(planted)
        said = f"{len(judged)} runs with {amount} planted: {seen(judged)} found it, {gone} said GO"
    lines = [[s.what, str(s.count), tables.format_percent(s.median, 3, sign=True)] for s in found]
    heads = ["samples", "how many", "median shift"]
    shown = tables.table(heads, lines, markdown, left=heads[:1]) if lines else ""
    told = [replace(r, reason=None) for r in judged]
    verdicts = tables.verdict_table(told, markdown, "The same kernel against itself")
    return f"{said}\n\n{shown}\n\n{verdicts}\n"


def seen(judged: Sequence[Row]) -> int:
    """How many runs say that their kernel is slower than itself."""
    return sum((r.ratio_low or 0.0) > 1.0 for r in judged)


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
    said = (__doc__ or "").partition("\n")[0]
    p = flags.Parser(prog="python -m probes selfcheck", description=said)
    p.add_argument("--runs", type=int, default=RUNS, metavar="N", help=f"A/A runs (default {RUNS})")
    p.add_argument("--blocks", type=int, choices=[16, 32, 64], default=cli.BLOCKS, help="blocks of each run")
    planted = "make one side slower by about P per cent of its launches: is it found?"
    p.add_argument("--planted", type=float, default=0.0, metavar="P", help=planted)
    p.add_argument("--device", type=int, default=0, metavar="N", help="GPU index (default 0)")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--out", type=cli.folder, default=Path("out") / "runs", metavar="DIR")
    p.add_argument("--record", action="store_true", help="replace the committed report under out/<device>/")
    p.add_argument("-q", "--quiet", action="store_true")
    cli.add_build_timeout(p)
    return cli.guarded(lambda: _work(p.parse_args(argv)))


def _work(args: argparse.Namespace) -> int:
    children.limit(args.build_timeout)
    if args.runs < 1:
        raise BadInput(f"--runs must be at least 1, got {args.runs}")
    if not 0 <= args.planted <= 50:
        raise BadInput(f"--planted is 0 to 50 per cent, got {args.planted:g}")
    if args.planted and args.record:
        raise BadInput("--record keeps the self-check as it is: leave out --planted")
    planted, name = args.planted / 100, "selfcheck-planted" if args.planted else "selfcheck"
    gpu = facts.open_gpu(args.device)
    looks = engine.looks_of(args.blocks)
    bench = Bench(gpu, args.seed, cli.WINDOWS, cli.teller(args.quiet), looks=looks)
    head = provenance.collect(
        mode="measure", device=gpu.facts.slug, seed=args.seed, probes=probe.names(),
        kernels_sha256=digests.selfcheck(), driver=facts.driver_version(),
        neighbours=facts.neighbours(args.device), environment=gpu.environment,
    )  # fmt: skip
    folder = Path("out") / gpu.facts.slug if args.record else args.out
    text_file = folder / f"{name}.md"
    if not args.record:
        files.check_not_committed(text_file)
    files.check_writable(text_file)
    taken: list[tuple[str, Blocks]] = []
    with store.ReportFile(folder / f"{name}.json", head) as file:
        for rows, own in measure(bench, args.runs, planted):
            file.add(*rows)
            taken += [(_probe(r), b) for r, b in zip(rows, own, strict=True)]
            bench.progress(f"{len(file.rows)} of {args.runs} A/A runs")
        judged = judge(list(file.rows), planted > 0)
        found = [] if planted else shifts(taken)
        head.notes += [f"{s.what}: median shift {100 * s.median:+.3f} % of {s.count}" for s in found]
        file.add(*judged)
    print(text(judged, found, False, planted))
    written = f"# The harness against itself\n\n{tables.first_line(head, True)}\n\n"
    files.write(text_file, written + text(judged, found, True, planted))
    if planted:
        return int(seen(judged) < FOUND * len(judged))
    return int(wrong(judged, found))
