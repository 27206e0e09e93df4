"""Where a kernel's claim is tested: C++ on host fibers, Numba's Python on host threads, and either on a GPU.

All have one face: `machine.run(kernel, args, grid, block, smem)`. An array is memory: what the kernel wrote
stands in it afterwards, and one that is read-only is an input. None is a null pointer, an int a 32-bit
integer, an np.int64 a 64-bit one, a float a float32.

    machine   all four: a test that takes it is a kernel's claim, on the host and on a GPU; `over` sizes it
    host      the two on the host: for what an emulator alone can show
    gpu       the two on a GPU: for what a GPU alone can show; a test's docstring says why
"""

from __future__ import annotations

import ctypes
import importlib
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels_numba import compile as numba_compile
from probes.core.types import Backend, Binary, LaunchConfig, Unavailable
from probes.device import pipeline
from probes.engine.bench import LOADERS
from probes.formats.layouts import LAYOUTS
from tests import host_calls
from tests.host_calls import MIRROR, aligned
from tests.numba_on_host import ring as numba_on_host

POISON = 0xFFFFFFFF
"""Every word of an output before a run: as float32 a NaN, as uint32 no likely checksum."""

DEADLINE_S = 60.0
HOSTS = ("host-cu", "host-numba")
GPUS = tuple(pytest.param(name, marks=pytest.mark.gpu) for name in ("gpu-cu", "gpu-numba"))


def stem(kernel: str) -> str:
    """The kernel file that a symbol stands in."""
    if kernel.startswith("harness"):
        return "harness"
    return "l1_ring" if kernel.startswith("l1") and pipeline.since(kernel) > (0, 0) else kernel[:2]


def given(array: NDArray[Any]) -> NDArray[Any]:
    """An input: no machine gives it back changed, and the emulator raises where it is written."""
    out = aligned(array)
    out.flags.writeable = False
    return out


def room(words: int) -> NDArray[np.uint32]:
    """An output of so many 32-bit words, poisoned, with one more past its end."""
    return aligned(np.full(words + 1, POISON, np.uint32))


def written(out: NDArray[Any], what: str = "") -> NDArray[np.uint32]:
    """The words of a `room`; nothing may have been written past its end."""
    assert out[-1] == POISON, f"{what}: a word past the end was written"
    return out[:-1].view(np.uint32)


def ring(
    units: int, stride: int, rows: int, stages: int, grid: int, drawn: bool, sets: int = 1, others: int = 1
) -> pipeline.Plan:
    """A ring of any geometry, whether or not some GPU would have it."""
    block = 32 * (pipeline.consumer_warps(units) * sets + others)
    config = LaunchConfig(grid, block, stages * pipeline.stage_bytes(rows, stride))
    return pipeline.Plan(config, rows, stages, drawn)


class Host:
    """What both emulators are alike in."""

    live = False
    orders: tuple[int, ...] = (0,)
    """Orders of threads, blocks and copies that `run` can be asked for; a GPU has its own."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.prefetched = 0
        """Fills that the last run asked to have brought into L2."""


class HostCpp(Host):
    """The C++ kernels on fibers: all blocks, one after another or `at_once`."""

    orders = (0, 1, 2)

    def __init__(self, library: Callable[[str], ctypes.CDLL]) -> None:
        super().__init__("cu")
        self.library = library

    def run(
        self, kernel: str, args: Sequence[Any], grid: int, block: int = 256, smem: int = 0, *, order: int = 0,
        at_once: bool = False, few: bool = False, pdl: bool = False,
    ) -> list[int]:  # fmt: skip
        """One launch; returns the blocks that ran.

        order: one of `orders`, or any other. at_once: blocks wait for each other. few: the first and the last
        block are enough, where all take long. pdl: as a dependent, which means nothing on the host.
        """
        near = [aligned(a) if isinstance(a, np.ndarray) and a.ctypes.data % 16 else a for a in args]
        words = [a.ctypes.data if isinstance(a, np.ndarray) else 0 if a is None else a for a in near]
        words = [int(w) if isinstance(w, np.int64) else w for w in words]
        lib = self.library(stem(kernel))
        host_calls.run(lib, kernel, words, grid, block, smem, order, at_once)
        for own, a in zip(args, near, strict=True):
            if own is not a and own.flags.writeable:
                own[...] = a
        self.prefetched = lib.prefetches()
        return list(range(grid))


def numba_kernel(kernel: str, ops: Any) -> tuple[Any, Any]:
    """A kernel's Python over a stand-in's operations, and its signature."""
    names = stem(kernel), "l2_ring", "l3_ring"
    modules = [importlib.import_module(f"kernels_numba.{name}") for name in names]
    layouts = [tuple(x for x in (*LAYOUTS, MIRROR) if f"_{x.name}_" in kernel)] if kernel[:2] == "l1" else []
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            patch.setattr(module, "gpu_ops", lambda: ops)
        found: tuple[Any, Any] = modules[0].kernels(*layouts)[kernel]
        return found


@cache
def _kinds(kernel: str) -> tuple[Any, ...]:
    """The types of a Numba kernel's arguments."""
    return tuple(numba_kernel(kernel, numba_on_host.OPS)[1].args)


def _typed(value: Any, kind: Any) -> Any:
    """An argument as a kernel's own type: a pointer's memory, or a scalar."""
    if isinstance(value, np.ndarray):
        return value.reshape(-1).view(str(kind.dtype))
    return None if value is None else np.dtype(str(kind)).type(value)


class HostNumba(Host):
    """The Numba kernels' Python, a host thread per CUDA thread: slow, so that `few` blocks may do."""

    def __init__(self) -> None:
        super().__init__("numba")
        self.gate: Callable[[Any], Any] = lambda block: numba_on_host.GATE
        """What a block's triggers and waits are: see kernels_numba.pdl."""

    def run(
        self, kernel: str, args: Sequence[Any], grid: int, block: int = 256, smem: int = 0, *, order: int = 0,
        at_once: bool = False, few: bool = False, pdl: bool = False,
    ) -> list[int]:  # fmt: skip
        """As `HostCpp.run`."""
        memory = [_typed(a, kind) for a, kind in zip(args, _kinds(kernel), strict=True)]
        ran = [int(b) for b in np.random.default_rng(order).permutation(grid)]
        if few:
            ran = sorted({0, grid - 1})
        found = numba_on_host.launch(
            lambda ops: numba_kernel(kernel, ops)[0], memory, grid, block, smem, [0] if at_once else ran,
            order, self.gate, grid if at_once else 1,
        )  # fmt: skip
        self.prefetched = len(found)
        return sorted(ran)


def wait(stream: Any, what: str) -> None:
    """Until the stream is through. A kernel that hangs ends the session: nothing could run after it."""
    done, end = stream.record(), time.monotonic() + DEADLINE_S
    while not done.is_done:
        if time.monotonic() > end:
            pytest.exit(f"{what} hangs: not through in {DEADLINE_S:g} s", returncode=1)
        time.sleep(1e-5)


class Gpu:
    """Compiled kernels on GPU 0, of one language. All blocks run, in the GPU's own order."""

    live = True
    orders = (0,)

    def __init__(self, bench: Any, backend: Backend) -> None:
        self.bench, self.backend, self.facts = bench, backend, bench.gpu.facts
        self._kernels: dict[str, Any] = {}
        self._files: set[str] = set()

    def kernel(self, name: str) -> Any:
        """A loaded kernel; skips where it cannot be built, or this GPU has no such instructions."""
        if self.facts.compute_capability < max(pipeline.since(name), (9, 0) if name[:2] == "l2" else (0, 0)):
            pytest.skip(f"{name} needs a newer GPU than {self.facts.arch}")
        if name not in self._kernels:
            try:
                self._kernels[name] = self._loaded(name)
            except Unavailable as error:
                self._kernels[name] = error
        if isinstance(self._kernels[name], Unavailable):
            pytest.skip(str(self._kernels[name]))
        return self._kernels[name]

    def _loaded(self, name: str) -> Any:
        if MIRROR.name in name:
            return _mirror(name, self.backend, self.facts.arch)
        own = stem(name)
        if own not in self._files:  # all of a file's kernels are compiled at once, on all cores
            self._files.add(own)
            self.bench.compile({own: numba_compile.names(own)})
        return self.bench.kernels(own, [name], self.backend)[name]

    def run(
        self, kernel: str, args: Sequence[Any], grid: int, block: int = 256, smem: int = 0, *, order: int = 0,
        at_once: bool = False, few: bool = False, pdl: bool = False,
    ) -> list[int]:  # fmt: skip
        """As `HostCpp.run`."""
        from probes.gpu.kernels import Launch, int32, int64
        from probes.gpu.memory import Buffer

        loaded = self.kernel(kernel)
        if smem:
            loaded.make_room(smem)
        with ExitStack() as stack:
            arrays = {id(a): a for a in args if isinstance(a, np.ndarray)}
            device = {key: stack.enter_context(Buffer.of(a)) for key, a in arrays.items()}
            own = [
                device[id(a)].address if isinstance(a, np.ndarray) else 0 if a is None
                else ctypes.c_float(a) if isinstance(a, float)
                else int64(int(a)) if isinstance(a, np.int64) else int32(a)
                for a in args
            ]  # fmt: skip
            Launch(loaded, LaunchConfig(grid, block, smem, pdl), tuple(own)).enqueue(self.bench.gpu.stream)
            wait(self.bench.gpu.stream, kernel)
            for key, a in arrays.items():
                if a.flags.writeable:
                    a[...] = device[key].download(a.dtype, a.size).reshape(a.shape)
        return list(range(grid))


def _mirror(name: str, backend: Backend, arch: str) -> Any:
    """A kernel of the made-up layout."""
    from kernels_cu import build
    from probes.gpu.kernels import bind

    table = (*LAYOUTS, MIRROR)
    if backend == "cu":
        return bind(build.binaries(f"{stem(name)}.cu", [name], arch, layouts=table)[name])
    path = numba_compile.compiled(stem(name), [name], arch, layouts=table)[name]
    return bind(Binary(name=name, backend="numba", entry=name, cubin=path.read_bytes()))


_GPUS: dict[str, Gpu] = {}


def _made(name: str, request: pytest.FixtureRequest) -> Any:
    if name == "host-cu":
        return HostCpp(lambda own: request.getfixturevalue(f"{own}_on_host"))
    if name == "host-numba":
        return HostNumba()
    backend: Backend = "cu" if name == "gpu-cu" else "numba"
    assert backend in LOADERS
    if name not in _GPUS:
        _GPUS[name] = Gpu(request.getfixturevalue("bench"), backend)
    return _GPUS[name]


def loaded(bench: Any, stem: str, since: tuple[int, int] = (0, 0)) -> dict[Backend, dict[str, Any]]:
    """A file's kernels in every language that works here; skips where none does, or on an older GPU."""
    if bench.gpu.facts.compute_capability < since:
        pytest.skip(f"needs sm_{since[0]}{since[1]}, this GPU is {bench.gpu.facts.arch}")
    names, out, why = numba_compile.names(stem), dict[Backend, dict[str, Any]](), dict[Backend, str]()
    bench.compile({stem: names})
    for backend in LOADERS:
        try:
            out[backend] = bench.kernels(stem, names, backend)
        except Unavailable as error:
            why[backend] = str(error)
    if not out:
        pytest.skip(str(why))
    return out


@pytest.fixture(params=[*HOSTS, *GPUS])
def machine(request: pytest.FixtureRequest) -> Any:
    return _made(request.param, request)


@pytest.fixture(params=HOSTS)
def host(request: pytest.FixtureRequest) -> Any:
    return _made(request.param, request)


@pytest.fixture(params=GPUS)
def gpu(request: pytest.FixtureRequest) -> Any:
    return _made(request.param, request)


def over(
    names: str, *, cu: Iterable[Any], numba: Iterable[Any], gpu: Iterable[Any], small: Iterable[Any] = ()
) -> Any:
    """Parameters of a claim on each machine; of the GPU's those in `small` are for compute-sanitizer too."""
    few, out = list(small), []
    sides = {"host-cu": list(cu), "host-numba": list(numba), "gpu-cu": list(gpu)}
    sides["gpu-numba"] = sides["gpu-cu"]
    assert all(sides.values()), f"nothing for a machine: {sides}"
    for name, values in sides.items():
        for v in values:
            marks = [pytest.mark.gpu, *([pytest.mark.small] if v in few else [])] if name[:3] == "gpu" else []
            own = v if isinstance(v, tuple) else (v,)
            out.append(pytest.param(name, *own, marks=marks, id="-".join([name, *map(str, own)])))
    return pytest.mark.parametrize(f"machine,{names}", out, indirect=["machine"])
