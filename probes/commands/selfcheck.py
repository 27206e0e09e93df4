"""Does the harness see differences that are not there? The same kernel against itself, many times.

Each run times padded_loop on ffn_down_14b as four arms: two against the bar of l1.dpl, two for the noise
floor. None may say GO or claim a difference: an interval that excludes 1, and an effect above the floor.
Pooled windows show how the floor falls.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from probes import cli
from probes.core.types import BadInput
from probes.engine import arms as binding
from probes.engine import digests, probe
from probes.engine import run as engine
from probes.engine.bench import Bench
from probes.engine.probe import Variant
from probes.gpu import facts
from probes.gpu.timing import Arm
from probes.report import provenance, store, tables
from probes.report.rows import Row
from probes.verdict import bars, intervals

RUNS = 20
ARMS = ("a", "b", "floor_a", "floor_b")
WINDOWS_SHOWN = (4, 8, 14, 28, 56, 112)


def measure(bench: Bench, runs: int) -> Iterator[list[Row]]:
    """Four rows per run, one per arm; the samples of each are kept."""
    argv = ["--case", "ffn_down_14b", "--layout", "padded", "--form", "loop"]
    args = cli.parser("l1").parse_args(argv)
    kernels = engine.load("l1", bench, args)
    backend = next(iter(kernels))
    table, part = probe.table("l1"), probe.plan("l1")
    (case,) = table.cases(args, 0, lambda symbol: {})
    variants = table.variants(args, case)[:1]
    with ExitStack() as keep:
        arms = probe.arms("l1").make(bench, args, kernels, keep)
        for k in range(runs):
            run = replace(case, id=f"run_{k:02d}")
            with ExitStack() as stack:
                material = arms.open(run, variants, stack)
                found, _ = binding.bind("l1", part, arms, material, bench, run, variants, kernels, args)
                spec, arm = next((s, a) for s, a in found if s.backend == backend)
                variants_of = [Variant(name=name, baseline=ARMS[0]) for name in ARMS]
                plans = [replace(spec.planned, variant=v, read="") for v in variants_of]
                specs = [replace(spec, planned=planned) for planned in plans]
                same = [(own, Arm(own.name, arm.launches, arm.output)) for own in specs]
                bench.seed += 1
                yield bench.measure("selfcheck", same, run.id)


def judge(rows: Sequence[Row], seed: int) -> list[Row]:
    """One verdict row per run, b against a; pure."""
    out = []
    for case, arms in _runs(rows).items():
        found = intervals.interval(_ratios(arms, "b", "a"), seed)
        floor = intervals.noise_floor([_ratios(arms, "floor_b", "floor_a")], seed)
        decided = bars.judge_ratio(*found, floor, bars.bar("l1.dpl"))
        claims = intervals.claims_difference(found, floor)
        row = Row(
            probe="selfcheck", case=case, variant="b", backend=arms["b"].backend, source="measured",
            device=arms["b"].device, ratio_to_baseline=found.ratio, ratio_low=found.low,
            ratio_high=found.high, noise_floor=floor, verdict=decided.verdict,
            reason="CLAIMS A DIFFERENCE" if claims else "claims no difference", role="verdict", scope="each",
        )  # fmt: skip
        out.append(row)
    return out


def _runs(rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
    """Rows by run and arm."""
    out: dict[str, dict[str, Row]] = {}
    for row in rows:
        out.setdefault(row.case, {})[row.variant] = row
    return out


def _ratios(arms: dict[str, Row], a: str, b: str) -> intervals.F64:
    return intervals.paired_ratios(*(intervals.arm(arms[name].samples_s)[0] for name in (a, b)))


def floors(rows: Sequence[Row], seed: int) -> list[tuple[int, float]]:
    """(windows, noise floor) out of all runs' windows pooled: how the floor falls with more of them."""
    ratios = np.concatenate([_ratios(arms, "b", "a") for arms in _runs(rows).values()])
    out = []
    for count in WINDOWS_SHOWN:
        parts = [ratios[k : k + count] for k in range(0, len(ratios) - count + 1, count)]
        if parts:
            out.append((count, float(np.median([intervals.noise_floor([p], seed) for p in parts]))))
    return out


def text(rows: Sequence[Row], judged: Sequence[Row], seed: int, markdown: bool) -> str:
    """Both tables, with one line that says whether the harness passed."""
    passed = f"{len(judged)} A/A runs: {sum(map(_wrong, judged))} said GO or claimed a difference"
    lines = [[str(n), tables.format_percent(f, 2)] for n, f in floors(rows, seed)]
    grows = tables.table(["windows", "noise floor (median)"], lines, markdown)
    verdicts = tables.verdict_table(judged, markdown, "The same kernel against itself")
    return f"{verdicts}\n\n{passed}\n\n{grows}\n"


def _wrong(row: Row) -> bool:
    return row.verdict == "GO" or row.reason == "CLAIMS A DIFFERENCE"


def main(argv: Sequence[str]) -> int:
    """Run it; exit code 1 where the harness saw a difference that is not there."""
    said = (__doc__ or "").splitlines()[0]
    p = argparse.ArgumentParser(prog="python -m probes selfcheck", description=said)
    p.add_argument("--runs", type=int, default=RUNS, metavar="N", help=f"A/A runs (default {RUNS})")
    p.add_argument("--windows", type=int, default=cli.WINDOWS, metavar="N", help="ABBA windows per run")
    p.add_argument("--device", type=int, default=0, metavar="N", help="GPU index (default 0)")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--out", type=cli.folder, default=Path("out") / "runs", metavar="DIR")
    p.add_argument("--record", action="store_true", help="replace the committed report under out/<device>/")
    p.add_argument("-q", "--quiet", action="store_true")
    args = p.parse_args(argv)
    return cli.guarded(lambda: _work(args))


def _work(args: argparse.Namespace) -> int:
    if args.runs < 1 or args.windows < 2:
        raise BadInput(f"--runs must be at least 1 and --windows 2, got {args.runs} and {args.windows}")
    gpu = facts.open_gpu(args.device)
    bench = Bench(gpu, args.seed, args.windows, cli.teller(args.quiet))
    head = provenance.collect(
        mode="measure", device=gpu.facts.slug, seed=args.seed, kernels_sha256=digests.sources("l1"),
        driver=facts.driver_version(), neighbours=facts.neighbours(args.device), environment=gpu.environment,
    )  # fmt: skip
    folder = Path("out") / gpu.facts.slug if args.record else args.out
    with store.ReportFile(folder / "selfcheck.json", head) as file:
        for k, rows in enumerate(measure(bench, args.runs)):
            bench.progress(f"A/A run {k + 1} of {args.runs}")
            file.add(*rows)
        measured = list(file.rows)
        judged = judge(measured, args.seed)
        file.add(*judged)
    print(text(measured, judged, args.seed, False))
    written = f"# The harness against itself\n\n{tables.first_line(head)}\n\n"
    store.write_text(folder / "selfcheck.md", written + text(measured, judged, args.seed, True))
    return int(any(map(_wrong, judged)))
