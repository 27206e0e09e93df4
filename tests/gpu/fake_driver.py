"""What stands for the driver and cuda.core: a GPU that works, and fails where a test says so.

`FakeDriver(monkeypatch)` answers for cuda.bindings.driver (its enums are the real ones) and for
cuda.core's Device, launch and events. `fails[name]` is the CUresult that a call then gives: of
cuda.bindings by its name (cuMemAlloc), of cuda.core by `core.` and the method (core.set_current), which
raises cuda.core's own CUDAError as the real one words it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import cuda.bindings
import cuda.core
import pytest
from cuda.bindings import driver as real
from cuda.core._utils.cuda_utils import CUDAError
from cuda.core._utils.driver_cu_result_explanations import DRIVER_CU_RESULT_EXPLANATIONS

PROPERTIES = {
    "multiprocessor_count": 132, "max_threads_per_multiprocessor": 2048, "warp_size": 32,
    "memory_clock_rate": 3_201_000, "global_memory_bus_width": 6144,
    "max_registers_per_multiprocessor": 65_536,
    "max_shared_memory_per_multiprocessor": 233_472, "max_shared_memory_per_block_optin": 232_448,
    "reserved_shared_memory_per_block": 1024, "max_blocks_per_multiprocessor": 32,
    "l2_cache_size": 62_914_560, "clock_rate": 1_980_000, "integrated": False,
    "pageable_memory_access_uses_host_page_tables": False,
}  # fmt: skip
VALUES: dict[str, tuple[Any, ...]] = {
    "cuDeviceGetCount": (1,), "cuDriverGetVersion": (13000,), "cuMemGetInfo": (100 << 30, 140 << 30),
    "cuMemAlloc": (1 << 20,), "cuGetErrorString": (b"the driver's words",), "cuCtxGetLimit": (0,),
    "cuStreamEndCapture": ("graph",), "cuGraphGetNodes": (None, 1), "cuGraphGetEdges": (None, None, None, 0),
    "cuGraphInstantiate": ("exec",), "cuDeviceGet": (0,), "cuDeviceGetPCIBusId": (b"0000:01:00.0\0",),
}  # fmt: skip


def core_error(name: str) -> Exception:
    """cuda.core's exception for a result: its name, and a paragraph that explains it."""
    code = getattr(real.CUresult, name)
    return CUDAError(f"{name}: {DRIVER_CU_RESULT_EXPLANATIONS.get(int(code), 'no words')}")


class FakeDriver:
    """See the module. `calls` are the names of the driver's functions in the order of their calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str = "NVIDIA H200", **more: Any) -> None:
        self.fails: dict[str, str] = {}
        self.values = dict(VALUES)
        self.calls: list[str] = []
        self.sms: int | None = None
        self.name, self.properties = name, SimpleNamespace(**{**PROPERTIES, **more})
        self.compute_capability = (9, 0)
        monkeypatch.setattr(cuda.bindings, "driver", self)
        monkeypatch.setattr(cuda.core, "Device", lambda index: self.core("Device", self))
        monkeypatch.setattr(cuda.core, "launch", lambda *args: self.core("launch"))

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            return getattr(real, name)

        def function(*args: Any) -> tuple[Any, ...]:
            self.calls.append(name)
            result = getattr(real.CUresult, self.fails.get(name, "CUDA_SUCCESS"))
            values = self.values.get(name, ())
            return (result, *(values if result == 0 else [None] * len(values)))

        function.__name__ = name
        return function

    def core(self, what: str, value: Any = None) -> Any:
        """`value`, or cuda.core's error where the test wants one at `what`."""
        self.calls.append(f"core.{what}")
        if result := self.fails.get(f"core.{what}"):
            raise core_error(result)
        return value

    def cuCtxGetExecAffinity(self, kind: Any) -> tuple[Any, Any]:
        if self.sms is None:
            return real.CUresult.CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY, None
        param = SimpleNamespace(smCount=SimpleNamespace(val=self.sms))
        return real.CUresult.CUDA_SUCCESS, SimpleNamespace(param=param)

    def set_current(self) -> None:
        self.core("set_current")

    def create_stream(self) -> FakeStream:
        return self.core("create_stream", FakeStream(self))

    def create_event(self, options: Any) -> Any:
        return self.core("create_event", SimpleNamespace(sync=lambda: self.core("sync")))


class FakeStream:
    """A stream of the fake device."""

    handle = 7

    def __init__(self, driver: FakeDriver) -> None:
        self.device = driver
        self.record: Callable[[Any], Any] = lambda event: driver.core("record")
        self.sync: Callable[[], Any] = lambda: driver.core("sync")
