"""python -m probes resources: what every kernel costs on the recorded targets, from the compilers.

Writes core/recorded/resources.toml: registers, shared memory and spills of each kernel, backend and
target, with the digest of the sources they came from. Needs nvcc and the Numba compiler wheels, no GPU.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

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
    from probes import cli

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
    from probes import cli, sources
    from probes.core import verdict

    files = [
        p
        for name in cli.PROBES
        for p in sorted(Path("out").glob(f"*/{name}*.json"))
        if p.parent.name not in ("runs", "build")
    ]
    names = [f"{p.parent.name}/{p.stem}" for p in files]
    with sources.noted() as launches:
        reports = [cli.digest(p.stem, p.parent.name) for p in files]
    return {
        "reports": dict(zip(names, reports, strict=True)),
        "launches": dict(zip(names, launches, strict=True)),
        "bars": {name: verdict.bars_sha256(name) for name in cli.PROBES},
        "sources": {
            f"{name}.{backend}": sources.digest(name, backend=backend)
            for name in cli.PROBES
            for backend in ("cu", "numba")
        },
    }


def wanted() -> list[tuple[str, str, int]]:
    """(kernel file, target, blocks per SM asked for or 0) of everything that is recorded."""
    from probes import cli

    found = [("harness", arch, 0) for arch in (*ARCHS, *OLDER)]
    for name in cli.PROBES:
        found += [(stem, arch, 0) for arch in ARCHS for stem in cli.stems(name)]
        found += [(name, arch, n) for arch in ARCHS for n in getattr(cli.probe(name), "BOUNDS_RECORDED", ())]
        if not hasattr(cli.probe(name), "NEEDS"):  # what a whole probe needs
            found += [(stem, arch, 0) for arch in OLDER for stem in cli.stems(name)]
    return found


def _compiled() -> list[tuple[str, str, int]]:
    """All that is wanted, compiled by as many processes as there are cores. Raises Unavailable."""
    from kernels_numba import compile as numba_compile
    from probes.compiling import Wanted, compile_all
    from probes.core.types import Unavailable

    found = wanted()
    for arch in dict.fromkeys(arch for _, arch, _ in found):
        mine = [Wanted(s, tuple(numba_compile.able(s, arch)), n) for s, a, n in found if a == arch]
        for why in compile_all(mine, arch).values():
            raise Unavailable(why)
    return found


def built() -> list[tuple[str, str, int, str]]:
    """(backend, target, blocks per SM, binary's path) of every recorded kernel. Raises Unavailable."""
    from kernels_cu import build
    from kernels_numba import compile as numba_compile

    found = []
    for stem, arch, n in _compiled():
        found.append(("cu", arch, n, str(build.library(f"{stem}.cu", arch, n).resolve())))
        made = numba_compile.compiled(stem, numba_compile.able(stem, arch), arch, n)
        found += [("numba", arch, n, str(path.resolve())) for path in made.values()]
    return found


def collect() -> str:
    """The file's text, compiled afresh. Raises Unavailable without a toolchain."""
    from kernels_cu import build
    from kernels_numba import compile as numba_compile
    from probes.core import recorded, ring
    from probes.core.device import compute_capability
    from probes.core.provenance import versions

    rows = []
    for stem, arch, n in _compiled():
        able = [
            r for r in build.offline(f"{stem}.cu", arch, n) if ring.since(r.name) <= compute_capability(arch)
        ]
        made = able + numba_compile.offline(stem, arch, n)
        rows += [replace(r, name=f"{r.name}@{n}") if n else r for r in made]
    nvcc = build.compiler_version()
    tool = {"nvcc": nvcc, **{k: v for k, v in versions().items() if k in ("numba", "numba-cuda")}}
    return recorded.dump_resources(rows, recorded.ResourcesHead(digests()["sources"], tool))


def _work(check: bool) -> int:
    from probes.core import recorded, store
    from probes.core.types import BadInput

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
