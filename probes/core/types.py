"""The words every floor shares: shapes, launches, resources, binaries and errors.

It imports neither CUDA, NumPy nor anything of the project. Times are seconds, sizes bytes, clocks hertz.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

QK_K = 256  # values in one q6_K or q4_K super-block (ggml's name for it)
UNIT = 32  # values in one unit: what one virtual thread adds to its accumulator at a time (q6_K)
MAX_PROCESSES = 64  # that a run repeats itself in
MAX_ROW_SAMPLES = 1 << 15  # that one row of a report holds: 2 x windows x processes
VIRTUAL_THREADS = 256  # that share one output row in the reference order

Source = Literal["measured", "predicted", "recorded"]
Backend = Literal["numba", "cu"]
BACKENDS: tuple[Backend, ...] = ("cu", "numba")  # C++ decides a verdict, Numba stands beside it

Role = Literal[
    "variant", "again", "choice", "read", "ceiling", "control", "kernel", "alone", "gap", "point", "contest",
    "verdict",
]  # fmt: skip
"""What a row is: a variant; one again (A/A); what a dispatcher chose; a plain read; the large read; a read of
one copy, which is hot; a kernel of a chain by its resources, or alone under the profiler; an empty pair's
gap; a sweep's point; two arms side by side; a verdict."""


class ProbeError(Exception):
    """Something the user can mend. Shown as one line, exit code 2; never a traceback."""

    exit_code = 2


class BadInput(ProbeError):
    """A value the probes refuse: says what was wrong, the value received, and what to do."""


class Unavailable(ProbeError):
    """A tool, driver, package or capability that is not there: says which, and what to do."""


class WrongResult(Exception):
    """A kernel disagreed with the oracle. Exit code 1: this is a fault of ours, not the user's."""

    exit_code = 1

    def __init__(self, what: str, index: int, got: object, want: object) -> None:
        super().__init__(f"{what}: element {index} is {got!r}, the oracle says {want!r}")
        self.what, self.index, self.got, self.want = what, index, got, want


class Fault(RuntimeError):
    """A kernel or the harness failed on the GPU: exit code 1, one line that names kernel and case."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class Shape:
    """A weight matrix of `od` output rows by `id` input values (id % 256 == 0), else BadInput."""

    od: int
    id: int

    def __post_init__(self) -> None:
        if self.od < 1:
            raise BadInput(f"od must be at least 1, got {self.od}")
        if self.id < QK_K or self.id % QK_K:
            raise BadInput(f"id must be a positive multiple of {QK_K}, got {self.id}")
        if self.od > 2**31 - 1 or self.id > 2**24:
            raise BadInput(f"shape {self.od}x{self.id} is too large: od < 2^31, id <= 2^24")

    @property
    def nbe(self) -> int:
        """Super-blocks per row."""
        return self.id // QK_K

    @property
    def nunits(self) -> int:
        """Units of 32 values per row."""
        return self.id // UNIT

    def __str__(self) -> str:
        return f"{self.od}x{self.id}"


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """One launch's geometry. The probe computes it; kernels never derive a grid."""

    grid: int
    block: int
    smem_bytes: int = 0
    pdl: bool = False


@dataclass(frozen=True, slots=True)
class Resources:
    """What one compiled kernel costs: registers per thread, static shared memory, spills and stack."""

    registers: int
    smem_bytes: int = 0
    spill_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Work:
    """The bytes of one launch: weights as stored by the format, and as moved in 32 B sectors."""

    content_bytes: int
    traffic_bytes: int


@dataclass(frozen=True, slots=True)
class Binary:
    """A compiled kernel, from either backend, not yet bound to a device context.

    Numba sets `cubin` and `entry`; C++ sets `handle` (a CUkernel address) and `keepalive`, which outlives it.
    """

    name: str
    backend: Backend
    entry: str = ""
    cubin: bytes = b""
    handle: int = 0
    keepalive: object = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Offline:
    """Resources of one kernel compiled for `arch` on a machine that need not have a GPU."""

    name: str
    backend: Backend
    arch: str
    resources: Resources


Progress = Callable[[str], None]
"""Called with one short line on anything that takes longer than two seconds."""


def check_case(name: str, known: Iterable[str]) -> None:
    """BadInput with close names for a case that is not `known`."""
    import difflib

    if name not in (every := list(known)):
        close = difflib.get_close_matches(name, every, n=3, cutoff=0.3) or every
        raise BadInput(f"there is no case {name!r}; did you mean {', '.join(close)}?")


def check_apart(what: str, flags: Mapping[str, object]) -> None:
    """BadInput for a flag that was given (its value is true) although `what` does not go with it."""
    for flag, given in flags.items():
        if given:
            raise BadInput(f"{what}: it does not go with {flag}")
