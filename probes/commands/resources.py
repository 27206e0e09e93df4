"""python -m probes resources: what every kernel costs on the recorded targets, from the compilers.

Writes core/recorded/resources.toml: registers, shared memory and spills of each kernel, backend and
target, with the digest of the sources they came from. Needs nvcc and the Numba compiler wheels, no GPU.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from probes.core.types import Offline

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
    args = p.parse_args(argv)
    from probes import cli

    return cli.guarded(lambda: _work(args.check))


def collect() -> str:
    """The file's text, compiled afresh. Raises Unavailable without a toolchain."""
    from kernels_cu import build
    from kernels_numba import compile as numba_compile
    from probes import cli, sources
    from probes.device import resources
    from probes.report.provenance import versions

    rows, digests = [], {}
    for arch in (*ARCHS, *OLDER):
        rows += build.offline("harness.cu", arch) + numba_compile.offline("harness", arch)
    for name in cli.PROBES:
        for arch in ARCHS:
            for stem in cli.stems(name):
                rows += build.offline(f"{stem}.cu", arch) + numba_compile.offline(stem, arch)
            for n in getattr(cli.probe(name), "BOUNDS_RECORDED", ()):
                held = build.offline(f"{name}.cu", arch, n) + numba_compile.offline(name, arch, n)
                rows += [replace(r, name=f"{r.name}@{n}") for r in held]
        if not hasattr(cli.probe(name), "NEEDS"):  # what a whole probe needs
            for arch in OLDER:
                for stem in cli.stems(name):
                    rows += _that_run(stem, arch)
        for backend in ("cu", "numba"):
            digests[f"{name}.{backend}"] = sources.digest(name, backend=backend)
    nvcc = build.compiler_version()
    tool = {"nvcc": nvcc, **{k: v for k, v in versions().items() if k in ("numba", "numba-cuda")}}
    return resources.dump_resources(rows, resources.ResourcesHead(digests, tool))


def _that_run(stem: str, arch: str) -> list[Offline]:
    """Resources of one file's kernels, as far as a GPU of this target has their instructions."""
    from kernels_cu import build
    from kernels_numba import compile as numba_compile
    from probes.device import pipeline
    from probes.device.facts import compute_capability

    made = build.offline(f"{stem}.cu", arch)
    able = [r for r in made if pipeline.since(r.name) <= compute_capability(arch)]  # the others are empty
    return able + numba_compile.offline(stem, arch)


def _work(check: bool) -> int:
    from probes.core.types import BadInput
    from probes.device import resources
    from probes.report import store
    from probes.verdict import record

    path = Path(record.__file__).with_name(resources.RESOURCES_FILE)
    text = collect()
    if check:
        if (
            not path.exists()
            or resources.parse_resources(path.read_text())[1] != resources.parse_resources(text)[1]
        ):
            raise BadInput(f"{path.name} is not what the compilers say now; run: python -m probes resources")
        print(f"{path.name} is what the compilers say")
        return 0
    store.write_text(path, text)
    print(f"wrote {path.name}")
    return 0
