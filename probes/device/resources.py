"""Registers, shared memory and spills of every kernel: resources.toml.

`python -m probes resources` writes it:

    schema = 1
    [tool]                  # compilers
    nvcc = "13.0.88"
    [sources_sha256]        # per backend
    cu = "..."
    [[kernel]]
    name = "l1_padded_loop"
    backend = "cu"
    arch = "sm_121"
    registers = 40
    smem_bytes = 32
    spill_bytes = 0
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from probes.core.types import BACKENDS, Backend, BadInput, Offline, Resources, Unavailable

SCHEMA = 1
RESOURCES_FILE = "resources.toml"
PATH = Path(__file__).with_name(RESOURCES_FILE)
RESOURCES_COMMAND = "python -m probes resources"

Key = tuple[str, str, str]  # backend, kernel name, arch
_NAMES, _COUNTS = ("name", "backend", "arch"), ("registers", "smem_bytes", "spill_bytes")


@dataclass(frozen=True, slots=True)
class ResourcesHead:
    """What the recorded resources came from: tool versions, and per backend the digest of its sources."""

    sources_sha256: dict[str, str] = field(default_factory=dict)
    tool: dict[str, str] = field(default_factory=dict)


@cache
def recorded() -> tuple[ResourcesHead, dict[Key, Resources]]:
    """Tools and source digests; resources by (backend, kernel, arch). Unavailable where none is recorded."""
    if not PATH.is_file():
        do = f"to compile the kernels and record them run `{RESOURCES_COMMAND}`"
        raise Unavailable(f"no recorded kernel resources; {do}")
    return parse_resources(PATH.read_text(encoding="utf-8"))


def archs() -> tuple[str, ...]:
    """The targets that resources are recorded for."""
    return tuple(sorted({arch for _, _, arch in recorded()[1]}))


def recorded_resources(backend: Backend, name: str, arch: str) -> Resources:
    """Resources of one kernel. Unavailable, naming the architectures there are, if it was not recorded."""
    known = recorded()[1]
    if found := known.get((backend, name, arch)):
        return found
    there = sorted(a for b, n, a in known if (b, n) == (backend, name))
    what = f"no resources recorded for {backend} kernel {name} on {arch}"
    if there:  # what the command compiles for: it would not help
        raise Unavailable(f"{what}: take a device of {' or '.join(there)}, or measure on that GPU")
    raise Unavailable(f"{what}, nor on any other; run `{RESOURCES_COMMAND}`")


def _count(row: Mapping[str, Any], key: str) -> int:
    value = row[key]
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadInput(f"{RESOURCES_FILE}: {key} of {row.get('name')!r} must be a count, got {value!r}")
    return value


def parse_resources(text: str) -> tuple[ResourcesHead, dict[Key, Resources]]:
    """A resources file's head and rows. BadInput for another schema, a bad row or one given twice."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as err:
        raise BadInput(f"{RESOURCES_FILE} is not valid TOML ({err}); run `{RESOURCES_COMMAND}`") from err
    if (schema := table.get("schema")) != SCHEMA:
        raise BadInput(f"{RESOURCES_FILE} has schema {schema!r}, not {SCHEMA}; run `{RESOURCES_COMMAND}`")
    kernels: dict[Key, Resources] = {}
    for row in table.get("kernel", []):
        keys = sorted((*_NAMES, *_COUNTS))
        if sorted(row) != keys:
            raise BadInput(f"{RESOURCES_FILE}: a kernel needs exactly {', '.join(keys)}, got {row}")
        if row["backend"] not in BACKENDS:
            raise BadInput(f"{RESOURCES_FILE}: backend must be numba or cu, got {row['backend']!r}")
        key: Key = (row["backend"], row["name"], row["arch"])
        if key in kernels:
            raise BadInput(f"{RESOURCES_FILE}: {key} is given twice")
        kernels[key] = Resources(*(_count(row, count) for count in _COUNTS))
    return ResourcesHead(table.get("sources_sha256", {}), table.get("tool", {})), kernels


def _quoted(text: str) -> str:
    """A TOML string: as JSON's, but no surrogate pairs and DEL escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def dump_resources(rows: Iterable[Offline], head: ResourcesHead) -> str:
    """The text of a resources file: the same kernels give the same bytes. BadInput for one given twice."""
    ordered = sorted(rows, key=lambda r: (r.backend, r.name, r.arch))
    keys = [(r.backend, r.name, r.arch) for r in ordered]
    for key, again in pairwise(keys):
        if key == again:
            raise BadInput(f"kernel {key} is given twice")
    about = f"# Registers, shared memory and spills of every kernel. Written by `{RESOURCES_COMMAND}`."
    lines = [about, f"schema = {SCHEMA}"]
    for title, values in (("tool", head.tool), ("sources_sha256", head.sources_sha256)):
        lines += ["", f"[{title}]", *(f"{_quoted(k)} = {_quoted(v)}" for k, v in sorted(values.items()))]
    for r in ordered:
        lines += ["", "[[kernel]]"]
        lines += [f"{k} = {_quoted(getattr(r, k))}" for k in _NAMES]
        lines += [f"{k} = {getattr(r.resources, k)}" for k in _COUNTS]
    return "\n".join(lines) + "\n"
