"""L3's verdicts out of samples: fused forms against the pair, form_c against the pair by its own kernel."""

from __future__ import annotations

from collections.abc import Sequence

from probes import l3, l3_waves
from probes.core import recorded, report, stats, verdict
from probes.core.rows import Row
from probes.l3_predict import BACKENDS, RECORD

BOUND = 0.85
"""A kernel that reaches this share of a read's speed is said to be bound by what binds the read."""

SEED = 0
"""Of the intervals of `section`, which decide nothing."""


def find(rows: Sequence[Row], case: str, variant: str, backend: str) -> Row | None:
    return next(
        (r for r in rows if (r.case, r.variant, r.backend) == (case, variant, backend) and r.samples_s), None
    )


def times(row: Row) -> stats.F64:
    return stats.arm(row.samples_s, row.processes or 1)


def case_floor(
    rows: Sequence[Row], case: str, backend: str, seed: int, aas: Sequence[str] = l3.CONTESTS[0].aas
) -> float | None:
    """The A/A noise floor of one case and backend: each of `aas` and what it repeats, as two arms."""
    pairs = [(find(rows, case, l3.AA[again], backend), find(rows, case, again, backend)) for again in aas]
    ratios = [stats.paired_ratios(times(b), times(a)) for a, b in pairs if a and b]
    return stats.noise_floor([r if r.shape[0] > 1 else r[0] for r in ratios], seed) if ratios else None


def judge(rows: Sequence[Row], seed: int) -> list[Row]:
    """Verdict rows: each contest's forms against its baseline, per case and backend; sweeps are not judged.

    A verdict's ratio is over its contest's baseline: form_c's over pair_ring. Pure: the same rows and seed
    give the same verdicts, so a file can be judged again anywhere.
    """
    measured = [r for r in rows if r.source == "measured" and not r.verdict]
    out = []
    for backend in BACKENDS:
        for case in dict.fromkeys(r.case for r in measured if not r.case.startswith(report.SWEEP)):
            for contest in l3.CONTESTS:
                floor = case_floor(measured, case, backend, seed, contest.aas)
                base = find(measured, case, contest.baseline, backend)
                forms = [r for name in contest.forms if (r := find(measured, case, name, backend))]
                if base is not None and floor is not None:
                    out += [_decided(measured, contest, row, base, floor, seed) for row in forms]
    return out


def _decided(rows: Sequence[Row], contest: l3.Contest, row: Row, base: Row, floor: float, seed: int) -> Row:
    """One form's verdict against its contest's baseline."""
    found = stats.weighted_ratio([(1, times(row), times(base))], seed)
    bar = verdict.bar(contest.bar)
    decided = verdict.judge_ratio(found.ratio, found.low, found.high, floor, bar, blocked=blocked(row, base))
    said = recorded.figure("l3", RECORD, row.variant, "verdict")
    word = str(said.value) if said else None
    ring = contest.baseline == l3.RING_BASELINE
    why = saves(row, base, found) if ring else binds(rows, row, base)
    return Row(
        probe="l3", case=row.case, variant=row.variant, backend=row.backend, source="measured",
        device=row.device, ratio_to_baseline=found.ratio, ratio_low=found.low, ratio_high=found.high,
        noise_floor=floor, verdict=decided.verdict, recorded=word,
        agrees=verdict.agree(decided.verdict, word), reason=f"{decided.reason}. {why}",
    )  # fmt: skip


def blocked(row: Row, base: Row) -> str | None:
    """Why nothing is decided, None where all is as it should be."""
    if any("hot" in n for n in row.notes):
        return "the weights were not cold"
    for r in (row, base):
        if _geometry(r) and (r.waves or 0.0) > 1.0:
            return f"{r.variant}'s {r.grid} blocks do not fit at once ({r.waves:.2f} waves): a ring's should"
    return None


def saves(row: Row, base: Row, found: stats.Interval) -> str:
    """What a fusion saves over the pair by the same matrix kernel, of what there is to save; what binds."""
    assert row.time_s and base.time_s, "a measured row has its time"
    gain = 1 - found.ratio
    word = "saves" if gain >= 0 else "costs"
    out = [
        f"against {base.variant}, which reads by the same kernel, the fusion {word} "
        f"{report.format_time(abs(gain) * base.time_s)} of {report.format_time(base.time_s)}"
    ]
    read = base.same_bytes_read_s
    if read:
        most, share = base.time_s - read, read / base.time_s
        dram = share >= BOUND
        rest = "what is not reading binds (instructions, start and end, the second kernel)"
        what = "memory binds" if dram else rest
        out.append(
            f"{what}: a plain read of these bytes takes {report.format_percent(share, 0)} of "
            f"{base.variant}'s time, so no fusion could save more than {report.format_time(most)} "
            f"({report.format_percent(most / base.time_s, 1)})"
        )
    if row.fraction_of_same_bytes_read is not None:
        near = report.format_percent(row.fraction_of_same_bytes_read, 0)
        out.append(f"{row.variant} runs at {near} of that read")
    if _geometry(row):
        out.append(f"in geometry {_geometry(row)} against {_geometry(base)}")
    if row.grid and row.waves and base.grid and base.waves:
        out.append(f"{row.grid} blocks in {row.waves:.2f} waves against {base.grid} in {base.waves:.2f}")
    if row.registers and base.registers and row.registers != base.registers:
        out.append(f"{row.registers} registers against {base.registers}")
    return ", ".join(out)


def _geometry(row: Row) -> str:
    """The geometry that a ring's row names."""
    told = next((n for n in row.notes if n.startswith("geometry ")), "")
    return told.removeprefix("geometry ").partition(",")[0]


def _sms(row: Row) -> int | None:
    """SMs that a row ran on, out of its own figures."""
    return (
        round(row.grid / (row.waves * row.blocks_per_sm))
        if row.grid and row.waves and row.blocks_per_sm
        else None
    )


def binds(rows: Sequence[Row], row: Row, base: Row) -> str:
    """What limits the pair here, and what the form changes: waves, load, registers; the sweep's word too."""
    out = []
    if base.fraction_of_ceiling is not None:
        dram = base.fraction_of_ceiling >= BOUND
        what = "DRAM bandwidth binds" if dram else "latency or issue slots bind, not DRAM"
        out.append(
            f"{what}: the pair reads at {report.format_percent(base.fraction_of_ceiling, 0)} of the ceiling"
        )
    if row.grid and row.waves and row.blocks_per_sm:
        even = "" if row.load_balance is None else f", the busiest SM with {row.load_balance:.2f} x the mean"
        out.append(
            f"{row.grid} blocks at {row.blocks_per_sm} per SM on {_sms(row)} SMs are {row.waves:.2f} waves"
            f"{even} (the pair's matmul {base.waves or 0:.1f} waves)"
        )
    if row.registers and base.registers and row.registers != base.registers:
        out.append(f"{row.registers} registers against {base.registers}")
    if row.variant == "form_b" and row.grid:
        taken = l3_waves.parts(l3_waves.points(rows, row.backend), row.grid)
        if taken:
            out.append(
                f"in the sweep waves cost {report.format_percent(taken.wave_part, sign=True)} "
                f"and the form at whole waves {report.format_percent(taken.latency_part, sign=True)}"
            )
    return ", ".join(out)


STEPS = (
    ("the matmul form", l3.RING_BASELINE, l3.BASELINE),
    ("the fusion, both by the ring", "form_c", l3.RING_BASELINE),
    ("both together", "form_c", l3.BASELINE),
)
"""Two levers that are not one: what changes, from the second variant to the first."""


def section(rows: Sequence[Row], title: str, markdown: bool) -> list[str]:
    """What beats the recorded pair: each variant over it, and matmul form and fusion apart.

    Empty where no ring kernel was measured: the case's own table then says all there is.
    """
    measured = [r for r in rows if r.source == "measured" and not r.verdict]
    lines, told = [], []
    for case in dict.fromkeys(r.case for r in measured if not r.case.startswith(report.SWEEP)):
        for backend in BACKENDS:
            if not find(measured, case, l3.RING_BASELINE, backend):
                continue
            for v in l3.VARIANTS:
                row = find(measured, case, v.name, backend)
                if row:
                    lines.append(_line(measured, row))
            for what, name, of in STEPS:
                if ratio := _over(measured, case, backend, name, of):
                    said = f"{name} over {of} {report.format_ratio(*ratio)}"
                    told.append(f"- {what}, {case}, {backend}: {said}")
    heads = ["case", "backend", "variant", "time", "over the pair [low, high]", "of same-bytes read"]
    if not lines:
        return []
    table = report.table(heads, lines, markdown, left=heads[:3])
    steps = "\n".join(told)
    return [f"{title}What beats the recorded pair here\n\n{table}\n\n{steps}".rstrip()]


def _line(rows: Sequence[Row], row: Row) -> list[str]:
    same = row.variant == l3.BASELINE
    over = None if same else _over(rows, row.case, row.backend, row.variant, l3.BASELINE)
    share = report.format_percent(row.fraction_of_same_bytes_read)
    ratio = report.format_ratio(*over) if over else report.format_ratio(1.0 if same else None)
    return [row.case, row.backend, row.variant, report.format_time(row.time_s), ratio, share]


def _over(rows: Sequence[Row], case: str, backend: str, name: str, of: str) -> stats.Interval | None:
    """One variant's time over another's, window by window."""
    a, b = (find(rows, case, n, backend) for n in (name, of))
    return stats.weighted_ratio([(1, times(a), times(b))], SEED) if a and b else None
