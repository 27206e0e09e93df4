"""Host benchmarks: packing against a plain copy of the same bytes on the same threads, and the oracles.

    pytest tests/bench/test_bench_host.py --benchmark-only

`ratio_to_copy` in extra_info is pack speed over copy speed; both are the best of interleaved rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from probes.core.types import Shape
from probes.formats import packing, q4k, q6k, q8
from probes.formats.layouts import LAYOUTS, Layout
from probes.formats.packing import pack, unpack

SHAPE = Shape(5120, 13824)  # ffn_down of a 14B model, 58 MB
ROUNDS = 7


@pytest.fixture(scope="module")
def raw() -> np.ndarray:
    return q6k.random_raw(SHAPE, seed=1)


def best(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


@pytest.mark.parametrize("direction", ["pack", "unpack"])
@pytest.mark.parametrize("lay", LAYOUTS, ids=lambda lay: lay.name)
def test_packing_against_a_copy(benchmark: Any, raw: np.ndarray, lay: Layout, direction: str) -> None:
    threads = packing.cpus()
    copy = np.zeros_like(raw)
    packed = np.zeros((SHAPE.od, lay.row_stride(SHAPE.nbe)), np.uint8)
    edges = [SHAPE.od * i // threads for i in range(threads + 1)]
    pack(raw, lay, packed, threads)  # compiles, and touches every page

    def plain() -> None:
        with ThreadPoolExecutor(threads) as pool:
            parts = range(threads)
            list(
                pool.map(
                    lambda i: np.copyto(copy[edges[i] : edges[i + 1]], raw[edges[i] : edges[i + 1]]), parts
                )
            )

    def run() -> object:
        return (
            pack(raw, lay, packed, threads)
            if direction == "pack"
            else unpack(packed, lay, SHAPE.nbe, threads)
        )

    if direction == "unpack":  # its result is new memory, so the copy's must be too

        def plain() -> None:
            nonlocal copy
            copy = np.empty_like(raw)
            with ThreadPoolExecutor(threads) as pool:
                parts = range(threads)
                list(
                    pool.map(
                        lambda i: np.copyto(copy[edges[i] : edges[i + 1]], raw[edges[i] : edges[i + 1]]),
                        parts,
                    )
                )

    run(), plain()
    pairs = [(best(plain), best(run)) for _ in range(ROUNDS)]
    plain_s, packed_s = (min(column) for column in zip(*pairs, strict=True))
    ratio = plain_s / packed_s
    benchmark.extra_info.update(
        ratio_to_copy=round(ratio, 3), threads=threads, layout=lay.name, direction=direction,
        copy_gbps=round(raw.nbytes / plain_s / 1e9, 2), pack_gbps=round(raw.nbytes / packed_s / 1e9, 2),
    )  # fmt: skip
    benchmark.pedantic(run, rounds=3, iterations=1)
    wanted = 0.5 if lay.order == "gguf" else 0.25  # group order moves bits as well as bytes
    assert ratio >= wanted, f"{direction} {lay.name} at {ratio:.2f} of a copy's speed on {threads} threads"


@pytest.mark.parametrize("form", [q6k, q4k], ids=["q6k", "q4k"])
def test_oracle(benchmark: Any, form: Any) -> None:
    rows = 4096
    weights = form.random_raw(Shape(rows, SHAPE.id), seed=2)
    x8 = q8.random_x8(SHAPE.id, seed=3)
    benchmark.pedantic(form.reference, args=(weights, x8), rounds=3, iterations=1, warmup_rounds=1)
    if benchmark.stats is not None:
        seconds = benchmark.stats.stats.min
        benchmark.extra_info.update(rows=rows, id=SHAPE.id, values_per_s=rows * SHAPE.id / seconds)
        assert seconds < 2.0


def test_random_weights(benchmark: Any) -> None:
    raw = benchmark.pedantic(q6k.random_raw, args=(SHAPE, 5), rounds=3, iterations=1, warmup_rounds=1)
    if benchmark.stats is not None:
        benchmark.extra_info.update(gbps=round(raw.nbytes / benchmark.stats.stats.min / 1e9, 2))
