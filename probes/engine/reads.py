"""Plain reads: what kernels are held against, in several forms, since none is the fastest for every size.

A *family* is the reads of the same bytes in one kind of launch: `read_x` (ordinary launches, each form a row:
`read_x`, `read_x_32k`, `read_x_4k`, `read_x_bulk`), and `read_x_pdl` (as dependents, which start under their
predecessor's end). A row's `read` names the family that it is held against; the fastest of a family counts
(`judge.family`). The large reads, which are the ceiling, are of LEAST_BYTES a launch where memory allows.

Every form writes the XOR of each of its tiles, and the host checks each word. A form that a GPU has no
instructions for is left out: bulk copies and dependents need sm_90.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probes.core.types import Backend, LaunchConfig, Role, Unavailable
from probes.device import pipeline
from probes.engine.bench import Bench, Spec
from probes.engine.plan import Planned
from probes.engine.probe import Case, Variant
from probes.formats import checksum
from probes.gpu.kernels import Launch, int64
from probes.gpu.memory import Buffer
from probes.gpu.timing import Arm, Output
from probes.report.rows import Row

LARGE, LEAST_BYTES = "read_large", 1 << 30
DEPENDENT = "pdl"
"""After a family's name: the family of its reads as dependents."""

HOT, FASTER = "read_hot", 0.95
"""The control's row, and the share of the cold read's time that it must stay below."""

BARRIER_BYTES = 16
"""Of shared memory behind a tile that a bulk copy fills: its mbarrier, to a multiple of 16."""


@dataclass(frozen=True, slots=True)
class ReadForm:
    """One way to read: a block per tile. `name` follows the family's; the default has none."""

    name: str
    kernel: str
    tile: int = 16384
    block: int = 256
    smem_bytes: int = 0
    pdl: bool = False

    def of(self, family: str) -> str:
        """Its row's name among a family's."""
        return f"{family}_{self.name}" if self.name else family

    def config(self, size: int) -> LaunchConfig:
        """The launch that reads `size` bytes."""
        return LaunchConfig(-(-size // self.tile), self.block, self.smem_bytes, self.pdl)


_BULK = 32768 + BARRIER_BYTES
FORMS: tuple[ReadForm, ...] = (
    ReadForm("", "harness_read"),
    ReadForm("32k", "harness_read_32k", 32768),
    ReadForm("4k", "harness_read_4k", 4096, 32),
    ReadForm("bulk", "harness_read_bulk", 32768, smem_bytes=_BULK),
    ReadForm(DEPENDENT, "harness_read_bulk", 32768, smem_bytes=_BULK, pdl=True),
)
"""The default first; twins of harness.cu's and harness.py's constants."""

KERNELS = tuple(dict.fromkeys(f.kernel for f in FORMS))


@dataclass(frozen=True, slots=True)
class Source:
    """`size` bytes of each of so many copies, and by tile size the XORs that a read must give in `out`."""

    data: Buffer
    size: int
    copies: int
    want: dict[int, NDArray[np.uint32]]
    out: Buffer

    @classmethod
    def of(cls, host: NDArray[np.uint8], data: Buffer, copies: int, stack: ExitStack) -> Source:
        """Copies of `host` that lie in `data`; the output is held by `stack`."""
        want = xors(host)
        return cls(data, host.size, copies, want, stack.enter_context(_room(want)))


def xors(host: NDArray[np.uint8]) -> dict[int, NDArray[np.uint32]]:
    """The XORs of host bytes by every form's tile size."""
    return {tile: checksum.read_xors(host.reshape(-1), tile) for tile in dict.fromkeys(f.tile for f in FORMS)}


def _room(want: dict[int, NDArray[np.uint32]]) -> Buffer:
    """An output that every form has room in: reads of one size write to one place, as their arms compare."""
    return Buffer(4 * max(w.size for w in want.values()))


def forms(bench: Bench) -> list[ReadForm]:
    """Those that this GPU has the instructions of, and the shared memory."""
    facts = bench.gpu.facts
    able = [f for f in FORMS if facts.compute_capability >= pipeline.since(f.kernel)]
    return [f for f in able if f.smem_bytes <= facts.smem_per_block_max_bytes]


def load(bench: Bench, backend: Backend) -> None:
    """Bind every form's kernel, before a partition's context is current. Raises Unavailable."""
    for form in forms(bench):
        kernel = bench.harness(form.kernel, backend)
        if form.smem_bytes:  # as many blocks on an SM as it has shared memory for
            kernel.make_room(form.smem_bytes)


def launch(bench: Bench, form: ReadForm, backend: Backend, address: int, size: int, out: int) -> Launch:
    """One read of `size` bytes from `address`."""
    kernel = bench.harness(form.kernel, backend)
    return Launch(kernel, form.config(size), (address, out, int64(size // 16)))


def arms(
    bench: Bench, case: Case, family: str, source: Source, backends: Sequence[Backend], role: Role = "read"
) -> list[tuple[Spec, Arm]]:
    """Every form of a family, and of its family of dependents, in each backend."""
    return [_arm(bench, case, family, f, source, b, role) for b in backends for f in forms(bench)]


def _arm(
    bench: Bench, case: Case, family: str, form: ReadForm, source: Source, backend: Backend, role: Role
) -> tuple[Spec, Arm]:
    size, out, data = source.size, source.out, source.data
    launches = [
        launch(bench, form, backend, data.address + k * data.pitch, size, out.address)
        for k in range(source.copies)
    ]
    v = Variant(name=form.of(family), role=role, of="" if form.name in ("", DEPENDENT) else family)
    short = role == "ceiling" and size < LEAST_BYTES
    plan = Planned(
        variant=v, kernel=form.kernel, config=form.config(size), content_bytes=size, traffic_bytes=size,
        note="less than 1 GiB: the GPU had no room for more" if short else "",
    )  # fmt: skip
    spec = Spec(case, plan, launches[0].kernel, size * source.copies)
    want = source.want[form.tile]
    return spec, Arm(spec.name, launches, Output(out, want.size, want))


def reserve(bench: Bench) -> Source:
    """What the large reads read; taken before any weights are, and kept for the run."""
    if bench.reserved is None:
        free, _ = bench.gpu.free_bytes()
        size = min(LEAST_BYTES, free // 8 >> 26 << 26)
        if size == 0:
            why = f"the GPU has only {free >> 20} MiB free; a read ceiling needs 1 GiB or more"
            raise Unavailable(why)
        seed = np.random.SFC64(bench.seed).random_raw(1 << 23).view(np.uint8)
        data = Buffer.of(seed, 4 * size // seed.nbytes)
        data.pitch = size
        want = {tile: np.tile(w, size // seed.nbytes) for tile, w in xors(seed).items()}
        bench.reserved = Source(data, size, 4, want, _room(want))
    return bench.reserved


def ceilings(bench: Bench, case: Case, backends: Sequence[Backend]) -> list[tuple[Spec, Arm]]:
    """The large reads, 1 GiB a launch where memory allows, of each backend."""
    return arms(bench, case, LARGE, reserve(bench), backends, "ceiling")


def control(bench: Bench, case: Case, family: str, source: Source, backend: Backend) -> tuple[Spec, Arm]:
    """The default read of one copy, as often as there are copies: what a launch that is not cold takes."""
    form = FORMS[0]
    one = launch(bench, form, backend, source.data.address, source.size, source.out.address)
    v = Variant(name=HOT, role="control", of=family)
    plan = Planned(variant=v, kernel=form.kernel, config=form.config(source.size))
    spec = Spec(case, plan, one.kernel)
    want = source.want[form.tile]
    return spec, Arm(spec.name, [one] * source.copies, Output(source.out, want.size, want))


def hold(rows: Sequence[Row]) -> None:
    """Mark rows that say they were cold where the hot control, which an L2 could hold, is no faster."""
    for hot in [r for r in rows if r.role == "control" and r.time_s]:
        same = next((r for r in rows if (r.variant, r.backend) == (hot.of, hot.backend) and r.time_s), None)
        if same is None or not same.time_s or not hot.time_s or not same.l2_bytes:
            continue
        if 2 * (same.traffic_bytes or 0) <= same.l2_bytes and hot.time_s > FASTER * same.time_s:
            for row in rows:
                if row.cold:
                    row.missing.append(
                        f"a read of one copy alone is no faster than {same.variant}: not cold?"
                    )
