"""L2's verdicts out of samples: every PDL arm of a judged chain against the plain graph, at all KV lengths.

decode13 answers `l2.pdl`, ffn_down24 `l2.ring_bandwidth`, decode13_ring `l2.ring_decode`. The arm that a bar
names comes first; each other arm has its own row against the same bar.
"""

from __future__ import annotations

from collections.abc import Sequence

from probes import l2
from probes.core import recorded, report, stats, verdict
from probes.core.rows import Row
from probes.core.types import Backend
from probes.core.verdict import Verdict
from probes.l2_predict import BACKENDS

EARLIER_S = 50e-9
"""A start this much earlier than in the plain graph is no accident of the timer."""


def groups_of(case: str) -> dict[str, str]:
    """What a chain's verdict needs: a group of rows for each KV length, and its name; '' without one."""
    return {f"{case}@{kv}": f"KV {kv}" for kv in l2.KVS} if case in l2.DECODE else {case: ""}


def find(rows: Sequence[Row], group: str, variant: str, backend: str) -> Row | None:
    """The measured row of that name, None where there is none."""
    return next(
        (r for r in rows if (r.group, r.variant, r.backend) == (group, variant, backend) and r.samples_s),
        None,
    )


def times(row: Row) -> stats.F64:
    """A row's samples by process and window."""
    return stats.arm(row.samples_s, row.processes or 1)


def interval(a: Row, b: Row, seed: int) -> stats.Interval:
    """Time of a over time of b, from paired samples."""
    ratios = stats.paired_ratios(times(a), times(b))
    if ratios.shape[0] > 1:
        return stats.interval_processes(list(ratios), seed)
    return stats.interval(ratios[0], seed)


def floor_of(rows: Sequence[Row], group: str, backend: str, seed: int) -> float | None:
    """The A/A noise floor of one chain: every pair of the plain arm's repetitions."""
    same = [r for name in l2.AA if (r := find(rows, group, name, backend))]
    pairs = [interval(b, a, seed) for k, a in enumerate(same) for b in same[k + 1 :]]
    return stats.floor_of(pairs) if pairs else None


def blocked(row: Row, plain: Row) -> str | None:
    """The proof that an arm lacks, None where all are there. Without an overlap nothing is decided."""
    for note in row.notes:
        if note.startswith(l2.MISSING):
            return note
    if any(note.startswith("hot") for note in row.notes):
        return "the weights were not cold"
    if row.overlap_s is None:
        return "no overlap was looked for"
    if row.overlap_s > 0:
        return None
    told = f"no overlap seen: launches start {-row.overlap_s * 1e6:.2f} us after their predecessor's end"
    if plain.overlap_s is not None and row.overlap_s - plain.overlap_s >= EARLIER_S:
        # a wait without a trigger can do no more than close the gap; the speed gained is shown all the same
        return f"{told}, {(row.overlap_s - plain.overlap_s) * 1e6:.2f} us earlier than in the plain graph"
    return f"{told}, no earlier than in the plain graph"


def _one(
    rows: Sequence[Row], group: str, arm: str, backend: str, bar: verdict.Bar, seed: int
) -> tuple[Verdict, Row] | None:
    """One arm of one group: its verdict, and a row with the figures behind it."""
    a, plain = find(rows, group, arm, backend), find(rows, group, l2.BASELINE, backend)
    floor = floor_of(rows, group, backend, seed)
    if a is None or plain is None or floor is None:
        return None
    found = interval(a, plain, seed)
    decided = verdict.judge_ratio(found.ratio, found.low, found.high, floor, bar, blocked(a, plain))
    row = Row(
        probe="l2", case=a.case, variant=arm, backend=a.backend, source="measured", device=a.device,
        ratio_to_baseline=found.ratio, ratio_low=found.low, ratio_high=found.high, noise_floor=floor,
        overlap_s=a.overlap_s,
    )  # fmt: skip
    return decided, row


def judge(rows: Sequence[Row], seed: int) -> list[Row]:
    """Verdict rows: each arm of each judged chain; the arm that the bar names first.

    Pure: the same rows and seed give the same verdicts. A row's ratio is that of the KV length where the arm
    does worse.
    """
    measured = [r for r in rows if r.source == "measured" and not r.verdict]
    out: list[Row] = []
    for case, name in l2.BARS.items():
        bar = verdict.bar(name)
        for arm in sorted(l2.JUDGED, key=lambda a: a != bar.variant):
            for backend in BACKENDS:
                out += _judge_arm(measured, case, bar, arm, backend, seed)
    return out


def _judge_arm(
    rows: Sequence[Row], case: str, bar: verdict.Bar, arm: str, backend: Backend, seed: int
) -> list[Row]:
    parts: list[tuple[str, Verdict]] = []
    figures: list[Row] = []
    for group, name in groups_of(case).items():
        found = _one(rows, group, arm, backend, bar, seed)
        if found is None:
            parts.append((name, Verdict("INCONCLUSIVE", "not measured")))
        else:
            parts.append((name, found[0]))
            figures.append(found[1])
    if not figures:
        return []
    decided = verdict.all_of(parts) if len(parts) > 1 else parts[0][1]
    row = max(figures, key=lambda r: r.ratio_to_baseline or 0.0)
    said = recorded.figure("l2", case, arm, "verdict")
    word = str(said.value) if said else None
    row.verdict, row.recorded, row.agrees = decided.verdict, word, verdict.agree(decided.verdict, word)
    row.noise_floor = max(r.noise_floor or 0.0 for r in figures)
    row.reason = ". ".join([decided.reason, *_mechanism(rows, case, arm, backend, seed)])
    return [row]


def _mechanism(rows: Sequence[Row], case: str, arm: str, backend: str, seed: int) -> list[str]:
    """What lies behind an arm's figure: when launches started, how near to a plain read, PROBES_PDL=0."""
    out = []
    for group, name in groups_of(case).items():
        said = f"{name}: " if name else ""
        a, plain = find(rows, group, arm, backend), find(rows, group, l2.BASELINE, backend)
        if a is None or plain is None:
            continue
        if a.overlap_s is not None and plain.overlap_s is not None:
            out.append(
                f"{said}launches start {_when(a.overlap_s)}, {_when(plain.overlap_s)} in the plain graph"
            )
        if a.fraction_of_same_bytes_read and plain.fraction_of_same_bytes_read:
            own, before = (report.format_percent(r.fraction_of_same_bytes_read) for r in (a, plain))
            out.append(
                f"{said}at {own} of a PDL chain that reads the same bytes, "
                f"the plain graph at {before} of a plain chain that does"
            )
        off = find(rows, group, f"{arm.removesuffix('_trigger').removesuffix('_tail')}_off", backend)
        if off:
            found = interval(a, off, seed)
            out.append(
                f"{said}against such kernels under PROBES_PDL=0, time ratio "
                f"{report.format_ratio(found.ratio, found.low, found.high)}"
            )
    return out


def _when(overlap_s: float) -> str:
    side = "before" if overlap_s > 0 else "after"
    return f"{abs(overlap_s) * 1e6:.2f} us {side} their predecessor's end"
