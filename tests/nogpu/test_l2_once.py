"""L2 for the profiler, on the stand-ins of l2_fakes.py: which kernels are launched, in order, and checked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from probes import cli, l2, l2_chains, l2_limit, l2_measure, l2_report
from probes.__main__ import rejudged
from probes.bench import Bench
from probes.core.types import BadInput, WrongResult
from probes.gpu import counters
from probes.gpu.kernels import Launch
from probes.report.rows import Row
from tests.nogpu import l2_fakes

bench = l2_fakes.bench
DECODE = [s.name for s in l2_chains.decode_steps(1)]


@pytest.fixture
def seen(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """What the profiler would see: launches inside the window."""
    inside, found, run = [False], [], Launch.enqueue

    @contextmanager
    def window() -> Iterator[None]:
        inside[0] = True
        yield
        inside[0] = False

    def enqueue(self: Launch, stream: Any) -> None:
        if inside[0]:
            found.append(self)
        run(self, stream)

    monkeypatch.setattr(counters, "window", window)
    monkeypatch.setattr(Launch, "enqueue", enqueue)
    return found


def once(bench: Bench, *argv: str) -> list[Row]:
    args = cli.parser("l2").parse_args(["--once", "--backend", "cu", *argv])
    rows = [r for rows in l2_measure.measure(bench, args) for r in rows]
    for row in rows:
        row.check()
        assert not row.samples_s and row.time_s is None
    return rows


def kernel_of(row: Row, ring: bool) -> str:
    """The compiled kernel that a row's name speaks of."""
    name, _, kind = row.variant.removeprefix(l2.PROFILED).rpartition("_")
    if kind == "read":
        return "harness_read"
    step = next((s for s in l2_chains.decode_steps(1) if s.name == name), None)
    kernel = step.kernel if step else {"ffn_down": "q6k", "attn_v": "q6k"}.get(name, name)
    return f"l2_{kernel}{'_ring' if ring and kernel in ('q4k', 'q6k') else ''}_{kind}"


def test_every_kernel_is_launched_once_in_the_order_of_the_rows(bench: Bench, seen: list[Launch]) -> None:
    rows = once(bench, *(x for case in l2.CASES for x in ("--case", case)))
    assert [x.kernel.name for x in seen] == [kernel_of(r, r.case in l2.RING) for r in rows]
    assert [x.config.grid for x in seen] == [r.grid for r in rows]
    assert not any(x.config.pdl for x in seen)
    groups = list(dict.fromkeys(r.group for r in rows))
    assert groups == [
        "bandwidth24", "compute24", "decode13@9", "decode13@5", "ffn_down24", "attn_v24", "decode13_ring@9",
        "decode13_ring@5",
    ]  # fmt: skip
    of = {g: [r.variant.removeprefix(l2.PROFILED) for r in rows if r.group == g] for g in groups}
    assert of["bandwidth24"] == ["stream_plain", "stream_late", "stream_read"]
    assert of["compute24"] == ["compute_plain", "compute_late"]
    assert of["attn_v24"] == ["attn_v_plain", "attn_v_late", "attn_v_read"]
    late = [s.name for s in l2_chains.decode_steps(1) if s.kernel in l2_chains.LATE]
    reads = ["qkv", "attention_split", "o", "gate_up", "down"]
    want = [f"{n}_{kind}" for kind, names in (("plain", DECODE), ("late", late)) for n in names]
    assert of["decode13@9"] == of["decode13_ring@9"] == [*want, *(f"{n}_read" for n in reads)]
    assert len({r.id for r in rows}) == len(rows)
    ring = next(r for r in rows if r.id == "l2/ffn_down24/profiled_ffn_down_plain/cu")
    assert ring.notes[0].startswith("ring: ") and ring.content_bytes and ring.smem_bytes


def test_the_chains_are_checked_in_both_kinds_first(
    bench: Bench, seen: list[Launch], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Launch.enqueue

    def wrong(self: Launch, stream: Any) -> None:
        right(self, stream)
        if self.kernel.name == "l2_q6k_ring_late":
            l2_fakes.at(self.args[3], l2_fakes.F, 4)[2] += 1

    monkeypatch.setattr(Launch, "enqueue", wrong)
    with pytest.raises(WrongResult, match="pdl_late, one launch at a time"):
        once(bench, "--case", "ffn_down24")
    assert not seen


def test_a_sweep_is_not_for_the_profiler(bench: Bench, seen: list[Launch]) -> None:
    rows = once(bench, "--sweep", "--case", "attn_v24", "--case", "compute24")
    assert len(rows) == len(seen) == 5


def test_an_empty_kernel_has_nothing_to_count(bench: Bench) -> None:
    with pytest.raises(BadInput, match="empty ones do nothing"):
        l2.cases(cli.parser("l2").parse_args(["--counters", "--case", "empty"]))
    for argv in (["--counters"], ["--counters", "--case", "empty", "--case", "decode13"]):
        assert l2.cases(cli.parser("l2").parse_args(argv))


def test_kernels_alone_change_no_verdict_and_no_readme(bench: Bench) -> None:
    flags = ["--backend", "cu", "--case", "ffn_down24"]
    rows = [r for rows in l2_measure.measure(bench, cli.parser("l2").parse_args(flags)) for r in rows]
    alone = [r for r in once(bench, "--case", "ffn_down24") if r.variant.startswith(l2.PROFILED)]
    for row in alone:
        row.dram_bytes_read, row.profiler_time_s = row.content_bytes, 1e-5
        row.profiler_dram_fraction, row.profiler_issue_fraction = 0.5, 0.1
    both = [Row.from_json(r.to_json()) for r in (*rows, *alone)]
    verdicts = [r.to_json() for r in l2_report.judge(rows, 0)]
    assert verdicts and [r.to_json() for r in l2_report.judge(both, 0)] == verdicts
    assert [r.to_json() for r in rejudged(both, ["l2"], 0, Path("l2.json"))] == verdicts
    assert l2_report.readme(both) == l2_report.readme(rows)
    before, after = (l2_report.sections(some, True) for some in (rows, both))
    assert [s for s in after if s not in before] == l2_limit.kernels(both, "### ", True) != []
