"""What the compilers take from the environment, and the line that says why one of them failed."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from probes.core.types import Backend

_READ: dict[Backend, tuple[str, ...]] = {
    "cu": tuple(
        "NVCC_ CPATH C_INCLUDE_PATH CPLUS_INCLUDE_PATH LIBRARY_PATH COMPILER_PATH GCC_EXEC_PREFIX".split()
    ),
    "numba": ("NUMBA_",),
}
"""Variables by name or beginning: nvcc's and its host compiler's, and Numba's."""

_HARMLESS = re.compile(
    r"NUMBA_(NUM_THREADS|CACHE_DIR|COLOR_SCHEME|FULL_TRACEBACKS|DISABLE_PERFORMANCE_WARNINGS|THREADING_LAYER\w*"
    r"|CUDA_(LOW_OCCUPANCY_WARNINGS|WARN_ON_IMPLICIT_COPY|LOG_\w+|MAX_PENDING_DEALLOCS_\w+|MEMORY_MANAGER))"
)
"""Those of Numba's that change what is said or kept, and no code. Any other counts, known to us or not."""

_NUMBA_FILE = ".numba_config.yaml"  # of the current folder: Numba reads variables from it, too


def settings(*backends: Backend) -> dict[str, str]:
    """The variables that are set here and may change the code of these backends, both by default; sorted."""
    read = tuple(word for b in backends or tuple(_READ) for word in _READ[b])
    found = {
        name: value
        for name, value in sorted(os.environ.items())
        if value and name.startswith(read) and not _HARMLESS.fullmatch(name)
    }
    if any(word.startswith("NUMBA_") for word in read) and Path(_NUMBA_FILE).is_file():
        found[_NUMBA_FILE] = hashlib.sha256(Path(_NUMBA_FILE).read_bytes()).hexdigest()[:12]
    return found


def public(found: dict[str, str]) -> dict[str, str]:
    """The same for a report, in which no machine's folders stand."""
    path = r"(^|[\s=:,;\"']|-[A-Za-z])~?/(?:[^\s/:;,=\"']+/)*"
    return {name: re.sub(path, r"\1", value) for name, value in found.items()}


def first_error(text: str) -> str:
    """The line of a compiler's output that says what is wrong: not the warnings before it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if not re.search(r"\bwarning\b", line, re.IGNORECASE)]
    errors = [line for line in told if re.search(r"error\b|\bfatal\b|not found", line, re.IGNORECASE)]
    return (errors or told or lines or ["no message"])[0][:300]
