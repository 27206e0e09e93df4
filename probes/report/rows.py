"""One row of a report: what one variant, backend and case measured, predicted or recorded.

Outside tools rely on the JSON's names, the fields': append, never rename. Names carry the unit (gbps: 1e9
bytes/s). Fractions are 0.62, not 62; what does not apply is None.
"""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

from probes.core.escaping import quoted
from probes.core.types import MAX_PROCESSES, MAX_ROW_SAMPLES, Backend, BadInput, Role, Source
from probes.verdict.bars import Decision

FLOAT_MAX = sys.float_info.max
TOLERANCE = 0.02  # how far above a read a kernel may lie by the noise of a few windows
ROUNDING = 1e-9  # how far a prediction made from the very ceiling may lie above it


@dataclass(slots=True, kw_only=True)
class Row:
    """Checked by `check`, which `to_json` and `from_json` both call: BadInput names the field."""

    probe: str
    case: str
    variant: str
    backend: Backend
    source: Source
    device: str | None = None  # slug of the device, e.g. nvidia-h200
    shape: list[int] | None = None  # [od, id]
    time_s: float | None = None  # median time of one launch (L2: of one chain)
    time_s_p25: float | None = None
    time_s_p75: float | None = None
    samples_s: list[float] = field(default_factory=list)  # forward, backward per window, process by process
    content_bytes: int | None = None  # weights as the format stores them
    traffic_bytes: int | None = None  # 32 x the distinct weight sectors touched
    content_gbps: float | None = None
    read_ceiling_gbps: float | None = None  # a read-only stream of >= 1 GiB in the same run
    fraction_of_ceiling: float | None = None  # content_gbps / read_ceiling_gbps
    same_bytes_read_s: float | None = None  # a plain read of as many bytes in the same run
    fraction_of_same_bytes_read: float | None = None  # same_bytes_read_s / time_s
    registers: int | None = None
    spill_bytes: int | None = None
    smem_bytes: int | None = None
    blocks_per_sm: int | None = None
    waves: float | None = None  # grid / (SMs x blocks per SM)
    tail_fraction: float | None = None
    load_balance: float | None = None  # busiest SM over the mean
    overlap_s: float | None = None
    gain_per_interface_s: float | None = None
    limiter: str | None = None  # what holds blocks per SM down, or what binds a prediction
    bitwise: bool | None = None  # equal to the oracle to the bit, before and after timing
    rotation_bytes: int | None = None
    l2_bytes: int | None = None
    sm_clock_hz: float | None = None
    throttled: int | None = None  # how many samples ran below the clock of the others
    ratio_to_baseline: float | None = None  # time / time of the baseline
    ratio_low: float | None = None
    ratio_high: float | None = None
    noise_floor: float | None = None  # |ratio - 1| that A/A pairs reach
    verdict: Decision | None = None
    recorded: str | float | None = None  # the record's verdict, or its figure
    agrees: bool | None = None
    reason: str | None = None
    # beyond the names fixed by the design
    skipped: str | None = None  # why nothing was run: the row stays visible
    dram_bytes_read: int | None = None  # by the profiler, per launch
    profiler_time_s: float | None = None
    event_loop_time_s: float | None = None  # plain event-timed loop, to hold the graph's slope against
    windows: int | None = None  # per process; samples_s holds 2 x windows x processes
    processes: int | None = None
    throttled_samples: list[int] = field(default_factory=list)  # their places in samples_s
    notes: list[str] = field(default_factory=list)
    counts: dict[str, int] | None = None  # how often each model runs this case per decode step
    grid: int | None = None  # thread blocks of the kernel that `registers` and `waves` speak of
    kv: int | None = None  # KV length, where a case has several
    profiler_dram_fraction: float | None = None  # DRAM throughput over its peak, of one launch
    profiler_issue_fraction: float | None = None  # active cycles in which a scheduler issued, of one launch
    # schema 2: what readers and judges need of a row stands in fields; notes are for people alone
    role: Role = "variant"
    of: str | None = None  # the variant that this row repeats, dispatched to, or is a point of
    baseline: str | None = None  # the variant that ratio_to_baseline is over
    read: str | None = None  # the read row behind same_bytes_read_s
    geometry: str | None = None  # of a persistent grid, such as 8r2b0s-drawn
    cold: bool | None = None  # whether the weights rotated over more than the caches hold; None: no weights
    missing: list[str] = field(default_factory=list)  # proofs that are not there: no verdict then
    sweep: str | None = None  # the sweep that this row is part of: shown by its own section, never judged
    scope: str | None = None  # of a verdict: each case, sum over a model, all of several cases
    # schema 3: contests are decided by blocks of their own (verdict/blocks.py); samples_s fills the tables
    blocks_s: list[float] = field(default_factory=list)  # of `of` against `baseline`, 4 samples a block
    block_clock_hz: list[float] = field(default_factory=list)  # the lowest SM clock of each block; 0: unknown
    retaken: int | None = None  # blocks that were measured again: a slope at or below 0

    @property
    def id(self) -> str:
        """Such as `l1/ffn_down_14b/dpl_loop/cu` or `l2/decode13@128/pdl_late/cu`."""
        return f"{self.probe}/{self.group}/{self.variant}/{self.backend}"

    @property
    def group(self) -> str:
        """The case, with its KV length where it has one: rows that were timed together."""
        return self.case if self.kv is None else f"{self.case}@{self.kv}"

    def doubts(self) -> list[str]:
        """What a reader must know before trusting this row's time: each a short phrase."""
        out = []
        if (self.fraction_of_ceiling or 0.0) > 1 + ROUNDING:
            out.append("above the read ceiling: an error in the count, or not cold")
        if (self.fraction_of_same_bytes_read or 0.0) > 1 + ROUNDING:
            out.append("faster than a plain read of the same bytes: an error in the count, or not cold")
        if abs(off := self._off(self.event_loop_time_s)) > 0.03:
            out.append(f"the plain event loop differs by {100 * off:+.1f} %")
        if abs(off := self._off(self.profiler_time_s)) > 0.10:
            out.append(f"the profiler's duration differs by {100 * off:+.0f} %")
        dram = self.dram_bytes_read
        if dram and self.traffic_bytes and (more := dram / self.traffic_bytes - 1) > 0.02:
            out.append(f"DRAM read {100 * more:.0f} % more than the sectors counted")
        if dram is not None and self.content_bytes and (share := dram / self.content_bytes) < 0.98:
            out.append(f"only {100 * share:.0f} % of the content came from DRAM")
        if self.throttled:
            out.append(f"{self.throttled} of {len(self.samples_s)} samples at a lower clock")
        return out

    def blocking(self) -> list[str]:
        """Doubts that no verdict stands beside; each follows on "is"."""
        out = []
        for what, share in (
            ("the read ceiling", self.fraction_of_ceiling),
            ("a plain read of the same bytes", self.fraction_of_same_bytes_read),
        ):
            if share is not None and share > 1 + TOLERANCE:
                out.append(f"at {100 * share:.0f} % of {what}: an error in the count, or not cold")
        dram = self.dram_bytes_read
        if dram is not None and self.content_bytes and (cold := dram / self.content_bytes) < 0.98:
            out.append(f"not cold: only {100 * cold:.0f} % of its content came from DRAM")
        return out

    def _off(self, other_s: float | None) -> float:
        """How far another clock is from ours, as a fraction; 0 below 50 µs, where the two need not agree."""
        ours = self.time_s or 0.0
        return other_s / ours - 1 if other_s is not None and ours >= 50e-6 else 0.0

    def check(self) -> None:
        """BadInput on a value of the wrong type, a NaN or infinity, or counts that do not fit together."""
        for name, hint in _types().items():
            if not _fits(value := getattr(self, name), hint):
                raise BadInput(f"row {self.id}: {name} must be {_say(hint)}, got {quoted(value)}")
        many = max(len(self.samples_s), len(self.blocks_s))
        if many > MAX_ROW_SAMPLES:
            raise BadInput(f"row {self.id}: {many} samples, {MAX_ROW_SAMPLES} are possible")
        count, want = len(self.samples_s), 2 * (self.windows or 0) * (self.processes or 1)
        if count and self.windows is not None and count != want:
            raise BadInput(f"row {self.id}: {count} samples, {want} expected from windows")
        if (self.processes or 0) > MAX_PROCESSES:
            raise BadInput(f"row {self.id}: {self.processes} processes, {MAX_PROCESSES} are possible")
        blocks, clocks = len(self.blocks_s), len(self.block_clock_hz)
        if blocks % 4 or clocks not in (0, blocks // 4):
            raise BadInput(f"row {self.id}: {blocks} samples and {clocks} clocks are no whole blocks of 4")

    def to_json(self) -> dict[str, Any]:
        """Every field, in order. BadInput as `check`."""
        self.check()
        return {name: getattr(self, name) for name in _types()}

    @classmethod
    def from_json(cls, data: object) -> Row:
        """A row from a parsed JSON object. BadInput on unknown or missing names, or as `check`."""
        if not isinstance(data, Mapping):
            raise BadInput(f"a row must be a JSON object, got {type(data).__name__}")
        if unknown := sorted(set(map(str, data)) - set(_types())):
            raise BadInput(f"a row has unknown fields: {', '.join(unknown)}")
        if missing := [n for n in ("probe", "case", "variant", "backend", "source") if n not in data]:
            raise BadInput(f"a row lacks {', '.join(missing)}")
        row = cls(**data)
        row.check()
        return row


FIELDS: tuple[str, ...] = tuple(f.name for f in fields(Row))


@cache
def _types() -> dict[str, Any]:
    hints = typing.get_type_hints(Row)
    return {name: hints[name] for name in FIELDS}


def _fits(value: object, hint: Any) -> bool:
    """Is `value` of this type, numbers finite, bool never a number, an int good for a float?"""
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, h) for h in typing.get_args(hint))
    if origin is typing.Literal:
        return isinstance(value, str) and value in typing.get_args(hint)
    if origin is list:
        return isinstance(value, list) and all(_fits(v, typing.get_args(hint)[0]) for v in value)
    if origin is dict:
        keys, values = typing.get_args(hint)
        return isinstance(value, dict) and all(_fits(k, keys) and _fits(v, values) for k, v in value.items())
    if hint is float:
        # no NaN, no infinity, no integer of hundreds of digits
        return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= FLOAT_MAX
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63
    return isinstance(value, hint)


def _say(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return "one of " + ", ".join(typing.get_args(hint))
    return hint.__name__ if isinstance(hint, type) else str(hint)
