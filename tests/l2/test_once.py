"""L2 for the profiler, on the stand-in GPU: which kernels are launched, in order, and checked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from probes import cli
from probes.commands.replay import rejudged
from probes.core.types import BadInput
from probes.engine import judge, reads
from probes.l2 import analysis, chains, report, table
from probes.report.rows import Row
from tests.host_gpu import HostGpu, Launched, Running
from tests.host_run import Commands, cold

PROFILED = "profiled_"
LARGE = [f.of(reads.LARGE) for f in reads.FORMS]
DECODE = [s.name for s in chains.decode_steps(1)]


def once(commands: Commands, *argv: str) -> tuple[list[Row], list[Launched]]:
    """Rows of a run for the profiler, and the launches that it would see."""
    done = commands("l2", "--once", "--backend", "cu", *argv)
    assert done.code == 0, done.err
    for row in done.rows:
        row.check()
        assert not row.samples_s and row.time_s is None
    return done.rows, [x for x in commands.gpu.launched if x.profiled]


def kernel_of(row: Row, ring: bool) -> str:
    """The compiled kernel that a row's name speaks of."""
    name, _, kind = row.variant.removeprefix(PROFILED).rpartition("_")
    if row.role == "ceiling":
        return f"l2_{row.variant}"
    if kind == "read":
        return "harness_read"
    step = next((s for s in chains.decode_steps(1) if s.name == name), None)
    kernel = step.kernel if step else {"ffn_down": "q6k", "attn_v": "q6k"}.get(name, name)
    return f"l2_{kernel}{'_ring' if ring and kernel in ('q4k', 'q6k') else ''}_{kind}"


def test_every_kernel_is_launched_once_in_the_order_of_the_rows(
    small_l2: HostGpu, commands: Commands
) -> None:
    rows, seen = once(commands, *(x for case in table.CHAINS for x in ("--case", case)))
    named = [kernel_of(r, r.case in table.RING) for r in rows]
    ceiling = {f"l2_{f.of(reads.LARGE)}": f.kernel for f in reads.FORMS}
    assert [x.kernel for x in seen] == [ceiling.get(n, n) for n in named]
    large = [r for r in rows if r.role == "ceiling"]
    assert [x.grid for x, r in zip(seen, rows, strict=True) if r not in large] == [
        r.grid for r in rows if r not in large
    ]
    assert [r.variant for x, r in zip(seen, rows, strict=True) if x.pdl] == ["read_large_pdl"] * 7
    groups = list(dict.fromkeys(r.group for r in rows))
    assert groups == [
        "bandwidth24", "compute24", "decode13@9", "decode13@5", "ffn_down24", "attn_v24", "decode13_ring@9",
        "decode13_ring@5",
    ]  # fmt: skip
    of = {g: [r.variant.removeprefix(PROFILED) for r in rows if r.group == g] for g in groups}
    assert of["bandwidth24"] == [*LARGE, "stream_plain", "stream_late", "stream_read"]
    assert of["compute24"] == ["compute_plain", "compute_late"]
    assert of["attn_v24"] == [*LARGE, "attn_v_plain", "attn_v_late", "attn_v_read"]
    late = [s.name for s in chains.decode_steps(1) if s.kernel in chains.LATE]
    weights = ["qkv", "attention_split", "o", "gate_up", "down"]
    want = [f"{n}_{kind}" for kind, names in (("plain", DECODE), ("late", late)) for n in names]
    want = [*LARGE, *want, *(f"{n}_read" for n in weights)]
    assert of["decode13@9"] == of["decode13_ring@9"] == want
    assert len({r.id for r in rows}) == len(rows)
    ring = next(r for r in rows if r.id == "l2/ffn_down24/profiled_ffn_down_plain/cu")
    assert ring.notes[0].startswith("ring: ") and ring.content_bytes and ring.smem_bytes


def test_the_chains_are_checked_in_both_kinds_first(small_l2: HostGpu, commands: Commands) -> None:
    def change(x: Running) -> None:
        x.gpu.at(x.launch.args[3], np.float32, 4)[2] += 1

    small_l2.wrong("l2_q6k_ring_late", change=change)
    done = commands("l2", "--once", "--backend", "cu", "--case", "ffn_down24")
    assert done.code == 1 and "pdl_late, one launch at a time" in done.err
    assert not [x for x in small_l2.launched if x.profiled]


def test_a_sweep_is_not_for_the_profiler(small_l2: HostGpu, commands: Commands) -> None:
    rows, seen = once(commands, "--sweep", "--case", "attn_v24", "--case", "compute24")
    assert len(rows) == len(seen) == 5 + len(LARGE)


def test_an_empty_kernel_has_nothing_to_count() -> None:
    parse = cli.parser("l2").parse_args
    with pytest.raises(BadInput, match="empty ones do nothing"):
        table.check_flags(parse(["--counters", "--case", "empty"]))
    for argv in (["--counters"], ["--counters", "--case", "empty", "--case", "decode13"]):
        table.check_flags(parse(argv))
        assert "empty" in table.names(parse(argv)) and "empty" not in table.names(parse([*argv, "--once"]))


def test_kernels_alone_change_no_verdict_and_no_readme(small_l2: HostGpu, commands: Commands) -> None:
    done = commands("l2", "--backend", "cu", "--case", "ffn_down24", "--windows", "8")
    rows = cold(done.rows)
    alone = [r for r in once(commands, "--case", "ffn_down24")[0] if r.variant.startswith(PROFILED)]
    for row in alone:
        row.dram_bytes_read, row.profiler_time_s = row.content_bytes, 1e-5
        row.profiler_dram_fraction, row.profiler_issue_fraction = 0.5, 0.1
    both = [Row.from_json(r.to_json()) for r in (*rows, *alone)]
    verdicts, again = (
        [r.to_json() for r in judge.judge(some, table.CONTESTS, analysis)] for some in (rows, both)
    )
    assert verdicts and again == verdicts
    assert [r.to_json() for r in rejudged(both, ["l2"], done.head, Path("l2.json"))] == verdicts
    assert report.readme(both) == report.readme(rows)
    before, after = (report.sections(some, True) for some in (rows, both))
    (new,) = [s for s in after if s not in before]
    assert report.ALONE in new and "ffn_down_late" in new and [s for s in after if s != new] == before
