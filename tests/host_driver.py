"""`cuda.bindings.driver` over tests.host_gpu, and the fixture that installs it all.

Only what probes.gpu calls is here; types and option classes are the packages' own, which refuse what they
refuse on a GPU.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import cuda.bindings
import cuda.core
import psutil
import pytest
from cuda.bindings import driver as real

from probes.engine import bench
from tests.host_core import UNSUPPORTED, Device, launch, load, nvml
from tests.host_gpu import HostGpu, Refused
from tests.host_kernels import KERNELS


class Driver:
    """cuda.bindings.driver: what it does not do itself it takes from the package, functions excepted."""

    def __init__(self, gpu: HostGpu) -> None:
        self._calls = Calls(gpu)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            return getattr(real, name)
        function = getattr(self._calls, name)
        given = function.__annotations__["return"]
        values = 0 if given == "None" else given.count(",") + 1

        def called(*args: Any) -> Any:
            try:
                refused = self._calls.gpu.answer(name)
                if refused is None:
                    found = function(*args)
                    return (real.CUresult.CUDA_SUCCESS, *((found,) if values == 1 else found or ()))
            except Refused as error:
                refused = str(error)
            return (getattr(real.CUresult, refused), *[None] * values)

        called.__name__ = name
        return called


class Calls:
    """The driver's functions; the annotation says how many values one returns."""

    def __init__(self, gpu: HostGpu) -> None:
        self.gpu = gpu

    def cuInit(self, flags: int) -> None: ...

    def cuDeviceGetCount(self) -> int:
        return self.gpu.devices

    def cuDriverGetVersion(self) -> int:
        return 13000

    def cuDeviceGet(self, index: int) -> int:
        return index

    def cuDeviceGetPCIBusId(self, size: int, index: int) -> bytes:
        return b"0000:0f:00.0\0".ljust(size, b"\0")

    def cuGetErrorName(self, code: Any) -> bytes:
        return str(code.name).encode()

    def cuGetErrorString(self, code: Any) -> bytes:
        return str(code.name).removeprefix("CUDA_ERROR_").replace("_", " ").lower().encode()

    # memory; while a stream of this thread captures, none of it may be touched

    def _quiet(self) -> None:
        if any(s.captured is not None for s in self.gpu.streams.values()):
            raise Refused(UNSUPPORTED)

    def cuMemGetInfo(self) -> tuple[int, int]:
        return self.gpu.free - sum(a.size for a in self.gpu.memory.values()), self.gpu.total

    def cuMemAlloc(self, size: int) -> int:
        self._quiet()
        return self.gpu.allocate(size)

    def cuMemFree(self, address: Any) -> None:
        self._quiet()
        self.gpu.release(int(address))

    def cuMemcpyHtoD(self, to: int, source: int, size: int) -> None:
        self._copy(to, source, size, self.gpu.at(to, "u1", size))

    def cuMemcpyDtoH(self, to: int, source: int, size: int) -> None:
        self._quiet()
        ctypes.memmove(to, self.gpu.at(source, "u1", size).ctypes.data, size)

    def cuMemcpyDtoD(self, to: int, source: int, size: int) -> None:
        self.gpu.at(source, "u1", size)
        self._copy(to, source, size, self.gpu.at(to, "u1", size))

    def _copy(self, to: int, source: int, size: int, checked: Any) -> None:
        self._quiet()
        ctypes.memmove(to, source, size)
        self.gpu.allocation(to).written()

    def cuMemsetD8(self, address: int, value: int, size: int) -> None:
        self._quiet()
        self.gpu.at(address, "u1", size)[:] = value
        self.gpu.allocation(address).written()

    def cuMemsetD2D8(self, address: int, pitch: int, value: int, width: int, height: int) -> None:
        for row in range(height):
            self.cuMemsetD8(address + row * pitch, value, width)

    # contexts, functions, the profiler

    def cuCtxSynchronize(self) -> None:
        self._quiet()
        self.gpu.drain()

    def cuCtxGetDevice(self) -> int:
        return 0

    def cuCtxGetExecAffinity(self, kind: Any) -> Any:
        if not self.gpu.contexts:
            raise Refused("CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY")
        return SimpleNamespace(param=SimpleNamespace(smCount=SimpleNamespace(val=self.gpu.contexts[-1])))

    def cuCtxGetLimit(self, limit: Any) -> int:
        return self.gpu.limits.get(limit, 0)

    def cuCtxSetLimit(self, limit: Any, value: int) -> None:
        self.gpu.limits[limit] = value

    def cuCtxResetPersistingL2Cache(self) -> None: ...

    def cuCtxPushCurrent(self, context: Any) -> None:
        self.gpu.contexts.append(context)

    def cuCtxPopCurrent(self) -> Any:
        return self.gpu.contexts.pop()

    def cuKernelSetAttribute(self, attribute: Any, value: int, kernel: Any, dev: int) -> None:
        names, mine = real.CUfunction_attribute, self.gpu.bound[int(kernel)]
        if attribute == names.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
            if not -1 <= value <= 100:
                raise Refused("CUDA_ERROR_INVALID_VALUE")
            mine.carveout = value
            return
        assert attribute == names.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        static = self.gpu.kernel(mine.name).resources.smem_bytes
        if not 0 <= value <= self.gpu.facts.smem_per_block_max_bytes - static:
            raise Refused("CUDA_ERROR_INVALID_VALUE")
        mine.most_smem = value

    def cuProfilerStart(self) -> None:
        self.gpu.drain()
        self.gpu.profiling = True

    def cuProfilerStop(self) -> None:
        self.gpu.drain()
        self.gpu.profiling = False

    # graphs

    def cuStreamBeginCapture(self, stream: Any, mode: Any) -> None:
        assert mode == real.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self._quiet()
        self.gpu.streams[int(stream)].captured = []

    def cuStreamEndCapture(self, stream: Any) -> Any:
        mine = self.gpu.streams[int(stream)]
        if mine.captured is None:
            raise Refused("CUDA_ERROR_ILLEGAL_STATE")
        nodes, mine.captured = mine.captured, None
        self.gpu.graphs += 1
        return nodes

    def cuGraphGetNodes(self, graph: Any, most: int = 0) -> tuple[Any, int]:
        return [], len(graph) + self.gpu.extra_nodes

    def cuGraphGetEdges(self, graph: Any, most: int = 0) -> tuple[Any, Any, Any, int]:
        kind = real.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC
        pdl = [k for k, x in enumerate(graph) if k and x.pdl][self.gpu.lost_edges :]
        data = [SimpleNamespace(type=int(kind) if k in pdl else 0) for k in range(1, len(graph))]
        return graph[:-1][:most], graph[1:][:most], data[:most], len(data)

    def cuGraphInstantiate(self, graph: Any, flags: int) -> Any:
        self.gpu.graphs += 1
        return SimpleNamespace(nodes=list(graph), alive=True)

    def cuGraphUpload(self, executable: Any, stream: Any) -> None: ...

    def cuGraphDestroy(self, graph: Any) -> None:
        self.gpu.graphs -= 1

    def cuGraphExecDestroy(self, executable: Any) -> None:
        self.gpu.drain()
        assert executable.alive, "a graph is given back twice"
        executable.alive = False
        self.gpu.graphs -= 1

    def cuGraphLaunch(self, executable: Any, stream: Any) -> None:
        assert executable.alive, "a graph is replayed that was given back"
        self.gpu.streams[int(stream)].waiting.append(partial(self.gpu.replay, executable.nodes))


@pytest.fixture
def host_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostGpu]:
    """The stand-in, installed. No kernel wrote past a buffer, or this fails at the end."""
    gpu = HostGpu(kernels=dict(KERNELS))

    def bound(code: Any) -> Any:
        gpu.refuse("get_kernel")
        return gpu.bound[int(code)]

    faces = {
        "Device": partial(Device, gpu), "launch": partial(launch, gpu),
        "Kernel": SimpleNamespace(from_handle=bound),
        "ObjectCode": SimpleNamespace(
            from_cubin=lambda cubin: SimpleNamespace(get_kernel=lambda entry: bound(cubin))
        ),
    }  # fmt: skip
    for name, face in faces.items():
        monkeypatch.setattr(cuda.core, name, face)
    monkeypatch.setattr(cuda.bindings, "driver", Driver(gpu))
    monkeypatch.setitem(sys.modules, "pynvml", nvml(gpu))
    monkeypatch.setattr(psutil, "cpu_percent", lambda interval: 0.0)
    monkeypatch.setattr(bench, "COMPILE", lambda *asked: {})
    for backend in bench.LOADERS:
        monkeypatch.setitem(bench.LOADERS, backend, partial(load, gpu, backend))
    yield gpu
    gpu.end_process()
