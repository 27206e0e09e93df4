"""A package that is missing, or that fails while it loads: one line, with the command that mends it."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

_HERE = Path(__file__).parents[2]
_OURS = tuple(str(_HERE / name) + "/" for name in ("probes", "kernels_numba", "kernels_cu"))
_PIP = {
    "pynvml": "nvidia-ml-py",
    "cuda.core": "cuda-core",
    "cuda.bindings": "cuda-bindings",
    "cuda.pathfinder": "cuda-pathfinder",
    "numba.cuda": "numba-cuda",
    "numba_cuda": "numba-cuda",
}


def failed(error: BaseException) -> str | None:
    """What to say where `error` came out of another package's import; None where it is a fault of ours.

    An import fails where the last line of ours that ran is an import of a package that is not.
    """
    ran = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(_OURS)]
    found = re.match(r"\s*(?:from|import)\s+([\w.]+)", ran[-1].line or "") if ran else None
    if not found or f"{_HERE / found[1].partition('.')[0]}/" in _OURS:
        return None
    name = next((pip for module, pip in _PIP.items() if f"{found[1]}.".startswith(f"{module}.")),
                found[1].partition(".")[0])  # fmt: skip
    top = found[1].partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and f"{found[1]}.".startswith(f"{error.name or top}."):
        return f"the package {name} is missing: pip install {name}"
    why = f"{type(error).__name__}: {error}"
    return f"the package {name} does not load ({why}): pip install --force-reinstall {name}"
