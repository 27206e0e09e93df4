"""A measured gain against a bar fixed beforehand in bars.toml: GO, NO-GO or INCONCLUSIVE.

GO            the interval's lower end is at or above the bar, and the effect is above the noise floor.
NO-GO         the upper end is below the bar, and so is the noise floor.
INCONCLUSIVE  everything else, and anything whose proof is missing (`blocked`).

With a bar of 0, GO wants the whole interval above 0, NO-GO below 0, and both an effect above the floor.
Gains are fractions (0.0165 = 1.65 %).
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from probes.core.digest import digest
from probes.core.types import BadInput

Decision = Literal["GO", "NO-GO", "INCONCLUSIVE"]
Metric = Literal["time_saved", "speedup"]

DECISIONS: dict[str, Decision] = {d: d for d in get_args(Decision)} | {"LANDED": "GO"}


@dataclass(frozen=True, slots=True)
class Bar:
    """One row of bars.toml; `name` is "probe.key"."""

    name: str
    question: str
    metric: Metric
    bar: float
    strict: bool
    variant: str
    baseline: str
    over: tuple[str, ...]
    where: str

    @property
    def text(self) -> str:
        """Such as `>= +1.65 %`."""
        return f"{'>' if self.strict else '>='} {_percent(self.bar)}"


@dataclass(frozen=True, slots=True)
class Targets:
    """A table of bars.toml with a figure per case: reached or not, with no baseline and no GO."""

    name: str
    question: str
    metric: str
    targets: Mapping[str, float]
    where: str


class Gain(NamedTuple):
    """A gain and the ends of its interval, as fractions; positive is better."""

    gain: float
    low: float
    high: float


class Verdict(NamedTuple):
    """The decision, and one line with the figures that it was made from and why."""

    verdict: Decision
    reason: str


@cache
def bars() -> dict[str, Bar]:
    """Every bar by name, in the file's order."""
    return {
        name: Bar(name=name, **{**row, "over": tuple(row["over"])})
        for name, row in _tables().items()
        if "targets" not in row
    }


def bar(name: str) -> Bar:
    """The bar of that name; BadInput offers close names."""
    found = bars().get(name)
    if found is None:
        near = difflib.get_close_matches(name, bars(), cutoff=0.3) or list(bars())
        raise BadInput(f"no bar is named {name!r}: did you mean {', '.join(near)}?")
    return found


@cache
def targets(name: str) -> Targets:
    """The table of targets of that name. Raises KeyError: names stand in the code, not in a flag."""
    return Targets(name=name, **_tables()[name])


def bars_sha256(*probes: str) -> str:
    """SHA-256 (hex) of these probes' tables of bars.toml, of all of them by default; their values count."""
    tables = _file()
    return digest({name: tables.get(name, {}) for name in sorted(probes or tables)})


def gain_of(metric: Metric, ratio: float, low: float, high: float) -> Gain:
    """A ratio of times (variant / baseline, with its interval) as a gain with its interval."""
    if not 0 < low <= ratio <= high:
        raise BadInput(f"a ratio must lie inside a positive interval, got {ratio} in [{low}, {high}]")
    if metric == "time_saved":
        return Gain(1 - ratio, 1 - high, 1 - low)
    return Gain(1 / ratio - 1, 1 / high - 1, 1 / low - 1)


def judge(
    gain: float, gain_low: float, gain_high: float, floor: float, bar: float, *, strict: bool = False,
    blocked: str | None = None,
) -> Verdict:  # fmt: skip
    """Hold a gain with its interval against `bar` (>= 0), with the noise floor of the same run.

    `blocked`: a proof that is missing (no overlap seen, ran hot, …); the verdict is then INCONCLUSIVE.
    Raises BadInput on a gain outside its interval or a negative floor or bar (NaN included).
    """
    if not gain_low <= gain <= gain_high:
        raise BadInput(f"a gain must lie inside its interval, got {gain} in [{gain_low}, {gain_high}]")
    if not floor >= 0 or not bar >= 0:
        raise BadInput(f"noise floor and bar must be 0 or more, got {floor} and {bar}")
    seen = f"{_percent(gain)} [{_percent(gain_low)}, {_percent(gain_high)}]"
    want, noise = f"{'>' if strict else '>='} {_percent(bar)}", f"noise floor {_percent(floor, sign=False)}"

    def say(decision: Decision, why: str) -> Verdict:
        return Verdict(decision, f"gain {seen}, bar {want}, {noise}: {why}")

    if blocked:
        return say("INCONCLUSIVE", blocked)
    reaches = gain_low > bar if strict else gain_low >= bar
    if reaches and gain > floor:
        return say("GO", "the whole interval reaches the bar, and the gain is above the floor")
    if reaches:
        return say("INCONCLUSIVE", "the interval reaches the bar, but the gain is not above the floor")
    if gain_high < bar:
        if floor < bar:
            return say("NO-GO", "the whole interval is below the bar, and the floor is fine enough to tell")
        if bar == 0 and -gain > floor:
            return say("NO-GO", "the whole interval is a loss, and the loss is above the floor")
        return say("INCONCLUSIVE", "below the bar, but the floor is too coarse to tell: take more windows")
    return say("INCONCLUSIVE", "the interval straddles the bar: take more windows")


def judge_ratio(
    ratio: float, low: float, high: float, floor: float, bar: Bar, blocked: str | None = None
) -> Verdict:
    """The same from a ratio of times, its interval and a floor |ratio - 1|, by the bar's own metric."""
    g = gain_of(bar.metric, ratio, low, high)
    if bar.metric == "speedup":
        floor = 1 / (1 - floor) - 1 if floor < 1 else float("inf")
    return judge(g.gain, g.low, g.high, floor, bar.bar, strict=bar.strict, blocked=blocked)


def all_of(parts: Sequence[tuple[str, Verdict]]) -> Verdict:
    """One verdict that needs every part: any NO-GO decides, then any INCONCLUSIVE, else GO."""
    for decision in ("NO-GO", "INCONCLUSIVE", "GO"):
        if hit := [(name, v) for name, v in parts if v.verdict == decision]:
            return Verdict(hit[0][1].verdict, "; ".join(f"{name}: {v.reason}" for name, v in hit))
    return Verdict("INCONCLUSIVE", "nothing was judged")


def recorded_decision(word: str | None) -> Decision | None:
    """The record's word as one of ours (LANDED is GO). BadInput on a word that is neither."""
    if word is not None and word not in DECISIONS:
        raise BadInput(f"unknown verdict {word!r}: one of {', '.join(DECISIONS)}")
    return DECISIONS[word] if word else None


def agree(verdict: str | None, recorded_verdict: str | None) -> bool | None:
    """Do both decide the same? None where either is missing or INCONCLUSIVE: nothing to compare."""
    ours, theirs = recorded_decision(verdict), recorded_decision(recorded_verdict)
    if ours in (None, "INCONCLUSIVE") or theirs in (None, "INCONCLUSIVE"):
        return None
    return ours == theirs


def exit_code(verdicts: Sequence[str | None]) -> int:
    """0 where every verdict was reached, 3 where one is INCONCLUSIVE."""
    return 3 if "INCONCLUSIVE" in verdicts else 0


def _percent(x: float, sign: bool = True) -> str:
    return f"{100 * x:{'+' if sign else ''}.2f} %"


def _tables() -> dict[str, dict[str, Any]]:
    """The file's tables by "probe.key"."""
    return {f"{probe}.{key}": row for probe, rows in _file().items() for key, row in rows.items()}


def _file() -> dict[str, dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_name("bars.toml").read_text(encoding="utf-8"))
