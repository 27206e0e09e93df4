"""One cache for everything that is compiled: out/build/<hash>/ holds what a set of inputs built to.

The folder is `out/build` under the current folder, or PROBES_BUILD_DIR. A build is made in a scratch
folder and renamed into place: two processes may build at once, and a killed one leaves nothing
half-made.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from probes.core.types import BadInput, Resources


def build_dir() -> Path:
    """Where built kernels live: PROBES_BUILD_DIR, else out/build under the current folder."""
    return Path(os.environ.get("PROBES_BUILD_DIR") or Path("out") / "build")


def cached(key: Iterable[str | bytes], product: str, make: Callable[[Path], None]) -> Path:
    """The file `product` of the folder named by the hash of `key`; `make(scratch folder)` builds it once.

    Raises BadInput where the build folder cannot be written.
    """
    digest = hashlib.sha256()
    for part in key:
        digest.update(part.encode() if isinstance(part, str) else part)
        digest.update(b"\0")
    folder = build_dir() / digest.hexdigest()[:20]
    path = folder / product
    if path.exists():
        return path
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix="making-", dir=folder.parent))
    except OSError as error:
        raise BadInput(
            f"cannot write the build folder {folder.parent}: {error.strerror}; set PROBES_BUILD_DIR"
        ) from error
    try:
        make(scratch)
        try:
            scratch.rename(folder)
        except OSError:  # another process won the race, and its folder serves as well
            if not path.exists():
                raise
    except OSError as error:
        raise BadInput(f"cannot write the build folder {folder.parent}: {error.strerror}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return path


_ENTRY = re.compile(r"Compiling entry function '(\w+)' for '\w+'")
_SPILL = re.compile(r"(\d+) bytes spill stores")
_USED = re.compile(r"Used (\d+) registers")
_SMEM = re.compile(r"(\d+) bytes smem")


def ptxas_resources(log: str) -> dict[str, Resources]:
    """Registers, static shared memory and spilled bytes per entry function, from `ptxas -v` output."""
    out: dict[str, Resources] = {}
    name, spill = "", 0
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            name, spill = match[1], 0
        elif match := _SPILL.search(line):
            spill = int(match[1])
        elif (match := _USED.search(line)) and name:
            smem = _SMEM.search(line)
            out[name] = Resources(int(match[1]), int(smem[1]) if smem else 0, spill)
            name = ""
    return out
