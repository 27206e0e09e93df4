"""L2's chains, arms, contests and flags. Light: no NumPy, no CUDA."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from probes.core import flags
from probes.core.types import BACKENDS, Backend, BadInput, check_apart, check_case
from probes.engine.probe import Case, Contest, Fit, Variant

if TYPE_CHECKING:
    import argparse

QUESTION = "does programmatic dependent launch pay in a CUDA graph?"
STEMS = ("l2",)
BOUNDS_RECORDED: tuple[int, ...] = ()
NEEDS = ((9, 0), "programmatic dependent launch needs sm_90 or later")

CHAIN = 24  # launches of the synthetic chains, as recorded

CHAINS: dict[str, str] = {
    "bandwidth24": f"{CHAIN} launches, each reads 58 MB of its own",
    "compute24": f"{CHAIN} launches of 1.5 waves of integer multiply-adds",
    "decode13": "the 13 kernels of a 14B decode layer, layer after layer",
    "ffn_down24": f"{CHAIN} ring kernels on a 14B ffn_down, 58 MB each",
    "attn_v24": f"{CHAIN} ring kernels on a 14B attn_v, 4.3 MB each; with --sweep, or named",
    "decode13_ring": "decode13 with its four matrices through ring kernels",
    "empty": f"{CHAIN} empty launches, and a pair: the launch gap itself",
}
MOST_SPLITS = 256  # chunks of the KV cache at most: what attention_combine holds in shared memory

KVS = (128, 3254)
"""KV lengths of a decode layer, as recorded; the cache is f16."""

DECODE = ("decode13", "decode13_ring")
RING = ("ffn_down24", "attn_v24", "decode13_ring")
"""The chains of decode layers, which have a KV length; those of ring kernels, which need shared memory."""

ON_DEMAND = ("attn_v24",)
"""Chains that a run takes up with --sweep only, or by name: many short launches, and no verdict."""

QUICK = ("bandwidth24",)
"""What --quick runs: the chain that shows the gain; no verdict, as decode13 decides that."""

MATRICES: dict[str, tuple[str, ...]] = {
    "ffn_down24": ("ffn_down",),
    "attn_v24": ("attn_v",),
    "decode13_ring": ("qkv", "o", "gate_up", "down"),
}
"""The ring chains' matrices: what the tuning table has a row for."""

COMPUTE_WAVES = 1.5  # of each launch of compute24: the fused kernel's on a GB10 (432 blocks on 48 x 6)

Trigger = Literal["end", "start", "tail"]
"""When a kernel lets its successor start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launching(Variant):
    """One way to launch a chain."""

    kind: str = "plain"  # which compiled kind of each kernel: plain, entry or late
    pdl: bool = False
    trigger: Trigger = "end"
    graph: bool = True
    env: Mapping[str, str] | None = None
    """An environment of its own: PROBES_PDL=0 is the flip that decides; None is the caller's."""
    off: str = ""  # the arm of such kernels under PROBES_PDL=0
    form: str = ""  # a kernel of ROWS in the place of the ring


OFF = {"PROBES_PDL": "0"}
BASELINE = "plain"


def _arm(name: str, kind: str, pdl: bool, trigger: Trigger = "end", **more: object) -> Launching:
    made = Launching(name=name, baseline=BASELINE, kind=kind, pdl=pdl, trigger=trigger)
    return replace(made, **more)  # type: ignore[arg-type]  # fields by name


ROWS = {"ffn_down24": ("gpl_two",), "attn_v24": ("gpl_one", "gs_one", "dpl_one")}
"""Kernels with a row per block that a chain is also made of: a lever is held against the best without it."""


def _of_rows(form: str) -> tuple[Launching, Launching]:
    late = "the same as dependents: wait late, let the successor start once weights are asked for"
    plain = _arm(f"plain_{form}", "plain", False, form=form, what="ordinary launches of a row per block")
    return plain, _arm(f"tail_{form}", "late", True, "tail", form=form, what=late)


ARMS: tuple[Launching, ...] = (
    _arm("plain", "plain", False, what="a graph of ordinary launches: the baseline"),
    _arm("plain_aa", "plain", False, role="again", of="plain", what="the baseline again: no lever at all"),
    _arm("plain_ab", "plain", False, role="again", of="plain", what="and once more"),
    _arm("pdl_entry", "entry", True, off="pdl_entry_off", what="waits first, no trigger: as recorded"),
    _arm(
        "pdl_entry_trigger", "entry", True, "start", off="pdl_entry_off",
        what="waits first, lets the successor start at once",
    ),
    _arm("pdl_late", "late", True, off="pdl_late_off", what="waits after its weights are asked for"),
    _arm(
        "pdl_late_trigger", "late", True, "start", off="pdl_late_off",
        what="the same, and lets the successor start at once",
    ),
    _arm(
        "pdl_late_tail", "late", True, "tail", off="pdl_late_off",
        what="and lets it start when the last weights are asked for",
    ),
    _arm("pdl_entry_off", "entry", True, env=OFF, what="pdl_entry's kernels under PROBES_PDL=0: the flip"),
    _arm("pdl_late_off", "late", True, "start", env=OFF, what="pdl_late_trigger's under PROBES_PDL=0"),
    _arm("eager", "plain", False, graph=False, what="no graph: launch after launch"),
    _arm("eager_pdl", "late", True, "start", graph=False, what="no graph, launches as pdl_late_trigger"),
    *(a for forms in ROWS.values() for form in forms for a in _of_rows(form)),
)  # fmt: skip
AGAIN = ("plain", "plain_aa", "plain_ab")
RECORDED = "pdl_entry"
JUDGED = ("pdl_entry", "pdl_entry_trigger", "pdl_late", "pdl_late_trigger", "pdl_late_tail")
"""Arms held against a bar; the recorded one first."""


class ReadChain(NamedTuple):
    """A chain that only reads: launched as an arm, by a stream kernel of so many bytes a block."""

    arm: str
    of: str = ""  # the family that it is a further form of
    kernel: str = "stream"
    tile: int = 16384
    block: int = 256
    smem_bytes: int = 0


READS: dict[str, ReadChain] = {}
"""Chains that only read a ring chain's bytes, in several forms: the fastest of a family counts."""
for _family, _launched in (("read_chain", "plain"), ("read_chain_pdl", "pdl_late_trigger")):
    READS[_family] = ReadChain(_launched)
    READS[f"{_family}_8k"] = ReadChain(_launched, _family, "stream_8k", 8192, 64)
    READS[f"{_family}_bulk"] = ReadChain(_launched, _family, "stream_bulk", 16384, 128, 16384 + 16)


def _contest(chain: str, bar: str, first: str) -> Contest:
    groups = {f"{chain}@{kv}": f"KV {kv}" for kv in KVS} if chain in DECODE else {}
    return Contest(
        bar=bar, baseline=BASELINE, variants=tuple(sorted(JUDGED, key=lambda a: a != first)),
        again=(("plain_aa", "plain"), ("plain_ab", "plain"), ("plain_ab", "plain_aa")),
        over="all", cases=(chain,), groups=groups, recorded_case=chain,
    )  # fmt: skip


def _best(chain: str) -> Contest:
    """The fastest chain with the lever on against the fastest with it off."""
    flip = _contest(chain, "l2.best", RECORDED)
    rows = ROWS.get(chain, ())
    sides = {
        "pdl_best": (*JUDGED, *(f"tail_{form}" for form in rows)),
        "plain_best": (BASELINE, *(f"plain_{form}" for form in rows)),
    }
    return replace(flip, baseline="plain_best", variants=("pdl_best",), sides=sides)


CONTESTS: tuple[Contest, ...] = (
    _contest("decode13", "l2.pdl", "pdl_entry"),
    _contest("ffn_down24", "l2.ring_bandwidth", "pdl_late_tail"),
    _contest("decode13_ring", "l2.ring_decode", "pdl_late_tail"),
    *(_best(chain) for chain in ("decode13", "ffn_down24", "decode13_ring")),
)
"""The chains that are judged: at all recorded KV lengths at once, the arm that the bar names first."""

TARGETS = "l2.chain"
"""Figures that the ring chains are to reach, beside a chain that only reads the same bytes."""

TAILS, RINGS = "tails", "rings"
"""Sweeps: compute24 over blocks per SM, registers and waves; the ring chains over their geometry."""

SWEEP_BLOCKS = (1, 2, 4, 8)
SWEEP_KERNELS = ("compute", "wide")
SWEEP_WAVES = (0.5, 1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5)
SWEEP_ARMS = ("plain", "plain_aa", "pdl_entry", "pdl_entry_trigger", "pdl_late_trigger")
SWEEP_WINDOWS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainCase(Case):
    """One chain to run."""

    chain: str
    kernel: str = "compute"  # A compute chain's kernel: compute (few registers) or wide (many)
    waves: float = COMPUTE_WAVES
    blocks: Mapping[Backend, int] = field(default_factory=dict)
    """Blocks per SM that a compute chain's waves are counted with."""
    held: int = 0  # blocks per SM that its kernel is held to by shared memory, 0 for no holding


def arm(name: str) -> Launching:
    """The arm of that name."""
    return next(a for a in ARMS if a.name == name)


def dispatch(a: Launching, env: Mapping[str, str] | None = None) -> bool:
    """Whether an arm's launches carry the PDL attribute; PROBES_PDL=0 opts out, in the same binary."""
    return a.pdl and flags.switched("PROBES_PDL", next(e for e in (a.env, env, os.environ) if e is not None))


def runs(a: Launching, chain: str) -> bool:
    """Whether an arm runs on a chain: no eager or off arms on a ring chain, no tail in an empty kernel."""
    if a.form or chain in RING:
        return a.form in ROWS.get(chain, ()) if a.form else a.name in (*AGAIN, *JUDGED)
    return chain != "empty" or a.trigger != "tail"


def launches(chain: str) -> int:
    """Launches of one chain."""
    return 13 if chain in DECODE else CHAIN


def names(args: argparse.Namespace) -> list[str]:
    """The chains that the flags ask for."""
    whole = [c for c in CHAINS if args.sweep or args.tune or c not in ON_DEMAND]
    found = list(dict.fromkeys(args.case or (QUICK if args.quick else whole)))
    return [c for c in found if c != "empty"] if args.once else found  # an empty kernel has nothing to count


def cases(args: argparse.Namespace, sms: int, fit: Fit) -> list[Case]:
    """The chains that the flags ask for, a decode layer's at each KV length."""
    out: list[Case] = []
    for name in names(args):
        if name == "compute24":
            blocks, held = _blocks("compute", fit), args.blocks_per_sm or 0
            out.append(ChainCase(id=name, chain=name, blocks=blocks, held=held))
            continue
        for kv in dict.fromkeys(args.kv or KVS) if name in DECODE else (None,):
            out.append(ChainCase(id=name, chain=name, kv=kv))
    return out


def _blocks(kernel: str, fit: Fit) -> dict[Backend, int]:
    """Blocks per SM of the kind of a kernel that has fewest, in each backend."""
    kinds = [fit(f"l2_{kernel}_{kind}") for kind in ("plain", "entry", "late")]
    return {b: min(k[b] for k in kinds) for b in BACKENDS if all(b in k for k in kinds)}


def variants(args: argparse.Namespace, case: Case) -> list[Variant]:
    """The arms of a chain that the flags ask for; plain and its repetitions are always among them."""
    assert isinstance(case, ChainCase), "a case of L2 is a chain"
    if case.sweep == TAILS:
        return [arm(name) for name in SWEEP_ARMS]
    asked = [a for a in ARMS if not args.arm or a.name in (*args.arm, *AGAIN)]
    return [a for a in asked if runs(a, case.chain)]


def sweeps(args: argparse.Namespace) -> dict[str, str]:
    """--sweep is of compute24 and of the ring chains, whichever of them a run has; --tune of the rings."""
    if args.tune:
        return {RINGS: "--tune"}
    if not args.sweep:
        return {}
    found = names(args)
    out = {TAILS: "--sweep"} if "compute24" in found else {}
    return out | ({RINGS: "--sweep"} if set(RING) & set(found) else {})


def alone(args: argparse.Namespace) -> bool:
    """A sweep comes after the chains; --tune measures nothing else."""
    return bool(args.tune)


def sweep_cases(kind: str, args: argparse.Namespace, sms: int, fit: Fit) -> list[Case]:
    """The ring chains, a decode layer's at its first KV length; or compute24 at each point of its range."""
    if kind == RINGS:
        found = [n for n in names(args) if n in RING]
        kv = (args.kv or KVS)[0]
        return [ChainCase(id=f"sweep_ring_{n}", chain=n, kv=kv if n in DECODE else None) for n in found]
    out: list[Case] = []
    for kernel in SWEEP_KERNELS:
        backend, most = next(iter(_blocks(kernel, fit).items()))
        for blocks in dict.fromkeys(min(n, most) for n in SWEEP_BLOCKS):
            out += [
                ChainCase(
                    id=f"sweep_{kernel}_b{blocks}_w{waves:g}", chain="compute24", kernel=kernel, waves=waves,
                    blocks={backend: blocks}, held=blocks, backends=(backend,), sweep=TAILS,
                    windows=SWEEP_WINDOWS,
                )
                for waves in SWEEP_WAVES
            ]  # fmt: skip
    return out


def check_kv(kv: int) -> None:
    """BadInput for a KV length that the kernels cannot hold."""
    from probes.formats.layer import CONSTANTS

    if not 1 <= kv <= MOST_SPLITS * CONSTANTS.chunk:
        raise BadInput(f"the KV length must be 1 to {MOST_SPLITS * CONSTANTS.chunk}, got {kv}")


def check_flags(args: argparse.Namespace) -> None:
    """BadInput for a name or a KV length that is not there, and for flags that exclude each other."""
    for name in args.case or ():
        check_case(name, CHAINS)
    found = names(args)
    if args.counters and (args.case or found) == ["empty"]:
        raise BadInput("--counters profiles the chains' kernels, and empty ones do nothing: name a --case")
    if args.kv and not set(DECODE) & set(found):
        raise BadInput("--kv is the KV length of decode13 and decode13_ring, which --case leaves out")
    if args.sweep and not {"compute24", *RING} & set(found):
        raise BadInput("--sweep varies compute24 and the ring chains, which --case or --quick leaves out")
    if args.tune and not set(RING) & set(found):
        raise BadInput(f"--tune varies {', '.join(RING)}, which --case or --quick leaves out")
    if args.tune:
        check_apart("--tune measures the ring chains' geometries in one go", {
            "--sweep": args.sweep, "--arm": args.arm, "--counters": args.counters,
            "--processes": args.processes > 1, "--blocks-per-sm": args.blocks_per_sm,
        })  # fmt: skip
    for name in args.arm or ():
        if not any(runs(arm(name), c) for c in found):
            raise BadInput(f"--arm {name} does not run on {', '.join(found)}")
    for kv in args.kv or ():
        check_kv(kv)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags that only L2 has."""
    parser.add_argument(
        "--arm", action="append", choices=[a.name for a in ARMS], metavar="NAME",
        help=f"only this arm (repeatable; plain stays): {', '.join(a.name for a in ARMS)}",
    )  # fmt: skip
    parser.add_argument(
        "--kv", action="append", type=int, metavar="N", help="only this KV length of the decode chains"
    )
    parser.add_argument(
        "--sweep", action="store_true",
        help="vary blocks/SM, registers and the tail of compute24, and the geometry of the ring chains",
    )  # fmt: skip
    parser.add_argument("--tune", action="store_true", help="measure the ring chains' geometries, no more")


def stem(args: argparse.Namespace) -> str:
    """File name of a run's report."""
    return "l2-tune" if args.tune else "l2"


def listing() -> list[str]:
    """What --list prints: ids of cases, variants and bars."""
    lines = [f"case     {name:18} {what}" for name, what in CHAINS.items()]
    lines += [f"variant  {a.name:18} {a.what}" for a in ARMS]
    for name, read in READS.items():
        lines.append(f"variant  {name:18} a chain of plain reads by {read.kernel}, launched as {read.arm}")
    return [*lines, *(f"bar      {c.bar}" for c in CONTESTS), f"bar      {TARGETS}"]
