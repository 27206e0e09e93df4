"""Facts about a GPU that no measurement of ours is needed for, each with its source.

Each device has a TOML file in `profiles/`. Units: bytes, bytes per second, hertz, seconds. An unknown fact is
None, and nothing is predicted from it.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from dataclasses import dataclass, field, fields
from functools import cache
from importlib import resources
from typing import Any

from probes.core.escaping import quoted
from probes.core.types import BadInput

WARP = 32  # threads, on every GPU that CUDA runs on


def compute_capability(arch: str) -> tuple[int, int]:
    """(major, minor) of a GPU target: "sm_121" is (12, 1). Raises BadInput."""
    digits = re.fullmatch(r"sm_(\d+)(\d)[af]?", arch)
    if digits is None:
        raise BadInput(f"arch must look like sm_90, got {arch!r}")
    return int(digits[1]), int(digits[2])


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """One GPU. `sources` maps every field but `name`, `slug` and `match` to where its value is from."""

    name: str
    slug: str
    arch: str
    sms: int
    regs_per_sm: int
    smem_per_sm_bytes: int
    smem_per_block_max_bytes: int
    smem_reserved_per_block_bytes: int
    max_threads_per_sm: int
    max_blocks_per_sm: int
    max_warps_per_sm: int
    l2_bytes: int
    dram_bps: float  # nominal, of the memory interface
    read_ceiling_bps: float | None = None  # what a read is known to reach (measured or recorded)
    dram_fetch_bytes: int = 32  # what DRAM is thought to move at least; a hypothesis where `sources` says so
    sm_clock_hz: float | None = None  # the highest; an L1 wavefront takes one of its cycles
    dram_latency_s: float | None = None  # of a load
    launch_s: float | None = None  # fixed cost of one launch inside a graph
    match: tuple[str, ...] = ()
    sources: dict[str, str] = field(default_factory=dict)

    @property
    def compute_capability(self) -> tuple[int, int]:
        """Of `arch`, as the function of this name."""
        try:
            return compute_capability(self.arch)
        except BadInput as error:
            raise BadInput(f"device {self.slug!r}: {error}") from None

    @property
    def ceiling_bps(self) -> float:
        """Bytes/s that a prediction divides by: the read ceiling where one is known, else nominal."""
        return self.dram_bps if self.read_ceiling_bps is None else self.read_ceiling_bps


_OPTIONAL = ("read_ceiling_bps", "sm_clock_hz", "dram_latency_s", "launch_s")
_RATES = ("dram_bps", *_OPTIONAL)
MOST = 1e18  # of any fact: bytes/s, bytes, hertz, counts
_UNSOURCED = ("name", "slug", "match", "sources")


def _parse(slug: str, table: dict[str, Any]) -> DeviceFacts:
    """Check one device table: no fact missing, unknown, of the wrong type or without its source."""
    where = f"devices/{slug}.toml"
    values = {**table, "slug": slug}
    sources = values.pop("sources", {})
    match = values.get("match", [])
    if not isinstance(match, list) or not all(isinstance(word, str) for word in match):
        raise BadInput(f"{where}: match must be a list of words, got {match!r}")
    values["match"] = tuple(match)
    if not isinstance(sources, dict) or not all(isinstance(said, str) for said in sources.values()):
        raise BadInput(f"{where}: [sources] must hold a text for each fact")
    known = {f.name for f in fields(DeviceFacts)} - {"sources"}
    if unknown := sorted(values.keys() - known):
        raise BadInput(f"{where}: unknown fact {unknown[0]!r}; a device holds {', '.join(sorted(known))}")
    if missing := sorted(known - values.keys() - set(_OPTIONAL)):
        raise BadInput(f"{where}: fact {missing[0]!r} is missing")
    for key, value in values.items():
        if key == "match":
            continue
        if key in ("name", "slug", "arch"):
            if not isinstance(value, str):
                raise BadInput(f"{where}: {key} must be a text, got {value!r}")
            continue
        kinds = (int, float) if key in _RATES else (int,)
        if not isinstance(value, kinds) or isinstance(value, bool) or not 0 <= value < MOST:
            raise BadInput(f"{where}: {key} must be a number from 0 to {MOST:g}, got {quoted(value)}")
        if value == 0 and key in ("sms", *_RATES):
            raise BadInput(f"{where}: {key} must be above 0")
    need = values.keys() - set(_UNSOURCED)
    if bare := sorted(need - sources.keys()):
        raise BadInput(f"{where}: fact {bare[0]!r} has no source under [sources]")
    if stray := sorted(sources.keys() - need):
        raise BadInput(f"{where}: [sources] names {stray[0]!r}, which is no fact of the file")
    return DeviceFacts(**values, sources=dict(sources))


_FOLDER = resources.files("probes.device") / "profiles"


@cache
def slugs() -> tuple[str, ...]:
    """The device profiles there are, sorted: what `--device-profile` takes."""
    return tuple(sorted(f.name.removesuffix(".toml") for f in _FOLDER.iterdir() if f.name.endswith(".toml")))


@cache
def load(slug: str) -> DeviceFacts:
    """The profile of one device. Raises BadInput for a slug that is not there, naming close ones."""
    if slug not in slugs():
        close = difflib.get_close_matches(slug, slugs(), n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(slugs())}"
        raise BadInput(f"no device profile {slug!r}; {hint}")
    return _parse(slug, tomllib.loads((_FOLDER / f"{slug}.toml").read_text(encoding="utf-8")))


def find(device_name: str) -> DeviceFacts | None:
    """The profile of a driver's device name ("NVIDIA H200"), or None where no profile matches it.

    A profile's `match` words must stand alone in the name: "H200" is not found in "GH200".
    """
    for slug in slugs():
        facts = load(slug)
        words = "|".join(re.escape(word) for word in facts.match)
        if words and re.search(rf"(?<![0-9A-Za-z])(?:{words})(?![0-9A-Za-z])", device_name):
            return facts
    return None
