"""One run of one probe, and the only place that owns its sequence: rows are written as they come.

Measured: for each case data and plans -> arms -> proofs -> times -> rows; then the sweeps; then verdicts.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from probes.core.types import BACKENDS, Backend, BadInput, Unavailable
from probes.device import facts as profiles
from probes.engine import arms as binding
from probes.engine import (
    block_rule,
    digests,
    judge,
    machine_code,
    predict,
    probe,
    processes,
    profile,
    reads,
    sweep,
)
from probes.engine.arms import Kernels
from probes.engine.bench import Bench
from probes.engine.plan import refused
from probes.engine.probe import Arms, Case, Fit
from probes.gpu import facts as live
from probes.gpu.partition import partition
from probes.report import files, pictures, provenance, store, tables
from probes.report.provenance import Head
from probes.report.rows import Row
from probes.verdict import blocks


@dataclass
class Run:
    """One probe's run: its head, and its rows with verdicts."""

    name: str
    head: Head
    rows: list[Row] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    """What could not be written once all was measured: a line each."""

    def tried(self, write: Callable[[], object], kept: str) -> None:
        """Write something at the run's end; where that fails, say so, and what is `kept`."""
        try:
            write()
        except BadInput as error:
            self.lost.append(f"{error}; {kept}")

    def verdicts(self) -> list[Row]:
        """The rows that hold a verdict."""
        return [r for r in self.rows if r.verdict]


def places(name: str, args: argparse.Namespace, device: str, mode: str = "measure") -> tuple[Path, Path]:
    """Where rows and Markdown go: --json and --md, the committed report with --record, else the runs folder.

    BadInput where they would replace each other, a committed report or, by a prediction, a measured one, or
    where they or the pictures beside them cannot be written.
    """
    folder = Path("out") / device if args.record else Path(args.out)
    rows = Path(args.json) if args.json else folder / f"{probe.table(name).stem(args)}.json"
    text = Path(args.md) if args.md else rows.with_suffix(".md")
    if files.whole(rows) == files.whole(text):
        raise BadInput(f"rows and Markdown would both go to {rows}: give --json and --md two files")
    if args.record:  # it replaces a report when the run is finished; until then its rows lie in --out
        working = Path(args.out) / rows.name
        files.check_not_committed(working, "give unfinished rows another --out")
        files.check_writable(working)
    drawn = probe.report(name).pictures(text) if mode == "measure" and probe.table(name).sweeps(args) else []
    if drawn:
        pictures.check()
    for path in (rows, text, *drawn):
        if not args.record:
            files.check_not_committed(path)
        if mode == "predict":
            files.check_not_measured(path, "a prediction")
        files.check_writable(path)
    return rows, text


def check(name: str, mode: str, args: argparse.Namespace) -> None:
    """BadInput for flags that this run could not honour."""
    if args.record and mode == "predict":
        raise BadInput("--record keeps measured reports only, and this run would predict: it needs a GPU")
    if mode == "predict" and args.counters:
        raise BadInput("--counters reads a GPU's counters, and this run would predict: it needs a GPU")
    bounds = {n: probe.table(n).BOUNDS_RECORDED for n in probe.names()}
    if mode == "predict" and args.blocks_per_sm and args.blocks_per_sm not in bounds[name]:
        text = {n: " or ".join(map(str, b)) for n, b in bounds.items() if b}
        known = ", ".join(f"{n} alone is recorded for it, with {b}" for n, b in text.items())
        raise BadInput(f"--blocks-per-sm {args.blocks_per_sm} compiles {name} anew and needs a GPU; {known}")
    for flag in ("quick", "case", "backend", "variant", "arm", "kv", "layout", "form"):
        if args.record and getattr(args, flag, None):
            raise BadInput(f"--record keeps whole runs: leave out --{flag}")
    probe.table(name).check_flags(args)


def run(name: str, mode: str, args: argparse.Namespace, tell: Callable[[str], None]) -> Run:
    """Run one probe and write its reports as it goes. Raises ProbeError, WrongResult, KeyboardInterrupt."""
    check(name, mode, args)
    seen: dict[str, Any] = {}
    if mode == "measure":
        gpu = live.open_gpu(args.device)
        asked = tuple(args.backend or BACKENDS)
        bench = Bench(gpu, args.seed, args.windows, tell, asked, looks_of(args.blocks))
        facts = gpu.facts
        seen = {
            "neighbours": live.neighbours(args.device, own_context=True), "environment": gpu.environment,
            "driver": f"{live.driver_version()} ({gpu.driver})",
        }  # fmt: skip
        if args.processes > 1:
            steps = processes.pooled(name, args, tell)
        else:
            reads.reserve(bench)
            steps = measured(name, bench, args)
        seen["extra_versions"] = digests.toolchain()
    else:
        facts = profiles.load(args.device_profile)
        steps = predict.predicted(name, facts, args)
        steps = chain(list(islice(steps, 1)), steps)  # a mistake is told before anything is said
    # of the device counts, sizes and rates, not where they come from
    told = {k: v for k, v in asdict(facts).items() if k not in ("sources", "match") and v is not None}
    head = provenance.collect(
        mode=mode, device=facts.slug, seed=args.seed, probes=(name,), device_facts=told,
        kernels_sha256=digests.report(probe.table(name).stem(args), facts.slug), **seen,
    )  # fmt: skip
    path, text = places(name, args, facts.slug, mode)
    print(tables.first_line(head), end="\n\n", flush=True)
    # a committed report is replaced by a finished run only: until then the rows go to the runs folder
    working = Path(args.out) / path.name if args.record else path
    judging = mode == "measure" and not args.once

    def verdicts(rows: Sequence[Row]) -> list[Row]:
        by = block_rule.rule([r for r in rows if r.source == "measured"], facts.sm_clock_hz)
        return judge.judge(rows, probe.table(name).CONTESTS, probe.analysis(name), by) if judging else []

    with store.ReportFile(working, head, verdicts) as file:
        for rows in steps:
            file.add(*rows)
            shown = [r for r in rows if not r.sweep or r.role == "point"]
            if shown and not args.quiet and not args.once:
                print(tables.case_table(shown), end="\n\n", flush=True)
        if judging:
            added = profile.attach(name, args, file.given, tell) if args.counters else []
            if not args.quick:
                machine_code.explain(name, facts.arch, file.given, args.blocks_per_sm or 0)
            file.add(*added)
            pairs = [r for r in file.given if r.role == "contest"]
            note = block_rule.rule(pairs, facts.sm_clock_hz).clock if pairs else ""
            head.notes += [note] if note else []
            head.environment = list(gpu.environment)  # a partition may have added to it
            head.neighbours += [n for n in live.neighbours(args.device, True) if n not in head.neighbours]
    done = Run(name, head, file.rows)
    if args.record:
        done.tried(lambda: store.write_json(path, head, done.rows), f"the rows are in {working}")
    if not args.once:
        done.tried(lambda: document(done, text), f"the rows are in {path}")
    return done


def document(done: Run, path: Path) -> None:
    """Write a run's Markdown and draw its pictures beside it. Raises BadInput."""
    part = probe.report(done.name)
    extra = part.sections(done.rows, True)
    done.tried(lambda: extra.extend(part.plots(done.rows, path)), "the report has no picture")
    title = f"{done.name.upper()}: {probe.table(done.name).QUESTION}"
    files.write(path, tables.document(title, done.head, done.rows, extra))


def looks_of(most: int) -> tuple[int, ...]:
    """The looks of a contest that may take `most` blocks."""
    return tuple(n for n in blocks.LOOKS if n <= most)


def load(name: str, bench: Bench, args: argparse.Namespace) -> dict[Backend, dict[str, Any]]:
    """The kernels that the flags need, of each backend that works here; bench.skipped says why not.

    A sweep over geometries alone needs one backend. Raises Unavailable where none works.
    """
    table, wanted = probe.table(name), probe.plan(name).kernels(args)
    held = args.blocks_per_sm or 0
    if not table.alone(args):
        bench.compile(wanted, held)
    out: dict[Backend, dict[str, Any]] = {}
    for backend in _asked(args):
        try:
            mine: dict[str, Any] = {}
            for stem, symbols in wanted.items():
                mine |= bench.kernels(stem, symbols, backend, held)
            reads.load(bench, backend)
            out[backend] = mine
        except Unavailable as error:
            bench.skipped[backend] = str(error)
        if out and table.alone(args):
            break
    if not out:
        raise Unavailable("; ".join(bench.skipped.values()))
    bench.clock()  # every kernel is bound before a partition's context is current
    return out


def _asked(args: argparse.Namespace, among: Iterable[Backend] = BACKENDS) -> list[Backend]:
    return [b for b in among if not args.backend or b in args.backend]


def fitter(kernels: Kernels, args: argparse.Namespace) -> Fit:
    """A kernel's blocks per SM in each backend, as far as the flags let it have them."""

    def fit(symbol: str) -> dict[Backend, int]:
        found = {b: k[symbol].blocks_per_sm(256) for b, k in kernels.items()}
        return {b: min(n, args.blocks_per_sm or n) for b, n in found.items()}

    return fit


def measured(name: str, bench: Bench, args: argparse.Namespace) -> Iterator[list[Row]]:
    """Rows of one case after the other, then of the sweeps."""
    table = probe.table(name)
    since, why = table.NEEDS
    if bench.gpu.facts.compute_capability < since:
        why = f"{why}, this GPU is {bench.gpu.facts.arch}"
        for case in table.cases(args, bench.gpu.facts.sms, lambda symbol: {}):
            yield _all_refused(name, bench, args, case, why)
        return
    kernels = load(name, bench, args)
    with ExitStack() as keep:
        if getattr(args, "sms", None) is not None:
            try:
                bench = replace(bench, gpu=keep.enter_context(partition(bench.gpu, args.sms)))
            except Unavailable as error:
                case = table.cases(args, args.sms, lambda symbol: {})[0]
                yield _all_refused(name, bench, args, case, str(error), tuple(kernels))
                return

        fit = fitter(kernels, args)
        arms, sms = probe.arms(name).make(bench, args, kernels, keep), bench.gpu.facts.sms
        if not table.alone(args):
            for case in table.cases(args, sms, fit):
                yield _case(name, arms, bench, case, kernels, args)
        for kind in () if args.once else table.sweeps(args):
            for case in table.sweep_cases(kind, args, sms, fit):
                if case.sweep:  # a case of the sweep's own is timed like any other, in windows of its own
                    yield _case(name, arms, replace(bench, windows=case.windows), case, kernels, args)
                else:
                    variants, part = table.variants(args, case), probe.plan(name)
                    yield from sweep.rows_of(name, part, arms, bench, kind, case, variants, kernels, args)


def _case(
    name: str, arms: Arms, bench: Bench, case: Case, kernels: Kernels, args: argparse.Namespace
) -> list[Row]:
    """One case: its data, plans, arms, proofs and times, and a row for each."""
    variants = probe.table(name).variants(args, case)
    mine = {b: k for b, k in kernels.items() if not case.backends or b in case.backends}
    with ExitStack() as stack:
        try:
            material = arms.open(case, variants, stack)
        except Unavailable as error:
            return _all_refused(name, bench, args, case, str(error), tuple(mine))
        part = probe.plan(name)
        bound, skipped = binding.bind(name, part, arms, material, bench, case, variants, mine, args)
        read = arms.reads(material, list(mine))
        if not case.sweep and (read or any(s.planned.content_bytes for s, _ in bound)):
            read = [*reads.ceilings(bench, case, list(mine)), *read]
        if args.once:
            return arms.once(material, [*bound, *read])
        proofs = {s.name: arms.prove(material, s.planned, s) for s, _ in bound}
        rows = bench.measure(name, [*bound, *read], case.id, contests=not case.sweep)
        for (spec, arm), row in zip([*bound, *read], rows, strict=False):
            if proof := proofs.get(spec.name):
                row.overlap_s, row.load_balance = proof.overlap_s, proof.load_balance
                row.missing, row.notes = proof.missing, [*row.notes, *proof.notes]
            arms.settle(material, spec.planned, arm, row, rows)
        rows += arms.more(material, variants)
    lost = bench.skipped.items()  # the backends that do not work here: a row each
    facts = bench.gpu.facts
    return [*rows, *skipped, *(refused(name, case, variants[0], b, "measured", facts, w) for b, w in lost)]


def _all_refused(
    name: str, bench: Bench, args: argparse.Namespace, case: Case, why: str,
    backends: tuple[Backend, ...] = BACKENDS,
) -> list[Row]:  # fmt: skip
    """A skipped row per variant and backend."""
    return [
        refused(name, case, v, backend, "measured", bench.gpu.facts, why)
        for backend in _asked(args, backends)
        for v in probe.table(name).variants(args, case)
    ]
