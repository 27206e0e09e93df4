"""A variant's launch on a device, and the row that it makes before anything is launched.

Resources come from the loaded kernel or from the recorded account, blocks per SM from the driver or from
`device.occupancy`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from probes.core.types import Backend, LaunchConfig, Resources, Source, Unavailable
from probes.device.facts import DeviceFacts
from probes.device.occupancy import occupancy, tail_fraction, waves
from probes.device.pipeline import Plan as Ring
from probes.engine.probe import Case, Variant
from probes.report.rows import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What all launches of one variant share."""

    variant: Variant
    kernel: str  # symbol of the one that reads the weights: the row states its registers and waves
    config: LaunchConfig
    content_bytes: int | None = None
    traffic_bytes: int | None = None
    read: str = ""  # name of the plain read that moves as many bytes
    note: str = ""
    geometry: str = ""
    ring: Ring | None = None  # a persistent grid's stages
    together: bool = False  # whether all its blocks must run at once
    in_flight_bytes: float = 0.0  # weight bytes that a thread has asked for at a time
    requested_bytes: int = 0  # bytes asked of L1, repeats included
    wavefronts: int | None = None
    steps: tuple[Any, ...] = ()  # of a chain: its launches
    weights: tuple[bool, ...] = (True,)  # which of a step's launches have weights as their first argument

    @property
    def chain(self) -> bool:
        """Whether several kernels run, so that one kernel's resources are not the row's."""
        return len({s.kernel for s in self.steps}) > 1


def described(
    probe: str, case: Case, planned: Planned, backend: Backend, source: Source, facts: DeviceFacts
) -> Row:
    """A row with its name and its bytes; no resources yet."""
    row = _named(probe, case, planned.variant, backend, source, facts, planned)
    row.geometry, row.notes = planned.geometry or None, [planned.note] if planned.note else []
    return row


def refused(
    probe: str, case: Case, v: Variant, backend: Backend, source: Source, facts: DeviceFacts, why: str,
    planned: Planned | None = None,
) -> Row:  # fmt: skip
    """The row of what must not be launched here, with its bytes where its plan is known."""
    row = _named(probe, case, v, backend, source, facts, planned)
    row.skipped = why
    return row


def _named(
    probe: str, case: Case, v: Variant, backend: Backend, source: Source, facts: DeviceFacts,
    planned: Planned | None,
) -> Row:  # fmt: skip
    size, traffic = (planned.content_bytes, planned.traffic_bytes) if planned else (None, None)
    return Row(
        probe=probe, case=case.id, variant=v.name, backend=backend, source=source, device=facts.slug,
        shape=[case.shape.od, case.shape.id] if case.shape else None, kv=case.kv, content_bytes=size,
        traffic_bytes=traffic, l2_bytes=facts.l2_bytes, counts=dict(case.counts) or None, role=v.role,
        of=v.of or None, sweep=case.sweep or None,
    )  # fmt: skip


def occupy(
    row: Row, res: Resources, config: LaunchConfig, facts: DeviceFacts, blocks: int | None = None
) -> None:
    """Fill in resources, occupancy and waves; `blocks` per SM by the driver, or by the rules where None."""
    limits = occupancy(res, config.block, config.smem_bytes, facts)
    row.blocks_per_sm = limits.blocks_per_sm if blocks is None else blocks
    row.limiter, row.grid = limits.limiter, config.grid
    row.registers, row.spill_bytes = res.registers, res.spill_bytes
    row.smem_bytes = res.smem_bytes + config.smem_bytes
    if row.blocks_per_sm:
        row.waves = waves(config.grid, facts.sms, row.blocks_per_sm)
        row.tail_fraction = tail_fraction(row.waves)


def check_fit(planned: Planned, blocks: int, facts: DeviceFacts) -> None:
    """Unavailable with the reason for a SKIPPED row: nothing fits, or not all of a ring's blocks at once."""
    if not blocks:
        raise Unavailable("the kernel does not fit on an SM")
    at_once = blocks * facts.sms
    if planned.together and at_once < planned.config.grid:
        raise Unavailable(
            f"of its {planned.config.grid} blocks {at_once} fit at once, and a ring is planned for all"
        )
