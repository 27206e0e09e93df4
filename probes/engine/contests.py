"""Which pairs of a case are timed side by side, when each has seen enough, and the rows they leave. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from probes.engine import block_rule, judge, probe
from probes.engine.block_rule import Part
from probes.engine.judge import Pair
from probes.engine.probe import Contest
from probes.gpu.sampling import Blocks
from probes.report.rows import Row
from probes.verdict import bars, blocks

FINE = 0.005
"""Half-width that a part of a model's sum is to have, decided or not."""

REPEATED = 32
"""Blocks of an A/A pair: what tau is told from."""


class Contests:
    """The pairs of one case, from its surveyed rows. repeats: the A/A pairs' rows of the cases before."""

    def __init__(self, name: str, rows: Sequence[Row], repeats: list[Row]) -> None:
        self.surveyed, self.repeats = rows, repeats
        self.wanted = judge.pairs(rows, probe.table(name).CONTESTS, probe.analysis(name))
        self.pairs: tuple[Pair, ...] = tuple(self.wanted)

    def closed(self, look: int, taken: Sequence[Blocks]) -> Collection[int]:
        """The pairs that are decided by this look; an A/A pair where tau has enough of it."""
        now = self.rows(taken, keep=False)
        by = block_rule.rule([*self.surveyed, *self.repeats, *now])
        return [k for k, row in enumerate(now) if self._decided(self.pairs[k], row, look, by)]

    def _decided(self, pair: Pair, row: Row, look: int, by: block_rule.BlockRule) -> bool:
        if pair.again:
            return look >= REPEATED
        a, b = (self._find(name, pair) for name in (pair.variant, pair.baseline))
        part = by.of(row, a, b)
        e = blocks.interval(block_rule.seen(row))
        fine = e is not None and e.half <= FINE
        return all(self._enough(contest, part, fine, by) for contest in self.wanted[pair])

    def _enough(self, contest: Contest, part: Part, fine: bool, by: block_rule.BlockRule) -> bool:
        decided = by.decide(part, bars.bar(contest.bar), None).verdict != "INCONCLUSIVE"
        return decided and (fine or contest.over != "sum")

    def _find(self, name: str, pair: Pair) -> Row:
        found = judge.find(self.surveyed, self.surveyed[0].group, name, pair.backend)
        assert found, "a pair is made of surveyed rows"
        return found

    def rows(self, taken: Sequence[Blocks], keep: bool = True) -> list[Row]:
        """A row for each pair. keep: A/A pairs are remembered for the cases to come."""
        out = []
        for pair, own in zip(self.pairs, taken, strict=True):
            like = self._find(pair.variant, pair)
            row = Row(
                probe=like.probe, case=like.case, variant=pair.name, backend=pair.backend, source="measured",
                device=like.device, shape=like.shape, kv=like.kv, counts=like.counts, bitwise=True,
                role="contest", of=pair.variant, baseline=pair.baseline, sweep=like.sweep,
                blocks_s=own.time_s,
                block_clock_hz=[0.0 if np.isnan(c) else c for c in own.clock_hz], retaken=own.retaken,
            )  # fmt: skip
            if own.retaken > max(own.count, min(blocks.LOOKS)):
                told = f"{own.retaken} of {own.retaken + own.count} blocks had a slope at or below 0"
                row.missing.append(f"{told}: another process on the GPU?")
            out.append(row)
        if keep:
            self.repeats += [r for r, p in zip(out, self.pairs, strict=True) if p.again]
        return out
