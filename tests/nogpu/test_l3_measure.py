"""L3's measuring part without a GPU, on the stand-ins of l3_fakes.py; the ring arms: test_l3_rings.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from probes import l3, l3_measure, l3_report, l3_waves
from probes.core.types import Unavailable, WrongResult
from tests.nogpu import l3_fakes
from tests.nogpu.l3_fakes import HostBench, HostLaunch, flags

bench = l3_fakes.bench


def test_every_arm_of_a_case_gives_the_oracle_s_bits(bench: HostBench) -> None:
    (rows,) = l3_measure.measure(bench, flags("--nf", "96"))
    by_name = {r.variant: r for r in rows if not r.skipped}
    assert [*by_name] == [*(v.name for v in l3.VARIANTS), *l3.AA, l3_measure.READ]
    assert {n: r.grid for n, r in by_name.items() if n in ("pair", "form_a", "form_b", "form_b_staged")} == {
        "pair": 192, "form_a": 96, "form_b": 3, "form_b_staged": 3,
    }  # fmt: skip
    assert by_name["form_b"].content_bytes == 192 * 20 * 144
    assert by_name["form_b"].waves == 1.5
    assert by_name["form_b"].load_balance == 2.0  # three blocks, all on one of two SMs
    assert "its blocks used 1 of 2 SMs" in by_name["form_b"].notes
    assert by_name["pair"].notes[0] == "then l3_swiglu_quant: 1 blocks, 200 registers"
    assert [r.skipped for r in rows if r.backend == "numba"] == ["no Numba on the host"]
    ring, fused = by_name["pair_ring"], by_name["form_c"]
    for row in (ring, fused):
        assert (row.grid, row.blocks_per_sm, row.waves, row.load_balance) == (4, 2, 1.0, None)
    assert fused.content_bytes == ring.content_bytes == 192 * 20 * 144
    told = "geometry 8r2b0s-drawn, 4 stages, by the default rule; a persistent grid, tickets drawn"
    uncounted = "load balance is not counted: its blocks stay, and tickets make them even"
    assert ring.notes == [told, "then l3_swiglu_quant: 1 blocks, 200 registers", uncounted]
    assert fused.notes == [told, uncounted]


def test_a_wrong_bit_is_found_in_the_middle_too(bench: HostBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """An f32 intermediate is held to the oracle like the q8 words: here a first kernel never runs."""
    real = HostLaunch.enqueue

    def lazy(self: HostLaunch, stream: Any) -> None:
        if self.kernel.name != "l3_form_a":
            real(self, stream)

    monkeypatch.setattr(HostLaunch, "enqueue", lazy)
    with pytest.raises(WrongResult, match="form_a/cu"):
        list(l3_measure.measure(bench, flags("--nf", "32", "--variant", "form_a")))


def test_once_launches_each_kernel_once_and_names_it_once(bench: HostBench) -> None:
    (rows,) = l3_measure.measure(bench, flags("--nf", "32", "--once"))
    names = {"pair": 2, "form_a": 2, "form_b": 1, "form_b_staged": 1, "pair_ring": 2, "form_c": 1}
    names |= {"pair_aa": 2, "form_b_aa": 1, "pair_ring_aa": 2}
    found = [r.variant for r in rows]
    assert found == [*(name for name, count in names.items() for _ in range(count)), l3_measure.READ]
    assert len(bench.gpu.stream) == len(found)


def test_the_sweep_checks_and_times_every_point(bench: HostBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(l3_waves, "grids", lambda slots, own, quick: sorted({1, slots, *own, 2 * slots}))
    steps = list(l3_measure.measure(bench, flags("--nf", "96", "--sweep", "--variant", "form_b")))
    rows = [r for step in steps for r in step]
    found = l3_waves.points(rows, "cu")
    assert [p.grid for p in found] == [1, 2, 3, 4]
    assert [p.waves for p in found] == [0.5, 1.0, 1.5, 2.0]
    assert all(p.load_balance for p in found)
    taken = l3_waves.parts(found, 3)
    assert taken and taken.wave_part == pytest.approx(0.0)  # the made-up times grow with the waves
    assert any("Time against waves, cu" in s for s in l3_report.sections(rows, True))


def test_match_waves_picks_the_grid(bench: HostBench) -> None:
    (rows,) = l3_measure.measure(bench, flags("--match-waves", "1.5", "--variant", "form_b"))
    row = next(r for r in rows if r.variant == "form_b")
    assert (row.case, row.grid, row.waves) == ("gate_up_nf96", 3, 1.5)


def test_a_gpu_without_partitions_is_skipped_with_the_reason(
    bench: HostBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def none(gpu: Any, count: int) -> Iterator[Any]:
        raise Unavailable("this GPU or driver cannot make SM partitions: CUDA_ERROR_NOT_SUPPORTED")
        yield gpu

    monkeypatch.setattr(l3_measure, "partition", none)
    (rows,) = l3_measure.measure(bench, flags("--sms", "48"))
    assert [r.variant for r in rows] == [v.name for v in l3.VARIANTS]
    assert all("cannot make SM partitions" in (r.skipped or "") for r in rows)
    assert l3_report.judge(rows, 0) == []
