"""L2: does programmatic dependent launch (PDL) make a decode chain in a CUDA graph faster?

    python -m probes.l2                 every chain and arm, both backends; predicted where there is no GPU
    python -m probes.l2 --case decode13 --kv 3254 --arm pdl_late_trigger
    python -m probes.l2 --counters      also each kernel alone under the profiler
    python -m probes.l2 --sweep         also compute24 over blocks/SM, registers and tails, looking for a tax,
                                        and the ring chains over their geometry

The record (GB10): no. Neutral on a bandwidth chain, 2.8 % slower on a compute chain, -2.6 % in situ, waiting
at entry. Decided on decode13, the 13 kernels of a layer, against the bar `l2.pdl` of core/bars.toml at both
KV lengths; every other arm has its own row. An arm says where the kernels wait for their predecessor (see
kernels_cu/pdl.cuh), whether they let their successor start at once (`_trigger`), when their last weights
were asked for (`_tail`) or when they end, and whether a graph is replayed. The ring chains stream their
matrices through shared memory with room left for the successor's first rows; their bars are
`l2.ring_bandwidth` and `l2.ring_decode`, for pdl_late_tail, and `l2.chain` says how near they come to
chains that only read. A time is of one chain; an interface is the step from one launch to the next.
Overlap: how long before its predecessor's last block ended a kernel's first one started; negative is a gap.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from probes.core.chains import CHAIN
from probes.core.types import BadInput, LaunchConfig

if TYPE_CHECKING:
    import argparse

CASES: dict[str, str] = {
    "bandwidth24": f"{CHAIN} launches, each reads 58 MB of its own",
    "compute24": f"{CHAIN} launches of 1.5 waves of integer multiply-adds",
    "decode13": "the 13 kernels of a 14B decode layer, layer after layer",
    "ffn_down24": f"{CHAIN} ring kernels on a 14B ffn_down, 58 MB each",
    "attn_v24": f"{CHAIN} ring kernels on a 14B attn_v, 4.3 MB each; with --sweep, or named",
    "decode13_ring": "decode13 with its four matrices through ring kernels",
    "empty": f"{CHAIN} empty launches, and a pair: the launch gap itself",
}
KVS = (128, 3254)
"""KV lengths of a decode layer, as recorded; the cache is f16."""

DECODE = ("decode13", "decode13_ring")
RING = ("ffn_down24", "attn_v24", "decode13_ring")
"""The chains of decode layers, which have a KV length; those of ring kernels, which need shared memory."""

Trigger = Literal["end", "start", "tail"]
"""When a kernel lets its successor start."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to launch a chain."""

    name: str
    kind: str
    """Which compiled kind of each kernel: plain, entry or late."""
    pdl: bool
    trigger: Trigger = "end"
    graph: bool = True
    env: Mapping[str, str] | None = None
    """An environment of its own: PROBES_PDL=0 is the flip that decides; None is the caller's."""
    what: str = ""


OFF = {"PROBES_PDL": "0"}
ARMS: tuple[Arm, ...] = (
    Arm("plain", "plain", False, what="a graph of ordinary launches: the baseline"),
    Arm("plain_aa", "plain", False, what="the baseline again: what no lever at all looks like"),
    Arm("plain_ab", "plain", False, what="and once more"),
    Arm("pdl_entry", "entry", True, what="waits first, its end lets the successor start: as recorded"),
    Arm("pdl_entry_trigger", "entry", True, "start", what="waits first, lets the successor start at once"),
    Arm("pdl_late", "late", True, what="waits after its weights are asked for"),
    Arm("pdl_late_trigger", "late", True, "start", what="the same, and lets the successor start at once"),
    Arm("pdl_late_tail", "late", True, "tail", what="and lets it start when the last weights are asked for"),
    Arm("pdl_entry_off", "entry", True, env=OFF, what="pdl_entry's kernels under PROBES_PDL=0: the flip"),
    Arm("pdl_late_off", "late", True, "start", env=OFF, what="pdl_late_trigger's under PROBES_PDL=0"),
    Arm("eager", "plain", False, graph=False, what="no graph: launch after launch"),
    Arm("eager_pdl", "late", True, "start", graph=False, what="no graph, launches as pdl_late_trigger"),
)
BASELINE = "plain"
AA = ("plain", "plain_aa", "plain_ab")
RECORDED = "pdl_entry"
JUDGED = ("pdl_entry", "pdl_entry_trigger", "pdl_late", "pdl_late_trigger", "pdl_late_tail")
"""Arms held against a bar; the recorded one first."""

BARS = {"decode13": "l2.pdl", "ffn_down24": "l2.ring_bandwidth", "decode13_ring": "l2.ring_decode"}
"""The chains that are judged, and each one's bar."""

TARGETS = "l2.chain"
"""Figures that the ring chains are to reach, beside a chain that only reads the same bytes."""

READS = {"read_chain": "plain", "read_chain_pdl": "pdl_late_trigger"}
"""Chains that only read a ring chain's bytes, and the arm that each is launched as."""

PROFILED = "profiled_"
"""Rows of --counters begin so: one launch alone of `<kernel>_plain` or `_late`, or a plain `_read` beside."""

MISSING = "proof missing: "
"""A measured row's notes that begin so keep its arm from a verdict."""

NEEDS = "programmatic dependent launch needs sm_90 or later"

SWEEP_BLOCKS = (1, 2, 4, 8)
SWEEP_KERNELS = ("compute", "wide")
SWEEP_WAVES = (0.5, 1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5)
SWEEP_ARMS = ("plain", "plain_aa", "pdl_entry", "pdl_entry_trigger", "pdl_late_trigger")
SWEEP_WINDOWS = 8


def arm(name: str) -> Arm:
    """The arm of that name."""
    return next(a for a in ARMS if a.name == name)


def dispatch(a: Arm, env: Mapping[str, str] | None = None) -> bool:
    """Whether an arm's launches carry the PDL attribute; PROBES_PDL=0 opts out, in the same binary."""
    own = a.env if a.env is not None else os.environ if env is None else env
    return a.pdl and own.get("PROBES_PDL") != "0"


def runs(a: Arm, case: str) -> bool:
    """Whether an arm runs on a chain: no eager or off arms on a ring chain, no tail in an empty kernel."""
    if case in RING:
        return a.name in (*AA, *JUDGED)
    return case != "empty" or a.trigger != "tail"


def launches(case: str) -> int:
    """Launches of one chain."""
    return 13 if case in DECODE else CHAIN


SWEEP_CASES = ("attn_v24",)
"""Cases that a run takes up with --sweep only, or by name: many short launches, and no verdict."""

QUICK_CASES = ("bandwidth24",)
"""What --quick runs: the chain that shows the gain; no verdict, as decode13 decides that."""


@dataclass(frozen=True, slots=True)
class Case:
    """One chain to run; kv is the KV length of a decode layer, None for the others."""

    id: str
    kv: int | None = None


def cases(args: argparse.Namespace) -> list[Case]:
    """The chains that the flags ask for. Raises BadInput for a name or a KV length that is not there."""
    import difflib

    from probes.l2_chains import decode_steps

    for name in args.case or ():
        if name not in CASES:
            close = difflib.get_close_matches(name, CASES, n=3, cutoff=0.3) or list(CASES)
            raise BadInput(f"there is no case {name!r}; did you mean {', '.join(close)}?")
    whole = [c for c in CASES if args.sweep or c not in SWEEP_CASES]
    names = list(dict.fromkeys(args.case or (QUICK_CASES if args.quick else whole)))
    if args.counters and names == ["empty"]:
        raise BadInput("--counters profiles the chains' kernels, and empty ones do nothing: name a --case")
    if args.kv and not set(DECODE) & set(names):
        raise BadInput("--kv is the KV length of decode13 and decode13_ring, which --case leaves out")
    if args.sweep and not {"compute24", *RING} & set(names):
        raise BadInput("--sweep varies compute24 and the ring chains, which --case or --quick leaves out")
    for name in args.arm or ():
        if not any(runs(arm(name), c) for c in names):
            raise BadInput(f"--arm {name} does not run on {', '.join(names)}")
    out: list[Case] = []
    for name in names:
        for kv in dict.fromkeys(args.kv or KVS) if name in DECODE else (None,):
            if kv is not None:
                decode_steps(kv)
            out.append(Case(name, kv))
    return out


def arms(args: argparse.Namespace, case: str) -> list[Arm]:
    """The arms of a chain that the flags ask for; plain and its repetitions are always among them."""
    return [a for a in ARMS if runs(a, case) and (not args.arm or a.name in args.arm or a.name in AA)]


def child_flags(args: argparse.Namespace) -> list[str]:
    """L2's own flags again, for a child process."""
    out = [x for name in args.arm or () for x in ("--arm", name)]
    out += [x for kv in args.kv or () for x in ("--kv", str(kv))]
    return [*out, *(["--sweep"] if args.sweep else [])]


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
    parser.set_defaults(child_flags=child_flags)


def listing() -> list[str]:
    """What --list prints: ids of cases, variants and bars."""
    lines = [f"case     {name:18} {what}" for name, what in CASES.items()]
    lines += [f"variant  {a.name:18} {a.what}" for a in ARMS]
    lines += [f"variant  {name:18} a chain of plain reads, launched as {of}" for name, of in READS.items()]
    return [*lines, *(f"bar      {name}" for name in (*BARS.values(), TARGETS))]


def digest() -> str:
    """SHA-256 of what L2 measures on any device: kernels of both backends, flags, launch tables."""
    return report_digest("l2", "")


def report_digest(file: str, device: str) -> str:
    """The same for one device's report: with its tuned geometries, the rule beside them, and the sweep's."""
    from probes import l2_chains, l2_ring, l2_ring_sweep, sources
    from probes.core import tuning

    steps = [*l2_chains.stream_steps(), *l2_chains.compute_steps(1), *l2_chains.empty_steps()]
    for kv in KVS:
        steps += l2_chains.decode_steps(kv)
    launches = [(s.name, s.args, LaunchConfig(s.grid, s.block)) for s in steps]
    arms_ = [(a.name, a.kind, a.pdl, a.trigger, a.graph, dict(a.env or {})) for a in ARMS]
    table = tuning.table(device)
    rings = [(case, dict(rows)) for case, rows in (table.l2 if table else {}).items()]
    rule = [l2_ring.MATRICES, l2_ring.SHARE, l2_ring.DEFAULT_ROWS, l2_ring_sweep.POINTS, READS]
    return sources.digest("l2", [*launches, *arms_, l2_chains.COMPUTE_WAVES, *rings, *rule])


def main(argv: list[str] | None = None) -> int:
    """Run the probe; returns the exit code."""
    from probes import cli

    return cli.main("l2", argv)


if __name__ == "__main__":
    sys.exit(main())
