"""GPUs that lack the instructions of some kernels: these are not compiled for them, and the others are."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from probes import cli
from probes.core.types import Resources, Unavailable
from probes.device import facts as profiles
from probes.device import pipeline
from probes.engine import bench as bench_module
from probes.engine import predict, reads
from probes.engine import probe as protocol
from probes.engine.bench import Bench
from probes.l1 import table as l1
from probes.report import provenance, tables


def kernels(name: str, *flags: str) -> list[str]:
    """Every kernel that a probe's flags need."""
    wanted = protocol.plan(name).kernels(cli.parser(name).parse_args(flags))
    return [kernel for mine in wanted.values() for kernel in mine]


L1_RINGS = [v.symbol for v in l1.every() if v.form.stem == "l1_ring"]
L3 = kernels("l3")


@pytest.mark.parametrize(
    ("arch", "lacks"),
    [
        ("sm_75", {"ring", "async", "form_c"}),
        ("sm_86", {"ring", "form_c"}),
        ("sm_90", set()),
        ("sm_121", set()),
    ],
)
def test_only_what_a_gpu_can_run_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, arch: str, lacks: set[str]
) -> None:
    asked: list[str] = []

    def load(probe: str, names: Any, *rest: Any) -> dict[str, Any]:
        asked.extend(names)
        return {n: SimpleNamespace(name=n) for n in names}

    monkeypatch.setattr(bench_module, "LOADERS", {"numba": load})
    monkeypatch.setattr(bench_module, "bind", lambda binary: binary)
    facts = replace(profiles.load("h200"), arch=arch)
    made = Bench(SimpleNamespace(facts=facts), 0, 8, lambda line: None)  # type: ignore[arg-type]
    for probe, names in (("l1_ring", L1_RINGS), ("l3", L3)):
        asked.clear()
        found = made.kernels(probe, names, "numba")
        assert set(found) == set(names)
        missing = {n for n in names if any(n.endswith(f"_{form}") for form in lacks)}
        assert set(asked) == set(names) - missing and len(asked) == len(set(asked))
        for name in missing:
            assert found[name].handle is None and found[name].resources == Resources(0, 0, 0)
            assert (found[name].name, found[name].backend) == (name, "numba")


def test_which_kernels_are_rings_is_read_off_their_names() -> None:
    names = [*kernels("l1"), *kernels("l2", "--sweep"), *L3, *reads.KERNELS]
    since = {n: pipeline.since(n) for n in names}
    assert {n for n, s in since.items() if s == (8, 0)} == {f"l1_{lay}_async" for lay in l1.READ_OF}
    rings = {n for n, s in since.items() if s == (9, 0)}
    bulk = {n for n in names if "bulk" in n.split("_")}
    assert rings - bulk == {n for n in names if "ring" in n.split("_") or n == "l3_form_c"}
    assert bulk == {"harness_read_bulk", "l2_stream_bulk_plain", "l2_stream_bulk_late"} and len(rings) == 15
    assert set(since.values()) == {(0, 0), (8, 0), (9, 0)}


@pytest.mark.parametrize("profile", ["a100", "rtx4090"])
def test_a_prediction_for_an_older_gpu_has_what_it_can_run(profile: str) -> None:
    args = cli.parser("l1").parse_args(["--case", "attn_v_7b", "--layout", "gpl"])
    (rows,) = predict.predicted("l1", profiles.load(profile), args)
    said = {r.variant: r for r in rows if r.source == "predicted" and r.backend == "numba"}
    assert {v for v, r in said.items() if r.time_s} == {"padded_loop", "gpl_loop", "gpl_stream", "gpl_async"}
    assert "bulk copies need sm_90" in (said["gpl_ring"].skipped or "")
    assert (said["gpl_async"].registers or 0) > 64


def test_a_target_without_register_counts_says_so_first() -> None:
    head = provenance.collect(mode="predict", device="t4", seed=0, kernels_sha256="0", argv=["l1"])
    assert tables.first_line(head).startswith("Nothing was measured: predicted for t4")
    head.device_facts["arch"] = "sm_75"
    line = tables.first_line(head)
    assert "no kernel is predicted for t4" in line and "sm_90" in line and "not for sm_75" in line


@pytest.mark.toolchain
@pytest.mark.parametrize("arch", ["sm_75", "sm_86"])
def test_numba_s_other_kernels_are_compiled_for_older_gpus(arch: str) -> None:
    from kernels_numba import compile as numba_compile

    for module, name in (("l3", "l3_quant"), ("l1", "l1_gpl_pf3")):
        try:
            (path,) = numba_compile.compiled(module, [name], arch).values()
        except Unavailable as error:
            pytest.skip(str(error))
        assert path.stat().st_size
