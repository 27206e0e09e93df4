"""Compiling: what a key holds, what fails where a tool is broken, what is compiled beforehand."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernels_cu import build
from kernels_numba import compile as numba_compile
from probes.core import settings
from probes.core.types import Unavailable
from probes.engine import bench as bench_module
from probes.engine import compiling
from probes.engine.compiling import Asked, compile_all
from probes.formats.layouts import LAYOUTS
from probes.report import provenance, tables

ROOT = Path(__file__).resolve().parents[2]


def numba_key(**more: Any) -> list[str]:
    return numba_compile._key("l1", "l1_padded_loop", "sm_90", 0, more.get("layouts", LAYOUTS))


@pytest.mark.parametrize(
    ("name", "value", "counts"),
    [
        ("NUMBA_OPT", "0", True),
        ("NUMBA_CUDA_DEBUGINFO", "1", True),
        ("NUMBA_DEBUGINFO", "1", True),
        ("NUMBA_BOUNDSCHECK", "1", True),
        ("NUMBA_A_SETTING_OF_TOMORROW", "1", True),
        ("NUMBA_OPT", "", False),
        ("NUMBA_NUM_THREADS", "2", False),
        ("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0", False),
        ("HOME", "/elsewhere", False),
    ],
)
def test_settings_that_numba_reads_are_of_the_key(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, counts: bool
) -> None:
    for other in settings.settings():
        monkeypatch.delenv(other)
    before = numba_key()
    monkeypatch.setenv(name, value)
    assert (numba_key() != before) is counts
    assert settings.settings() == ({name: value} if counts else {})


def test_numba_s_file_of_settings_is_of_the_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    before = numba_key()
    Path(".numba_config.yaml").write_text("opt: 0\n")
    after = numba_key()
    Path(".numba_config.yaml").write_text("opt: 1\n")
    assert len({repr(before), repr(after), repr(numba_key())}) == 3


def fake_nvcc(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


VERSION = 'if [ "$1" = --version ]; then echo "release 13.0, V13.0.88"; exit 0; fi'
OUTPUT = 'while [ "$1" != -o ]; do shift; done; echo library > "$2"'


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on PATH with an nvcc and a g++ that do nothing; everything else as it is."""
    folder = tmp_path / "tools"
    fake_nvcc(folder, "nvcc", f"{VERSION}\n{OUTPUT}")
    fake_nvcc(folder, "g++", "echo 'g++ 13.3'")
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PROBES_BUILD_DIR", str(tmp_path / "build"))
    for name in settings.settings("cu"):
        monkeypatch.delenv(name)

    def forget() -> None:
        build.find_nvcc.cache_clear()
        build._version.cache_clear()

    forget()
    yield folder
    forget()


def again(source: str = "l1.cu", arch: str = "sm_90", min_blocks: int = 0) -> Path:
    build.find_nvcc.cache_clear()
    build._version.cache_clear()
    return build.library(source, arch, min_blocks)


def test_what_the_cpp_key_holds(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = [again()]
    assert again() == seen[0]
    for name in ("NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS", "NVCC_CCBIN", "CPATH", "CPLUS_INCLUDE_PATH"):
        with monkeypatch.context() as patch:
            patch.setenv(name, str(tools / "g++") if name == "NVCC_CCBIN" else "-G")
            seen.append(again())
    seen += [again(arch="sm_121"), again(min_blocks=4), again("l3.cu")]
    fake_nvcc(tools, "g++", "echo 'g++ 14.1'")
    seen.append(again())
    fake_nvcc(tools, "nvcc", f"{VERSION.replace('88', '48')}\n{OUTPUT}")
    seen.append(again())
    assert len(set(seen)) == len(seen) == 11


@pytest.mark.parametrize("probe", ["l1", "l3"])
def test_a_comment_or_another_probe_s_edit_recompiles_nothing(tmp_path: Path, probe: str) -> None:
    """In a copy of the tree: what both keys begin with, before and after an edit of l3's files."""
    for package in ("probes", "kernels_cu", "kernels_numba"):
        subprocess.run(["cp", "-r", str(ROOT / package), str(tmp_path)], check=True)
    code = (
        "from kernels_cu import build; from kernels_numba import compile as c; "
        f"print(build.inputs('{probe}.cu'), c.inputs('{probe}'))"
    )

    def keys() -> str:
        env = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return done.stdout

    before = keys()
    for file, comment in (
        ("kernels_cu/common.cuh", "// said"), ("kernels_numba/ops.py", "# said"),
        ("kernels_numba/compile.py", "SAID = 1"), ("kernels_cu/build.py", "SAID = 1"),
    ):  # fmt: skip
        with (tmp_path / file).open("a") as out:
            out.write(f"\n{comment}\n")
    assert keys() == before
    for file, old, new in (
        ("kernels_cu/l3.cu", "namespace probes {", "namespace probes { constexpr int kSaid = 1;"),
        ("kernels_numba/l3.py", "def kernels(", "def kernels(said=1, "),
    ):
        text = (tmp_path / file).read_text()
        assert old in text
        (tmp_path / file).write_text(text.replace(old, new))
    after = keys()
    assert (after == before) is (probe == "l1")
    if probe == "l3":
        assert not set(after.split()) & set(before.split()), "both languages' own edit counts"


def test_provenance_names_compilers_and_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_OPT", "0")
    monkeypatch.setenv("NVCC_CCBIN", "/opt/tools/bin/g++-12")
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-G -I/opt/x/include --dir=~/y/z")
    head = provenance.collect(mode="predict", device="h200", seed=0, kernels_sha256="0", argv=["l1"])
    assert head.settings == {
        "NUMBA_OPT": "0", "NVCC_APPEND_FLAGS": "-G -Iinclude --dir=z", "NVCC_CCBIN": "g++-12",
    }  # fmt: skip
    assert provenance.Head.from_json(head.to_json()) == head
    assert "compiled under NUMBA_OPT=0, NVCC_APPEND_FLAGS=-G" in tables.provenance_text(head, [])
    head.settings = {}
    assert "compiled under" not in tables.provenance_text(head, [])
    found = numba_compile.versions()
    assert found["nvvm"].startswith("2.0, IR 2.0") and found["nvjitlink"].startswith("13.0")
    assert not {"system"} & set(found.values())


def older_ptx(monkeypatch: pytest.MonkeyPatch) -> None:
    from numba import cuda

    true = cuda.compile

    def newer(*args: Any, **kwargs: Any) -> Any:
        ptx, result = true(*args, **kwargs)
        assert ".version 9.0" in ptx
        return ptx.replace(".version 9.0", ".version 99.0"), result

    monkeypatch.setattr(cuda, "compile", newer)


def test_ptx_newer_than_the_linker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PROBES_BUILD_DIR", str(tmp_path))
    older_ptx(monkeypatch)
    with pytest.raises(Unavailable, match=r"harness_read for sm_90: .*Unsupported \.version 99\.0") as caught:
        numba_compile.compiled("harness", ["harness_read"], "sm_90")
    assert "\n" not in str(caught.value)


def test_a_target_that_the_compilers_do_not_know(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PROBES_BUILD_DIR", str(tmp_path))
    with pytest.raises(Unavailable, match="harness_read for sm_999: ") as caught:
        numba_compile.compiled("harness", ["harness_read"], "sm_999")
    assert "\n" not in str(caught.value)
    failed = compile_all([Asked("harness", ("harness_read",))], "sm_999", ["numba"])
    assert list(failed) == ["numba"] and "sm_999" in failed["numba"] and "\n" not in failed["numba"]


_HIDE = """
import sys
import cuda.pathfinder as finder
from cuda.bindings._internal import {low} as loads
true = finder.load_nvidia_dynamic_lib
def load(name, *rest):
    if name == "{name}":
        raise finder.DynamicLibNotFoundError("no lib{name} here")
    return true(name, *rest)
finder.load_nvidia_dynamic_lib = loads.load_nvidia_dynamic_lib = load
"""
_BREAK = {
    "no nvJitLink": _HIDE.format(name="nvJitLink", low="nvjitlink"),
    "no NVVM": _HIDE.format(name="nvvm", low="nvvm"),
    "no bindings": "import sys; sys.modules['cuda.bindings.nvvm'] = None",
    "simulator": "import os; os.environ['NUMBA_ENABLE_CUDASIM'] = '1'",
}


@pytest.mark.parametrize("how", _BREAK)
def test_numba_without_one_of_its_parts(how: str, tmp_path: Path) -> None:
    """Each in a process of its own, as at a user's: one line, and no traceback."""
    code = (
        f"{_BREAK[how]}\nfrom kernels_numba import compile as c\nfrom probes.core.types import Unavailable\n"
        "try:\n    c.compiled('harness', ['harness_read'], 'sm_90')\n"
        "except Unavailable as error:\n    print('UNAVAILABLE', error)\n"
    )
    env = {**os.environ, "PROBES_BUILD_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    if "no nvJitLink" in how and not done.stdout:
        pytest.skip("cuda-core linked with the driver's own linker")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("UNAVAILABLE") and done.stdout.count("\n") == 1


BROKEN_CPP = {
    "says nothing": ("exit 1", "no message"),
    "warns first": (
        "echo 'nvcc warning : old targets are deprecated' >&2; echo 'l1.cu(3): error: want a ;' >&2; exit 2",
        "want a ;",
    ),
    "knows no such target": (
        "echo \"nvcc fatal   : Unsupported gpu architecture 'compute_90'\" >&2; exit 1", "Unsupported gpu",
    ),
    "says 0 and makes nothing": ("exit 0", "no message"),
}  # fmt: skip


@pytest.mark.parametrize("how", BROKEN_CPP)
def test_a_broken_nvcc_says_its_own_first_error(tools: Path, how: str) -> None:
    script, said = BROKEN_CPP[how]
    fake_nvcc(tools, "nvcc", f"{VERSION}\n{script}")
    with pytest.raises(Unavailable, match=rf"nvcc could not build l1\.cu: .*{said}") as caught:
        again()
    assert "\n" not in str(caught.value) and "deprecated" not in str(caught.value)


def test_a_missing_host_compiler(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tools / "g++").unlink()
    monkeypatch.setenv("PATH", str(tools))
    with pytest.raises(Unavailable, match=r"no host C\+\+ compiler for nvcc, g\+\+ is not found"):
        again()
    monkeypatch.setenv("NVCC_CCBIN", "clang-99")
    with pytest.raises(Unavailable, match="clang-99 is not found"):
        again()


def test_one_backend_s_trouble_is_that_backend_s_alone(tools: Path) -> None:
    """The other is compiled, and nothing is raised; loading the broken one says why."""
    fake_nvcc(tools, "nvcc", f"{VERSION}\necho 'error: no such thing' >&2; exit 1")
    lines: list[str] = []
    wanted = [Asked("harness", ("harness_read", "harness_clock"))]
    failed = compile_all(wanted, "sm_90", progress=lines.append)
    assert list(failed) == ["cu"] and "error: no such thing" in failed["cu"]
    assert numba_compile.missing("harness", ["harness_read", "harness_clock"], "sm_90") == []
    assert lines and all("\n" not in line for line in lines)
    lines.clear()
    assert compile_all(wanted, "sm_90", ["numba"], lines.append) == {} and lines == []


def test_a_worker_that_dies_costs_numba_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PROBES_BUILD_DIR", str(tmp_path))
    monkeypatch.setattr(compiling, "_WORK", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    failed = compile_all([Asked("harness", ("harness_read",))], "sm_90", ["numba"])
    assert failed == {"numba": "Numba's compiler died of signal 11 on harness_read"}


def test_chunks_hold_every_missing_kernel_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PROBES_BUILD_DIR", str(tmp_path))
    wanted = [
        Asked("l1", tuple(f"l1_{lay.name}_loop" for lay in LAYOUTS)),
        Asked("l1_ring", tuple(f"l1_{lay.name}_ring" for lay in LAYOUTS), 2),
    ]
    for most in (1, 3, 5, 99):
        chunks = compiling._chunks(wanted, "sm_90", most)
        assert len(chunks) == min(most, 2 * len(LAYOUTS)) and all(chunks)
        rows = sorted((w.stem, n, w.min_blocks) for chunk in chunks for w in chunk for n in w.names)
        assert rows == sorted((w.stem, n, w.min_blocks) for w in wanted for n in w.names)
        costs = [sum(map(compiling._cost, (n for w in c for n in w.names))) for c in chunks]
        assert max(costs) - min(costs) <= compiling.RING_COST


def test_the_bench_compiles_what_was_asked_for_before_it_binds(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    from probes.device import facts as profiles

    calls: list[Any] = []

    def compiled(wanted: Any, arch: str, backends: Any, progress: Any) -> dict[str, str]:
        calls.append((list(wanted), arch, tuple(backends)))
        return {"cu": "no nvcc here"}

    monkeypatch.setattr(bench_module, "COMPILE", compiled)
    loads = {
        b: lambda probe, names, *rest: {n: SimpleNamespace(name=n) for n in names} for b in ("cu", "numba")
    }
    monkeypatch.setattr(bench_module, "LOADERS", loads)
    monkeypatch.setattr(bench_module, "bind", lambda binary: binary)
    gpu: Any = SimpleNamespace(facts=profiles.load("a100"))
    bench = bench_module.Bench(gpu, 0, 8, lambda line: None)
    bench.compile({"l1": ["l1_gpl_loop"], "l1_ring": ["l1_gpl_ring", "l1_gpl_async"]}, 3)
    want = [
        Asked("l1", ("l1_gpl_loop",), 3),
        Asked("l1_ring", ("l1_gpl_async",), 3),  # an A100 has no bulk copies
        Asked("harness", tuple(n for n in bench_module.HARNESS if n != "harness_read_bulk")),
    ]
    assert calls == [(want, "sm_80", ("cu", "numba"))]
    with pytest.raises(Unavailable, match="no nvcc here"):
        bench.kernels("l1", ["l1_gpl_loop"], "cu")
    assert set(bench.kernels("l1", ["l1_gpl_loop"], "numba")) == {"l1_gpl_loop"}


@pytest.mark.parametrize("said", [b"", b"g++ \xff\xfe 12\n"])
def test_a_compiler_may_say_anything_of_its_version(
    said: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "g++"
    tool.write_bytes(b"#!/bin/sh\ncat <<'END'\n" + said + b"END\n")
    tool.chmod(0o755)
    monkeypatch.setenv("NVCC_CCBIN", str(tool))
    monkeypatch.setattr(build, "compiler_version", lambda: "V1")
    assert build.versions()["host compiler"] == (said.decode(errors="replace").strip() or "unknown")
