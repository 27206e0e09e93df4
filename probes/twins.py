"""Why does one twin take longer than the other? Their machine code, counted instruction by instruction.

Counts are static: what stands in the kernel, not what was executed; both twins run the same paths, so a
difference here is a difference there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from probes import sass
from probes.core.rows import Row

SLOWER = 1.05
"""A Numba twin beyond this many times its C++ twin's time is explained in its row."""


def tally(ops: Sequence[str]) -> Counter[str]:
    """How often each opcode stands in a kernel, modifiers and padding NOPs aside."""
    found = Counter(op.split(".")[0] for op in ops)
    del found["NOP"]
    return found


def difference(cu: Sequence[str], numba: Sequence[str], most: int = 4) -> str:
    """Such as `193 instructions against 174 (LDS 8/2, MOV 7/1)`: Numba's first."""
    ours, theirs = tally(numba), tally(cu)
    apart = sorted(set(ours) | set(theirs), key=lambda op: (-abs(ours[op] - theirs[op]), op))
    named = [f"{op} {ours[op]}/{theirs[op]}" for op in apart[:most] if ours[op] != theirs[op]]
    return f"{ours.total()} instructions against {theirs.total()}" + (
        f" ({', '.join(named)})" if named else ""
    )


def explain(probe: str, arch: str, rows: Sequence[Row], min_blocks: int = 0) -> None:
    """A note on every Numba row that takes more than SLOWER times its C++ twin. Raises Unavailable.

    Rows whose variant is no kernel of its own (a dispatcher's choice, a plain read) are left alone.
    """
    cu_rows = {(r.case, r.variant): r for r in rows if r.backend == "cu" and r.time_s}
    for row in rows:
        twin = cu_rows.get((row.case, row.variant))
        if row.backend != "numba" or not row.time_s or not twin or not twin.time_s:
            continue
        ratio, name = row.time_s / twin.time_s, f"{probe}_{row.variant}"
        if ratio <= SLOWER or name not in sass.names(probe, arch, min_blocks):
            continue
        cu, numba = (sass.kernels(probe, [name], b, arch, min_blocks)[name] for b in ("cu", "numba"))
        row.notes.append(f"{ratio:.2f} x its C++ twin: {difference(cu, numba)}")
