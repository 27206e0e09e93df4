"""Which instructions a compiled kernel holds, in order, by cuobjdump; and why one backend's takes longer.

Listings are cached by their binary's hash. Counts are static: what stands in a kernel, not what was executed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from kernels_cu import build
from kernels_numba import compile as numba_compile
from probes.core import children
from probes.core.cache import cached
from probes.core.types import BACKENDS, Backend, Unavailable
from probes.engine import probe as protocol
from probes.report.rows import Row

WAIT, TRIGGER, PREFETCH, COPY, LOAD = "ACQBULK", "PREEXIT", "UBLKPF", "UBLKCP", "LDG"
"""On sm_90 and later: griddepcontrol wait and launch_dependents, L2 bulk prefetch, bulk copy, global load."""

_FUNCTION = re.compile(r"^\s*Function : (\w+)", re.MULTILINE)
_LINE = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", re.MULTILINE)


def find_cuobjdump() -> str:
    """The cuobjdump on PATH, or the one that the cu13 extra installed. Raises Unavailable."""
    found = shutil.which("cuobjdump")
    if not found:
        with contextlib.suppress(ImportError):
            from cuda.pathfinder import find_nvidia_binary_utility

            found = find_nvidia_binary_utility("cuobjdump")
    if not found:
        raise Unavailable("no cuobjdump on PATH and none from pip: install a CUDA toolkit, or the cu13 extra")
    return str(found)


def parse(text: str) -> dict[str, list[str]]:
    """Kernel -> opcodes in order, out of `cuobjdump -sass` text."""
    parts = _FUNCTION.split(text)[1:]
    return {name: _LINE.findall(body) for name, body in zip(parts[::2], parts[1::2], strict=True)}


def opcodes(binary: Path) -> dict[str, list[str]]:
    """Kernel -> opcodes in order of a library or cubin. Raises Unavailable."""
    program = find_cuobjdump()

    def make(scratch: Path) -> None:
        shutil.copyfile(binary, scratch / binary.name)  # a name that no shell reads otherwise
        run = children.run(
            [program, "-sass", binary.name], cwd=scratch, env={**os.environ, "TMPDIR": "."}, scratch=True
        )
        (scratch / binary.name).unlink()
        if run.returncode:
            raise Unavailable(f"cuobjdump failed on {binary.name}: {run.stderr.strip()[:200]}")
        (scratch / "sass.json").write_text(json.dumps(parse(run.stdout)))

    path = cached(["sass", binary.read_bytes()], "sass.json", make)
    found: dict[str, list[str]] = json.loads(path.read_text())
    return found


def _library(probe: str, arch: str, min_blocks: int) -> dict[str, list[str]]:
    """Opcodes of every kernel of a probe's C++ libraries."""
    found: dict[str, list[str]] = {}
    for stem in protocol.table(probe).STEMS:
        found |= opcodes(build.library(f"{stem}.cu", arch, min_blocks))
    return found


def kernels(
    probe: str, names: Iterable[str], backend: Backend, arch: str, min_blocks: int = 0
) -> dict[str, list[str]]:
    """Opcodes of a probe's named kernels, compiled where the cache lacks them. Raises Unavailable."""
    if backend == "cu":
        every = _library(probe, arch, min_blocks)
        return {n: every[n] for n in names}
    wanted, made = set(names), dict[str, Path]()
    for stem in protocol.table(probe).STEMS:
        mine = sorted(wanted & set(numba_compile.names(stem)))
        made |= numba_compile.compiled(stem, mine, arch, min_blocks)
    return {n: opcodes(made[n])[n] for n in sorted(wanted)}


def first(ops: list[str], word: str) -> int:
    """Place of the first opcode that starts with `word`, -1 where there is none."""
    return next((k for k, op in enumerate(ops) if op.startswith(word)), -1)


def count(ops: list[str], word: str) -> int:
    """How many opcodes start with `word`."""
    return sum(op.startswith(word) for op in ops)


SLOWER = 1.05  # times its C++ twin's time: a Numba kernel beyond it is explained in its row


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
    more = f" ({', '.join(named)})" if named else ""
    return f"{ours.total()} instructions against {theirs.total()}{more}"


def explain(probe: str, arch: str, rows: Sequence[Row], min_blocks: int = 0) -> None:
    """A note on every Numba row that takes more than SLOWER times its C++ one's time.

    The variant must be a kernel of its own. Where no disassembler is found, the first row says so.
    """
    cu_rows = {(r.group, r.variant): r for r in rows if r.backend == "cu" and r.time_s}
    try:
        for row in rows:
            twin = cu_rows.get((row.group, row.variant))
            if row.backend != "numba" or not row.time_s or not twin or not twin.time_s:
                continue
            ratio, name = row.time_s / twin.time_s, f"{probe}_{row.variant}"
            if ratio <= SLOWER or name not in _library(probe, arch, min_blocks):
                continue
            cu, numba = (kernels(probe, [name], b, arch, min_blocks)[name] for b in BACKENDS)
            row.notes.append(f"{ratio:.2f} x its C++ twin: {difference(cu, numba)}")
    except Unavailable as error:
        rows[0].notes.append(str(error))
