"""Every failure of driver and cuda.core ends as one line: what to do, or which kernel is at fault."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import cuda.bindings
import numpy as np
import pytest
from cuda.bindings import driver as real

from probes import cli
from probes.core.types import Fault, LaunchConfig, Unavailable, WrongResult
from probes.gpu import sampling, timing
from probes.gpu.driver import ADVICE, call, released, tried
from probes.gpu.facts import Gpu
from probes.gpu.graph import capture
from probes.gpu.kernels import Launch
from probes.gpu.memory import Buffer
from probes.gpu.timing import Arm
from tests.host_arms import arm, kernel
from tests.host_driver import Driver
from tests.host_gpu import HostGpu

FULL = "CUDA_ERROR_OUT_OF_MEMORY"
BROKEN = "CUDA_ERROR_ILLEGAL_ADDRESS"
KERNEL_FAULTS = (
    BROKEN, "CUDA_ERROR_LAUNCH_FAILED", "CUDA_ERROR_MISALIGNED_ADDRESS", "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    "CUDA_ERROR_INVALID_PC", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "CUDA_ERROR_INVALID_VALUE",
)  # fmt: skip


def one_line(text: str, *words: str) -> None:
    assert len(text.splitlines()) == 1 and len(text) < 400
    for word in words:
        assert word in text


@pytest.mark.parametrize("name", ADVICE)
def test_what_the_machine_refuses_is_advice(name: str, host_gpu: HostGpu) -> None:
    host_gpu.fail = dict.fromkeys(("cuCtxSynchronize", "create_stream"), name)
    words = call("cuGetErrorString", getattr(real.CUresult, name)).decode()
    with pytest.raises(Unavailable) as bindings:
        call("cuCtxSynchronize")
    one_line(str(bindings.value), *ADVICE[name], f"cuCtxSynchronize: {name} ({words})")
    with pytest.raises(Unavailable) as core, tried("making a stream"):
        host_gpu.refuse("create_stream")
    one_line(str(core.value), *ADVICE[name], f"making a stream: {name}")
    assert bindings.value.exit_code == core.value.exit_code == 2


@pytest.mark.parametrize("name", KERNEL_FAULTS)
def test_what_a_kernel_does_is_a_fault_that_names_it(
    name: str, host_gpu: HostGpu, capsys: pytest.CaptureFixture[str]
) -> None:
    assert name not in ADVICE
    host_gpu.fail["cuMemcpyDtoH"] = name

    def work(fail: Callable[[], object]) -> Callable[[], int]:
        def inner() -> int:
            with tried("lm_head_14b"), tried("gpl_ring/cu"):
                fail()
            return 0

        return inner

    for fail in (lambda: call("cuMemcpyDtoH"), lambda: host_gpu.refuse("launch", name)):
        assert cli.guarded(work(fail)) == 1
        said = capsys.readouterr().err.strip()
        one_line(said, "FAULT: lm_head_14b: gpl_ring/cu: ", name)


def test_the_table_knows_only_results_that_there_are() -> None:
    assert {name for name in ADVICE if not hasattr(real.CUresult, name)} == set()


def test_a_driver_older_or_newer_than_the_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise RuntimeError('Function "cuNew" not found')

    def unknown() -> Any:
        raise ValueError("12345 is not a valid CUresult")

    def wrong() -> Any:
        raise ValueError("an argument")

    functions = SimpleNamespace(missing=missing, unknown=unknown, wrong=wrong)
    monkeypatch.setattr(cuda.bindings, "driver", functions)
    with pytest.raises(Unavailable, match=r'missing: Function "cuNew" not found; update the NVIDIA driver'):
        call("missing")
    with pytest.raises(Unavailable, match=r"a thing: .*update the NVIDIA driver"), tried("a thing"):
        missing()
    with pytest.raises(Unavailable, match="cannot do that"), tried("a thing"):
        raise NotImplementedError("requires CUDA 13")
    with pytest.raises(Fault, match="unknown: 12345"):
        call("unknown")
    with pytest.raises(ValueError, match="an argument"):
        call("wrong")


def test_compilers_and_codes_without_a_name() -> None:
    from cuda.core._utils.cuda_utils import CUDAError, NVRTCError, nvJitLinkError

    with pytest.raises(Unavailable, match="linker failed: a kernel: NVRTC_ERROR"), tried("a kernel"):
        raise NVRTCError("NVRTC_ERROR_COMPILATION: no\nmore")
    with pytest.raises(Unavailable, match="compiler or linker failed"), tried("a kernel"):
        raise nvJitLinkError(4)
    with pytest.raises(Fault, match="a kernel: UNEXPECTED ERROR CODE: 12345"), tried("a kernel"):
        raise CUDAError("UNEXPECTED ERROR CODE: 12345")


@pytest.mark.parametrize(
    "error",
    [
        WrongResult("x", 0, 1, 2),
        Unavailable("no"),
        ValueError("CUDA_ERROR_X"),
        RuntimeError("a bug"),
        KeyboardInterrupt(),
    ],
)
def test_what_is_none_of_the_drivers_passes(error: BaseException) -> None:
    with pytest.raises(type(error)) as seen, tried("anything"):
        raise error
    assert seen.value is error


def test_giving_back_hides_no_error_and_no_failure_of_its_own(host_gpu: HostGpu) -> None:
    host_gpu.fail["cuMemFree"] = BROKEN
    with pytest.raises(Fault, match="cuMemFree"):
        released("cuMemFree", 1)
    with pytest.raises(WrongResult), Buffer(64):
        raise WrongResult("first", 0, 1, 2)
    with pytest.raises(Fault, match="cuMemFree"), Buffer(64):
        pass


def launch(host: HostGpu) -> Launch:
    return Launch(kernel(host, "harness_empty"), LaunchConfig(1, 32), ())


def built(host: HostGpu, stream: Any) -> Arm:
    made = arm(host, "gpl_ring/cu")
    made.build(stream)
    return made


@pytest.mark.parametrize(
    ("where", "do", "named"),
    [
        ("cuMemAlloc", lambda g, s: Buffer(64), "cuMemAlloc"),
        ("cuMemcpyHtoD", lambda g, s: Buffer.of(np.zeros(4)), "cuMemcpyHtoD"),
        ("cuMemcpyDtoD", lambda g, s: Buffer.of(np.zeros(4), 2), "cuMemcpyDtoD"),
        ("cuGraphInstantiate", lambda g, s: capture(s, [launch(g)]), "cuGraphInstantiate"),
        ("cuGraphUpload", lambda g, s: capture(s, [launch(g)]), "cuGraphUpload"),
        ("launch", lambda g, s: capture(s, [launch(g)]), "launching harness_empty"),
        ("launch", built, "launching harness_read"),
        ("get_kernel", lambda g, s: kernel(g, "l1_gpl_ring", "numba"), "loading l1_gpl_ring"),
        ("occupancy", lambda g, s: launch(g).kernel.blocks_per_sm(256), "occupancy of harness_empty"),
        ("cuKernelSetAttribute", lambda g, s: launch(g).kernel.make_room(1 << 16), "cuKernelSetAttribute"),
        ("create_event", lambda g, s: timing.event_loop_s(s, arm(g)), "timing events"),
        ("record", lambda g, s: timing.event_loop_s(s, arm(g)), "timing read"),
        ("sync", lambda g, s: timing.replay_s(s, built(g, s)), "timing gpl_ring/cu"),
        ("sync", lambda g, s: sampling.survey(s, [built(g, s)], 2, launch(g).kernel, 0), "timing"),
        ("cuGraphLaunch", lambda g, s: built(g, s).recheck(), "cuGraphLaunch"),
        ("cuCtxSynchronize", lambda g, s: timing.synchronize(), "cuCtxSynchronize"),
    ],
)  # fmt: skip
def test_no_room_anywhere(
    where: str, do: Callable[[HostGpu, Any], object], named: str, host_gpu: HostGpu, opened: Gpu
) -> None:
    """A full GPU is one line that says where; a kernel's fault is one too."""
    host_gpu.fail[where] = FULL
    with pytest.raises(Unavailable) as full:
        do(host_gpu, opened.stream)
    one_line(str(full.value), "no room left", named, FULL)
    host_gpu.fail[where] = BROKEN
    with pytest.raises(Fault) as broken:
        do(host_gpu, opened.stream)
    one_line(str(broken.value), named, BROKEN)


def test_what_was_made_before_a_failure_is_given_back(host_gpu: HostGpu, opened: Gpu) -> None:
    host_gpu.fail["cuMemcpyHtoD"] = FULL
    with pytest.raises(Unavailable):
        Buffer.of(np.zeros(4))
    assert host_gpu.calls["cuMemAlloc"] == 1 and not host_gpu.memory
    for where in ("cuGraphInstantiate", "cuGraphUpload"):
        host_gpu.fail = {where: FULL}
        with pytest.raises(Unavailable):
            capture(opened.stream, [launch(host_gpu)])
        assert host_gpu.calls[where] == 1 and host_gpu.graphs == 0
    host_gpu.fail = {"launch": FULL}
    with pytest.raises(Unavailable):
        capture(opened.stream, [launch(host_gpu)])
    assert host_gpu.calls["cuStreamEndCapture"] == 3 and opened.stream.captured is None


def test_a_second_graph_without_room_gives_the_first_back(host_gpu: HostGpu, opened: Gpu) -> None:
    host_gpu.fail["cuGraphInstantiate"] = FULL, 1
    with pytest.raises(Unavailable, match="no room"):
        built(host_gpu, opened.stream)
    assert host_gpu.calls["cuGraphExecDestroy"] == 1 and host_gpu.graphs == 0


def test_a_broken_capture_shows_what_broke_it(host_gpu: HostGpu, opened: Gpu) -> None:
    host_gpu.fail = {"launch": BROKEN, "cuStreamEndCapture": "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"}
    with pytest.raises(Fault, match=f"launching harness_empty: {BROKEN}"):
        capture(opened.stream, [launch(host_gpu)])


def test_the_fake_is_what_the_code_calls(host_gpu: HostGpu) -> None:
    assert isinstance(cuda.bindings.driver, Driver)
    assert call("cuMemGetInfo") == (host_gpu.free, host_gpu.total)
