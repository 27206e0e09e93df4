"""Why does one twin take longer than the other? Their machine code, counted instruction by instruction.

cuobjdump reads the C++ library and the Numba cubin alike. Counts are static: what stands in the kernel, not
what was executed; both twins run the same paths, so a difference here is a difference there.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from probes.core.rows import Row
from probes.core.types import Unavailable

SLOWER = 1.05
"""A Numba twin beyond this many times its C++ twin's time is explained in its row."""

_OPCODE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)")


def find_cuobjdump() -> str:
    """cuobjdump on PATH, else the one that the cu13 extra installed. Raises Unavailable."""
    found = shutil.which("cuobjdump")
    if not found:
        try:
            from cuda.pathfinder import find_nvidia_binary_utility
        except ImportError:
            found = None
        else:
            found = find_nvidia_binary_utility("cuobjdump")
    if not found:
        raise Unavailable(
            "no cuobjdump on PATH and none from pip: install a CUDA toolkit, or: pip install '.[cu13]'"
        )
    return str(found)


def functions(path: Path) -> dict[str, str]:
    """The disassembly of every kernel in a library or cubin, by name. Raises Unavailable."""
    run = subprocess.run([find_cuobjdump(), "-sass", str(path)], capture_output=True, text=True)
    if run.returncode:
        raise Unavailable(f"cuobjdump cannot read {path.name}: {run.stderr.strip() or run.stdout.strip()}")
    parts = re.split(r"^\s*Function : (\w+)$", run.stdout, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def opcodes(text: str) -> Counter[str]:
    """How often each opcode stands in a kernel's disassembly; padding NOPs are left out."""
    found = Counter(_OPCODE.findall(text))
    del found["NOP"]
    return found


def difference(cu: Counter[str], numba: Counter[str], most: int = 4) -> str:
    """Such as `193 instructions against 174 (LDS 8/2, MOV 7/1)`: Numba's first."""
    apart = sorted(set(cu) | set(numba), key=lambda op: -abs(numba[op] - cu[op]))
    named = [f"{op} {numba[op]}/{cu[op]}" for op in apart[:most] if numba[op] != cu[op]]
    return f"{numba.total()} instructions against {cu.total()}" + (f" ({', '.join(named)})" if named else "")


def explain(probe: str, arch: str, rows: Sequence[Row], min_blocks: int = 0) -> None:
    """A note on every Numba row that takes more than SLOWER times its C++ twin. Raises Unavailable."""
    from kernels_cu import build
    from kernels_numba import compile as numba_compile

    cu_rows = {(r.case, r.variant): r for r in rows if r.backend == "cu" and r.time_s}
    library: dict[str, str] = {}
    for row in rows:
        twin = cu_rows.get((row.case, row.variant))
        if row.backend != "numba" or not row.time_s or not twin or not twin.time_s:
            continue
        ratio = row.time_s / twin.time_s
        library = library or functions(build.library(f"{probe}.cu", arch, min_blocks))
        name = f"{probe}_{row.variant}"
        if ratio <= SLOWER or name not in library:
            continue
        path = numba_compile.compiled(probe, [name], arch, min_blocks)[name]
        told = difference(opcodes(library[name]), opcodes(functions(path)[name]))
        row.notes.append(f"{ratio:.2f} x its C++ twin: {told}")
