"""Numba kernel -> PTX -> cubin, on any machine: no GPU and no driver are needed.

numba.cuda.compile makes PTX for the target, nvJitLink (through cuda.core) a cubin. The entry point gets the
kernel's plain name. The GPU run and the offline register counts read the same cubins, cached in
out/build/<hash>/. A hit does not import Numba.
"""

import importlib
import json
import os
import re
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kernels_numba import target
from probes.core import cubin
from probes.core.cache import cached, found
from probes.core.closure import python_closure
from probes.core.digest import digest
from probes.core.settings import first_error, settings
from probes.core.types import Binary, Offline, ProbeError, Progress, Unavailable
from probes.device import launch_bounds, pipeline
from probes.device.facts import compute_capability
from probes.formats.layouts import LAYOUTS, Layout

ABI = {"abi": "numba", "output": "ptx"}
_LIBRARIES = {"nvvm": ("nvvm", "nvvmError"), "nvjitlink": ("nvJitLink", "nvJitLinkError")}
"""Module of cuda.bindings -> its library, its exception."""


@cache
def versions() -> dict[str, str]:
    """Versions of what compiles: Python packages, and NVVM and nvJitLink as the loaded libraries say."""
    found = {}
    for package in ("numba", "numba-cuda", "cuda-core", "cuda-bindings", "llvmlite"):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    for name in _LIBRARIES:
        try:
            found[name] = _library(name)
        except _no_library() as error:  # then it cannot compile either, and says so
            found[name] = f"absent ({type(error).__name__})"
    if found["nvjitlink"].startswith("absent"):  # cuda-core then links by the driver, where there is one
        with suppress(*_no_library()):
            driver = importlib.import_module("cuda.bindings.driver")
            found["driver"] = str(driver.cuDriverGetVersion()[1])
    return found


def _library(name: str) -> str:
    """A library's version and its size: releases that call themselves by one version differ in it."""
    library, finder = (importlib.import_module(f"cuda.{m}") for m in (f"bindings.{name}", "pathfinder"))
    said = ".".join(map(str, library.version()))
    if name == "nvvm":
        said += ", IR {}.{}, debug {}.{}".format(*library.ir_version())
    path = finder.load_nvidia_dynamic_lib(_LIBRARIES[name][0]).abs_path
    return f"{said}, {Path(path).stat().st_size if path else 0} bytes"


def _no_library() -> tuple[type[Exception], ...]:
    """What is raised where a compiler's library is missing, does not load or refuses its input."""
    found: list[type[Exception]] = [ImportError, RuntimeError, OSError]
    for name, (_, error) in _LIBRARIES.items():
        with suppress(ImportError):
            found.append(getattr(importlib.import_module(f"cuda.bindings.{name}"), error))
    return tuple(found)


@cache
def inputs(module: str) -> str:
    """SHA-256 of all that this repository decides about a module's kernels: what they use, how compiled."""
    own = [Path(__file__).parents[1] / name for name in ("probes", "kernels_numba", "kernels_cu")]
    return digest(python_closure(f"kernels_numba.{module}", "kernels", own), ABI)


@contextmanager
def _target(capability: tuple[int, int]) -> Iterator[None]:
    """Device functions ask the current device for its capability; tell them the target instead.

    A private hook of numba-cuda 0.30, and the only one: with it nothing here needs a driver.
    """
    from numba.cuda import dispatcher

    original, before = dispatcher.get_current_device, target.capability
    dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=capability)
    target.capability = capability
    try:
        yield
    finally:
        dispatcher.get_current_device = original
        target.capability = before


def _one(name: str, function: Any, signature: Any, arch: str, min_blocks: int) -> bytes:
    """Compile one kernel to a cubin. Raises Unavailable where the compilers cannot."""
    blocks, threads = launch_bounds.min_blocks(name, min_blocks), getattr(function, "max_threads", 256)
    bounds = (threads, blocks) if blocks else threads
    try:
        from cuda.core import Linker, LinkerOptions, ObjectCode
        from numba import cuda

        cc = compute_capability(arch)
        with _target(cc):
            ptx, _ = cuda.compile(function, signature, cc=cc, device=False, launch_bounds=bounds, **ABI)
        (symbol,) = re.findall(r"\.entry (\w+)\(", ptx)
        code = ObjectCode.from_ptx(ptx.replace(symbol, name).encode())
        return bytes(Linker(code, options=LinkerOptions(arch=arch)).link("cubin").code)
    except _no_library() as error:  # also: a target that NVVM does not know, PTX newer than the linker
        raise Unavailable(
            f"Numba cannot compile {name} for {arch}: {first_error(str(error))} "
            "(the compiler wheels come with: pip install '.[offline]')"
        ) from error


def _by_layout(module: str) -> bool:
    """Whether a module holds each kernel in every layout of the table: its `kernels` takes them."""
    return "def kernels()" not in Path(__file__).with_name(f"{module}.py").read_text()  # loads no Numba


def _kernels(module: str, layouts: tuple[Layout, ...]) -> dict[str, tuple[Any, Any]]:
    kernels = importlib.import_module(f"kernels_numba.{module}").kernels
    return dict(kernels(layouts) if _by_layout(module) else kernels())


@cache
def names(module: str) -> tuple[str, ...]:
    """The kernels that one module holds; nothing is compiled."""
    return tuple(sorted(_kernels(module, LAYOUTS)))


def _key(module: str, name: str, arch: str, min_blocks: int, layouts: tuple[Layout, ...]) -> list[str]:
    """What decides one kernel's code: in this repository, for this target, by these compilers."""
    table, bound = repr(layouts) if _by_layout(module) else "", launch_bounds.min_blocks(name, min_blocks)
    made_by = [repr(versions()), repr(settings("numba"))]
    return ["numba", name, arch, str(bound), table, inputs(module), *made_by]


def missing(module: str, names: Iterable[str], arch: str, min_blocks: int = 0) -> list[str]:
    """Those of the named kernels that the cache lacks."""
    return [n for n in names if not found(_key(module, n, arch, min_blocks, LAYOUTS), f"{n}.cubin")]


def able(module: str, arch: str) -> list[str]:
    """Those that `arch` has the instructions of."""
    return [n for n in names(module) if pipeline.since(n) <= compute_capability(arch)]


def compiled(
    module: str, names: Iterable[str], arch: str, min_blocks: int = 0, layouts: tuple[Layout, ...] = LAYOUTS,
    progress: Progress | None = None,
) -> dict[str, Path]:  # fmt: skip
    """Cubins of the named kernels of one module ('l1', 'harness'), compiled where the cache lacks them.

    Raises Unavailable and BadInput.
    """
    table: dict[str, tuple[Any, Any]] = {}

    def make(name: str, scratch: Path) -> None:
        if os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0"):
            raise Unavailable("NUMBA_ENABLE_CUDASIM is set, and the simulator compiles nothing: unset it")
        if not table:
            if progress:
                progress(f"compiling Numba kernels of {module} for {arch} (once; cached)")
            try:
                with _target(compute_capability(arch)):  # device functions are kept by target
                    table.update(_kernels(module, layouts))
            except ImportError as error:
                if (error.name or "").startswith(("kernels_numba", "probes")):
                    raise  # ours
                raise Unavailable(f"Numba does not load here: {first_error(str(error))}") from error
        (scratch / f"{name}.cubin").write_bytes(_one(name, *table[name], arch, min_blocks))

    keys = {name: _key(module, name, arch, min_blocks, layouts) for name in names}
    return {name: cached(key, f"{name}.cubin", partial(make, name)) for name, key in keys.items()}


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
    """What a worker process does: compile the rows (module, names, bound) that its argument names.

    Exits with 2 and the reason as its last line where the compilers cannot.
    """
    asked = json.loads(sys.argv[1])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # and leave nothing half-made
    try:
        for module, wanted, min_blocks in asked["rows"]:
            compiled(module, wanted, asked["arch"], min_blocks)
    except ProbeError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
