"""L1's cases, variants, contests and flags. Light: no NumPy, no CUDA."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from probes.core import flags
from probes.core.types import VIRTUAL_THREADS, BadInput, Shape, check_apart, check_case
from probes.engine.probe import Case, Contest, Fit, Variant
from probes.formats.layouts import BLOCK_BYTES, LAYOUTS, Layout

if TYPE_CHECKING:
    import argparse

QUESTION = "does the dense split-plane q6_K layout win?"
BOUNDS_RECORDED: tuple[int, ...] = ()
NEEDS = ((0, 0), "")
SWEEP = "geometries"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A kind of q6_K tensor in a model; a decode step runs it `count` times."""

    case: str
    shape: Shape
    count: int


@dataclass(frozen=True, slots=True)
class Model:
    """A model's q6_K tensors; its cases end in `name`, a report prints `title`."""

    name: str
    title: str
    tensors: tuple[Tensor, ...]


def q6k_layers(layers: int) -> int:
    """Layers whose ffn_down and attn_v a q4_K_M file keeps in q6_K, by llama.cpp's rule: 24 of 48 in 14B."""
    eighth = layers // 8
    return sum(i < eighth or i >= 7 * layers // 8 or (i - eighth) % 3 == 2 for i in range(layers))


def _model(name: str, layers: int, hidden: int, ffn: int, kv: int, vocabulary: int) -> Model:
    count = q6k_layers(layers)
    return Model(name, f"{name.upper()} q4_K_M", (
        Tensor(f"ffn_down_{name}", Shape(hidden, ffn), count),
        Tensor(f"lm_head_{name}", Shape(vocabulary, hidden), 1),
        Tensor(f"attn_v_{name}", Shape(kv, hidden), count),
    ))  # fmt: skip


MODELS: tuple[Model, ...] = (
    _model("14b", layers=48, hidden=5120, ffn=13824, kv=1024, vocabulary=152064),
    _model("7b", layers=28, hidden=3584, ffn=18944, kv=512, vocabulary=152064),
)
"""Qwen2.5's shapes."""

CASES: tuple[Case, ...] = tuple(
    Case(id=t.case, shape=t.shape, counts={m.name: t.count}) for m in MODELS for t in m.tensors
)
MOST_SHAPES = 64  # of a GGUF file, each a case; a model has some ten
QUICK_CASES = ("ffn_down_14b",)
"""What --quick measures: the shape that the record measured first; a model's sum wants them all."""


@dataclass(frozen=True, slots=True)
class Form:
    """One kernel form: its kernel file, and the unit counts it is right for (exclusive, inclusive)."""

    name: str
    above: int
    upto: int
    stem: str = "l1"

    def refuses(self, shape: Shape) -> str:
        """Why this form must not be launched on `shape`, '' where it may."""
        if self.above < shape.nunits <= self.upto:
            return ""
        right = f"{self.name} is right only for {self.above} < units <= {self.upto}"
        return f"{right}; {shape} has {shape.nunits}"


FORMS: tuple[Form, ...] = (
    Form("loop", 0, 1 << 30),
    Form("pf", VIRTUAL_THREADS, 2 * VIRTUAL_THREADS),
    Form("pf3", 2 * VIRTUAL_THREADS, 3 * VIRTUAL_THREADS),
    Form("stream", 0, 1 << 30),
    Form("ring", 0, 1 << 30, "l1_ring"),
    Form("async", 0, 1 << 30, "l1_ring"),
)
RINGS = ("ring", "async")
"""Forms with a persistent grid, which have a geometry."""

STEMS: tuple[str, ...] = tuple(dict.fromkeys(f.stem for f in FORMS))

RECORDED = ("loop", "pf", "stream")
"""The record's own forms; the profiler's table of what is left to a plain read shows all others."""

PF_ABOVE, PF_UPTO = 8192, 16384
"""The record's dispatch: pf where 8192 < id <= 16384, else loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matvec(Variant):
    """A layout in a kernel form."""

    layout: Layout
    form: Form

    @property
    def symbol(self) -> str:
        """The kernel that runs it."""
        return f"l1_{self.layout.name}_{self.form.name}"


BASELINE, RING_BASELINE, RING = "padded_loop", "padded_ring", "dpl_ring"
AGAIN: dict[str, str] = {"padded_loop_aa": BASELINE, "padded_ring_aa": RING_BASELINE}
"""Every A/A arm and what it repeats; it runs where that runs."""

FLIP: dict[str, dict[str, str]] = {"dispatch_padded": {"PROBES_Q6K_DPL": "0"}, "dispatch_dpl": {}}
"""The deciding A/B: the dispatcher's own choice under each environment."""

READ_OF = {"padded": "read_padded", "gs": "read_padded", "dpl": "read_dpl", "gpl": "read_dpl"}
"""The plain read that moves as many bytes as a layout stores."""

_WHOLE = {m.name: frozenset(t.case for t in m.tensors) for m in MODELS}


def _named(layout: str) -> tuple[str, ...]:
    """A layout's kernels that compute, whatever their form."""
    return tuple(f"{layout}_{form.name}" for form in FORMS if form.name != "stream")


CONTESTS: tuple[Contest, ...] = (
    Contest(
        bar="l1.dpl", baseline="dispatch_padded", variants=("dpl", "gs", "gpl"), over="sum", whole=_WHOLE,
        again=(("padded_loop_aa", BASELINE), ("dispatch_padded", ""), ("dispatch_dpl", "")),
    ),
    Contest(
        bar="l1.dpl", baseline=RING_BASELINE, variants=(RING,), over="sum", whole=_WHOLE,
        again=(("padded_ring_aa", RING_BASELINE),),
    ),
    Contest(
        bar="l1.best", baseline="padded_best", variants=("dpl_best", "gs_best", "gpl_best"), over="sum",
        whole=_WHOLE, again=(("padded_ring_aa", RING_BASELINE),),
        sides={f"{lay.name}_best": _named(lay.name) for lay in LAYOUTS},
    ),
)  # fmt: skip
"""Layouts in the dispatcher's form; where memory binds, by kernels that differ only in their bytes; and each
layout's fastest kernel against padded's."""


def every() -> list[Matvec]:
    """Every layout in every form, in the report's order."""
    return [
        Matvec(name=f"{lay.name}_{form.name}", baseline=BASELINE, layout=lay, form=form)
        for lay in LAYOUTS
        for form in FORMS
    ]


def variant(name: str) -> Matvec:
    """One of `every` by its name."""
    return next(v for v in every() if v.name == name)


def content_bytes(shape: Shape) -> int:
    """Weights as q6_K stores them: 210 bytes per super-block."""
    return shape.od * shape.nbe * BLOCK_BYTES


def dispatch(shape: Shape, dpl_built: bool, env: Mapping[str, str] | None = None) -> str:
    """The record's dispatcher: the variant that runs for `shape`.

    dpl where its plane was built and PROBES_Q6K_DPL is not off, else padded; pf where
    8192 < id <= 16384 and PROBES_Q6K_PF is not off, else loop.
    """
    env = os.environ if env is None else env
    layout = "dpl" if dpl_built and flags.switched("PROBES_Q6K_DPL", env) else "padded"
    form = "pf" if PF_ABOVE < shape.id <= PF_UPTO and flags.switched("PROBES_Q6K_PF", env) else "loop"
    return f"{layout}_{form}"


def flip_env(name: str) -> dict[str, str]:
    """One side of the flip: the caller's own PROBES_Q6K_PF, and the side's PROBES_Q6K_DPL."""
    own = {"PROBES_Q6K_PF": os.environ["PROBES_Q6K_PF"]} if "PROBES_Q6K_PF" in os.environ else {}
    return {**own, **FLIP[name]}


def variants(args: argparse.Namespace, case: Case) -> list[Variant]:
    """What the flags ask for and its baselines, then their A/A arms, then both sides of the flip."""
    asked = [v for v in every() if not args.layout or v.layout.name in args.layout]
    asked = [v for v in asked if not args.form or v.form.name in args.form]
    kept = {v.name for v in asked} | {BASELINE}
    if any(v.form.name == "ring" for v in asked):
        kept.add(RING_BASELINE)
    chosen: list[Variant] = [v for v in every() if v.name in kept]
    chosen += [
        replace(variant(of), name=name, role="again", of=of) for name, of in AGAIN.items() if of in kept
    ]
    if not args.layout or "dpl" in args.layout:
        for name in FLIP:
            ran = variant(dispatch(case.matrix, dpl_built=True, env=flip_env(name)))
            chosen.append(replace(ran, name=name, role="choice", of=ran.name))
    return chosen


def cases(args: argparse.Namespace, sms: int, fit: Fit) -> list[Case]:
    """The cases that the flags ask for: the table's, or a GGUF file's q6_K tensors, one per shape."""
    if args.gguf is None:
        known = {c.id: c for c in CASES}
        for name in args.case or ():
            check_case(name, known)
        if args.case:
            return [known[n] for n in dict.fromkeys(args.case)]
        return [c for c in CASES if not args.quick or c.id in QUICK_CASES]
    from probes.formats import gguf as gguf_file

    found = [t for t in gguf_file.tensors(args.gguf) if t.type_name == "Q6_K"]
    if args.tensor is not None:
        found = [t for t in found if t.name == args.tensor]
        if not found:
            gguf_file.check(args.gguf, args.tensor)  # raises with the reason and close names
    if not found:
        raise BadInput(f"{args.gguf.name} holds no q6_K tensor")
    by_shape: dict[tuple[int, int], list[str]] = {}
    for t in found:
        by_shape.setdefault((t.od, t.id), []).append(t.name)
    if len(by_shape) > MOST_SHAPES:
        told = f"{args.gguf.name} holds q6_K tensors of {len(by_shape)} shapes"
        raise BadInput(f"{told}, {MOST_SHAPES} are measured in one go; pick one with --tensor")
    model = args.gguf.name if args.gguf.name not in {m.name for m in MODELS} else f"{args.gguf.name} (file)"
    return [
        Case(id=tensor_id(names[0]), shape=Shape(od, id_), counts={model: len(names)}, tensors=(names[0],))
        for (od, id_), names in by_shape.items()
    ]


def tensor_id(name: str) -> str:
    """A tensor's case: its name, marked where a case of the table or a point of a sweep is called so."""
    ours = {c.id for c in CASES} | {m.name for m in MODELS} | {"all"}
    return f"tensor:{name}" if name in ours or name.startswith(("sweep_", "model_", "tensor:")) else name


def sweeps(args: argparse.Namespace) -> dict[str, str]:
    """--sweep, also called --tune, measures geometries, and nothing else."""
    return {SWEEP: "--sweep (--tune)"} if args.sweep else {}


def sweep_cases(kind: str, args: argparse.Namespace, sms: int, fit: Fit) -> list[Case]:
    """The cases that the flags ask for."""
    return cases(args, sms, fit)


def alone(args: argparse.Namespace) -> bool:
    """A sweep is all that a run then does."""
    return bool(args.sweep)


def check_flags(args: argparse.Namespace) -> None:
    """BadInput for flags that exclude each other."""
    if args.tensor is not None and args.gguf is None:
        raise BadInput("--tensor names a tensor of a file: give --gguf FILE too")
    if args.gguf is not None and args.case:
        raise BadInput("--case picks from the built-in shapes; with --gguf use --tensor")
    if not args.sweep:
        return
    if args.form and not set(RINGS) & set(args.form):
        raise BadInput("--sweep is of the forms ring and async")
    check_apart("--sweep measures geometries of the built-in shapes in one go", {
        "--gguf": args.gguf, "--counters": args.counters, "--blocks-per-sm": args.blocks_per_sm,
        "--processes": args.processes > 1,
    })  # fmt: skip


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags that only L1 has."""
    from pathlib import Path

    names = [lay.name for lay in LAYOUTS]
    parser.add_argument(
        "--layout", action="append", choices=names,
        help="only this layout (repeatable); padded stays as baseline",
    )  # fmt: skip
    parser.add_argument(
        "--form", action="append", choices=[f.name for f in FORMS], help="only this kernel form (repeatable)"
    )
    parser.add_argument("--gguf", type=Path, metavar="FILE", help="measure a model file's own q6_K tensors")
    parser.add_argument("--tensor", metavar="NAME", help="with --gguf: only this tensor")
    parser.add_argument(
        "--sweep", "--tune", action="store_true",
        help="measure every geometry of ring and async instead, and say what the tuning table should hold",
    )  # fmt: skip


def stem(args: argparse.Namespace) -> str:
    """File name of a run's report: a sweep has one of its own."""
    return "l1-sweep" if args.sweep else "l1"


def listing() -> list[str]:
    """What --list prints: ids of cases, variants and bars."""
    lines = [f"case     {c.id:14} {c.shape}" for c in CASES]
    lines += [f"variant  {v.name:14} {v.layout.order} order, {v.form.name}" for v in every()]
    lines += [f"variant  {name:14} {of} again" for name, of in AGAIN.items()]
    return [*lines, *(f"variant  {name}" for name in FLIP), "bar      l1.dpl", "bar      l1.limit"]
