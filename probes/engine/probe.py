"""The words of the protocol between the engine and a probe, and a probe's parts by name.

A probe is a package of `probes` with these parts, each a module:

    table     cases, variants, contests and flags; light: neither NumPy nor CUDA
    data      host bytes and what must come out of them
    plan      variant, case and device -> launch
    arms      plans bound to buffers: `Arms`
    analysis  why a verdict came out so; pure
    report    sections of its own

The protocols below say what the engine asks of each part. A part returns its piece and calls no other part's
sequence; what happens when is in `engine.run`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

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
    from probes.verdict.intervals import Interval

Over = Literal["each", "sum", "all"]
"""What a contest decides: each case by itself, the sum over a model's cases too, or several cases as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What one table of a report is about: a matrix, a layer or a chain."""

    id: str
    shape: Shape | None = None
    kv: int | None = None
    """KV length, where a chain has one."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """How often a decode step of each model runs it."""
    tensors: tuple[str, ...] = ()
    """Names in the GGUF file that the weights come from; none for seeded random weights."""
    backends: tuple[Backend, ...] = ()
    """Backends that it is for; none for all."""
    sweep: str = ""
    """The sweep that it is a point of, '' for none; such a point is timed in `windows` of its own."""
    windows: int = 0

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
    of: str = ""
    """The variant that it repeats (again), or that was chosen (choice)."""
    baseline: str = ""
    """The variant that its ratio is over."""
    what: str = ""
    """What --list says of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """Variants that one bar holds against one baseline. The bar stands in verdict/bars.toml."""

    bar: str
    baseline: str
    variants: tuple[str, ...]
    again: tuple[tuple[str, str], ...]
    """A/A pairs, which show the noise floor: (a row again, what it repeats; '' for what its row says)."""
    over: Over = "each"
    cases: tuple[str, ...] = ()
    """The cases that it decides; none for every case."""
    groups: Mapping[str, str] = field(default_factory=dict)
    """over all: the groups of rows that are wanted, and how a reason names each."""
    whole: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """over sum: the cases without which a model's sum is not said; a model that is not here needs none."""
    recorded_case: str = "all"
    """The case that the record's verdict stands under."""


@dataclass(slots=True)
class Evidence:
    """What was seen of an arm besides its times."""

    overlap_s: float | None = None
    load_balance: float | None = None
    missing: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


Fit = Callable[[str], dict[Backend, int]]
"""Blocks per SM of a kernel (by its symbol) in each backend that works here."""


class Table(Protocol):
    """A probe's table part."""

    QUESTION: str
    CONTESTS: tuple[Contest, ...]
    STEMS: tuple[str, ...]
    """Its kernel files, the same in both languages."""
    BOUNDS_RECORDED: tuple[int, ...]
    """Blocks per SM for which kernel resources are recorded too, under names such as l3_form_b@6."""
    NEEDS: tuple[tuple[int, int], str]
    """The first compute capability that has what the whole probe asks for, and what that is."""

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        """Flags that only this probe has."""

    def check_flags(self, args: argparse.Namespace) -> None:
        """BadInput for flags that exclude each other or that no run could honour."""

    def cases(self, args: argparse.Namespace, sms: int, fit: Fit) -> list[Case]:
        """The cases that the flags ask for. Raises BadInput."""

    def variants(self, args: argparse.Namespace, case: Case) -> list[Variant]:
        """A case's variants in the report's order, repetitions and choices among them."""

    def sweeps(self, args: argparse.Namespace) -> Mapping[str, str]:
        """The sweeps that the flags ask for, each with its flag."""

    def sweep_cases(self, kind: str, args: argparse.Namespace, sms: int, fit: Fit) -> list[Case]:
        """A sweep's cases: one per point, or for a sweep over geometries the cases that it is of."""

    def alone(self, args: argparse.Namespace) -> bool:
        """Whether the sweeps are all that the flags ask for."""

    def stem(self, args: argparse.Namespace) -> str:
        """File name of a run's report, without suffix."""

    def listing(self) -> list[str]:
        """What --list prints: ids of cases, variants and bars."""


class Data(Protocol):
    """A probe's data part."""

    def show(self) -> None:
        """The oracle shown right at a small size, before anything is predicted. Raises WrongResult."""

    def check(self, case: Case, args: argparse.Namespace) -> None:
        """BadInput for weights out of a file that no kernel could be trusted with."""


class Plan(Protocol):
    """A probe's plan part."""

    def kernels(self, args: argparse.Namespace) -> dict[str, list[str]]:
        """Kernel file -> symbols that the flags need."""

    def plan(
        self, v: Variant, case: Case, facts: DeviceFacts, args: argparse.Namespace, backend: Backend
    ) -> Planned:
        """The launch of one variant. Raises BadInput, and Unavailable with the reason for a SKIPPED row."""

    def points(
        self, kind: str, case: Case, facts: DeviceFacts, args: argparse.Namespace, rows: Sequence[Row]
    ) -> list[tuple[str, Callable[[], Planned]]]:
        """A sweep's next points, given the rows of those before.

        A row's variant, and its plan. [] ends it.
        """

    def predicted(
        self, case: Case, variants: Sequence[Variant], facts: DeviceFacts, args: argparse.Namespace,
        backend: Backend,
    ) -> list[Row] | None:  # fmt: skip
        """Predicted rows by the probe's own account; None for the engine's."""

    def digest(self, file: str, device: str) -> list[object]:
        """What the report named `file` of a device depends on besides its kernels: the launches."""


class Arms(Protocol):
    """A probe's arms, made once a run; `material` is what `open` gave."""

    def open(self, case: Case, variants: Sequence[Variant], stack: ExitStack) -> Any:
        """A case's data on the device, and what must come out; held by `stack`. Raises Unavailable."""

    def arm(self, material: Any, planned: Planned, name: str, backend: Backend) -> Arm:
        """A plan bound to the case's buffers."""

    def reads(self, material: Any, backends: Sequence[Backend]) -> list[tuple[Spec, Arm]]:
        """Plain reads of as many bytes as the case's weights hold."""

    def prove(self, material: Any, planned: Planned, spec: Spec) -> Evidence:
        """What must be seen of an arm besides its times. Raises WrongResult."""

    def settle(self, material: Any, planned: Planned, arm: Arm, row: Row, rows: Sequence[Row]) -> None:
        """What a row says once it was timed, among the rows that were timed with it."""

    def more(self, material: Any, variants: Sequence[Variant]) -> list[Row]:
        """Further rows of a case, which no arm gives."""

    def once(self, material: Any, arms: Sequence[tuple[Spec, Arm]]) -> list[Row]:
        """For the profiler: launches in the order of the rows, and no timing of ours."""


class ArmsPart(Protocol):
    """A probe's arms part."""

    def make(
        self,
        bench: Bench,
        args: argparse.Namespace,
        kernels: Mapping[Backend, Mapping[str, Kernel]],
        keep: ExitStack,
    ) -> Arms:
        """The probe's arms; what outlives a case is held by `keep`."""


class Analysis(Protocol):
    """A probe's analysis part."""

    def pair(self, rows: Sequence[Row], contest: Contest, variant: str) -> tuple[Row, Row] | None:
        """One group's rows that decide a variant: itself and its baseline."""

    def blocked(self, row: Row, base: Row) -> str | None:
        """A proof that the probe alone knows of and that is not there."""

    def why(
        self, rows: Sequence[Row], contest: Contest, row: Row, base: Row, found: Interval, floor: float
    ) -> str:
        """What lies behind a verdict on one case."""

    def why_all(self, rows: Sequence[Row], contest: Contest, row: Row) -> list[str]:
        """What lies behind a verdict on several cases at once."""


class Report(Protocol):
    """A probe's report part."""

    def sections(self, rows: Sequence[Row], markdown: bool) -> list[str]:
        """Its own sections, after the tables of all probes."""

    def plots(self, rows: Sequence[Row], path: Path) -> list[str]:
        """Pictures drawn beside the Markdown report at `path`, and the lines that show them."""

    def readme(self, rows: Sequence[Row]) -> str:
        """The README's block."""

    def recorded(self, case: Case) -> Iterator[Row]:
        """The record's figures of a case, as rows."""


@cache
def names() -> tuple[str, ...]:
    """Every probe: the packages beside this one that have a table."""
    return tuple(sorted(p.parent.name for p in Path(__file__).parents[1].glob("*/table.py")))


def _part(name: str, piece: str) -> Any:
    return importlib.import_module(f"probes.{name}.{piece}")


def table(name: str) -> Table:
    """A probe's table."""
    return cast(Table, _part(name, "table"))


def data(name: str) -> Data:
    """A probe's data."""
    return cast(Data, _part(name, "data"))


def plan(name: str) -> Plan:
    """A probe's plans."""
    return cast(Plan, _part(name, "plan"))


def arms(name: str) -> ArmsPart:
    """A probe's arms."""
    return cast(ArmsPart, _part(name, "arms"))


def analysis(name: str) -> Analysis:
    """A probe's analysis."""
    return cast(Analysis, _part(name, "analysis"))


def report(name: str) -> Report:
    """A probe's report."""
    return cast(Report, _part(name, "report"))
