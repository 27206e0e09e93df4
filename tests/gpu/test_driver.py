"""Every failure of driver and cuda.core ends as one line: what to do, or which kernel is at fault."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import cuda.bindings
import cuda.core
import numpy as np
import pytest
from cuda.bindings import driver as real

from probes import cli
from probes.core.types import Binary, Fault, LaunchConfig, Resources, Unavailable, WrongResult
from probes.gpu import sampling, timing
from probes.gpu.driver import ADVICE, call, released, tried
from probes.gpu.graph import capture
from probes.gpu.kernels import Kernel, Launch, bind
from probes.gpu.memory import Buffer
from probes.gpu.timing import Arm, Output
from tests.gpu.fake_driver import FakeDriver, FakeStream, core_error

FULL = "CUDA_ERROR_OUT_OF_MEMORY"
BROKEN = "CUDA_ERROR_ILLEGAL_ADDRESS"
KERNEL_FAULTS = (
    BROKEN, "CUDA_ERROR_LAUNCH_FAILED", "CUDA_ERROR_MISALIGNED_ADDRESS", "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    "CUDA_ERROR_INVALID_PC", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "CUDA_ERROR_INVALID_VALUE",
)  # fmt: skip


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    return FakeDriver(monkeypatch)


def one_line(text: str, *words: str) -> None:
    assert len(text.splitlines()) == 1 and len(text) < 400
    for word in words:
        assert word in text


@pytest.mark.parametrize("name", ADVICE)
def test_what_the_machine_refuses_is_advice(name: str, gpu: FakeDriver) -> None:
    gpu.fails["cuStreamSynchronize"] = name
    with pytest.raises(Unavailable) as bindings:
        call("cuStreamSynchronize", 0)
    one_line(str(bindings.value), *ADVICE[name], f"cuStreamSynchronize: {name} (the driver's words)")
    with pytest.raises(Unavailable) as core, tried("making a stream"):
        raise core_error(name)
    one_line(str(core.value), *ADVICE[name], f"making a stream: {name}")
    assert bindings.value.exit_code == core.value.exit_code == 2


@pytest.mark.parametrize("name", KERNEL_FAULTS)
def test_what_a_kernel_does_is_a_fault_that_names_it(
    name: str, gpu: FakeDriver, capsys: pytest.CaptureFixture[str]
) -> None:
    assert name not in ADVICE
    gpu.fails["cuMemcpyDtoH"] = name

    def work(fail: Callable[[], object]) -> Callable[[], int]:
        def inner() -> int:
            with tried("lm_head_14b"), tried("gpl_ring/cu"):
                fail()
            return 0

        return inner

    def core() -> None:
        raise core_error(name)

    for fail in (lambda: call("cuMemcpyDtoH"), core):
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


def test_giving_back_hides_no_error_and_no_failure_of_its_own(gpu: FakeDriver) -> None:
    gpu.fails["cuMemFree"] = BROKEN
    with pytest.raises(Fault, match="cuMemFree"):
        released("cuMemFree", 1)
    with pytest.raises(WrongResult), Buffer(64):
        raise WrongResult("first", 0, 1, 2)
    with pytest.raises(Fault, match="cuMemFree"), Buffer(64):
        pass


def kernel(gpu: FakeDriver) -> Kernel:
    query = SimpleNamespace(max_active_blocks_per_multiprocessor=lambda *a: gpu.core("occupancy", 4))
    return Kernel("l1_gpl_ring", "cu", Resources(40), SimpleNamespace(handle=3, occupancy=query), None)


def launch(gpu: FakeDriver) -> Launch:
    return Launch(kernel(gpu), LaunchConfig(1, 32), ())


def loaded(gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    attributes = SimpleNamespace(num_regs=9, shared_size_bytes=0, local_size_bytes=0)
    core = SimpleNamespace(attributes=attributes)
    code = SimpleNamespace(get_kernel=lambda entry: gpu.core("get_kernel", core))
    monkeypatch.setattr(cuda.core, "ObjectCode", SimpleNamespace(from_cubin=lambda cubin: code))
    return bind(Binary("l1_gpl_ring", "numba", "entry", b"cubin"))


def arm(gpu: FakeDriver) -> Arm:
    buffer = Buffer(64)
    answer: Any = {"download": lambda dtype, count: np.zeros(count, dtype), "poison": buffer.poison}
    monkey = SimpleNamespace(pitch=buffer.pitch, **answer)
    return Arm("gpl_ring/cu", [launch(gpu)], Output(monkey, 1, np.zeros(1, np.uint32)))


def built(gpu: FakeDriver) -> Arm:
    gpu.values["cuGraphGetNodes"] = (None, 1)
    made = arm(gpu)
    once = capture(FakeStream(gpu), made.launches)
    made.graphs = once, once
    return made


@pytest.mark.parametrize(
    ("where", "do", "named"),
    [
        ("cuMemAlloc", lambda g, m: Buffer(64), "cuMemAlloc"),
        ("cuMemcpyHtoD", lambda g, m: Buffer.of(np.zeros(4)), "cuMemcpyHtoD"),
        ("cuMemcpyDtoD", lambda g, m: Buffer.of(np.zeros(4), 2), "cuMemcpyDtoD"),
        ("cuGraphInstantiate", lambda g, m: capture(FakeStream(g), [launch(g)]), "cuGraphInstantiate"),
        ("cuGraphUpload", lambda g, m: capture(FakeStream(g), [launch(g)]), "cuGraphUpload"),
        ("core.launch", lambda g, m: capture(FakeStream(g), [launch(g)]), "launching l1_gpl_ring"),
        ("core.launch", lambda g, m: arm(g).build(FakeStream(g)), "launching l1_gpl_ring"),
        ("core.get_kernel", loaded, "loading l1_gpl_ring"),
        ("core.occupancy", lambda g, m: kernel(g).blocks_per_sm(256), "occupancy of l1_gpl_ring"),
        ("cuKernelSetAttribute", lambda g, m: kernel(g).make_room(1 << 16), "cuKernelSetAttribute"),
        ("core.create_event", lambda g, m: timing.event_loop_s(FakeStream(g), arm(g)), "timing events"),
        ("core.record", lambda g, m: timing.event_loop_s(FakeStream(g), arm(g)), "timing gpl_ring/cu"),
        ("core.sync", lambda g, m: timing.replay_s(FakeStream(g), built(g)), "timing gpl_ring/cu"),
        ("core.sync", lambda g, m: sampling.survey(FakeStream(g), [built(g)], 2, kernel(g), 0), "timing"),
        ("cuGraphLaunch", lambda g, m: built(g).recheck(), "cuGraphLaunch"),
        ("cuCtxSynchronize", lambda g, m: timing.synchronize(), "cuCtxSynchronize"),
    ],
)  # fmt: skip
def test_no_room_anywhere(
    where: str,
    do: Callable[[FakeDriver, Any], object],
    named: str,
    gpu: FakeDriver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A full GPU is one line that says where; a kernel's fault is one too."""
    gpu.fails[where] = FULL
    with pytest.raises(Unavailable) as full:
        do(gpu, monkeypatch)
    one_line(str(full.value), "no room left", named, FULL)
    gpu.fails[where] = BROKEN
    with pytest.raises(Fault) as broken:
        do(gpu, monkeypatch)
    one_line(str(broken.value), named, BROKEN)


def test_what_was_made_before_a_failure_is_given_back(gpu: FakeDriver) -> None:
    gpu.fails["cuMemcpyHtoD"] = FULL
    with pytest.raises(Unavailable):
        Buffer.of(np.zeros(4))
    assert gpu.calls[-1] == "cuMemFree"
    for where, last in (
        ("cuGraphInstantiate", "cuGraphDestroy"), ("cuGraphUpload", "cuGraphExecDestroy"),
        ("core.launch", "cuStreamEndCapture"),
    ):  # fmt: skip
        gpu.fails = {where: FULL}
        with pytest.raises(Unavailable):
            capture(FakeStream(gpu), [launch(gpu)])
        assert [c for c in gpu.calls if c != "cuGetErrorString"][-1] == last


def test_a_second_graph_without_room_gives_the_first_back(
    gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, made = [], []

    def fake(stream: Any, launches: Any) -> Any:
        if made:
            raise Unavailable("no room")
        made.append(1)
        return SimpleNamespace(nodes=1, close=lambda: closed.append(1))

    monkeypatch.setattr(timing, "capture", fake)
    with pytest.raises(Unavailable, match="no room"):
        arm(gpu).build(FakeStream(gpu))
    assert closed == [1]


def test_a_broken_capture_shows_what_broke_it(gpu: FakeDriver) -> None:
    gpu.fails = {"core.launch": BROKEN, "cuStreamEndCapture": "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"}
    with pytest.raises(Fault, match=f"launching l1_gpl_ring: {BROKEN}"):
        capture(FakeStream(gpu), [launch(gpu)])


def test_the_fake_is_what_the_code_calls(gpu: FakeDriver) -> None:
    assert cuda.bindings.driver is gpu and call("cuMemGetInfo") == (100 << 30, 140 << 30)
