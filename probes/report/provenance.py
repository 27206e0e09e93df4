"""The head of a report's JSON file: all that a reader needs to run it again, or to doubt it.

It names no machine's paths: a committed report says what was asked for, not where somebody's home lies.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Any

from probes.core.escaping import quoted
from probes.core.settings import public, settings
from probes.core.types import BadInput
from probes.verdict.bars import bars_sha256

SCHEMA = 3  # raised by one when a field changes its meaning
SCHEMAS = (1, 2, SCHEMA)  # that store.read_json reads
PACKAGES = ("numpy", "numba", "numba-cuda", "cuda-core", "cuda-bindings", "llvmlite", "gguf")
GIT_VARIABLE = "PROBES_GIT"  # states the revision where the code was copied without its .git


@dataclass(slots=True, kw_only=True)
class Head:
    """The file's head, without its rows. `mode` is measure or predict; `complete` is False until the end."""

    mode: str
    device: str
    seed: int
    kernels_sha256: str
    argv: list[str]
    driver: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    git: dict[str, Any] | None = None
    bars_sha256: str = ""
    time_utc: str = ""
    schema: int = SCHEMA
    device_facts: dict[str, Any] = field(default_factory=dict)
    neighbours: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    complete: bool = False
    settings: dict[str, str] = field(default_factory=dict)  # what the compilers read of it
    environment: list[str] = field(default_factory=list)  # what changes the figures (core.environment)
    rows_sha256: str = ""  # of the rows beside it: an edit by hand shows

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, `schema` first."""
        d = asdict(self)
        return {"schema": d.pop("schema"), **d}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Head:
        """From a parsed head. BadInput on unknown or missing names, wrong types, another schema."""
        if data.get("schema") not in SCHEMAS:
            known = ", ".join(map(str, SCHEMAS))
            raise BadInput(f"schema {quoted(data.get('schema'))} is none that this version reads ({known})")
        unknown = sorted(set(map(str, data)) - {f.name for f in fields(cls)})
        missing = [n for n in ("mode", "device", "seed", "kernels_sha256", "argv") if n not in data]
        if unknown or missing:
            parts = [f"unknown: {', '.join(unknown)}"] * bool(unknown)
            parts += [f"missing: {', '.join(missing)}"] * bool(missing)
            raise BadInput(f"the head does not fit ({'; '.join(parts)})")
        for name, kind in _KINDS.items():
            if name in data and not isinstance(data[name], kind):
                raise BadInput(f"the head's {name} must be {kind.__name__}, got {quoted(data[name])}")
        if not 0 <= int(data["seed"]) < 2**63:
            raise BadInput(f"the head's seed must be 0 or more, got {quoted(data['seed'])}")
        if data["mode"] not in ("measure", "predict"):
            raise BadInput(f"the head's mode must be measure or predict, got {quoted(data['mode'])}")
        return cls(**data)


_KINDS: dict[str, type] = {
    "mode": str, "device": str, "seed": int, "kernels_sha256": str, "argv": list, "versions": dict,
    "bars_sha256": str, "time_utc": str, "device_facts": dict, "neighbours": list, "notes": list,
    "complete": bool, "settings": dict, "environment": list, "rows_sha256": str,
}  # fmt: skip


def collect(
    *, mode: str, device: str, seed: int, kernels_sha256: str, probes: Sequence[str] = (),
    driver: str | None = None, device_facts: Mapping[str, Any] | None = None, neighbours: Sequence[str] = (),
    environment: Sequence[str] = (), argv: Sequence[str] | None = None,
    extra_versions: Mapping[str, str] | None = None,
) -> Head:  # fmt: skip
    """A head filled in from this process, held to the bars of `probes` (all by default)."""
    return Head(
        mode=mode, device=device, seed=seed, kernels_sha256=kernels_sha256, driver=driver,
        argv=clean_argv(sys.argv if argv is None else argv), git=git_state(),
        versions={**versions(), **(extra_versions or {})}, bars_sha256=bars_sha256(*probes),
        time_utc=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), device_facts=dict(device_facts or {}),
        neighbours=list(neighbours), settings=public(settings()), environment=list(environment),
    )  # fmt: skip


def versions() -> dict[str, str]:
    """Versions of Python, the platform and the packages installed here; what is absent is left out."""
    from importlib import metadata  # late: it costs more than this whole module

    found = {"python": platform.python_version(), "platform": f"{platform.system()} {platform.machine()}"}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def git_state(folder: Path | None = None) -> dict[str, Any] | None:
    """{"commit", "dirty"} of the checkout that this code runs from, None where it is none.

    A wheel inside somebody's repository is not that repository's code, so the file itself must be tracked.
    Without a checkout PROBES_GIT may state it ("<commit>" or "<commit>-dirty").
    """
    here = Path(__file__).resolve().parent if folder is None else folder

    def git(*args: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(here), *args], capture_output=True, text=True, timeout=5.0, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    ours = folder is not None or git("ls-files", "--error-unmatch", Path(__file__).name) is not None
    if commit and ours:
        # `:/` is the whole checkout; reports are what a run writes, and do not make its code dirty
        status = git("status", "--porcelain", "--", ":/", ":(top,exclude)out")
        return {"commit": commit, "dirty": None if status is None else bool(status)}
    if stated := os.environ.get(GIT_VARIABLE, "").strip():
        return {"commit": stated.removesuffix("-dirty"), "dirty": stated.endswith("-dirty"), "stated": True}
    return None


def clean_argv(argv: Sequence[str], cwd: Path | None = None) -> list[str]:
    """The command line with no machine's paths: `-m probes.x` for the module, then words as they are.

    A path below the current folder becomes relative to it, any other absolute or home path its last part.
    """
    here = Path.cwd() if cwd is None else cwd
    out = []
    for i, arg in enumerate(argv):
        flag, eq, value = arg.partition("=") if arg.startswith("-") else ("", "", arg)
        out.append(_module(value) if i == 0 else f"{flag}{eq}{_bare(value, here)}")
    return out


def _module(program: str) -> str:
    path = PurePath(program)
    if path.suffix == ".py" and "probes" in path.parts:
        start = len(path.parts) - 1 - path.parts[::-1].index("probes")
        names = [*path.parts[start:-1], *([] if path.stem in ("__main__", "__init__") else [path.stem])]
        return "-m " + ".".join(names)
    return path.name


def _bare(value: str, here: Path) -> str:
    path = Path(value)
    if path.is_absolute():
        return str(path.relative_to(here)) if path.is_relative_to(here) else path.name
    # a relative path may still climb out into somebody's folders
    return path.name if value.startswith("~") or ".." in path.parts else value
