"""The flags that every probe shares, and what no run could honour of them."""

from __future__ import annotations

import argparse
from pathlib import Path

from probes.core.types import BadInput
from probes.registry import PROBES, probe

WINDOWS, QUICK_WINDOWS = 12, 8
COMMANDS = "replay, selfcheck, readme, resources (each has its --help)"


def folder(text: str) -> Path:
    """A flag's folder; '' would be the one that the command runs in."""
    if not text:
        raise argparse.ArgumentTypeError(f"must name a folder, got {text!r}")
    return Path(text)


def parser(name: str) -> argparse.ArgumentParser:
    """Flags of one probe; of all together for name ''."""
    module = probe(name) if name else None
    text = PROBES[name] if name else f"every probe, one summary table; or, in place of flags: {COMMANDS}"
    p = argparse.ArgumentParser(
        prog=f"python -m probes{'.' + name if name else ''}",
        description=text[0].upper() + text[1:],
        allow_abbrev=False,
        epilog="exit codes: 0 decided, 1 a fault of the suite, 2 bad input, 3 INCONCLUSIVE, 130 stopped",
    )
    p.add_argument("--list", action="store_true", help="print cases, variants and bars, and stop")
    p.add_argument("--mode", choices=["measure", "predict"], help="default: measure where there is a GPU")
    p.add_argument("--device", type=int, default=0, metavar="N", help="GPU index (default 0)")
    p.add_argument(
        "--device-profile",
        default="gb10",
        metavar="NAME",
        help="GPU to predict for: gb10 (default), h200, ...",
    )
    p.add_argument(
        "--backend", action="append", choices=["cu", "numba"], help="only this backend (repeatable)"
    )
    p.add_argument("--quick", action="store_true", help="fewer cases and windows: under 20 s on a GPU")
    p.add_argument(
        "--windows",
        type=int,
        metavar="N",
        help=f"ABBA windows per case (default {WINDOWS}; {QUICK_WINDOWS} with --quick)",
    )
    p.add_argument(
        "--processes", type=int, default=1, metavar="N", help="repeat in N fresh processes and pool them"
    )
    p.add_argument("--seed", type=int, default=0, help="of weights, orders and intervals (default 0)")
    p.add_argument("--blocks-per-sm", type=int, metavar="N", help="hold every kernel to N blocks per SM")
    p.add_argument(
        "--counters",
        action="store_true",
        help="add the profiler's DRAM bytes, durations, DRAM and issue rates (needs ncu)",
    )
    p.add_argument(
        "--out",
        type=folder,
        default=Path("out") / "runs",
        metavar="DIR",
        help="folder of this run's reports (default out/runs)",
    )
    p.add_argument("--json", type=Path, metavar="PATH", help="write the rows here instead")
    p.add_argument("--md", type=Path, metavar="PATH", help="write the report as Markdown here instead")
    p.add_argument("--record", action="store_true", help="replace the committed report under out/<device>/")
    p.add_argument("-q", "--quiet", action="store_true", help="no progress lines, verdicts only")
    p.add_argument("--once", action="store_true", help=argparse.SUPPRESS)  # a child of --counters
    if module:
        p.add_argument("--case", action="append", metavar="ID", help="only this case (repeatable)")
        module.add_flags(p)
    return p


def check(args: argparse.Namespace) -> None:
    """BadInput for flags that no run could honour."""
    for flag, value, least in (
        ("--processes", args.processes, 1),
        ("--windows", args.windows, 2),
        ("--blocks-per-sm", args.blocks_per_sm, 1),
        ("--seed", args.seed, 0),
        ("--device", args.device, 0),
    ):
        if value is not None and not least <= value < 2**31:
            bound = f"at least {least}" if value < least else "below 2^31"
            raise BadInput(f"{flag} must be {bound}, got {value}")
    if args.blocks_per_sm is not None and args.blocks_per_sm > 32:
        raise BadInput(f"--blocks-per-sm must be at most 32, got {args.blocks_per_sm}")
    if args.record and (args.json or args.md):
        raise BadInput("--record says where the report goes: leave out --json and --md")
    for flag, path in (("--json", args.json), ("--md", args.md)):
        if path is not None and not path.name:
            raise BadInput(f"{flag} must name a file, got {str(path)!r}")
