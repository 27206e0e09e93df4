"""L2's proofs on the stand-in GPU: each is missed when it is not there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from probes.engine import machine_code
from probes.gpu import graph
from tests.host_gpu import HostGpu, Running
from tests.host_run import Commands

CU = ("--backend", "cu", "--windows", "2", "--blocks", "16")
DECODE = ("--case", "decode13", "--kv", "9")


def test_a_launch_without_its_time_stamps_is_no_gap(small_l2: HostGpu, commands: Commands) -> None:
    usual = small_l2.kernels["l2_stream_plain"]
    small_l2.kernels["l2_stream_plain"] = replace(usual, before=lambda x, *args: args[:-2])
    done = commands("l2", *CU, "--case", "bandwidth24", "--arm", "plain")
    assert done.code == 1 and "bandwidth24 plain/cu: stamps" in done.err


def test_what_a_layer_leaves_in_the_KV_cache_is_held_to_the_oracle(
    small_l2: HostGpu, commands: Commands
) -> None:
    """A later kernel spoils a value that this layer's attention has read."""
    where: list[int] = []

    def noted(x: Running) -> None:
        where.append(x.launch.args[1])

    def change(x: Running) -> None:
        x.gpu.at(where[0], np.float16, 1)[0] += 1
        x.gpu.allocation(where[0]).written()

    small_l2.wrong("l2_attention_split_plain", change=noted)
    small_l2.wrong("l2_q6k_plain", change=change)
    done = commands("l2", *CU, *DECODE, "--arm", "plain")
    assert done.code == 1 and "decode13 KV cache/cu at KV 9" in done.err


def test_every_replay_must_write_its_words(small_l2: HostGpu, commands: Commands) -> None:
    """The words that the eager launches left would still stand there."""
    usual = small_l2.kernels["l2_add_entry"]

    def lazy(x: Running, a: int, b: int, out: int) -> None:
        x.repeats = False

    small_l2.kernels["l2_add_entry"] = replace(usual, run=lazy)
    done = commands("l2", *CU, *DECODE, "--arm", "pdl_late")
    assert done.code == 1 and "decode13 pdl_late/cu, replay 1 of 3" in done.err


def test_a_row_of_the_KV_cache_that_a_replay_reads_too_early_is_seen(
    small_l2: HostGpu, commands: Commands
) -> None:
    """The late kind's rope_store stores nothing: what the plain kind stored is still right."""
    name = "l2_rope_store_late"
    usual = small_l2.kernels[name]

    def lazy(x: Running, qkv: int, table: int, q: int, cache: int, *rest: int) -> None:
        held = x.gpu.at(cache, np.float16, 2 * rest[1] * rest[2] * 128)
        before = held.copy()
        usual.run(x, qkv, table, q, cache, *rest)
        x.repeats = False
        held[:] = before

    small_l2.kernels[name] = replace(usual, run=lazy)
    done = commands("l2", *CU, *DECODE, "--arm", "pdl_late")
    assert done.code == 1 and "decode13 pdl_late/cu, replay 1 of 3" in done.err


def test_so_is_one_of_the_last_layer_alone(small_l2: HostGpu, commands: Commands) -> None:
    argv = (*CU, *DECODE, "--arm", "plain")
    commands("l2", *argv)
    caches = len({x.args[3] for x in small_l2.of("l2_rope_store_plain")})
    assert caches == 2
    usual, seen = small_l2.kernels["l2_rope_store_plain"], list[int]()

    def lazy(x: Running, qkv: int, table: int, q: int, cache: int, *rest: int) -> None:
        held = x.gpu.at(cache, np.float16, 2 * rest[1] * rest[2] * 128)
        before = held.copy()
        usual.run(x, qkv, table, q, cache, *rest)
        x.repeats = False
        seen.append(cache)
        if len(seen) > 2 and cache != seen[0]:
            held[:] = before

    small_l2.kernels["l2_rope_store_plain"] = replace(usual, run=lazy)
    done = commands("l2", *argv)
    assert done.code == 1 and "plain/cu, before timing" in done.err


STREAM = (*CU, "--case", "bandwidth24", "--arm", "pdl_entry")


def test_an_arm_is_shown_to_start_when_it_does_and_to_replay_alike(
    small_l2: HostGpu, commands: Commands
) -> None:
    row = commands("l2", *STREAM).by()["pdl_entry"]
    assert row.overlap_s == pytest.approx(-400e-9) and row.missing == []
    assert "3 replays equal to eager launches" in row.notes and "7 of 7 edges programmatic" in row.notes
    small_l2.gap = lambda x: -3e-6 if x.pdl else 1e-6
    assert commands("l2", *STREAM).by()["pdl_entry"].overlap_s == pytest.approx(3e-6)


def test_edges_that_are_lost_are_a_missing_proof(small_l2: HostGpu, commands: Commands) -> None:
    small_l2.lost_edges = 2
    assert commands("l2", *STREAM).by()["pdl_entry"].missing == ["2 edges of the graph are not programmatic"]


def test_so_are_programmatic_edges_that_nobody_asked_for(
    small_l2: HostGpu, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph, "_edges", lambda captured: (7, 7))  # internals
    by = commands("l2", *STREAM).by()
    assert by["plain"].missing == ["7 edges are programmatic without the attribute"]
    assert by["pdl_entry"].missing == []


def test_so_is_a_wait_that_the_machine_code_lacks(
    small_l2: HostGpu, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_code, "kernels", lambda probe, names, *rest: {n: [] for n in names})
    by = commands("l2", *STREAM).by()
    assert by["pdl_entry"].missing == ["no wait in the SASS of l2_stream_entry"] and not by["plain"].missing
