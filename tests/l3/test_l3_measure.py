"""L3 measured on the stand-in GPU; the ring arms: test_l3_rings.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.engine import reads
from probes.l3 import table as l3
from probes.l3 import waves
from probes.report.rows import Row
from tests.host_gpu import HostGpu
from tests.host_run import Commands

READS = [f.of(x) for x in ("read_large", "read_gate_up") for f in reads.FORMS]


def measured(commands: Commands, *argv: str) -> list[Row]:
    done = commands("l3", "--windows", "4", *argv)
    assert done.rows, done.err
    for row in done.rows:
        row.check()
    return done.rows


def test_every_arm_of_a_case_gives_the_oracle_s_bits(l3_gpu: HostGpu, commands: Commands) -> None:
    l3_gpu.missing["numba"] = "no Numba here"
    l3_gpu.smid = lambda block: 0
    rows = measured(commands, "--nf", "96")
    by_name = {r.variant: r for r in rows if not r.skipped and r.role != "contest"}
    assert [*by_name] == [*(v.name for v in l3.VARIANTS), *l3.AGAIN, *READS]
    assert all(r.bitwise and r.time_s for r in by_name.values())
    assert {n: r.grid for n, r in by_name.items() if n in ("pair", "form_a", "form_b", "form_b_staged")} == {
        "pair": 192, "form_a": 96, "form_b": 3, "form_b_staged": 3,
    }  # fmt: skip
    assert by_name["form_b"].content_bytes == 192 * 20 * 144
    assert by_name["form_b"].waves == 1.5
    assert by_name["form_b"].load_balance == 2.0  # three blocks, all on one of two SMs
    assert "its blocks used 1 of 2 SMs" in by_name["form_b"].notes
    assert "then l3_swiglu_quant: 1 blocks, 200 registers" in by_name["pair"].notes
    assert [r.skipped for r in rows if r.backend == "numba"] == ["no Numba here"]
    ring, fused = by_name["pair_ring"], by_name["form_c"]
    for row in (ring, fused):
        assert (row.grid, row.blocks_per_sm, row.waves, row.load_balance) == (4, 2, 1.0, None)
    assert fused.content_bytes == ring.content_bytes == 192 * 20 * 144
    told = "geometry 8r2b0s-drawn, 4 stages, by the default rule; a persistent grid, tickets drawn"
    uncounted = "load balance is not counted: its blocks stay, and tickets make them even"
    cold = [[n for n in row.notes if not n.startswith("hot")] for row in (ring, fused)]
    assert cold == [[told, "then l3_swiglu_quant: 1 blocks, 200 registers", uncounted], [told, uncounted]]


def test_blocks_that_are_even_are_counted_as_even(l3_gpu: HostGpu, commands: Commands) -> None:
    by_name = {r.variant: r for r in measured(commands, "--nf", "128", "--backend", "cu")}
    assert by_name["form_b"].load_balance == by_name["pair"].load_balance == 1.0


def test_a_wrong_bit_is_found_in_the_middle_too(l3_gpu: HostGpu, commands: Commands) -> None:
    """An f32 intermediate is held to the oracle like the q8 words: here a first kernel never runs."""
    l3_gpu.kernels["l3_form_a"] = replace(l3_gpu.kernels["l3_form_a"], run=lambda x, *args: None)
    done = commands("l3", "--nf", "32", "--variant", "form_a")
    assert done.code == 1 and "form_a/cu" in done.err


@pytest.mark.parametrize("fibers", [False, True])
def test_once_launches_each_kernel_once_and_names_it_once(
    request: pytest.FixtureRequest, l3_gpu: HostGpu, commands: Commands, fibers: bool
) -> None:
    """With fibers the C++ kernels take the same launches and give the same bits."""
    if fibers:
        request.getfixturevalue("l3_on_fibers")
    rows = measured(commands, "--nf", "96", "--once", "--backend", "cu")
    names = {"pair": 2, "form_a": 2, "form_b": 1, "form_b_staged": 1, "pair_ring": 2, "form_c": 1}
    names |= {f"{name}_aa": count for name, count in names.items()}
    found = [r.variant for r in rows]
    assert found == [*(name for name, count in names.items() for _ in range(count)), *READS]
    assert len([x for x in l3_gpu.launched if x.profiled]) == len(found)


def test_the_sweep_checks_and_times_every_point(
    l3_gpu: HostGpu, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(l3, "grids", lambda slots, own, quick: sorted({1, slots, *own, 2 * slots}))
    argv = ["--nf", "96", "--sweep", "--variant", "form_b", "--backend", "cu", "--windows", "4"]
    done = commands("l3", *argv)
    found = waves.points(done.rows, "cu")  # internals
    assert [p.grid for p in found] == [1, 2, 3, 4]
    assert [p.waves for p in found] == [0.5, 1.0, 1.5, 2.0]
    assert all(p.load_balance for p in found)
    taken = waves.parts(found, 3)
    assert taken and taken.wave_part == pytest.approx(0.0, abs=1e-3)  # the made-up times grow with the waves
    assert "Time against waves, cu" in done.report


def test_match_waves_picks_the_grid(l3_gpu: HostGpu, commands: Commands) -> None:
    rows = measured(commands, "--match-waves", "1.5", "--variant", "form_b", "--backend", "cu")
    row = next(r for r in rows if r.variant == "form_b")
    assert (row.case, row.grid, row.waves) == ("gate_up_nf96", 3, 1.5)


@pytest.mark.parametrize(
    ("call", "what"),
    [
        ("resources", "SM partitions"),
        ("split", "a partition of 1 SMs"),
        ("create_context", "a green context"),
    ],
)
def test_a_gpu_without_partitions_is_skipped_with_the_reason(
    small_l3: HostGpu, commands: Commands, call: str, what: str
) -> None:
    small_l3.fail[call] = "CUDA_ERROR_NOT_SUPPORTED"
    done = commands("l3", "--sms", "1", "--backend", "cu")
    assert [r.variant for r in done.rows] == [*(v.name for v in l3.VARIANTS), *l3.AGAIN]
    said = f"this GPU or driver cannot do that ({what}: CUDA_ERROR_NOT_SUPPORTED"
    assert all((r.skipped or "").startswith(said) for r in done.rows)
    assert done.code == 3 and done.verdicts == []


def test_a_partition_that_the_gpu_cannot_make_is_refused(small_l3: HostGpu, commands: Commands) -> None:
    small_l3.partition_unit = 2
    done = commands("l3", "--sms", "1")
    assert done.code == 2 and "a multiple of 2 SMs, 2 at least; try 2" in done.err
