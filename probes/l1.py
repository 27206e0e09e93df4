"""L1: does a dense split-plane q6_K layout beat the padded one and group-split, bit for bit?

    python -m probes.l1                 every case, both backends; predicted where there is no GPU
    python -m probes.l1 --quick         one shape, fewer windows, no model's sum
    python -m probes.l1 --form ring     only the persistent kernels with bulk copies (and the baseline)
    python -m probes.l1 --sweep         every geometry of ring and async: what the tuning table should say
    python -m probes.l1 --gguf FILE     the same on a model's own q6_K tensors

The record (GB10): yes, dpl cuts the kernel time by 17 %. Decided by the dispatcher's flip: the same
binary with PROBES_Q6K_DPL=0 and without, summed over a model's q6_K tensors, against the bar
`l1.dpl` of core/bars.toml. Content bytes are 210 per super-block; traffic counts whole 32-byte
sectors; a ratio is time over the same backend's `padded_loop`. Past the record: the forms ring and async,
with dpl_ring held against padded_ring by the same bar, and each case's fastest kernel against `l1.limit`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from probes.core.layouts import BLOCK_BYTES, LAYOUTS, Layout
from probes.core.models import MODELS
from probes.core.types import VIRTUAL_THREADS, BadInput, LaunchConfig, Shape

if TYPE_CHECKING:
    import argparse


@dataclass(frozen=True, slots=True)
class Case:
    """One weight matrix to measure; `counts` says how often each model holds it."""

    id: str
    shape: Shape
    counts: Mapping[str, int]
    tensor: str = ""
    """The tensor's name in the GGUF file that it comes from, '' for seeded random weights."""


SWEEP_FILE = "l1-sweep"

CASES: tuple[Case, ...] = tuple(Case(t.case, t.shape, {m.name: t.count}) for m in MODELS for t in m.tensors)
"""ffn_down, lm_head and attn_v of 14B and 7B: every q6_K shape that a q4_K_M model runs per step."""


QUICK_CASES = ("ffn_down_14b",)
"""What --quick measures: the shape that the record measured first; a model's sum wants them all."""


@dataclass(frozen=True, slots=True)
class Form:
    """One kernel form: its name and the unit counts it is right for (exclusive, inclusive)."""

    name: str
    above: int
    upto: int
    stem: str = "l1"
    """The kernel file that it stands in, in both languages."""

    def refuses(self, shape: Shape) -> str:
        """Why this form must not be launched on `shape`, '' where it may."""
        if self.above < shape.nunits <= self.upto:
            return ""
        return (
            f"{self.name} is right only for {self.above} < units <= {self.upto}; {shape} has {shape.nunits}"
        )


FORMS: tuple[Form, ...] = (
    Form("loop", 0, 1 << 30),
    Form("pf", VIRTUAL_THREADS, 2 * VIRTUAL_THREADS),
    Form("pf3", 2 * VIRTUAL_THREADS, 3 * VIRTUAL_THREADS),
    Form("stream", 0, 1 << 30),
    Form("ring", 0, 1 << 30, "l1_ring"),
    Form("async", 0, 1 << 30, "l1_ring"),
)
STEMS: tuple[str, ...] = tuple(dict.fromkeys(f.stem for f in FORMS))
"""L1's kernel files."""

RECORDED = ("loop", "pf", "stream")
"""The record's own forms; the profiler's table of what is left to a plain read shows all others."""

PF_ABOVE, PF_UPTO = 8192, 16384
"""The record's dispatch: pf where 8192 < id <= 16384, else loop."""


def check_launch(lay: Layout, form: str, shape: Shape, row_stride: int) -> None:
    """BadInput for a launch that would give a wrong number or a fault: called before every kernel launch."""
    from probes.core.layouts import check_stride

    refusal = next(f for f in FORMS if f.name == form).refuses(shape)
    if refusal:
        raise BadInput(f"{refusal}: use the loop form")
    check_stride(lay, shape.nbe, row_stride)


def launch_config(shape: Shape, smem_bytes: int = 0) -> LaunchConfig:
    """Of loop, pf, pf3 and stream: one row per block, 256 threads."""
    return LaunchConfig(grid=shape.od, block=VIRTUAL_THREADS, smem_bytes=smem_bytes)


def dispatch(shape: Shape, dpl_built: bool, env: Mapping[str, str] | None = None) -> str:
    """The record's dispatcher: the variant that runs for `shape`.

    dpl where its plane was built and PROBES_Q6K_DPL is not "0", else padded; pf where
    8192 < id <= 16384 and PROBES_Q6K_PF is not "0", else loop.
    """
    env = os.environ if env is None else env
    layout = "dpl" if dpl_built and env.get("PROBES_Q6K_DPL") != "0" else "padded"
    form = "pf" if PF_ABOVE < shape.id <= PF_UPTO and env.get("PROBES_Q6K_PF") != "0" else "loop"
    return f"{layout}_{form}"


FLIP: dict[str, dict[str, str]] = {"dispatch_padded": {"PROBES_Q6K_DPL": "0"}, "dispatch_dpl": {}}
"""The deciding A/B: the dispatcher's own choice under each environment."""


def flip_env(name: str) -> dict[str, str]:
    """One side of the flip: the caller's own PROBES_Q6K_PF, and the side's PROBES_Q6K_DPL."""
    own = {"PROBES_Q6K_PF": os.environ["PROBES_Q6K_PF"]} if "PROBES_Q6K_PF" in os.environ else {}
    return {**own, **FLIP[name]}


BASELINE = "padded_loop"
AA = "padded_loop_aa"
"""The baseline a second time, as an arm of its own: what no lever at all looks like."""

RING, RING_BASELINE = "dpl_ring", "padded_ring"
"""The record's question where memory binds: judged like dpl, by kernels that only differ in their bytes."""

AAS: dict[str, str] = {AA: BASELINE, "padded_ring_aa": RING_BASELINE}
"""Every A/A arm and what it repeats; it runs where that runs."""

READ_OF = {"padded": "read_padded", "gs": "read_padded", "dpl": "read_dpl", "gpl": "read_dpl"}
"""The plain read that moves as many bytes as a layout stores."""


def variants(
    layouts: tuple[Layout, ...] = LAYOUTS, forms: tuple[Form, ...] = FORMS
) -> list[tuple[str, Layout, Form]]:
    """Every variant of the report, in its order."""
    return [(f"{lay.name}_{form.name}", lay, form) for lay in layouts for form in forms]


def wanted(args: argparse.Namespace) -> list[tuple[str, Layout, Form]]:
    """What the flags ask for, and padded as its baseline: in the loop form, and with ring in that too."""
    asked = [
        v
        for v in variants()
        if (not args.layout or v[1].name in args.layout) and (not args.form or v[2].name in args.form)
    ]
    kept = {name for name, _, _ in asked} | {BASELINE}
    if any(form.name == "ring" for _, _, form in asked):
        kept.add(RING_BASELINE)
    return [v for v in variants() if v[0] in kept]


def content_bytes(shape: Shape) -> int:
    """Weights as q6_K stores them: 210 bytes per super-block."""
    return shape.od * shape.nbe * BLOCK_BYTES


def check_flags(args: argparse.Namespace) -> None:
    """BadInput for flags that exclude each other."""
    if not args.sweep:
        return
    if args.form and not {"ring", "async"} & set(args.form):
        raise BadInput("--sweep is of the forms ring and async")
    for flag, given in (
        ("--gguf", args.gguf), ("--counters", args.counters), ("--blocks-per-sm", args.blocks_per_sm),
        ("--processes", args.processes > 1),
    ):  # fmt: skip
        if given:
            raise BadInput(
                f"--sweep measures geometries of the built-in shapes in one go: it does not go with {flag}"
            )


def cases(args: argparse.Namespace) -> list[Case]:
    """The cases that the flags ask for: the table's, or a GGUF file's q6_K tensors, one per shape."""
    import difflib

    check_flags(args)
    if args.tensor is not None and args.gguf is None:
        raise BadInput("--tensor names a tensor of a file: give --gguf FILE too")
    if args.gguf is None:
        known = {c.id: c for c in CASES}
        for name in args.case or ():
            if name not in known:
                close = difflib.get_close_matches(name, known, n=3, cutoff=0.3) or list(known)
                raise BadInput(f"there is no case {name!r}; did you mean {', '.join(close)}?")
        if args.case:
            return [known[n] for n in dict.fromkeys(args.case)]
        return [c for c in CASES if not args.quick or c.id in QUICK_CASES]
    from probes.core import gguf_file

    if args.case:
        raise BadInput("--case picks from the built-in shapes; with --gguf use --tensor")
    found = [t for t in gguf_file.tensors(args.gguf) if t.type_name == "Q6_K"]
    if args.tensor is not None:
        found = [t for t in found if t.name == args.tensor]
        if not found:
            gguf_file.read(args.gguf, args.tensor)  # raises with the reason and close names
    if not found:
        raise BadInput(f"{args.gguf.name} holds no q6_K tensor")
    by_shape: dict[tuple[int, int], list[str]] = {}
    for t in found:
        by_shape.setdefault((t.od, t.id), []).append(t.name)
    model = args.gguf.name if args.gguf.name not in {m.name for m in MODELS} else f"{args.gguf.name} (file)"
    return [
        Case(names[0], Shape(od, id_), {model: len(names)}, tensor=names[0])
        for (od, id_), names in by_shape.items()
    ]


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags that only L1 has."""
    from pathlib import Path

    names = [lay.name for lay in LAYOUTS]
    parser.add_argument(
        "--layout",
        action="append",
        choices=names,
        help="only this layout (repeatable); padded stays as baseline",
    )
    parser.add_argument(
        "--form", action="append", choices=[f.name for f in FORMS], help="only this kernel form (repeatable)"
    )
    parser.add_argument("--gguf", type=Path, metavar="FILE", help="measure a model file's own q6_K tensors")
    parser.add_argument("--tensor", metavar="NAME", help="with --gguf: only this tensor")
    parser.add_argument(
        "--sweep",
        action="store_true",
        help="measure every geometry of ring and async instead, and say what the tuning table should hold",
    )


def stem(args: argparse.Namespace) -> str:
    """File name of a run's report: a sweep has one of its own."""
    return SWEEP_FILE if args.sweep else "l1"


def listing() -> list[str]:
    """What --list prints: ids of cases, variants and bars."""
    lines = [f"case     {c.id:14} {c.shape}" for c in CASES]
    lines += [f"variant  {name:14} {lay.order} order, {form.name}" for name, lay, form in variants()]
    lines += [f"variant  {name:14} {of} again" for name, of in AAS.items()]
    return [*lines, *(f"variant  {name}" for name in FLIP), "bar      l1.dpl", "bar      l1.limit"]


def digest() -> str:
    """SHA-256 of what L1 measures on any device: kernels of both backends, flags, launch tables."""
    return report_digest("l1", "")


def report_digest(file: str, device: str) -> str:
    """The same for one report: with the device's tuned geometries, or for a sweep the ones it measures."""
    from probes import l1_ring, sources
    from probes.core import tuning

    launches: list[object] = []
    if file == SWEEP_FILE:
        launches = [l1_ring.CANDIDATES]
    else:
        launches += [
            (c.id, name, launch_config(c.shape))
            for c in CASES
            for name, _, form in variants()
            if form.stem == "l1" and not form.refuses(c.shape)
        ]
        table = tuning.table(device)
        launches += [
            (case, lay, t) for case, rows in (table.l1 if table else {}).items() for lay, t in rows.items()
        ]
    return sources.digest("l1", launches)


def main(argv: list[str] | None = None) -> int:
    """Run the probe; returns the exit code."""
    from probes import cli

    return cli.main("l1", argv)


if __name__ == "__main__":
    sys.exit(main())
