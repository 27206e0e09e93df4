"""nvcc and the host compiler: one shared library per .cu file and target, loaded through ctypes.

The cache's key covers what the file is made of (its own text and what it includes, the constants that it
names, the layouts' table, the flags), the target, what nvcc and the host compiler say of themselves, and the
environment that they read: so a library is built once and never goes stale.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import CalledProcessError

from probes.core import children, cubin
from probes.core.cache import cached, homes
from probes.core.closure import cxx_closure, included
from probes.core.digest import cxx_canonical, digest
from probes.core.settings import first_error, settings
from probes.core.types import BadInput, Binary, Offline, Progress, Unavailable
from probes.device.launch_bounds import MIN_BLOCKS
from probes.formats import chains
from probes.formats import layer as decode_layer
from probes.formats.layouts import LAYOUTS, Layout
from probes.formats.swiglu import EXP

HERE = Path(__file__).parent

NVCC_FLAGS = ("-O3", "-std=c++17", "--fmad=false", "-shared", "-Xcompiler", "-fPIC", "-cudart", "static")
CONSTANTS = "constants.gen.cuh"
KEPT = "kept"
"""The folder of a compiler's intermediate files."""

_PLAIN = re.compile(r"[\w ./+@%:,=~-]+")
"""A path in which no shell finds anything to expand or to run."""


def layouts_header(layouts: Iterable[Layout] = LAYOUTS) -> str:
    """The C++ view of the layouts' table: a struct of constants per row, and PROBES_LAYOUTS(X)."""
    rows = tuple(layouts)
    lines = ["// Generated from probes/formats/layouts.py.", "#pragma once", "namespace probes {"]
    for lay in rows:
        lines.append(f"struct {lay.name} {{")
        lines.append(f"    static constexpr bool group = {'true' if lay.order == 'group' else 'false'};")
        for field in ("ql", "qh", "sc", "d"):
            piece = getattr(lay, field)
            lines.append(
                f"    static constexpr int {field}_plane = {piece.plane}, {field}_block = {piece.block}, "
                f"{field}_offset = {piece.offset};"
            )
        lines.append("};")
    lines.append("}  // namespace probes")
    lines.append("#define PROBES_LAYOUTS(X) " + " ".join(f"X({lay.name})" for lay in rows))
    return "\n".join(lines) + "\n"


def constants_header(text: str | None = None) -> str:
    """The constants that `text` names, or all, for C++: the exp's as exact hex floats, launch bounds, sizes.

    What a kernel does not name, it is not compiled with: so no key can lack a constant that it reads.
    """
    named = set(re.findall(r"\w+", text or ""))
    if any(word.startswith("kMinBlocks_") for word in named):
        named |= {f"kMinBlocks_{word}" for word in named}  # PROBES_BOUNDS(form) pastes the name together
    rows = [
        (f"kExp_{n}", *(("uint32_t", f"{v:#x}u") if isinstance(v, int) else ("float", f"{v.hex()}f")))
        for n, v in EXP._asdict().items()
    ]
    rows += [(f"kMinBlocks_{form}", "int", str(blocks)) for form, blocks in MIN_BLOCKS.items()]
    rows += [(f"kDecode_{n}", "int", str(v)) for n, v in decode_layer.CONSTANTS._asdict().items()]
    rows += [(f"kChain_{n}", "uint32_t", f"{v}u") for n, v in chains.CONSTANTS._asdict().items()]
    lines = [
        f"constexpr {kind} {name} = {value};" for name, kind, value in rows if text is None or name in named
    ]
    return "\n".join(
        ["#pragma once", "#include <cstdint>", "namespace probes {", *lines, "}  // namespace probes", ""]
    )


@functools.cache
def find_nvcc() -> tuple[str, ...]:
    """The nvcc command: one on PATH, else the one that the cu13 extra installed.

    Returns the program and, for the pip toolchain, the -L flag that it needs. Raises Unavailable.
    """
    on_path = shutil.which("nvcc")
    if on_path:
        return (_plain(on_path),)
    try:
        from cuda.pathfinder import find_nvidia_binary_utility
    except ImportError:
        found = None
    else:
        found = find_nvidia_binary_utility("nvcc")
    if not found:
        raise Unavailable(
            "no nvcc on PATH and none from pip, and the C++ twins need one: "
            "install a CUDA toolkit, or: pip install '.[cu13]'"
        )
    return (_plain(found), f"-L{Path(found).parent.parent / 'lib'}")


def _plain(program: str) -> str:
    """A compiler's whole path. Raises Unavailable where the shell that nvcc uses would read it."""
    path = os.path.abspath(program)
    if not _PLAIN.fullmatch(path):
        raise Unavailable(f"the compiler's path {path!r} has signs that a shell reads: install it elsewhere")
    return path


@functools.cache
def _version(program: str) -> str:
    """What a compiler says of its version. Raises Unavailable where it cannot even be asked."""
    try:
        run = children.run([program, "--version"])
        run.check_returncode()
        return run.stdout
    except (OSError, CalledProcessError) as error:
        raise Unavailable(f"{program} does not work ({error}): mend it, or take it off PATH") from error


def _host_version() -> str:
    """What the compiler that nvcc calls for the host says of itself. Raises Unavailable without one."""
    asked = _host_compiler() or "g++"
    program = shutil.which(os.path.join(asked, "g++") if os.path.isdir(asked) else asked)
    if not program:
        raise Unavailable(
            f"no host C++ compiler for nvcc, {asked} is not found: install g++, or set NVCC_CCBIN"
        )
    return _version(program)


def _host_compiler() -> str:
    """NVCC_CCBIN, whole where it is a path: nvcc runs in another folder. '' where it is not set."""
    asked = os.environ.get("NVCC_CCBIN", "")
    return _plain(asked) if os.sep in asked else asked


def compiler_version() -> str:
    """nvcc's own version, such as 'V13.0.88'. Raises Unavailable without nvcc."""
    found = re.search(r"V[\d.]+", _version(find_nvcc()[0]))
    return found[0] if found else "unknown"


def versions() -> dict[str, str]:
    """nvcc's version and its host compiler's, for a report. Raises Unavailable without either."""
    return {"nvcc": compiler_version(), "host compiler": (_host_version().splitlines() or ["unknown"])[0]}


def generated(source: str, layouts: tuple[Layout, ...] = LAYOUTS) -> dict[str, str]:
    """The generated headers that `source` includes, by name."""
    wanted = included(HERE / source)[1]
    made = {
        CONSTANTS: lambda: constants_header(cxx_closure(HERE / source)),
        "layouts.gen.cuh": lambda: layouts_header(layouts),
    }
    return {name: made[name]() for name in wanted}


def inputs(source: str, layouts: tuple[Layout, ...] = LAYOUTS) -> str:
    """SHA-256 of all that this repository decides about `source`: its text, constants, layouts and flags."""
    return _inputs(source, NVCC_FLAGS, layouts)


def _inputs(source: str, flags: Sequence[str], layouts: tuple[Layout, ...]) -> str:
    headers = [cxx_canonical(text) for _, text in sorted(generated(source, layouts).items())]
    return digest(cxx_closure(HERE / source), headers, list(flags))


@contextmanager
def _workshop(scratch: Path) -> Iterator[Path]:
    """A folder to compile in: below `scratch`, or the system's where a shell would read a path below it.

    nvcc puts its source's whole path into a shell's command, between double quotes.
    """
    for place in (scratch, Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")):
        if _PLAIN.fullmatch(str(place.resolve())) and place.is_dir():
            with tempfile.TemporaryDirectory(prefix="probes-", dir=place.resolve()) as folder:
                yield Path(folder)
            return
    raise Unavailable(f"a shell would read the name {tempfile.gettempdir()!r}: set TMPDIR to a plain folder")


def _build(command: list[str], flags: Sequence[str], source: str, product: str, folder: Path) -> None:
    """Run a compiler inside `folder`, with relative names alone. Raises Unavailable."""
    what = f"{Path(command[0]).name} could not build {source}"
    kept = folder / KEPT
    kept.mkdir()
    argv = [*command, *flags, "-I.", source, "-o", product]
    argv += ["-keep", "-keep-dir", KEPT] if source.endswith(".cu") else []
    try:
        own = {"TMPDIR": KEPT, "NVCC_CCBIN": _host_compiler()}
        env = {**os.environ, **{name: value for name, value in own.items() if value}}
        run = children.run(argv, cwd=folder, env=env, scratch=True)
    except OSError as error:  # not the build folder's fault
        raise Unavailable(f"{what}: it does not start ({error.strerror})") from error
    if run.returncode < 0:
        raise Unavailable(f"{what}: it was stopped by signal {-run.returncode}")
    if run.returncode or not (folder / product).is_file():
        raise Unavailable(f"{what}: {first_error(run.stderr + run.stdout)}")


def _compile(
    command: list[str], versions: str, flags: Sequence[str], source: str, layouts: tuple[Layout, ...],
    product: str, say: Callable[[], None] = lambda: None,
) -> Path:  # fmt: skip
    """Build one file: `command` says what its caller decides, `flags` what the repository does."""
    key = [_inputs(source, flags, layouts), versions, *command[1:], repr(settings("cu"))]

    def make(scratch: Path) -> None:
        say()
        with _workshop(scratch) as folder:
            for name, text in generated(source, layouts).items():
                (folder / name).write_text(text)
            for file in included(HERE / source)[0]:
                shutil.copyfile(file, folder / file.name)
            _build(command, flags, source, product, folder)
            shutil.copyfile(folder / product, scratch / product)
            for code in (folder / KEPT).glob("*.cubin"):
                if not code.stem.endswith("_dlink"):  # the device linker's holds no kernels
                    shutil.copyfile(code, (scratch / product).with_suffix(".cubin"))

    return cached(key, product, make)


def library(
    source: str,
    arch: str,
    min_blocks: int = 0,
    layouts: tuple[Layout, ...] = LAYOUTS,
    progress: Progress | None = None,
) -> Path:
    """Build `source` for one GPU target and return the shared library's path.

    arch: 'sm_90' and the like; min_blocks: blocks per SM that the registers are held to, 0 for none.
    The cubin that it holds lies beside the library.
    Raises Unavailable (no nvcc, a target it does not know) and BadInput (unwritable folder).
    """
    if not re.fullmatch(r"sm_\d+[af]?", arch):
        raise BadInput(f"a GPU target looks like sm_90, got {arch!r}")
    if min_blocks < 0 or min_blocks > 32:
        raise BadInput(f"blocks per SM must be 0 to 32, got {min_blocks}")
    nvcc, *link = find_nvcc()
    number = arch.removeprefix("sm_")
    command = [nvcc, *link, "-gencode", f"arch=compute_{number},code={arch}"]
    command.append(f"-DPROBES_MIN_BLOCKS={min_blocks}")
    made_by = _version(nvcc) + _host_version()

    def say() -> None:
        if progress:
            progress(f"building {source} for {arch} (once; cached in {homes()[0]})")

    return _compile(command, made_by, NVCC_FLAGS, source, layouts, source.replace(".cu", ".so"), say)


def binaries(
    source: str,
    names: Iterable[str],
    arch: str,
    min_blocks: int = 0,
    progress: Progress | None = None,
    layouts: tuple[Layout, ...] = LAYOUTS,
) -> dict[str, Binary]:
    """Kernels of `source` by name, as CUkernel handles. A CUDA context must be current.

    Raises Unavailable where the library cannot be built or loaded, or a kernel is not in it.
    """
    path = library(source, arch, min_blocks, layouts, progress)
    try:
        lib = ctypes.CDLL(str(path.resolve()))
    except OSError as error:
        raise Unavailable(f"cannot load {path}: {error}") from error
    lib.probes_error.restype = ctypes.c_char_p
    out: dict[str, Binary] = {}
    for name in names:
        handle = ctypes.c_void_p()
        code = lib.probes_kernel(name.encode(), ctypes.byref(handle))
        if code or not handle.value:
            raise Unavailable(f"kernel {name} of {source}: {lib.probes_error(code).decode()}")
        out[name] = Binary(name=name, backend="cu", entry=name, handle=handle.value, keepalive=lib)
    return out


def offline(source: str, arch: str, min_blocks: int = 0) -> list[Offline]:
    """Resources of every kernel of `source` for `arch`, from the compiler; no GPU needed."""
    data = library(source, arch, min_blocks).with_suffix(".cubin").read_bytes()
    return [Offline(name, "cu", arch, it.resources) for name, it in sorted(cubin.kernels(data).items())]
