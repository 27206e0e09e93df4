"""python -m probes resources: what every kernel costs on the recorded targets, from the compilers.

Writes device/resources.toml: registers, shared memory and spills of each kernel, backend and target, with the
digest of its sources. Needs nvcc and the Numba compiler wheels, no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from kernels_cu import build
from kernels_numba import compile as numba_compile
from probes import cli
from probes.core import children, environment, flags
from probes.core.digest import plain_json
from probes.core.types import BACKENDS, BadInput, Unavailable
from probes.device import pipeline
from probes.device import resources as recorded
from probes.device.facts import compute_capability
from probes.engine import digests as keys
from probes.engine import probe
from probes.engine.compiling import Asked, compile_all
from probes.report import files
from probes.report.provenance import versions
from probes.verdict import bars

ARCHS = ("sm_90", "sm_121")
OLDER = ("sm_80", "sm_89")  # they lack some instructions: only the kernels that they can run


def main(argv: list[str]) -> int:
    """Compile and write; returns the exit code."""
    text = (__doc__ or "").partition("\n")[0]
    p = flags.Parser(prog="python -m probes resources", description=text)
    for flag, said in (
        ("--check", "compile and compare with the recorded file; write nothing"),
        ("--digests", "print the digests of reports and sources; no more"),
        ("--built", "compile all, and print where each binary lies; no more"),
    ):
        p.add_argument(flag, action="store_true", help=said)
    cli.add_build_timeout(p)
    environment.settle(os.environ, read="numba" in sys.modules)  # before Numba reads it
    return cli.guarded(lambda: _work(p.parse_args(argv)))


def digests() -> dict[str, dict[str, str]]:
    """What committed reports ("nvidia-h200/l1"), bars ("l1") and sources ("l1.cu") hash to, as they stand.

    "launches" holds each report's launch rows as JSON.
    """
    probes = probe.names()
    found = [p for name in probes for p in sorted(Path("out").glob(f"*/{name}*.json"))]
    files = {f"{p.parent.name}/{p.stem}": p for p in found if p.parent.name not in ("runs", "build")}
    return {
        "reports": {name: keys.report(p.stem, p.parent.name) for name, p in files.items()},
        "launches": {name: plain_json(keys.launches(p.stem, p.parent.name)) for name, p in files.items()},
        "bars": {name: bars.bars_sha256(name) for name in probes},
        "sources": {f"{name}.{b}": keys.sources(name, backend=b) for name in probes for b in BACKENDS},
    }


def wanted() -> list[tuple[str, str, int]]:
    """(kernel file, target, blocks per SM asked for or 0) of everything that is recorded."""
    found = [("harness", arch, 0) for arch in (*ARCHS, *OLDER)]
    for name in probe.names():
        table = probe.table(name)
        found += [(name, arch, n) for arch in ARCHS for n in table.BOUNDS_RECORDED]
        archs = (*ARCHS, *OLDER) if table.NEEDS[0] == (0, 0) else ARCHS  # what a whole probe needs
        found += [(stem, arch, 0) for arch in archs for stem in table.STEMS]
    return found


def _compiled() -> list[tuple[str, str, int]]:
    """All that is wanted, compiled by as many processes as there are cores. Raises Unavailable."""
    found = wanted()
    for arch in dict.fromkeys(arch for _, arch, _ in found):
        mine = [Asked(s, tuple(numba_compile.able(s, arch)), n) for s, a, n in found if a == arch]
        for why in compile_all(mine, arch).values():
            raise Unavailable(why)
    return found


def built() -> list[tuple[str, str, int, str]]:
    """(backend, target, blocks per SM, binary's path) of every recorded kernel. Raises Unavailable."""
    found = []
    for stem, arch, n in _compiled():
        found.append(("cu", arch, n, str(build.library(f"{stem}.cu", arch, n).resolve())))
        made = numba_compile.compiled(stem, numba_compile.able(stem, arch), arch, n)
        found += [("numba", arch, n, str(path.resolve())) for path in made.values()]
    return found


def collect() -> str:
    """The file's text, compiled afresh. Raises Unavailable without a toolchain."""
    rows = []
    for stem, arch, n in _compiled():
        made = [*build.offline(f"{stem}.cu", arch, n), *numba_compile.offline(stem, arch, n)]
        able = [r for r in made if pipeline.since(r.name) <= compute_capability(arch)]
        rows += [replace(r, name=f"{r.name}@{n}") if n else r for r in able]
    nvcc = build.compiler_version()
    tool = {"nvcc": nvcc, **{k: v for k, v in versions().items() if k in ("numba", "numba-cuda")}}
    return recorded.dump_resources(rows, recorded.ResourcesHead(digests()["sources"], tool))


def _work(args: argparse.Namespace) -> int:
    children.limit(args.build_timeout)
    if args.digests or args.built:
        print(json.dumps(digests() if args.digests else built()))
        return 0
    path = Path(recorded.__file__).with_name(recorded.RESOURCES_FILE)
    if not args.check:
        files.check_writable(path)
    text, parse = collect(), recorded.parse_resources
    if not args.check:
        files.write(path, text)
    elif not path.exists() or parse(path.read_text())[1] != parse(text)[1]:
        raise BadInput(f"{path.name} is not what the compilers say now; run: python -m probes resources")
    print(f"{path.name} is what the compilers say" if args.check else f"wrote {path.name}")
    return 0
