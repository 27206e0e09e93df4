"""python -m probes resources: what every kernel costs on the recorded targets, from the compilers.

Writes device/resources.toml: registers, shared memory and spills of each kernel, backend and
target, with the digest of the sources they came from. Needs nvcc and the Numba compiler wheels, no GPU.
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
from probes.core import environment
from probes.core.types import BadInput, Unavailable
from probes.device import pipeline
from probes.device import resources as recorded
from probes.device.facts import compute_capability
from probes.engine import digests as keys
from probes.engine import probe
from probes.engine.compiling import Wanted, compile_all
from probes.report import store
from probes.report.provenance import versions
from probes.verdict import bars

ARCHS = ("sm_90", "sm_121")
OLDER = ("sm_80", "sm_89")
"""Targets of device profiles that lack some instructions: of these only the kernels that they can run."""


def main(argv: list[str]) -> int:
    """Compile and write; returns the exit code."""
    p = argparse.ArgumentParser(
        prog="python -m probes resources", description=(__doc__ or "").splitlines()[0]
    )
    p.add_argument(
        "--check", action="store_true", help="compile and compare with the recorded file; write nothing"
    )
    p.add_argument("--digests", action="store_true", help="print the digests of reports and sources; no more")
    p.add_argument(
        "--built", action="store_true", help="compile all, and print where each binary lies; no more"
    )
    args = p.parse_args(argv)
    environment.settle(os.environ, read="numba" in sys.modules)  # before Numba reads it
    if args.digests or args.built:
        return cli.guarded(lambda: _tell(digests() if args.digests else built()))
    return cli.guarded(lambda: _work(args.check))


def _tell(value: object) -> int:
    print(json.dumps(value))
    return 0


def digests() -> dict[str, dict[str, str]]:
    """What committed reports ("nvidia-h200/l1"), bars ("l1") and sources ("l1.cu") hash to, as they stand.

    "launches" holds each report's launch rows as JSON.
    """
    files = [
        p
        for name in probe.names()
        for p in sorted(Path("out").glob(f"*/{name}*.json"))
        if p.parent.name not in ("runs", "build")
    ]
    names = [f"{p.parent.name}/{p.stem}" for p in files]
    with keys.noted() as launches:
        reports = [keys.report(p.stem, p.parent.name) for p in files]
    return {
        "reports": dict(zip(names, reports, strict=True)),
        "launches": dict(zip(names, launches, strict=True)),
        "bars": {name: bars.bars_sha256(name) for name in probe.names()},
        "sources": {
            f"{name}.{backend}": keys.sources(name, backend=backend)
            for name in probe.names()
            for backend in ("cu", "numba")
        },
    }


def wanted() -> list[tuple[str, str, int]]:
    """(kernel file, target, blocks per SM asked for or 0) of everything that is recorded."""
    found = [("harness", arch, 0) for arch in (*ARCHS, *OLDER)]
    for name in probe.names():
        found += [(stem, arch, 0) for arch in ARCHS for stem in probe.table(name).STEMS]
        found += [(name, arch, n) for arch in ARCHS for n in probe.table(name).BOUNDS_RECORDED]
        if probe.table(name).NEEDS[0] == (0, 0):  # what a whole probe needs
            found += [(stem, arch, 0) for arch in OLDER for stem in probe.table(name).STEMS]
    return found


def _compiled() -> list[tuple[str, str, int]]:
    """All that is wanted, compiled by as many processes as there are cores. Raises Unavailable."""
    found = wanted()
    for arch in dict.fromkeys(arch for _, arch, _ in found):
        mine = [Wanted(s, tuple(numba_compile.able(s, arch)), n) for s, a, n in found if a == arch]
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
        able = [
            r
            for r in build.offline(f"{stem}.cu", arch, n)
            if pipeline.since(r.name) <= compute_capability(arch)
        ]
        made = able + numba_compile.offline(stem, arch, n)
        rows += [replace(r, name=f"{r.name}@{n}") if n else r for r in made]
    nvcc = build.compiler_version()
    tool = {"nvcc": nvcc, **{k: v for k, v in versions().items() if k in ("numba", "numba-cuda")}}
    return recorded.dump_resources(rows, recorded.ResourcesHead(digests()["sources"], tool))


def _work(check: bool) -> int:
    path = Path(recorded.__file__).with_name(recorded.RESOURCES_FILE)
    text = collect()
    if check:
        if (
            not path.exists()
            or recorded.parse_resources(path.read_text())[1] != recorded.parse_resources(text)[1]
        ):
            raise BadInput(f"{path.name} is not what the compilers say now; run: python -m probes resources")
        print(f"{path.name} is what the compilers say")
        return 0
    store.write_text(path, text)
    print(f"wrote {path.name}")
    return 0
