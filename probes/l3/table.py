"""L3's cases, variants, contests and flags. Light: no NumPy, no CUDA."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from probes.core.types import Backend, BadInput, Shape, check_apart, check_case
from probes.engine.probe import Case, Contest, Fit, Variant

if TYPE_CHECKING:
    import argparse

QUESTION = "does fusing gate + up + SwiGLU + quantise pay, or do the waves eat it?"
STEMS = ("l3",)
NEEDS = ((0, 0), "")
BOUNDS_RECORDED = (6,)

GROUP = 32
"""Values in one q8 block: form_b gives each a thread block, so nf is a multiple of it."""

MOST_NF = 1 << 29
"""Gate rows at most: form_c tells two things more in the word that names a pair (ring_gated.cuh)."""

Q4K_BLOCK_BYTES = 144


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion(Variant):
    """One way to q8: the kernel that reads the weights, and the one after it, '' for none."""

    reader: str
    finisher: str = ""
    rows_per_block: int = 0
    """Weight rows that one thread block of the reader sums; 0 for a ring, whose grid is the plan's."""

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


BASELINE, RING_BASELINE = "pair", "pair_ring"


def _fusion(name: str, reader: str, finisher: str, rows: int) -> Fusion:
    what = " then ".join(k for k in (reader, finisher) if k)
    own = Fusion(name=name, baseline=BASELINE, reader=reader, rows_per_block=rows)
    return replace(own, finisher=finisher, what=what)


VARIANTS: tuple[Fusion, ...] = (
    _fusion("pair", "l3_matmul", "l3_swiglu_quant", 1),
    _fusion("form_a", "l3_form_a", "l3_quant", 2),
    _fusion("form_b", "l3_form_b", "", 2 * GROUP),
    _fusion("form_b_staged", "l3_form_b_staged", "", 2 * GROUP),
    _fusion("pair_ring", "l3_matmul_ring", "l3_swiglu_quant", 0),
    _fusion("form_c", "l3_form_c", "", 0),
)
AGAIN: dict[str, str] = {f"{v.name}_aa": v.name for v in VARIANTS}
"""Variants a second time, as arms of their own: what no lever at all looks like."""

CASES: tuple[Case, ...] = (Case(id="gate_up_14b", shape=Shape(2 * 13824, 5120)),)
MAX_WAVES = 16.0

CONTESTS: tuple[Contest, ...] = (
    Contest(
        bar="l3.fused", baseline=BASELINE, variants=("form_b", "form_b_staged", "form_a"),
        again=tuple((f"{name}_aa", name) for name in ("pair", "form_b", "form_a", "form_b_staged")),
        recorded_case=CASES[0].id,
    ),
    Contest(
        bar="l3.row_grained", baseline=RING_BASELINE, variants=("form_c",),
        again=(("pair_ring_aa", "pair_ring"), ("form_c_aa", "form_c")), recorded_case=CASES[0].id,
    ),
    Contest(
        bar="l3.best", baseline="pair_best", variants=("fused_best",), again=(("pair_ring_aa", "pair_ring"),),
        sides={
            "pair_best": ("pair", "pair_ring"), "fused_best": ("form_a", "form_b", "form_b_staged", "form_c"),
        },
    ),
)  # fmt: skip

WAVES, GEOMETRIES = "waves", "geometries"
"""Sweeps: form_b's grid over waves; the ring kernels over geometries."""

SWEPT = ("form_b", "pair", "form_b_staged")
"""What every point of the sweep over waves times."""

SWEEP_WINDOWS, QUICK_SWEEP_WINDOWS = 6, 4
FIRST, LAST = 0.25, 4.0
STEP, QUICK_STEP = 0.125, 0.25


def variant(name: str) -> Fusion:
    """The variant of that name."""
    return next(v for v in VARIANTS if v.name == name)


def nf_of(case: Case) -> int:
    """Gate rows of a case, whose shape holds gate and up rows together."""
    return case.matrix.od // 2


def made(
    id_: str, nf: int, cols: int, tensors: tuple[str, ...] = (), backends: tuple[Backend, ...] = ()
) -> Case:
    """A layer's gate and up: nf rows of each by `cols` values. Raises BadInput."""
    if nf < GROUP or nf % GROUP:
        raise BadInput(f"nf must be a positive multiple of {GROUP}, got {nf}")
    if nf > MOST_NF:
        raise BadInput(f"nf is {MOST_NF} at most, got {nf}")
    return Case(id=id_, shape=Shape(2 * nf, cols), tensors=tensors, backends=backends)


def content_bytes(case: Case) -> int:
    """Weights as q4_K stores them; rows lie end to end, so this is what moves too."""
    return case.matrix.od * case.matrix.nbe * Q4K_BLOCK_BYTES


def variants(args: argparse.Namespace, case: Case) -> list[Variant]:
    """Variants that the flags ask for, the baselines that they are held against, and their A/A arms."""
    if case.sweep == WAVES:
        return [variant(name) for name in SWEPT]
    kept = {*(args.variant or [v.name for v in VARIANTS]), BASELINE}
    kept |= {c.baseline for c in CONTESTS if kept & {*c.variants}}
    out: list[Variant] = [v for v in VARIANTS if v.name in kept]
    return out + [
        replace(variant(of), name=name, role="again", of=of) for name, of in AGAIN.items() if of in kept
    ]


def cases(args: argparse.Namespace, sms: int, fit: Fit) -> list[Case]:
    """What the flags ask for; --match-waves by form_b's blocks per SM in each backend."""
    cols = CASES[0].matrix.id
    if args.gguf is not None:
        from probes.l3.data import gate_up_shape

        shape = gate_up_shape(args.gguf, *args.tensors)
        return [made(args.tensors[0], shape.od, shape.id, tuple(args.tensors))]
    if args.nf is not None:
        return [CASES[0] if args.nf == nf_of(CASES[0]) else made(f"gate_up_nf{args.nf}", args.nf, cols)]
    if args.match_waves is not None:
        by_nf: dict[int, list[Backend]] = {}
        found = fit("l3_form_b")
        if not found:
            raise BadInput("--match-waves needs form_b's registers, which are not recorded for this device")
        for backend, per_sm in found.items():
            by_nf.setdefault(nf_for_waves(args.match_waves, sms, per_sm), []).append(backend)
        return [made(f"gate_up_nf{nf}", nf, cols, backends=tuple(who)) for nf, who in by_nf.items()]
    return list(CASES)


def nf_for_waves(waves: float, sms: int, blocks_per_sm: int) -> int:
    """The nf whose form_b grid is nearest to `waves` waves."""
    if blocks_per_sm < 1:
        raise BadInput("form_b does not fit on an SM, so no nf gives whole waves")
    return GROUP * max(1, round(waves * sms * blocks_per_sm))


def sweeps(args: argparse.Namespace) -> dict[str, str]:
    """--geometries measures those and nothing else; --sweep comes after the cases."""
    if args.geometries:
        return {GEOMETRIES: "--geometries (--tune)"}
    return {WAVES: "--sweep"} if args.sweep else {}


def alone(args: argparse.Namespace) -> bool:
    """Whether geometries are all that a run measures."""
    return bool(args.geometries)


def sweep_cases(kind: str, args: argparse.Namespace, sms: int, fit: Fit) -> list[Case]:
    """The built-in case for geometries; for waves a case per grid, 0.25 to 4 waves of form_b a backend."""
    if kind == GEOMETRIES:
        return list(CASES)
    own, out = cases(args, sms, fit), []
    for backend, per_sm in fit("l3_form_b").items():
        mine = [nf_of(c) // GROUP for c in own if not c.backends or backend in c.backends]
        for grid in grids(per_sm * sms, mine, args.quick) if per_sm else ():
            case = made(f"sweep_{grid}_blocks", GROUP * grid, own[0].matrix.id, backends=(backend,))
            windows = QUICK_SWEEP_WINDOWS if args.quick else SWEEP_WINDOWS
            out.append(replace(case, sweep=WAVES, windows=windows))
    return out


def grids(slots: int, own: list[int], quick: bool = False) -> list[int]:
    """Blocks of each point: 0.25 to 4 waves of `slots` blocks in steps, one past each wave, and `own`."""
    step = QUICK_STEP if quick else STEP
    found = {max(1, round(k * step * slots)) for k in range(round(FIRST / step), round(LAST / step) + 1)}
    found |= {w * slots + 1 for w in range(1, round(LAST))}
    return sorted(found | set(own))


def check_flags(args: argparse.Namespace) -> None:
    """BadInput for flags that exclude each other or no run could honour."""
    sizes = (("--nf", args.nf), ("--match-waves", args.match_waves), ("--gguf", args.gguf))
    given = [flag for flag, value in sizes if value]
    if len(given) > 1:
        raise BadInput(f"{' and '.join(given)} each say how large the matrix is; give one of them")
    if args.nf is not None and (args.nf < GROUP or args.nf % GROUP):
        what = f"a positive multiple of {GROUP} (the values of a q8 block)"
        raise BadInput(f"--nf must be {what}, got {args.nf}")
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
        check_case(name, (c.id for c in CASES))
    if args.sms is not None and args.sms < 1:
        raise BadInput(f"--sms must be at least 1, got {args.sms}")


def _check_geometries(args: argparse.Namespace) -> None:
    """BadInput for what a sweep over the built-in shape's geometries does not go with."""
    if args.variant and not all(v.ring for v in VARIANTS if v.name in args.variant):
        raise BadInput(f"--geometries is of {' and '.join(v.name for v in VARIANTS if v.ring)}")
    check_apart("--geometries measures the ring kernels on the built-in shape in one go", {
        "--nf": args.nf, "--match-waves": args.match_waves, "--gguf": args.gguf, "--sweep": args.sweep,
        "--counters": args.counters, "--blocks-per-sm": args.blocks_per_sm,
        "--processes": args.processes > 1,
    })  # fmt: skip


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
        "--geometries", "--tune", action="store_true",
        help="measure pair_ring and form_c in many geometries instead: what the tuning table should hold",
    )  # fmt: skip
    parser.add_argument("--gguf", type=Path, metavar="FILE", help="measure a model file's own q4_K tensors")
    parser.add_argument(
        "--tensors", nargs=2, metavar=("GATE", "UP"), help="with --gguf: the two tensors of one layer"
    )


def stem(args: argparse.Namespace) -> str:
    """File name of a run's report: a partition's, or another size's, has a name of its own."""
    parts = [f"{args.sms}sm"] if args.sms else []
    parts += [f"{args.blocks_per_sm}blocks"] if args.blocks_per_sm else []
    parts += [f"waves{args.match_waves:g}"] if args.match_waves else []
    parts += [f"nf{args.nf}"] if args.nf else []
    parts += [GEOMETRIES] if args.geometries else []
    return "-".join(["l3", *parts])


def listing() -> list[str]:
    """What --list prints: ids of cases, variants and bars."""
    lines = [f"case     {c.id:14} {c.shape}" for c in CASES]
    lines += [f"variant  {v.name:14} {v.what}" for v in VARIANTS]
    lines += [f"variant  {name:14} {of} again" for name, of in AGAIN.items()]
    return [*lines, *(f"bar      {c.bar}" for c in CONTESTS)]
