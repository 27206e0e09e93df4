"""Numba kernel -> PTX -> cubin, on any machine: no GPU and no driver are needed.

One path serves the GPU run and the offline account of registers, so both speak of the same machine code:
numba.cuda.compile makes PTX for the target, nvJitLink (through cuda.core) turns it into a cubin, and the
entry point gets the kernel's plain name. Cubins are cached in out/build/<hash>/ under a hash of what the
kernel uses, its target and bounds, the compilers' own versions and the environment that they read; on a
hit Numba is not even imported.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from kernels_numba import target
from probes.core import cubin
from probes.core.cache import cached, entry, whole
from probes.core.closure import python_closure
from probes.core.digest import digest
from probes.core.settings import first_error, settings
from probes.core.types import BadInput, Binary, Offline, ProbeError, Progress, Unavailable
from probes.device import launch_bounds, pipeline
from probes.formats.layouts import LAYOUTS, Layout

HERE = Path(__file__).parent
ABI = {"abi": "numba", "output": "ptx"}
_PACKAGES = ("numba", "numba-cuda", "cuda-core", "cuda-bindings", "llvmlite")


@cache
def versions() -> dict[str, str]:
    """Versions of what compiles: Python packages, and NVVM and nvJitLink as the loaded libraries say."""
    found = {}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    for name, ask in (("nvvm", _nvvm), ("nvjitlink", _nvjitlink)):
        try:
            found[name] = ask()
        except _no_library() as error:  # then it cannot compile either, and says so
            found[name] = f"absent ({type(error).__name__})"
    if found["nvjitlink"].startswith("absent"):  # cuda-core then links by the driver, where there is one
        with suppress(*_no_library()):
            from cuda.bindings import driver

            found["driver"] = str(driver.cuDriverGetVersion()[1])
    return found


def _nvvm() -> str:
    from cuda.bindings import nvvm

    library, ir = nvvm.version(), nvvm.ir_version()
    return f"{_dotted(library)}, IR {_dotted(ir[:2])}, debug {_dotted(ir[2:])}, {_bytes('nvvm')}"


def _nvjitlink() -> str:
    from cuda.bindings import nvjitlink

    return f"{_dotted(nvjitlink.version())}, {_bytes('nvJitLink')}"


def _dotted(numbers: Iterable[int]) -> str:
    return ".".join(map(str, numbers))


def _bytes(library: str) -> str:
    """A library's size: releases that call themselves by one version differ in it."""
    from cuda.pathfinder import load_nvidia_dynamic_lib

    path = load_nvidia_dynamic_lib(library).abs_path
    return f"{Path(path).stat().st_size if path else 0} bytes"


def _no_library() -> tuple[type[Exception], ...]:
    """What is raised where a compiler's library is missing, does not load or refuses its input."""
    found: list[type[Exception]] = [ImportError, RuntimeError, OSError]
    with suppress(ImportError):
        from cuda.bindings.nvvm import nvvmError

        found.append(nvvmError)
    with suppress(ImportError):
        from cuda.bindings.nvjitlink import nvJitLinkError

        found.append(nvJitLinkError)
    return tuple(found)


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


def _one(name: str, function: Any, signature: Any, arch: str, min_blocks: int) -> bytes:
    """Compile one kernel to a cubin. Raises Unavailable where the compilers cannot."""
    blocks = launch_bounds.min_blocks(name, min_blocks)
    threads = getattr(function, "max_threads", 256)
    held = (threads, blocks) if blocks else threads
    try:
        from cuda.core import Linker, LinkerOptions, ObjectCode
        from numba import cuda

        ptx, _ = cuda.compile(
            function, signature, cc=_capability(arch), device=False, launch_bounds=held, **ABI
        )
        symbol = re.search(r"\.entry (\w+)\(", ptx)
        assert symbol, "a compiled kernel has an entry point"
        code = ObjectCode.from_ptx(ptx.replace(symbol[1], name).encode())
        return bytes(Linker(code, options=LinkerOptions(arch=arch)).link("cubin").code)
    except _no_library() as error:  # also: a target that NVVM does not know, PTX newer than the linker
        raise Unavailable(
            f"Numba cannot compile {name} for {arch}: {first_error(str(error))} "
            "(the compiler wheels come with: pip install '.[offline]')"
        ) from error


def _kernels(module: str, layouts: tuple[Layout, ...]) -> dict[str, tuple[Any, Any]]:
    found = importlib.import_module(f"kernels_numba.{module}")
    kernels: dict[str, tuple[Any, Any]] = found.kernels(layouts) if _by_layout(module) else found.kernels()
    return kernels


def _by_layout(module: str) -> bool:
    """Whether a module holds each kernel in every layout of the table."""
    return module.partition("_")[0] == "l1"


@cache
def names(module: str) -> tuple[str, ...]:
    """The kernels that one module holds; nothing is compiled."""
    return tuple(sorted(_kernels(module, LAYOUTS)))


def _key(module: str, name: str, arch: str, min_blocks: int, layouts: tuple[Layout, ...]) -> list[str]:
    """What decides one kernel's code: in this repository, for this target, by these compilers."""
    table = repr(layouts) if _by_layout(module) else ""
    held = str(launch_bounds.min_blocks(name, min_blocks))
    made_by = [repr(versions()), repr(settings("numba"))]
    return ["numba", name, arch, held, table, inputs(module), *made_by]


def missing(module: str, names: Iterable[str], arch: str, min_blocks: int = 0) -> list[str]:
    """Those of the named kernels that the cache lacks."""
    return [n for n in names if not whole(entry(_key(module, n, arch, min_blocks, LAYOUTS)), f"{n}.cubin")]


def able(module: str, arch: str) -> list[str]:
    """Those that `arch` has the instructions of."""
    return [n for n in names(module) if pipeline.since(n) <= _capability(arch)]


def compiled(
    module: str,
    names: Iterable[str],
    arch: str,
    min_blocks: int = 0,
    layouts: tuple[Layout, ...] = LAYOUTS,
    progress: Progress | None = None,
) -> dict[str, Path]:
    """Cubins of the named kernels of one module ('l1', 'harness'), compiled where the cache lacks them.

    Raises Unavailable and BadInput.
    """
    table: dict[str, tuple[Any, Any]] = {}
    out: dict[str, Path] = {}
    for name in names:

        def make(scratch: Path, name: str = name) -> None:
            if os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0"):
                raise Unavailable("NUMBA_ENABLE_CUDASIM is set, and the simulator compiles nothing: unset it")
            if not table:
                if progress:
                    progress(f"compiling Numba kernels of {module} for {arch} (once; cached)")
                try:
                    table.update(_kernels(module, layouts))
                except ImportError as error:
                    if (error.name or "").startswith(("kernels_numba", "probes")):
                        raise  # ours
                    raise Unavailable(f"Numba does not load here: {first_error(str(error))}") from error
            with _target(_capability(arch)):
                made = _one(name, *table[name], arch, min_blocks)
            (scratch / f"{name}.cubin").write_bytes(made)

        key = _key(module, name, arch, min_blocks, layouts)
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
    return [
        Offline(name, "numba", arch, cubin.kernels(path.read_bytes())[name].resources)
        for name, path in compiled(module, able(module, arch), arch, min_blocks).items()
    ]


def work() -> None:
    """What a worker process does: compile the rows (module, names, bound) that standard input names.

    Exits with 2 and the reason as its last line where the compilers cannot.
    """
    asked = json.load(sys.stdin)
    try:
        for module, wanted, min_blocks in asked["rows"]:
            compiled(module, wanted, asked["arch"], min_blocks)
    except ProbeError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
