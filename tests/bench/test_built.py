"""The GPU benchmarks' arms and times, on the stand-in GPU: what a machine without a GPU would only skip."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from probes.core.types import Unavailable, WrongResult
from probes.engine.bench import Bench
from probes.gpu import facts
from tests.bench.built import ROUNDS, Built, built, clock, described, session_of, timed
from tests.host_gpu import HostGpu


class Benchmark:
    """pytest-benchmark's fixture as far as `timed` asks it: the rounds' own times by our clock."""

    stats: Any = None

    def __init__(self) -> None:
        self.extra_info: dict[str, Any] = {}

    def pedantic(self, step: Any, rounds: int, iterations: int, warmup_rounds: int) -> None:
        took = []
        for _ in range(warmup_rounds + rounds):
            before = clock()
            step()
            took.append(clock() - before)
        self.stats = SimpleNamespace(stats=SimpleNamespace(median=sorted(took)[len(took) // 2]))


def bench_of(gpu: HostGpu) -> Bench:
    return Bench(facts.open_gpu(0), seed=0, windows=2, progress=lambda line: None)


def info(bench: Bench, found: Built, name: str, key: str, base: str, bar: str) -> dict[str, Any]:
    benchmark, (spec, arm) = Benchmark(), found.arms[key]
    timed(benchmark, bench, arm, found.arms[base][1], bar, **described(bench, name, spec))
    return benchmark.extra_info


def test_l1(small_l1: HostGpu) -> None:
    bench = bench_of(small_l1)
    with built("l1", bench, "--case", "ffn_down_14b", "--case", "attn_v_14b") as found:
        before = small_l1.replays
        seen = info(bench, found, "l1", "ffn_down_14b/dpl_ring/cu", "ffn_down_14b/padded_loop/cu", "l1.dpl")
        assert small_l1.replays - before == 3 * 2 * (1 + ROUNDS), "three arms, two graphs, and a warm-up"
        pairs = {"padded_loop_aa/cu", "dispatch_dpl/numba", "read_padded/cu", "gpl_async/numba"}
        assert {f"ffn_down_14b/{p}" for p in pairs} <= found.arms.keys()
        assert "pf is right only for" in found.why_not("attn_v_14b/gs_pf/cu", bench)
        assert found.why_not("attn_v_14b/nothing/cu", bench) == "no such arm in this case"
    assert seen["verdict"] == "GO" and 0.5 < seen["ratio_to_baseline"] < 0.8 and seen["registers"] == 96
    assert seen["content_gbps"] == pytest.approx(33.6 / 1.1, rel=0.1) and small_l1.graphs == 0


def test_l2(small_l2: HostGpu) -> None:
    bench = bench_of(small_l2)
    with built("l2", bench, "--case", "ffn_down24") as found:
        key, base = (f"ffn_down24/{name}/numba" for name in ("pdl_late_tail", "plain"))
        seen = info(bench, found, "l2", key, base, "l2.ring_bandwidth")
        assert {"ffn_down24/read_chain/cu", "ffn_down24/read_chain_pdl/numba"} <= found.arms.keys()
    assert seen["ratio_to_baseline"] == pytest.approx(0.85, rel=1e-2) and seen["verdict"] == "GO"
    assert seen["registers"] == 32
    with built("l2", bench, "--case", "decode13_ring", "--kv", "9") as found:
        spec, _ = found.arms["decode13_ring@9/pdl_late_tail/cu"]
        assert len(spec.planned.steps) == 13
        assert described(bench, "l2", spec)["registers"] is None, "several kernels have no one figure"
    small_l2.facts = replace(small_l2.facts, arch="sm_80")
    bench = bench_of(small_l2)
    with pytest.raises(Unavailable, match="sm_90 or later, this GPU is sm_80"), built("l2", bench):
        pass
    with pytest.raises(pytest.skip.Exception, match="sm_90 or later"):
        next(session_of("l2", bench))


def test_l3(small_l3: HostGpu) -> None:
    small_l3.missing["cu"] = "no nvcc here"
    bench = bench_of(small_l3)
    with pytest.raises(WrongResult, match="form_c/numba, after timing"), built("l3", bench) as found:
        key, base = (f"gate_up_14b/{name}/numba" for name in ("form_c", "pair_ring"))
        seen = info(bench, found, "l3", key, base, "l3.row_grained")
        assert seen["bitwise"] and seen["ratio_to_baseline"] == pytest.approx(1, rel=1e-2)
        assert found.why_not("gate_up_14b/form_c/cu", bench) == "no nvcc here"
        small_l3.wrong("l3_form_c")
    assert small_l3.graphs == 0
