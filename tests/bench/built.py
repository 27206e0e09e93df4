"""A run's arms for benchmarks: every case of the flags opened, bound, built and checked; their times."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from probes import cli
from probes.core.types import Backend, Unavailable
from probes.engine import arms as binding
from probes.engine import probe, run
from probes.engine.bench import Bench, Spec
from probes.gpu.timing import Arm, replay_s
from probes.verdict import bars, blocks

ROUNDS = 12


class Clock:
    """A timer for pytest-benchmark that moves only when the GPU has worked."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


clock = Clock()


@dataclass
class Built:
    """Arms by `case@kv/variant/backend`, plain reads among them; why the others cannot be launched here."""

    arms: dict[str, tuple[Spec, Arm]] = field(default_factory=dict)
    told: dict[str, str] = field(default_factory=dict)

    def why_not(self, key: str, bench: Bench) -> str:
        """Why there is no such arm."""
        return self.told.get(key) or bench.skipped.get(_backend(key), "no such arm in this case")


def _backend(key: str) -> Backend:
    return "cu" if key.endswith("/cu") else "numba"


@contextmanager
def built(name: str, bench: Bench, *argv: str) -> Iterator[Built]:
    """A probe's arms for these flags; checked again at the end. Raises Unavailable where it cannot run."""
    table, args = probe.table(name), cli.parser(name).parse_args(list(argv))
    table.check_flags(args)
    facts, (since, why) = bench.gpu.facts, table.NEEDS
    if facts.compute_capability < since:
        raise Unavailable(f"{why}, this GPU is {facts.arch}")
    kernels = run.load(name, bench, args)

    def fit(symbol: str) -> dict[Backend, int]:
        return {b: k[symbol].blocks_per_sm(256) for b, k in kernels.items()}

    out = Built()
    with ExitStack() as stack:
        made = probe.arms(name).make(bench, args, kernels, stack)
        for case in table.cases(args, facts.sms, fit):
            variants = table.variants(args, case)
            material = made.open(case, variants, stack)
            part = probe.plan(name)
            arms, skipped = binding.bind(name, part, made, material, bench, case, variants, kernels, args)
            each = [*arms, *made.reads(material, list(kernels))]
            out.arms |= {f"{case.group}/{spec.name}": (spec, arm) for spec, arm in each}
            out.told |= {f"{r.group}/{r.variant}/{r.backend}": r.skipped or "" for r in skipped}
        for _, arm in out.arms.values():
            arm.build(bench.gpu.stream)
            stack.callback(arm.close)
        yield out
        for _, arm in out.arms.values():
            arm.recheck()


def session_of(name: str, bench: Bench, *argv: str) -> Iterator[Built]:
    """A fixture's body: `built`, or a skip where this GPU cannot run it."""
    with ExitStack() as stack:
        try:
            found = stack.enter_context(built(name, bench, *argv))
        except Unavailable as error:
            pytest.skip(str(error))
        yield found


NAMES = ("registers", "blocks_per_sm", "limiter", "waves", "tail_fraction", "content_bytes", "rotation_bytes")


def described(bench: Bench, name: str, spec: Spec) -> dict[str, Any]:
    """What extra_info says of an arm besides its times; of a chain of several kernels no occupancy."""
    row = bench.row(name, spec)
    return {"grid": spec.planned.config.grid, **{n: getattr(row, n) for n in NAMES}}


def timed(benchmark: Any, bench: Bench, arm: Arm, base: Arm, bar: str, **facts: Any) -> None:
    """An arm and its baseline in turn, each round with an A/A pair.

    extra_info then holds the facts, the ratio with its interval, the noise floor and the bar's verdict.
    """
    seen: list[tuple[float, float, float]] = []

    def step() -> None:
        first, own, last = (replay_s(bench.gpu.stream, x) for x in (base, arm, base))
        seen.append((own, first, last))
        clock.seconds += own

    benchmark.pedantic(step, rounds=ROUNDS, iterations=1, warmup_rounds=1)
    own, first, last = np.array(seen[1:]).T
    r, again = np.log(2 * own / (first + last)), np.log(last / first)
    estimate, same = blocks.interval(r), blocks.interval(again)
    assert estimate and same, f"{ROUNDS} rounds give an interval"
    tau = blocks.tau([(same, again.size)])
    found = blocks.placed(estimate, tau).ratio
    floor = math.expm1(blocks.REACH * tau)
    decided = bars.decide(found, bars.bar(bar), floor)
    benchmark.extra_info.update(
        facts, bitwise=True, ratio_to_baseline=found.ratio, ratio_low=found.low, ratio_high=found.high,
        noise_floor=floor, verdict=decided.verdict, reason=decided.reason,
    )  # fmt: skip
    content = facts.get("content_bytes")
    if benchmark.stats and content:
        benchmark.extra_info["content_gbps"] = content / benchmark.stats.stats.median / 1e9
