"""Opening a GPU on a machine that is full, shared, cut down or broken: facts, memory and one-line ends."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import psutil
import pynvml
import pytest
from cuda.bindings.driver import CUlimit

from probes.core import environment
from probes.core.types import BadInput, Unavailable
from probes.device import tuning
from probes.gpu import carveout, facts, partition, sms
from probes.gpu.driver import ADVICE
from tests.host_gpu import H200, HostGpu

GIB = 1 << 30
PERSISTING = CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE
STEPS = (
    "cuInit", "cuDeviceGetCount", "Device", "set_current", "create_stream",
    "cuDriverGetVersion", "cuMemGetInfo",
)  # fmt: skip


@pytest.fixture
def gpu(host_h200: HostGpu, monkeypatch: pytest.MonkeyPatch) -> HostGpu:
    monkeypatch.setattr(facts.os, "environ", {})
    return host_h200


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", ADVICE)
def test_whatever_fails_is_one_line(step: str, name: str, gpu: HostGpu) -> None:
    gpu.fail[step] = name
    with pytest.raises(Unavailable) as seen:
        facts.open_gpu()
    assert name in str(seen.value) and len(str(seen.value).splitlines()) == 1
    for words in ADVICE[name]:
        assert words in str(seen.value)


def test_a_gpu_that_is_there(gpu: HostGpu) -> None:
    gpu.free, gpu.total = 100 * GIB, 140 * GIB
    got = facts.open_gpu()
    assert (got.facts.slug, got.facts.sms, got.facts.arch) == ("nvidia-h200", 132, "sm_90")
    assert (got.driver, got.environment, got.host_memory) == ("CUDA 13.0", [], False)
    assert got.free_bytes() == (100 * GIB, 140 * GIB)
    assert facts.look().count and facts.look().why == ""
    with pytest.raises(BadInput, match=r"no device 1; this machine has 1 \(0 to 0\)"):
        facts.open_gpu(1)


def test_no_driver_is_not_a_broken_one(gpu: HostGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu.fail["cuInit"] = "CUDA_ERROR_ASSERT"  # none that the table knows
    assert facts.look() == facts.Presence(0, "the NVIDIA driver answered CUDA_ERROR_ASSERT", True)
    gpu.fail.clear()
    gpu.devices = 0
    assert facts.look() == facts.Presence(0, "the driver sees no GPU", True)
    gpu.fail["cuInit"] = RuntimeError("Failed to dlopen libcuda.so.1")
    found = facts.look()
    assert (found.count, found.broken) == (0, False) and "no NVIDIA driver" in found.why
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    assert facts.look() == facts.Presence(0, "package cuda-bindings is not installed")


def test_memory_that_is_the_host_s(gpu: HostGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    host = SimpleNamespace(available=115 * GIB, total=120 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: host)
    gpu.facts, gpu.integrated = replace(H200, name="NVIDIA GB10", sms=48), True
    gpu.free, gpu.total = 5 * GIB, 119 * GIB
    assert facts.open_gpu().free_bytes() == (115 * GIB, 119 * GIB)
    host.available = 300 * GIB
    assert facts.open_gpu().free_bytes() == (119 * GIB, 119 * GIB)  # no more than the GPU reaches
    host.available = 2 * GIB
    assert facts.open_gpu().free_bytes() == (2 * GIB, 119 * GIB)  # nor more than the host has


@pytest.mark.parametrize(
    ("integrated", "tables", "total", "theirs"),
    [
        (True, False, 60, True),  # Jetson
        (False, True, 119, True),  # says nothing of itself, and has just the host's memory
        (False, True, 96, False),  # GH200: the host's page tables, and HBM of its own
        (False, False, 120, False),  # a PCIe GPU with as much memory as the host, by chance
    ],
)
def test_whose_memory_it_is(
    integrated: bool, tables: bool, total: int, theirs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=120 * GIB))
    assert facts.in_host_memory(integrated, tables, total * GIB) is theirs


@pytest.mark.parametrize(
    ("name", "told", "limit", "slug", "count"),
    [
        ("NVIDIA H200", 132, None, "nvidia-h200", 132),
        ("NVIDIA H200", 132, 132, "nvidia-h200", 132),
        ("NVIDIA H200", 132, 48, "nvidia-h200-48sm", 48),  # MPS: the context's limit
        ("NVIDIA H200", 66, None, "nvidia-h200-66sm", 66),  # MPS: the device's own count
        ("NVIDIA H200", 66, 132, "nvidia-h200-66sm", 66),
        ("NVIDIA H200", 132, 0, "nvidia-h200", 132),
        ("NVIDIA H200 MIG 3g.71gb", 60, None, "nvidia-h200-mig-3g-71gb", 60),
        ("NVIDIA H200 MIG 3g.71gb", 60, 30, "nvidia-h200-mig-3g-71gb-30sm", 30),
        ("NVIDIA GeForce RTX 4090 D", 114, None, "nvidia-geforce-rtx-4090-d", 114),  # has 114 for good
        ("NVIDIA GeForce RTX 4090", 100, None, "nvidia-geforce-rtx-4090-100sm", 100),
        ("Some GPU", 20, 10, "some-gpu-10sm", 10),
    ],
)
def test_the_folder_says_how_many_sms_there_are(
    name: str, told: int, limit: int | None, slug: str, count: int, gpu: HostGpu
) -> None:
    gpu.facts = replace(H200, name=name, sms=told)
    gpu.contexts = [] if limit is None else [limit]
    got = facts.open_gpu().facts
    assert (got.slug, got.sms) == (slug, count)


def test_tuning_rows_are_those_of_the_sms_that_are_there(gpu: HostGpu) -> None:
    gpu.contexts = [48]
    part, gate_up = facts.open_gpu().facts, "gate_up_14b"
    own = tuning.of("nvidia-h200", "l3")[f"{gate_up}@48sm"]["pair_ring"]
    assert part.slug == "nvidia-h200-48sm" and tuning.row(part.slug, "l3", gate_up, "pair_ring") == own
    for probe, case, key in (("l1", "ffn_down_14b", "padded"), ("l2", "ffn_down24", "ffn_down")):
        assert tuning.row("nvidia-h200", probe, case, key), "132 SMs have rows"
        assert tuning.row(part.slug, probe, case, key) is None, "and theirs are not ours"
    assert partition.name_of(part, 16).slug == "nvidia-h200-16sm"  # a part of a part is one of the GPU


def test_a_slice_has_its_part_of_the_memory_s_rate(gpu: HostGpu) -> None:
    gpu.facts = replace(H200, name="NVIDIA H200 MIG 3g.71gb", sms=60, l2_bytes=31_457_280)
    assert facts.open_gpu().facts.dram_bps == pytest.approx(2.4e12)
    gpu.facts = replace(H200, l2_bytes=31_457_280)
    assert facts.open_gpu().facts.dram_bps == pytest.approx(4.8e12)
    assert sms.is_mig("NVIDIA A100-SXM4-40GB MIG 1g.5gb") and not sms.is_mig("NVIDIA MIGHTY")


def test_an_l2_carve_out_is_taken_back(gpu: HostGpu) -> None:
    gpu.limits[PERSISTING] = 37 << 20
    assert facts.open_gpu().environment == [] and gpu.limits[PERSISTING] == 0
    assert gpu.calls["cuCtxSetLimit"] == gpu.calls["cuCtxResetPersistingL2Cache"] == 1


def test_an_l2_carve_out_that_stays_is_told(gpu: HostGpu) -> None:
    gpu.limits[PERSISTING], gpu.fail["cuCtxSetLimit"] = 37 << 20, "CUDA_SUCCESS"
    assert "the driver keeps it" in carveout.reset()[0]
    gpu.fail["cuCtxSetLimit"] = "CUDA_ERROR_UNSUPPORTED_LIMIT"
    told = carveout.reset()
    assert "cannot be reset (cuCtxSetLimit: CUDA_ERROR_UNSUPPORTED_LIMIT" in told[0]
    assert environment.beside(told) == "an L2 carve-out of 37 MiB"
    gpu.fail["cuCtxGetLimit"] = "CUDA_ERROR_UNSUPPORTED_LIMIT"
    assert carveout.reset() == []


def test_what_follows_the_process_is_told(host_gpu: HostGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {"maps": "7f-8f r-xp 0 00:00 0 /opt/x/libsanitizer-collection.so\n", "status": "TracerPid:\t12\n"}
    facts.open_gpu()  # the profiles are read, and kept
    monkeypatch.setattr(facts.Path, "read_text", lambda self, **kw: seen[self.name])
    told = facts.open_gpu().environment
    assert environment.beside(told).endswith("compute-sanitizer, a debugger")

    def absent(self: Any, **kw: Any) -> str:
        raise FileNotFoundError(str(self))

    monkeypatch.setattr(facts.Path, "read_text", absent)
    assert facts._attached() == []


def test_a_partition_of_a_gpu_without_room_or_partitions(gpu: HostGpu) -> None:
    whole, gpu.partition_unit = facts.open_gpu(), 8
    gpu.fail["resources"] = AttributeError("'Device' object has no attribute 'resources'")
    with pytest.raises(Unavailable, match="cannot make SM partitions"), partition.partition(whole, 48):
        pass
    gpu.fail.clear()
    with partition.partition(whole, 48) as part:
        assert (part.facts.slug, part.facts.sms) == ("nvidia-h200-48sm", 48)
    for where in ("create_context", "cuCtxPushCurrent", "create_stream"):
        gpu.fail = {where: "CUDA_ERROR_OUT_OF_MEMORY"}
        with pytest.raises(Unavailable, match="no room left"), partition.partition(whole, 48):
            pass
    gpu.fail = {"create_context": "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"}
    with pytest.raises(Unavailable, match="cannot make a green context"), partition.partition(whole, 48):
        pass


@pytest.mark.parametrize("error", [OSError("a library of another machine"), ImportError("no pynvml")])
def test_without_nvml(error: Exception, gpu: HostGpu) -> None:
    gpu.fail["nvmlInit"] = error
    assert facts.driver_version().startswith("unknown")
    assert any("no NVML" in line for line in facts.neighbours())


def test_nvml_that_refuses(gpu: HostGpu) -> None:
    gpu.fail["nvmlInit"] = pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)
    assert any("NVML: " in line for line in facts.neighbours())
    gpu.fail = {"cuDeviceGetPCIBusId": "CUDA_ERROR_INVALID_DEVICE"}
    assert any("NVML: the driver does not know" in line for line in facts.neighbours())
