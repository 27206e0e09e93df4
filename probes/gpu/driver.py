"""The one door to the driver: every failure is told in one line, with what the user can do about it.

A result in ADVICE is the user's machine speaking (Unavailable, exit 2); any other is a kernel's or the
harness' own fault (Fault, exit 1), named by every `tried` that it passes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from probes.core.types import Fault, Unavailable

_COMPAT = "take the compat folder out of LD_LIBRARY_PATH, or update the NVIDIA driver"
_COMPILED = "remove the build folder out/build, so that kernels are compiled anew"
_HELD = "wait for it, or set the mode to Default (nvidia-smi -q -d COMPUTE shows it)"
_MISMATCH = "restart after an update, or give the container the host's driver"
_MPS = "restart nvidia-cuda-mps-control, or stop it"
_RESET = "reset the GPU or restart (nvidia-smi -q -d ECC counts errors)"
_RESTART = "restart the machine if nvidia-smi fails too"
_UPDATE = "update the NVIDIA driver (CUDA 13.0 or newer)"

_ADVICE: dict[str, tuple[str, str]] = {
    "OUT_OF_MEMORY": ("the GPU has no room left", "free some, or try --quick or one --case"),
    "STUB_LIBRARY": ("a stub stands in place of the driver", "take the stubs folder out of LD_LIBRARY_PATH"),
    "CALL_REQUIRES_NEWER_DRIVER": ("the driver is too old for this call", _UPDATE),
    "DEVICE_UNAVAILABLE": ("another process holds the GPU, or its compute mode keeps us out", _HELD),
    "NO_DEVICE": ("the driver sees no GPU", "look at CUDA_VISIBLE_DEVICES and the container"),
    "INVALID_DEVICE": ("the driver does not know this GPU", "look at CUDA_VISIBLE_DEVICES"),
    "DEVICE_NOT_LICENSED": ("this virtual GPU has no licence", "ask who runs the vGPU server"),
    "INVALID_IMAGE": ("the compiled kernel cannot be loaded", _COMPILED),
    "NO_BINARY_FOR_GPU": ("the compiled kernel is not for this GPU", _COMPILED),
    "INVALID_PTX": ("the driver cannot compile the kernel's PTX", _UPDATE),
    "UNSUPPORTED_PTX_VERSION": ("the kernel's PTX is newer than the driver", _UPDATE),
    "JIT_COMPILER_NOT_FOUND": ("the driver's PTX compiler is missing", "install libnvidia-ptxjitcompiler"),
    "JIT_COMPILATION_DISABLED": ("compiling PTX is switched off", "unset CUDA_DISABLE_PTX_JIT"),
    "ECC_UNCORRECTABLE": ("the GPU's memory has an uncorrectable error", _RESET),
    "NVLINK_UNCORRECTABLE": ("NVLink has an uncorrectable error", _RESET),
    "CONTAINED": ("the GPU contained a memory error", "start again; dmesg names it (Xid)"),
    "SHARED_OBJECT_SYMBOL_NOT_FOUND": ("the driver's libraries do not fit each other", _UPDATE),
    "SHARED_OBJECT_INIT_FAILED": ("a library of the driver does not start", _UPDATE),
    "OPERATING_SYSTEM": ("the operating system refused the driver", "look at /dev/nvidia* and dmesg"),
    "LAUNCH_TIMEOUT": ("the display's watchdog stopped a kernel", "use a GPU without a display"),
    "NOT_PERMITTED": ("the driver does not permit that", "ask for the right, or leave the sandbox"),
    "NOT_SUPPORTED": ("this GPU or driver cannot do that", _UPDATE),
    "SYSTEM_NOT_READY": ("the GPUs are not ready yet", "start nvidia-fabricmanager, and wait for it"),
    "SYSTEM_DRIVER_MISMATCH": ("the driver's library and kernel module differ in version", _MISMATCH),
    "COMPAT_NOT_SUPPORTED_ON_DEVICE": ("this GPU refuses CUDA's compatibility package", _COMPAT),
    "MPS_CONNECTION_FAILED": ("the MPS server does not answer", _MPS),
    "MPS_RPC_FAILURE": ("the MPS server does not answer", _MPS),
    "MPS_SERVER_NOT_READY": ("the MPS server is not ready", _MPS),
    "MPS_MAX_CLIENTS_REACHED": ("the MPS server takes no more clients", "wait for one to end"),
    "MPS_MAX_CONNECTIONS_REACHED": ("the MPS server has no connection left", "wait for one to end"),
    "MPS_CLIENT_TERMINATED": ("the MPS server ended this process' work", "start again"),
    "UNKNOWN": ("the driver is in a state that it cannot name", _RESTART),
}

ADVICE = {f"CUDA_ERROR_{name}": advice for name, advice in _ADVICE.items()}
"""What a CUresult says of the user's machine, and what to do about it."""

_NAME = re.compile(r"CUDA_ERROR_[A-Z_]*[A-Z]")
_LACKING = re.compile(r"function .* not found|requires? .*(cuda|driver)", re.IGNORECASE)
_COMPILERS = ("NVRTCError", "nvJitLinkError", "nvvmError")


def advised(name: str, told: str) -> str:
    """One line on result `name`: what it means, `told` in brackets, what to do; else `told` alone."""
    what, to_do = ADVICE.get(name, ("", ""))
    return f"{what} ({told}); {to_do}" if what else told


def failure(where: str, name: str, said: str = "") -> Unavailable | Fault:
    """The error for result `name` of `where`; `said`: the driver's own words."""
    told = f"{where}: {name}{f' ({said})' if said else ''}"
    return Unavailable(advised(name, told)) if name in ADVICE else Fault(told)


def call(name: str, *args: Any) -> Any:
    """Call a driver function of cuda.bindings by name; returns its values (None, one, or a tuple).

    Raises Unavailable for what the user's machine refuses, Fault for a kernel's or the harness' mistake.
    """
    from cuda.bindings import driver

    try:
        result, *values = getattr(driver, name)(*args)
    except RuntimeError as error:  # the driver is older than the bindings, and has no such function
        raise Unavailable(f"{name}: {_line(error)}; {_UPDATE}") from error
    except ValueError as error:  # it is newer, and answers with a result that they do not know
        if "CUresult" not in str(error):
            raise
        raise Fault(f"{name}: {_line(error)}") from error
    if result != driver.CUresult.CUDA_SUCCESS:
        text = driver.cuGetErrorString(result)[1]
        raise failure(name, result.name, text.decode() if text else "")
    if not values:
        return None
    return values[0] if len(values) == 1 else tuple(values)


def released(name: str, *args: Any) -> None:
    """`call`, for giving something back; where an error is on its way, that one is shown and not this one."""
    before = sys.exception()
    try:
        call(name, *args)
    except (Unavailable, Fault):
        if before is None:  # a context that a kernel has broken refuses every further call
            raise


@contextmanager
def tried(what: str) -> Iterator[None]:
    """A block whose CUDA errors are told as `call` tells them, and whose faults are named by `what`."""
    try:
        yield
    except Exception as error:
        fail(what, error)


def fail(what: str, error: Exception) -> NoReturn:
    """Raise what `error` means: for places where `tried` around each launch would cost time."""
    told = meaning(what, error)
    if told is error:
        raise error
    raise told from error


def meaning(what: str, error: Exception) -> Exception:
    """An exception of cuda.core, cuda.bindings or ours as the error to show; any other as it is."""
    if isinstance(error, Fault):
        return Fault(f"{what}: {error}")
    kinds, text = type(error), _line(error)
    ours = any(k.__module__.partition(".")[0] == "cuda" for k in kinds.__mro__)
    if ours and any(k.__name__ in _COMPILERS for k in kinds.__mro__):
        return Unavailable(f"the CUDA compiler or linker failed: {what}: {text}")
    found = _NAME.search(str(error))
    if found and (ours or isinstance(error, RuntimeError)):
        said = text.removeprefix(found[0]).lstrip(": ").split(". ")[0]  # of a paragraph on the result
        return failure(what, found[0], said.rstrip("."))
    if isinstance(error, NotImplementedError) or (isinstance(error, RuntimeError) and _LACKING.search(text)):
        return Unavailable(f"this GPU or driver cannot do that ({what}: {text}); {_UPDATE}")
    return Fault(f"{what}: {text}") if ours else error


def _line(error: BaseException) -> str:
    """An error's first line, its class' name where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
