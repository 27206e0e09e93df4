"""Environment variables, and tools in the process, that change what is measured.

A line is `subject: what it does`, for a report's head and notes; subjects that change times stand beside the
verdicts too. Values lose their folders: a report names no machine's paths.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping, Sequence
from typing import NamedTuple


class Setting(NamedTuple):
    """One variable, or with a `*` at its end all that begin so; `usual` values say nothing."""

    name: str
    means: str
    usual: tuple[str, ...] = ("0",)
    timed: bool = True  # whether it can change a time: then it stands beside the verdicts

    def fits(self, name: str) -> bool:
        return name.startswith(self.name[:-1]) if self.name.endswith("*") else name == self.name


_TOOL = "a profiler or sanitizer is attached, and times are its own"
_COMPILED = "kernels are compiled otherwise than the recorded ones"
_MPS = "the GPU is shared through MPS"

SETTINGS: tuple[Setting, ...] = (
    Setting("CUDA_LAUNCH_BLOCKING", "each launch outside a graph is waited for (eager arms take 1.5 x)"),
    Setting("CUDA_DEVICE_MAX_CONNECTIONS", "launches of several streams share so many queues", ()),
    Setting("CUDA_SCALE_LAUNCH_QUEUES", "launch queues are of another size", ()),
    Setting("CUDA_DISABLE_PERF_BOOST", "the GPU may stay at lower clocks"),
    Setting("CUDA_FORCE_PTX_JIT", "the driver compiles kernels anew, where it has their PTX"),
    Setting("CUDA_FORCE_JIT", "the driver compiles kernels anew, where it has their PTX"),
    Setting("CUDA_DISABLE_PTX_JIT", "the driver compiles no PTX", timed=False),
    Setting("CUDA_DISABLE_JIT", "the driver compiles no PTX", timed=False),
    Setting("CUDA_MODULE_LOADING", "kernels are loaded so; not while they are timed", ("", "DEFAULT"), False),
    Setting("CUDA_ENABLE_COREDUMP_ON_EXCEPTION", "kernels run ready for a core dump"),
    Setting("CUDA_DEVICE_WAITS_ON_EXCEPTION", "kernels run ready for a debugger"),
    Setting("CUDA_VISIBLE_DEVICES", "these GPUs are seen, and --device counts among them", (), False),
    Setting("CUDA_DEVICE_ORDER", "--device counts in this order", (), False),
    Setting("CUDA_DEFAULT_PERSISTING_L2_*", "contexts begin with a carve-out", timed=False),
    Setting("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "MPS gives us this share of the SMs", ("", "100")),
    Setting("CUDA_MPS_LOG_DIRECTORY", "MPS writes its log there", (), False),
    Setting("CUDA_MPS_*", _MPS, ()),
    Setting("NUMBA_ENABLE_CUDASIM", "Numba's simulator compiles nothing for a GPU"),
    Setting("NUMBA_CUDA_DEBUGINFO", "Numba's kernels are compiled for a debugger, and several times slower"),
    Setting("NUMBA_DEBUGINFO", _COMPILED),
    Setting("NUMBA_OPT", _COMPILED, ("3",)),
    Setting("NUMBA_BOUNDSCHECK", _COMPILED),
    Setting("NVCC_APPEND_FLAGS", _COMPILED, ()),
    Setting("NVCC_PREPEND_FLAGS", _COMPILED, ()),
    Setting("NVCC_CCBIN", "nvcc uses this host compiler", (), False),
    Setting("CUDA_INJECTION64_PATH", _TOOL, ()),
    Setting("NSYS_PROFILING_SESSION_ID", _TOOL, ()),
    Setting("NV_SANITIZER_INJECTION_*", _TOOL, ()),
    Setting("NV_NSIGHT_INJECTION_*", _TOOL, ()),
    Setting("NV_TPS_LAUNCH_TOKEN", _TOOL, ()),
    Setting("CUDBG_*", _TOOL, ()),
)  # fmt: skip

# taken out of the environment before Numba reads it: no figure under them would be worth a verdict
IGNORED = ("NUMBA_ENABLE_CUDASIM", "NUMBA_CUDA_DEBUGINFO")

TOOLS: tuple[tuple[str, str], ...] = (
    ("libsanitizer", "compute-sanitizer"),
    ("libcuda-injection", "Nsight Compute"),
    ("libToolsInjection", "Nsight Systems"),
    ("libTreeLauncher", "an Nsight tool"),
    ("libInterceptorInjection", "an Nsight tool"),
    ("libnvperf_host", "a profiler"),
    ("libcupti", "a CUPTI profiler"),
    ("libaccinj64", "nvprof"),
)
"""What a library of a process tells, by the beginning of its file name; no part of ours loads any of them."""


def told(environ: Mapping[str, str]) -> list[str]:
    """A line for each variable of `environ` that the table knows, and whose value is not a usual one."""
    known = ((name, value.strip(), _row(name)) for name, value in sorted(environ.items()))
    return [f"{n}={_bare(v)}: {row.means}" for n, v, row in known if row and v not in ("", *row.usual)]


def settle(environ: MutableMapping[str, str], read: bool) -> list[str]:
    """`told`, with what IGNORED names taken out of `environ`; not where it was `read` already."""
    if read:
        return told(environ)
    gone = {name: environ.pop(name) for name in IGNORED if name in environ}
    return [*told(environ), *(line.replace(": ", " is ignored: ", 1) for line in told(gone))]


def tools(maps: str) -> list[str]:
    """A line for each tool whose library a process' memory map (`/proc/self/maps`) names."""
    files = [line.rsplit("/", 1)[-1] for line in maps.splitlines() if "/" in line]
    found = dict.fromkeys(tool for start, tool in TOOLS for file in files if file.startswith(start))
    return [f"{tool}: {_TOOL}" for tool in found]


def tracer(status: str) -> list[str]:
    """A line where `/proc/self/status` says that another process traces this one."""
    pid = re.search(r"^TracerPid:\s*(\d+)", status, re.MULTILINE)
    return ["a debugger: it follows this process, and times are its own"] if pid and int(pid[1]) else []


def beside(lines: Sequence[str]) -> str:
    """What stands beside the verdicts: the subjects of lines that can change a time, '' for none."""
    return ", ".join(dict.fromkeys(filter(_timed, (line.partition(": ")[0] for line in lines))))


def _timed(subject: str) -> bool:
    row = _row(subject.partition("=")[0])
    return not subject.endswith((" is ignored", " was reset")) and (row is None or row.timed)


def _row(name: str) -> Setting | None:
    return next((row for row in SETTINGS if row.fits(name)), None)


def _bare(value: str) -> str:
    """A value without folders, control characters or length."""
    clean = "".join(c if c.isprintable() else " " for c in re.sub(r"[^\s:;,=]*/", "", value))
    return clean if len(clean) <= 60 else f"{clean[:59]}…"
