"""The words of the protocol between the engine and a probe, and a probe's parts by name.

A probe is a package of `probes` with a module per part:

    table     cases, variants, contests and flags; light: neither NumPy nor CUDA
    data      host bytes and what must come out of them
    plan      variant, case and device -> launch
    arms      plans bound to buffers
    analysis  why a verdict came out so; pure
    report    sections of its own

The protocols below say what the engine asks of each part; `engine.run` says when.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from probes.core.types import Backend, Role, Shape

if TYPE_CHECKING:
    import argparse
    from contextlib import ExitStack

    from probes.device.facts import DeviceFacts
    from probes.engine.bench import Bench, Spec
    from probes.engine.plan import Planned
    from probes.gpu.kernels import Kernel
    from probes.gpu.timing import Arm
    from probes.report.rows import Row
    from probes.verdict.bars import Interval

# what a contest decides: each case by itself, the sum over a model's cases too, or several cases as one
Over = Literal["each", "sum", "all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What one table of a report is about: a matrix, a layer or a chain."""

    id: str
    shape: Shape | None = None
    kv: int | None = None
    counts: Mapping[str, int] = field(default_factory=dict)  # how often a decode step of each model runs it
    tensors: tuple[str, ...] = ()  # in the GGUF file that the weights come from; none: seeded random weights
    backends: tuple[Backend, ...] = ()  # those that it is for; none for all
    sweep: str = ""  # the sweep that it is a point of
    windows: int = 0  # of a point of a sweep: how many time it

    @property
    def matrix(self) -> Shape:
        """The shape of a case that is about a matrix."""
        assert self.shape, f"{self.id} is no matrix"
        return self.shape

    @property
    def group(self) -> str:
        """The case with its KV length: rows that are timed together."""
        return self.id if self.kv is None else f"{self.id}@{self.kv}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One thing to launch. Probes extend it by what their plan needs."""

    name: str
    role: Role = "variant"
    of: str = ""  # the variant that it repeats (role again), or that was chosen (choice)
    baseline: str = ""
    what: str = ""  # as --list says


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """Variants that one bar of verdict/bars.toml holds against one baseline."""

    bar: str
    baseline: str
    variants: tuple[str, ...]
    again: tuple[tuple[str, str], ...]  # A/A pairs: (a row again, what it repeats; '' for what its row says)
    over: Over = "each"
    cases: tuple[str, ...] = ()  # that it decides; none for every case
    groups: Mapping[str, str] = field(default_factory=dict)  # over all: which are wanted, and their names
    # over sum: the cases without which a model's sum is not said; a model that is not here needs none
    whole: Mapping[str, frozenset[str]] = field(default_factory=dict)
    sides: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Best against best: a name above -> the rows that it is the fastest of; none for a flip of one lever."""
    recorded_case: str = "all"  # that the record's verdict stands under


@dataclass(slots=True)
class Evidence:
    """What was seen of an arm besides its times."""

    overlap_s: float | None = None
    load_balance: float | None = None
    missing: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


Fit = Callable[[str], dict[Backend, int]]  # a kernel's blocks per SM in each backend that works here


class TablePart(Protocol):
    """A probe's table part."""

    QUESTION: str
    CONTESTS: tuple[Contest, ...]
    STEMS: tuple[str, ...]  # its kernel files, the same in both languages
    BOUNDS_RECORDED: tuple[int, ...]  # blocks per SM that resources are recorded for too, as in l3_form_b@6
    NEEDS: tuple[tuple[int, int], str]  # the first compute capability with what the probe asks for, and that

    # Flags that only this probe has.
    def add_flags(self, parser: argparse.ArgumentParser) -> None: ...
    # BadInput for flags that exclude each other or that no run could honour.
    def check_flags(self, args: argparse.Namespace) -> None: ...
    # The cases that the flags ask for. Raises BadInput.
    def cases(self, args: argparse.Namespace, sms: int, fit: Fit) -> list[Case]: ...
    # A case's variants in the report's order, repetitions and choices among them.
    def variants(self, args: argparse.Namespace, case: Case) -> list[Variant]: ...
    # The sweeps that the flags ask for, each with its flag.
    def sweeps(self, args: argparse.Namespace) -> Mapping[str, str]: ...
    # A sweep's cases: one per point, or for a sweep over geometries the cases that it is of.
    def sweep_cases(self, kind: str, args: argparse.Namespace, sms: int, fit: Fit) -> list[Case]: ...
    # Whether the sweeps are all that the flags ask for.
    def alone(self, args: argparse.Namespace) -> bool: ...
    # File name of a run's report, without suffix.
    def stem(self, args: argparse.Namespace) -> str: ...
    # What --list prints: ids of cases, variants and bars.
    def listing(self) -> list[str]: ...


class DataPart(Protocol):
    """A probe's data part."""

    # The oracle shown right at a small size, before anything is predicted. Raises WrongResult.
    def show(self) -> None: ...
    # BadInput for weights out of a file that no kernel could be trusted with.
    def check(self, case: Case, args: argparse.Namespace) -> None: ...


class PlanPart(Protocol):
    """A probe's plan part."""

    # Kernel file -> symbols that the flags need.
    def kernels(self, args: argparse.Namespace) -> dict[str, list[str]]: ...
    # The launch of one variant. Raises BadInput, and Unavailable with the reason for a SKIPPED row.
    def plan(
        self, v: Variant, case: Case, facts: DeviceFacts, args: argparse.Namespace, backend: Backend
    ) -> Planned: ...
    # A sweep's next points, given the rows of those before. A row's variant, and its plan. [] ends it.
    def points(
        self, kind: str, case: Case, facts: DeviceFacts, args: argparse.Namespace, rows: Sequence[Row]
    ) -> list[tuple[str, Callable[[], Planned]]]: ...
    # Predicted rows by the probe's own account; None for the engine's.
    def predicted(
        self, case: Case, variants: Sequence[Variant], facts: DeviceFacts, args: argparse.Namespace,
        backend: Backend,
    ) -> list[Row] | None: ...  # fmt: skip
    # What the report named `file` of a device depends on besides its kernels: the launches.
    def digest(self, file: str, device: str) -> list[object]: ...


class Arms(Protocol):
    """A probe's arms, made once a run; `material` is what `open` gave. Those with a body may be left out."""

    # A case's data on the device, and what must come out; held by `stack`. Raises Unavailable.
    def open(self, case: Case, variants: Sequence[Variant], stack: ExitStack) -> Any: ...
    # A plan bound to the case's buffers.
    def arm(self, material: Any, planned: Planned, name: str, backend: Backend) -> Arm: ...
    # Plain reads of as many bytes as the case's weights hold.
    def reads(self, material: Any, backends: Sequence[Backend]) -> list[tuple[Spec, Arm]]: ...
    # What must be seen of an arm besides its times. Raises WrongResult.
    def prove(self, material: Any, planned: Planned, spec: Spec) -> Evidence:
        return Evidence()

    # What a row says once it was timed, among the rows that were timed with it.
    def settle(self, material: Any, planned: Planned, arm: Arm, row: Row, rows: Sequence[Row]) -> None:
        return None

    # Further rows of a case, which no arm gives.
    def more(self, material: Any, variants: Sequence[Variant]) -> list[Row]:
        return []

    # For the profiler: launches in the order of the rows, and no timing of ours.
    def once(self, material: Any, arms: Sequence[tuple[Spec, Arm]]) -> list[Row]: ...


class ArmsPart(Protocol):
    """A probe's arms part."""

    # The probe's arms; what outlives a case is held by `keep`.
    def make(
        self, bench: Bench, args: argparse.Namespace, kernels: Mapping[Backend, Mapping[str, Kernel]],
        keep: ExitStack,
    ) -> Arms: ...  # fmt: skip


class AnalysisPart(Protocol):
    """A probe's analysis part."""

    # One group's rows that decide a variant: itself and its baseline.
    def pair(self, rows: Sequence[Row], contest: Contest, variant: str) -> tuple[Row, Row] | None: ...
    # A proof that the probe alone knows of and that is not there.
    def blocked(self, row: Row, base: Row) -> str | None: ...
    # What lies behind a verdict on one case.
    def why(self, rows: Sequence[Row], contest: Contest, row: Row, base: Row, found: Interval) -> str: ...
    # What lies behind a verdict on several cases at once.
    def why_all(self, rows: Sequence[Row], contest: Contest, row: Row, base: Row) -> list[str]: ...


class ReportPart(Protocol):
    """A probe's report part."""

    # Its own sections, after the tables of all probes.
    def sections(self, rows: Sequence[Row], markdown: bool) -> list[str]: ...
    # Where `plots` draws pictures beside the Markdown report at `path`.
    def pictures(self, path: Path) -> list[Path]: ...
    # Pictures drawn there, and the lines that show them. BadInput where they cannot be.
    def plots(self, rows: Sequence[Row], path: Path) -> list[str]: ...
    # The README's block.
    def readme(self, rows: Sequence[Row]) -> str: ...
    # The record's figures of a case, as rows.
    def recorded(self, case: Case) -> Iterator[Row]: ...


@cache
def names() -> tuple[str, ...]:
    """Every probe: the packages beside this one that have a table."""
    return tuple(sorted(p.parent.name for p in Path(__file__).parents[1].glob("*/table.py")))


def _part(piece: str) -> Callable[[str], Any]:
    return lambda name: importlib.import_module(f"probes.{name}.{piece}")


table: Callable[[str], TablePart] = _part("table")
data: Callable[[str], DataPart] = _part("data")
plan: Callable[[str], PlanPart] = _part("plan")
arms: Callable[[str], ArmsPart] = _part("arms")
analysis: Callable[[str], AnalysisPart] = _part("analysis")
report: Callable[[str], ReportPart] = _part("report")
