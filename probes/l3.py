"""L3: does fusing gate + up + SwiGLU + quantise pay, or do the waves eat it?

    python -m probes.l3                    the pair and every fused form; predicted without a GPU
    python -m probes.l3 --sweep            form_b's grid from 0.25 to 4 waves: the loss taken apart
    python -m probes.l3 --geometries       the ring kernels in many geometries, for the tuning table
    python -m probes.l3 --sms 48           the same inside a 48-SM partition; with --blocks-per-sm 6 the
                                           recorded geometry: 432 blocks in 1.50 waves
    python -m probes.l3 --match-waves 1.5  the whole chip, nf chosen so that form_b runs in 1.5 waves

The record (GB10): form_b loses by 28.2 %, and the waves are blamed for half of it. Decided by the time of
a form against the pair's, cold, against the bar `l3.fused` of core/bars.toml (faster at all). Content bytes
are 144 per q4_K super-block; waves are grid / (SMs x blocks per SM) of the kernel that reads the weights.
Past the record: form_c, a fusion by rows in a persistent grid, against pair_ring, the pair with the same
matrix kernel, by the bar `l3.row_grained`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from probes.core.types import Backend, BadInput, LaunchConfig, Shape

if TYPE_CHECKING:
    import argparse

THREADS = 256
GROUP = 32
"""Values in one q8 block: form_b gives each a thread block, so nf is a multiple of it."""

MOST_NF = 1 << 29
"""Gate rows at most: form_c tells two things more in the word that names a pair (ring_gated.cuh)."""

Q4K_BLOCK_BYTES = 144


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to q8: the kernel that reads the weights, and the one after it, '' for none."""

    name: str
    reader: str
    finisher: str
    rows_per_block: int
    """Weight rows that one thread block of the reader sums; 0 for a ring, whose grid is l3_launch's."""

    @property
    def ring(self) -> bool:
        """Whether the reader is a persistent grid with bulk copies."""
        return not self.rows_per_block

    @property
    def traced(self) -> str:
        """The reader's twin that tells each block's SM; '' for a ring, whose blocks are equal anyway."""
        return "" if self.ring else f"{self.reader}_traced"

    @property
    def sums_alone(self) -> bool:
        """Whether the reader gives each row's own sum, and SwiGLU is the finisher's."""
        return self.finisher == "l3_swiglu_quant"

    def grid(self, nf: int) -> int:
        """Thread blocks of a reader that is no ring."""
        return 2 * nf // self.rows_per_block


VARIANTS: tuple[Variant, ...] = (
    Variant("pair", "l3_matmul", "l3_swiglu_quant", 1),
    Variant("form_a", "l3_form_a", "l3_quant", 2),
    Variant("form_b", "l3_form_b", "", 2 * GROUP),
    Variant("form_b_staged", "l3_form_b_staged", "", 2 * GROUP),
    Variant("pair_ring", "l3_matmul_ring", "l3_swiglu_quant", 0),
    Variant("form_c", "l3_form_c", "", 0),
)
BASELINE, RING_BASELINE = "pair", "pair_ring"
AA: dict[str, str] = {"pair_aa": BASELINE, "form_b_aa": "form_b", "pair_ring_aa": RING_BASELINE}
"""Variants a second time, as arms of their own: what no lever at all looks like."""


@dataclass(frozen=True, slots=True)
class Contest:
    """Forms that one bar holds against one baseline, with A/A arms of its own; a recorded form first."""

    bar: str
    baseline: str
    forms: tuple[str, ...]
    aas: tuple[str, ...]


CONTESTS: tuple[Contest, ...] = (
    Contest("l3.fused", BASELINE, ("form_b", "form_b_staged", "form_a"), ("pair_aa", "form_b_aa")),
    Contest("l3.row_grained", RING_BASELINE, ("form_c",), ("pair_ring_aa",)),
)

BOUNDS_RECORDED = (6,)
"""Blocks per SM for which kernel resources are recorded too, under names such as l3_form_b@6."""

KERNELS: tuple[str, ...] = tuple(
    dict.fromkeys(k for v in VARIANTS for k in (v.reader, v.traced, v.finisher) if k)
)
FORMS = ("matmul", "form_a", "form_b", "form_b_staged", "ring", "form_c")
"""Launch bounds that these kernels have."""

SWEEP_FILE = "geometries"
"""How the report of --geometries ends its name."""


@dataclass(frozen=True, slots=True)
class Case:
    """One layer's gate and up: nf rows of each by id_ values, seeded or out of a GGUF file."""

    id: str
    nf: int
    id_: int
    gate: str = ""
    up: str = ""
    backends: tuple[Backend, ...] = ()
    """Backends that this case is for; empty for all."""

    def __post_init__(self) -> None:
        if self.nf < GROUP or self.nf % GROUP:
            raise BadInput(f"nf must be a positive multiple of {GROUP}, got {self.nf}")
        if self.nf > MOST_NF:
            raise BadInput(f"nf is {MOST_NF} at most, got {self.nf}")

    @property
    def shape(self) -> Shape:
        """Gate rows and up rows together."""
        return Shape(2 * self.nf, self.id_)

    @property
    def content_bytes(self) -> int:
        """Weights as q4_K stores them; rows lie end to end, so this is what moves too."""
        return 2 * self.nf * self.shape.nbe * Q4K_BLOCK_BYTES


CASES: tuple[Case, ...] = (Case("gate_up_14b", 13824, 5120),)
MAX_WAVES = 16.0


def variant(name: str) -> Variant:
    """The variant of that name, or the one that an A/A arm repeats."""
    return next(v for v in VARIANTS if v.name == AA.get(name, name))


def wanted(args: argparse.Namespace) -> list[Variant]:
    """Variants that the flags ask for, and the baselines that they are held against."""
    kept = {*(args.variant or [v.name for v in VARIANTS]), BASELINE}
    kept |= {c.baseline for c in CONTESTS if kept & {*c.forms}}
    return [v for v in VARIANTS if v.name in kept]


def config(v: Variant, nf: int, smem_bytes: int = 0) -> LaunchConfig:
    """Geometry of the kernel that reads the weights, where it is no ring."""
    return LaunchConfig(v.grid(nf), THREADS, smem_bytes)


def finish_config(nf: int) -> LaunchConfig:
    """Geometry of the kernel after it: a warp per q8 block."""
    return LaunchConfig(-(-nf // THREADS), THREADS)


def check_flags(args: argparse.Namespace) -> None:
    """BadInput for flags that exclude each other or no run could honour."""
    given = [
        f for f, v in (("--nf", args.nf), ("--match-waves", args.match_waves), ("--gguf", args.gguf)) if v
    ]
    if len(given) > 1:
        raise BadInput(f"{' and '.join(given)} each say how large the matrix is; give one of them")
    if args.nf is not None and (args.nf < GROUP or args.nf % GROUP):
        raise BadInput(
            f"--nf must be a positive multiple of {GROUP} (the values of a q8 block), got {args.nf}"
        )
    if args.nf is not None and args.nf > MOST_NF:
        raise BadInput(f"--nf is {MOST_NF} at most, got {args.nf}")
    w = args.match_waves
    if w is not None and not (math.isfinite(w) and 0 < w <= MAX_WAVES):
        raise BadInput(f"--match-waves must be above 0 and at most {MAX_WAVES:g}, got {w}")
    if args.tensors and args.gguf is None:
        raise BadInput("--tensors names tensors of a file: give --gguf FILE too")
    if args.gguf is not None and not args.tensors:
        raise BadInput("--gguf needs --tensors GATE UP, such as blk.0.ffn_gate.weight blk.0.ffn_up.weight")
    if args.gguf is not None and args.sweep:
        raise BadInput("--sweep makes rows of its own: it does not go with --gguf")
    if args.geometries:
        _check_geometries(args)
    for name in args.case or ():
        if given:
            raise BadInput(f"--case picks a built-in shape; it does not go with {given[0]}")
        if name not in {c.id for c in CASES}:
            raise BadInput(f"there is no case {name!r}; did you mean {', '.join(c.id for c in CASES)}?")
    if args.sms is not None and args.sms < 1:
        raise BadInput(f"--sms must be at least 1, got {args.sms}")


def _check_geometries(args: argparse.Namespace) -> None:
    """BadInput for what a sweep over the built-in shape's geometries does not go with."""
    if args.variant and not all(v.ring for v in VARIANTS if v.name in args.variant):
        raise BadInput(f"--geometries is of {' and '.join(v.name for v in VARIANTS if v.ring)}")
    for flag, given in (
        ("--nf", args.nf), ("--match-waves", args.match_waves), ("--gguf", args.gguf),
        ("--sweep", args.sweep), ("--counters", args.counters), ("--blocks-per-sm", args.blocks_per_sm),
        ("--processes", args.processes > 1),
    ):  # fmt: skip
        if given:
            raise BadInput(
                "--geometries measures the ring kernels on the built-in shape in one go: "
                f"it does not go with {flag}"
            )


def cases(args: argparse.Namespace, sms: int, blocks: Mapping[Backend, int]) -> list[Case]:
    """What the flags ask for. sms, blocks: SMs and form_b's blocks per SM by backend, for --match-waves."""
    check_flags(args)
    whole = CASES[0]
    if args.gguf is not None:
        from probes.core import gguf_file

        gate, up = args.tensors
        _, shape = gguf_file.read(args.gguf, gate, "Q4_K")
        _, other = gguf_file.read(args.gguf, up, "Q4_K")
        if other != shape:
            raise BadInput(f"gate and up must have one shape, got {gate} {shape} and {up} {other}")
        return [Case(gate, shape.od, shape.id, gate, up)]
    if args.nf is not None:
        return [whole if args.nf == whole.nf else Case(f"gate_up_nf{args.nf}", args.nf, whole.id_)]
    if args.match_waves is not None:
        by_nf: dict[int, list[Backend]] = {}
        for backend, per_sm in blocks.items():
            by_nf.setdefault(nf_for_waves(args.match_waves, sms, per_sm), []).append(backend)
        return [Case(f"gate_up_nf{nf}", nf, whole.id_, backends=tuple(who)) for nf, who in by_nf.items()]
    return list(CASES)


def nf_for_waves(waves: float, sms: int, blocks_per_sm: int) -> int:
    """The nf whose form_b grid is nearest to `waves` waves."""
    if blocks_per_sm < 1:
        raise BadInput("form_b does not fit on an SM, so no nf gives whole waves")
    return GROUP * max(1, round(waves * sms * blocks_per_sm))


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags that only L3 has."""
    from pathlib import Path

    parser.add_argument(
        "--variant", action="append", choices=[v.name for v in VARIANTS],
        help="only this variant (repeatable); its baselines stay",
    )  # fmt: skip
    parser.add_argument("--nf", type=int, metavar="N", help="gate rows instead of 13824: a multiple of 32")
    parser.add_argument(
        "--match-waves", type=float, metavar="W", help="pick the nf that gives form_b W waves on this GPU"
    )
    parser.add_argument("--sms", type=int, metavar="N", help="run everything inside a partition of N SMs")
    parser.add_argument(
        "--sweep", action="store_true", help="sweep nf from 0.25 to 4 waves and take the loss apart"
    )
    parser.add_argument(
        "--geometries", action="store_true",
        help="measure pair_ring and form_c in many geometries instead: what the tuning table should hold",
    )  # fmt: skip
    parser.add_argument("--gguf", type=Path, metavar="FILE", help="measure a model file's own q4_K tensors")
    parser.set_defaults(child_flags=child_flags)
    parser.add_argument(
        "--tensors", nargs=2, metavar=("GATE", "UP"), help="with --gguf: the two tensors of one layer"
    )


def child_flags(args: argparse.Namespace) -> list[str]:
    """L3's own flags again, for a child process."""
    out: list[str] = []
    for flag, value in (("--nf", args.nf), ("--match-waves", args.match_waves), ("--sms", args.sms)):
        if value is not None:
            out += [flag, str(value)]
    for name in args.variant or ():
        out += ["--variant", name]
    if args.tensors:
        out += ["--tensors", *args.tensors]
    return [*out, *(["--sweep"] if args.sweep else [])]


def stem(args: argparse.Namespace) -> str:
    """File name of a run's report: a partition's, or another size's, has a name of its own."""
    parts = [f"{args.sms}sm"] if args.sms else []
    parts += [f"{args.blocks_per_sm}blocks"] if args.blocks_per_sm else []
    parts += [f"waves{args.match_waves:g}"] if args.match_waves else []
    parts += [f"nf{args.nf}"] if args.nf else []
    parts += [SWEEP_FILE] if args.geometries else []
    return "-".join(["l3", *parts])


def listing() -> list[str]:
    """What --list prints: ids of cases, variants and bars."""
    lines = [f"case     {c.id:14} {c.shape}" for c in CASES]
    lines += [
        f"variant  {v.name:14} {' then '.join(k for k in (v.reader, v.finisher) if k)}" for v in VARIANTS
    ]
    lines += [f"variant  {name:14} {of} again" for name, of in AA.items()]
    return [*lines, *(f"bar      {c.bar}" for c in CONTESTS)]


def digest() -> str:
    """SHA-256 of what L3 measures on any device: kernels of both backends, flags, launch tables."""
    return report_digest("l3", "")


def report_digest(file: str, device: str) -> str:
    """The same for one report: with the device's tuned geometries; of --geometries with its candidates."""
    from probes import l3_launch, sources
    from probes.core import tuning

    if file.endswith(f"-{SWEEP_FILE}"):
        swept = [(v.name, l3_launch.candidates(v)) for v in VARIANTS if v.ring]
        return sources.digest("l3", swept)
    launches: list[object] = [(c.id, v.name, config(v, c.nf)) for c in CASES for v in VARIANTS if not v.ring]
    table = tuning.table(device)
    launches += [(case, v, g) for case, rows in (table.l3 if table else {}).items() for v, g in rows.items()]
    return sources.digest("l3", launches)


def main(argv: list[str] | None = None) -> int:
    """Run the probe; returns the exit code."""
    from probes import cli

    return cli.main("l3", argv)


if __name__ == "__main__":
    sys.exit(main())
