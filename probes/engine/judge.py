"""Rows that were timed together -> ratios; contests -> verdict rows. Pure: nothing here knows a GPU.

A contest's variants are held against its baseline group by group. The noise floor is what the contest's A/A
pairs show in the same group. A sum over a model weighs each case by how often a decode step runs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum

from probes.core.types import BACKENDS, Backend
from probes.engine.probe import AnalysisPart, Contest
from probes.report import tables
from probes.report.rows import Row
from probes.verdict import bars, intervals, record
from probes.verdict.bars import Verdict
from probes.verdict.intervals import Interval

COLD = "the weights were not cold"
Part = tuple[Row, Row, float]  # a variant's row, its baseline's and the noise floor of their group


def find(rows: Sequence[Row], group: str, variant: str, backend: str) -> Row | None:
    """The timed row of one variant, None where there is none."""
    want = (group, variant, backend)
    return next((r for r in rows if r.samples_s and (r.group, r.variant, r.backend) == want), None)


def times(row: Row) -> intervals.F64:
    """A row's samples by process and window."""
    return intervals.arm(row.samples_s, row.processes or 1)


def over(a: Row, b: Row, seed: int) -> Interval:
    """Time of a over time of b, from paired samples."""
    return intervals.weighted_ratio([(1, times(a), times(b))], seed)


def family(rows: Sequence[Row], row: Row) -> list[Row]:
    """The timed reads among `rows` that `row` is held against: its `read`, and further forms `of` that."""
    return [r for r in rows if r.role == "read" and r.time_s and row.read and row.read in (r.variant, r.of)]


def relate(rows: Sequence[Row], seed: int) -> None:
    """Ceilings, shares of a plain read and ratios of rows that were timed together, from their samples."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row.samples_s and row.time_s:
            groups.setdefault(row.group, []).append(row)
    for peers in groups.values():
        ceiling = max((r.content_gbps or 0.0 for r in peers if r.role == "ceiling"), default=0.0)
        for row in peers:
            assert row.time_s, "timed rows alone are here"
            if ceiling and row.content_gbps:
                row.read_ceiling_gbps, row.fraction_of_ceiling = ceiling, row.content_gbps / ceiling
            if reads := [r.time_s for r in family(peers, row) if r.time_s]:
                row.same_bytes_read_s = min(reads)
                row.fraction_of_same_bytes_read = min(reads) / row.time_s
            base = find(peers, row.group, row.baseline, row.backend) if row.baseline else None
            if base is row:
                row.ratio_to_baseline = 1.0
            elif base:
                row.ratio_to_baseline, row.ratio_low, row.ratio_high = over(row, base, seed)


def floor(rows: Sequence[Row], contest: Contest, group: str, backend: str, seed: int) -> float | None:
    """The A/A noise floor of a contest in one group, None where no pair of it was timed."""
    found = []
    for name, of in contest.again:
        again = find(rows, group, name, backend)
        first = find(rows, group, of or (again.of if again and again.of else ""), backend)
        if again and first:
            found.append(over(again, first, seed))
    return intervals.floor_of(found) if found else None


def both(rows: Sequence[Row], contest: Contest, variant: str) -> tuple[Row, Row] | None:
    """A variant and its contest's baseline in the group and backend of `rows`, None where one is missing."""
    if not rows:
        return None
    row, base = (find(rows, rows[0].group, name, rows[0].backend) for name in (variant, contest.baseline))
    return (row, base) if row and base else None


def blocked(row: Row, base: Row, analysis: AnalysisPart) -> str | None:
    """What keeps a pair from a verdict: a missing proof, warm weights, or what the probe knows."""
    if row.missing:
        return row.missing[0]
    if row.cold is False or base.cold is False:
        return COLD
    return analysis.blocked(row, base)


def judge(rows: Sequence[Row], contests: Sequence[Contest], analysis: AnalysisPart, seed: int) -> list[Row]:
    """Verdict rows of every contest, variant and backend. The same rows and seed give the same verdicts."""
    timed = [r for r in rows if r.source == "measured" and r.samples_s and r.role != "verdict"]
    order = [(c, v, b) for c in contests for v in c.variants for b in BACKENDS]
    order.sort(key=lambda x: x[0].over != "all" and BACKENDS.index(x[2]))
    out: list[Row] = []
    for contest, variant, backend in order:
        mine = [r for r in timed if r.backend == backend]
        out += _Judged(mine, contest, variant, backend, analysis, seed).rows()
    return out


@dataclass(frozen=True)
class _Judged:
    """One variant of a contest in one backend."""

    all: list[Row]
    contest: Contest
    variant: str
    backend: Backend
    analysis: AnalysisPart
    seed: int

    def rows(self) -> list[Row]:
        """Its verdicts: each case's and, for a sum, each model's; or one for all groups together."""
        cases, parts = self.contest.cases, list[Part]()
        own = [r for r in self.all if not r.sweep and (not cases or r.case in cases)]
        for group in dict.fromkeys(r.group for r in own):
            mine = [r for r in self.all if r.group == group]
            pair = self.analysis.pair(mine, self.contest, self.variant)
            noise = floor(mine, self.contest, group, self.backend, self.seed)
            if pair and noise is not None:
                parts.append((*pair, noise))
        if self.contest.over == "all":
            wanted = [p for p in parts if p[0].group in (self.contest.groups or {p[0].group})]
            return [self._together(wanted)] if wanted else []
        out = [self._each(*part) for part in parts]
        return out + (self._sums(parts) if self.contest.over == "sum" else [])

    def _decide(self, found: Interval, noise: float, why: str | None) -> Verdict:
        return bars.judge_ratio(*found, noise, bars.bar(self.contest.bar), why)

    def _row(
        self, like: Row, case: str, scope: str, found: Interval, noise: float, decided: Verdict,
        why: Sequence[str],
    ) -> Row:  # fmt: skip
        said = record.figure(like.probe, self.contest.recorded_case, self.variant, "verdict")
        recorded = str(said.value) if said else None
        return Row(
            probe=like.probe, case=case, variant=self.variant, backend=self.backend, source="measured",
            device=like.device, ratio_to_baseline=found.ratio, ratio_low=found.low, ratio_high=found.high,
            noise_floor=noise, role="verdict", scope=scope, baseline=self.contest.baseline,
            recorded=recorded, verdict=decided.verdict, agrees=bars.agree(decided.verdict, recorded),
            reason=". ".join([decided.reason, *why]),
        )  # fmt: skip

    def _each(self, a: Row, b: Row, noise: float) -> Row:
        found = over(a, b, self.seed)
        why = self.analysis.why(self.all, self.contest, a, b, found, noise)
        decided = self._decide(found, noise, blocked(a, b, self.analysis))
        return self._row(a, a.case, "each", found, noise, decided, [why])

    def _sums(self, pairs: Sequence[Part]) -> list[Row]:
        models: dict[str, list[tuple[int, Row, Row, float]]] = {}
        for pair in pairs:
            for model, count in (pair[0].counts or {}).items():
                models.setdefault(model, []).append((count, *pair))
        out = []
        for model, parts in models.items():
            if not self.contest.whole.get(model, frozenset()) <= {a.case for _, a, *_ in parts}:
                continue
            found = intervals.weighted_ratio([(n, times(a), times(b)) for n, a, b, _ in parts], self.seed)
            # each case's ratio strays by its floor at most, so the sum's by their mean, weighted by time
            weights = [n * (b.time_s or 0.0) for n, _, b, _ in parts]
            noise = fsum(w * f for w, (*_, f) in zip(weights, parts, strict=True)) / fsum(weights)
            saved = fsum(n * ((b.time_s or 0.0) - (a.time_s or 0.0)) for n, a, b, _ in parts)
            why = f"{tables.format_time(saved)} saved of {tables.format_time(fsum(weights))} per decode step"
            stops = [w for _, a, b, _ in parts if (w := blocked(a, b, self.analysis))]
            decided = self._decide(found, noise, stops[0] if stops else None)
            out.append(self._row(parts[0][1], f"model_{model}", "sum", found, noise, decided, [why]))
        return out

    def _together(self, parts: Sequence[Part]) -> Row:
        """One verdict over all wanted groups; its figures are of the group where the variant does worst."""
        verdicts: list[tuple[str, Verdict]] = []
        figures: list[tuple[Interval, float, Row]] = []
        by_group = {part[0].group: part for part in parts}
        for group, name in (self.contest.groups or dict.fromkeys(by_group, "")).items():
            if group not in by_group:
                verdicts.append((name, Verdict("INCONCLUSIVE", "not measured")))
                continue
            a, b, noise = by_group[group]
            found = over(a, b, self.seed)
            verdicts.append((name, self._decide(found, noise, blocked(a, b, self.analysis))))
            figures.append((found, noise, a))
        decided = bars.all_of(verdicts) if len(verdicts) > 1 else verdicts[0][1]
        found, _, worst = max(figures, key=lambda f: f[0].ratio)
        why = self.analysis.why_all(self.all, self.contest, worst)
        noise = max(f[1] for f in figures)
        row = self._row(worst, worst.case, "all", found, noise, decided, why)
        row.overlap_s = worst.overlap_s
        return row
