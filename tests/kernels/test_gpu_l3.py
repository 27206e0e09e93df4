"""The L3 kernels on a GPU: the oracle's bits in every output, replays, occupancy as predicted, partitions.

The ring kernels' geometries have a file of their own: test_l3_ring.py.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from probes import cli, l3, l3_measure
from probes.core.types import BadInput, Unavailable, WrongResult
from probes.device.occupancy import occupancy
from probes.engine.bench import BACKENDS
from tests.kernels import backends

pytestmark = pytest.mark.gpu

SIZES = [(nf, id_) for nf in (32, 64, 96, 1024) for id_ in (256, 512, 5120)]
SIZES += [(64, 16640)]  # 260 units: some threads have two, and the staged form's further units are seen
NAMES = [v.name for v in l3.VARIANTS]
RINGS = [v for v in l3.VARIANTS if v.ring]


def flags(*argv: str) -> Any:
    return cli.parser("l3").parse_args(argv)


@pytest.fixture(scope="module")
def kernels(bench: Any) -> dict[str, Any]:
    """Kernels by backend."""
    return backends.built(lambda backend: bench.kernels("l3", l3.KERNELS, backend))


def of(kernels: dict[str, Any], backend: str) -> Any:
    return {backend: backends.of(kernels, backend)}


def arms(bench: Any, mine: Any, nf: int, id_: int, stack: ExitStack, *argv: str) -> Any:
    args, case = flags(*argv), l3.Case("test", nf, id_)
    d = l3_measure.data_of(bench, args, case, mine, stack)
    found, skipped = l3_measure.arms_of(bench, args, case, mine, NAMES, d, stack)
    old = bench.gpu.facts.compute_capability < (9, 0)
    assert {r.variant for r in skipped} == ({v.name for v in RINGS} if old else set()), skipped
    return found, d


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("nf", "id_"), backends.sized(SIZES, [(32, 256), (64, 16640)]))
def test_every_form_equals_the_oracle(
    bench: Any, kernels: Any, few: None, backend: str, nf: int, id_: int
) -> None:
    """A poisoned launch, then a replay of every copy: q8 words and f32 intermediates to the bit."""
    for seed in (0, 17):
        with ExitStack() as stack:
            found, _ = arms(replace(bench, seed=seed), of(kernels, backend), nf, id_, stack)
            for spec, arm in found:
                arm.build(bench.gpu.stream)
                nodes = 2 if l3.variant(spec.variant).finisher else 1
                assert [g.nodes for g in arm.graphs] == [3 * nodes, 6 * nodes]
                for _ in range(3):
                    arm.recheck()
                arm.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_wrong_intermediate_is_seen(bench: Any, kernels: Any, few: None, backend: str) -> None:
    with ExitStack() as stack:
        found, _ = arms(bench, of(kernels, backend), 64, 256, stack)
        _, pair = found[0]
        want = pair.also[0].want.copy()
        want[40] ^= 1
        pair.also = (replace(pair.also[0], want=want),)
        with pytest.raises(WrongResult, match="element 40"):
            pair.build(bench.gpu.stream)


@pytest.mark.parametrize("backend", BACKENDS)
def test_occupancy_from_resources_alone_equals_the_drivers(bench: Any, kernels: Any, backend: str) -> None:
    for kernel in of(kernels, backend)[backend].values():
        for block, smem in ((256, 0), (256, 4096), (256, 20000), (128, 0)):
            ours = occupancy(kernel.resources, block, smem, bench.gpu.facts).blocks_per_sm
            assert ours == kernel.blocks_per_sm(block, smem), (kernel.name, block, smem)


@pytest.mark.parametrize("backend", BACKENDS)
def test_six_blocks_per_sm_are_held(bench: Any, few: None, backend: str) -> None:
    """The record's geometry by launch bounds: the same bits, and six blocks of every reader."""
    args = flags("--blocks-per-sm", "6", "--backend", backend)
    try:
        mine = l3_measure.load_kernels(bench, args)
    except Unavailable as error:
        pytest.skip(str(error))
    with ExitStack() as stack:
        found, _ = arms(bench, mine, 96, 5120, stack, "--blocks-per-sm", "6")
        for spec, arm in found:
            if not l3.variant(spec.variant).ring:  # a persistent grid holds itself
                assert spec.kernel.blocks_per_sm(l3.THREADS, spec.config.smem_bytes) == 6, spec.name
            arm.build(bench.gpu.stream)
            arm.recheck()
            arm.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_traced_twin_is_the_same_kernel(bench: Any, kernels: Any, few: None, backend: str) -> None:
    """Same bits, same occupancy; with as many rows as slots the load is even."""
    mine = of(kernels, backend)
    per_sm = mine[backend]["l3_form_b"].blocks_per_sm(l3.THREADS)
    nf = 32 * per_sm * bench.gpu.facts.sms
    with ExitStack() as stack:
        found, d = arms(bench, mine, nf, 256, stack)
        for spec, _ in (x for x in found if not l3.variant(x[0].variant).ring):
            traced = mine[backend][l3.variant(spec.variant).traced]
            assert traced.blocks_per_sm(l3.THREADS) == spec.kernel.blocks_per_sm(l3.THREADS)
            balance, note = l3_measure.load_balance(bench, flags(), spec, traced, d)
            assert balance >= 1.0 and "load balance seen" not in note


@pytest.fixture
def part(bench: Any, kernels: Any) -> Any:
    from probes.gpu.partition import granularity, partition

    bench.clock()
    count = granularity(bench.gpu.facts) * 2
    try:
        with partition(bench.gpu, count) as gpu:
            yield replace(bench, gpu=gpu)
    except Unavailable as error:
        pytest.skip(str(error))


def test_a_partition_holds_its_blocks(part: Any, kernels: Any, few: None) -> None:
    """Bits, a timed sample and the SMs that its blocks saw, inside a green context."""
    from probes.gpu import timing

    backend = next(b for b in BACKENDS if not isinstance(kernels[b], Unavailable))
    sms = part.gpu.facts.sms
    assert part.gpu.facts.slug.endswith(f"-{sms}sm")
    with ExitStack() as stack:
        found, d = arms(part, {backend: kernels[backend]}, 32 * 8 * sms, 256, stack)
        for spec, arm in found:
            arm.build(part.gpu.stream)
            twin = l3.variant(spec.variant).traced
            if twin:  # raises where more SMs were used
                l3_measure.load_balance(part, flags(), spec, kernels[backend][twin], d)
        names = [arm.name for _, arm in found]
        samples = timing.sample(part.gpu.stream, [arm for _, arm in found], 2, part.clock(), 0)
        assert all(np.isfinite(samples[n].time_s).all() and (samples[n].time_s > 0).all() for n in names)
        for _, arm in found:
            arm.close()


def test_a_partition_that_cannot_be_is_refused(bench: Any) -> None:
    from probes.gpu.partition import partition

    for count in (bench.gpu.facts.sms + 8, 9):
        try:
            with pytest.raises(BadInput, match=f"--sms {count}"), partition(bench.gpu, count):
                pass
        except Unavailable as error:
            pytest.skip(str(error))


def test_a_models_own_q4k_tensors(bench: Any, tmp_path: Any) -> None:
    """The whole probe on real weights, bitwise in both backends that work here."""
    from pathlib import Path

    from probes import cli, l3
    from probes.report import store

    pytest.importorskip("gguf")
    real = Path(__file__).parents[1] / "data" / "minilm-q4k-64rows.gguf"
    name = "blk.0.ffn_down_q4.weight"
    out = tmp_path / "l3.json"
    argv = ["--gguf", str(real), "--tensors", name, name, "--windows", "2", "-q", "--json", str(out)]
    assert l3.main(argv) in (0, 3)
    _, rows = store.read_json(out)
    timed = [r for r in rows if r.samples_s]
    assert {"pair", "form_a", "form_b", "form_b_staged"} <= {r.variant for r in timed}
    assert all(r.bitwise for r in timed)
    assert cli.probe("l3") is l3
