"""Numba kernel -> PTX -> cubin, on any machine: no GPU and no driver are needed.

One path serves the GPU run and the offline account of registers, so both speak of the same machine
code: numba.cuda.compile makes PTX for the target, nvJitLink (through cuda.core) turns it into a
cubin, and the entry point gets the kernel's plain name. Cubins are cached in out/build/<hash>/ under
a hash of the sources, the layouts' table, the target and the package versions; on a hit Numba is not
even imported.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from kernels_numba import target
from probes.core import bounds, ring
from probes.core.cache import cached, ptxas_resources
from probes.core.closure import python_closure
from probes.core.digest import digest
from probes.core.layouts import LAYOUTS, Layout
from probes.core.types import BadInput, Binary, Offline, Progress, Resources, Unavailable

HERE = Path(__file__).parent
ABI = {"abi": "numba", "output": "ptx"}
_PACKAGES = ("numba", "numba-cuda", "cuda-core", "llvmlite", "nvidia-nvvm", "nvidia-nvjitlink")


def _versions() -> str:
    found = []
    for package in _PACKAGES:
        try:
            found.append(f"{package}={version(package)}")
        except PackageNotFoundError:
            found.append(f"{package}=system")
    return " ".join(found)


@cache
def inputs(module: str) -> str:
    """SHA-256 of all that this repository decides about a module's kernels: what they use, how compiled."""
    text = python_closure(f"kernels_numba.{module}", "kernels", [HERE.parent])
    return digest(text, ABI)


@contextmanager
def _target(capability: tuple[int, int]) -> Iterator[None]:
    """Device functions ask the current device for its capability; tell them the target instead.

    A private hook of numba-cuda 0.30, and the only one: with it nothing here needs a driver.
    """
    from numba.cuda import dispatcher

    class Target:
        compute_capability = capability

    original, before = dispatcher.get_current_device, target.capability
    dispatcher.get_current_device = lambda: Target
    target.capability = capability
    try:
        yield
    finally:
        dispatcher.get_current_device = original
        target.capability = before


def _capability(arch: str) -> tuple[int, int]:
    match = re.fullmatch(r"sm_(\d+)(\d)[af]?", arch)
    if not match:
        raise BadInput(f"a GPU target looks like sm_90, got {arch!r}")
    return int(match[1]), int(match[2])


def _one(name: str, function: Any, signature: Any, arch: str, min_blocks: int) -> tuple[bytes, Resources]:
    """Compile one kernel: its cubin, ptxas' account of registers and spills, the PTX's of shared memory."""
    from cuda.core import Linker, LinkerOptions, ObjectCode
    from numba import cuda

    blocks = bounds.min_blocks(name, min_blocks)
    threads = getattr(function, "max_threads", 256)
    launch_bounds = (threads, blocks) if blocks else threads
    try:
        ptx, _ = cuda.compile(
            function,
            signature,
            cc=_capability(arch),
            device=False,
            **ABI,
            launch_bounds=launch_bounds,
        )
    except (
        ImportError,
        RuntimeError,
        OSError,
    ) as error:  # no NVVM here, or one that does not know the target
        raise Unavailable(
            f"Numba cannot compile {name} for {arch}: {str(error).strip().splitlines()[0]} "
            "(the compiler wheels come with: pip install '.[offline]')"
        ) from error
    entry = re.search(r"\.entry (\w+)\(", ptx)
    assert entry, "a compiled kernel has an entry point"
    ptx = ptx.replace(entry[1], name)
    linker = Linker(
        ObjectCode.from_ptx(ptx.encode()),
        options=LinkerOptions(arch=arch, verbose=True, ptxas_options=["-v"]),
    )
    cubin = linker.link("cubin").code
    smem = shared_bytes(ptx)
    return bytes(cubin), replace(ptxas_resources(linker.get_info_log())[name], smem_bytes=smem)


def shared_bytes(ptx: str) -> int:
    """Static shared memory of a kernel: its variables one after another, each on its alignment."""
    end, widest = 0, 1
    for align, size in re.findall(r"\.shared \.align (\d+) \.b8 \w+\[(\d+)\]", ptx):
        unit = int(align)
        end, widest = -(-end // unit) * unit + int(size), max(widest, unit)
    return -(-end // widest) * widest


def _kernels(module: str, layouts: tuple[Layout, ...]) -> dict[str, tuple[Any, Any]]:
    found = importlib.import_module(f"kernels_numba.{module}")
    by_layout = module.partition("_")[0] == "l1"
    kernels: dict[str, tuple[Any, Any]] = found.kernels(layouts) if by_layout else found.kernels()
    return kernels


@cache
def names(module: str) -> tuple[str, ...]:
    """The kernels that one module holds; nothing is compiled."""
    return tuple(sorted(_kernels(module, LAYOUTS)))


def able(module: str, arch: str) -> list[str]:
    """Those that `arch` has the instructions of."""
    return [n for n in names(module) if ring.since(n) <= _capability(arch)]


def compiled(
    module: str,
    names: Iterable[str],
    arch: str,
    min_blocks: int = 0,
    layouts: tuple[Layout, ...] = LAYOUTS,
    progress: Progress | None = None,
) -> dict[str, Path]:
    """Cubins of the named kernels of one module ('l1', 'harness'), compiled where the cache lacks them.

    Beside each cubin lies resources.json. Raises Unavailable and BadInput.
    """
    table: dict[str, tuple[Any, Any]] = {}
    out: dict[str, Path] = {}
    for name in names:

        def make(scratch: Path, name: str = name) -> None:
            if not table:
                if progress:
                    progress(f"compiling Numba kernels of {module} for {arch} (once; cached)")
                table.update(_kernels(module, layouts))
            with _target(_capability(arch)):
                cubin, resources = _one(name, *table[name], arch, min_blocks)
            (scratch / f"{name}.cubin").write_bytes(cubin)
            (scratch / "resources.json").write_text(json.dumps(asdict(resources)))

        key: list[str | bytes] = [
            "numba",
            module,
            name,
            arch,
            str(bounds.min_blocks(name, min_blocks)),
            repr(layouts),
            _versions(),
            inputs(module),
        ]
        out[name] = cached(key, f"{name}.cubin", make)
    return out


def binaries(
    module: str, names: Iterable[str], arch: str, min_blocks: int = 0, progress: Progress | None = None
) -> dict[str, Binary]:
    """The named kernels as cubins, for the launcher. Raises Unavailable and BadInput."""
    paths = compiled(module, names, arch, min_blocks, progress=progress)
    return {n: Binary(name=n, backend="numba", entry=n, cubin=p.read_bytes()) for n, p in paths.items()}


def offline(module: str, arch: str, min_blocks: int = 0) -> list[Offline]:
    """Resources of every kernel of one module that `arch` has the instructions of; no GPU needed."""
    out = []
    for name, path in compiled(module, able(module, arch), arch, min_blocks).items():
        resources = Resources(**json.loads((path.parent / "resources.json").read_text()))
        out.append(Offline(name, "numba", arch, resources))
    return out
