"""What a cubin says of its kernels: costs and sections, whole or cut, and no linker's log beside it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernels_cu import build
from kernels_numba import compile as numba_compile
from probes.core import cubin
from probes.core.types import BadInput, Resources, Unavailable
from probes.device import resources
from probes.engine import machine_code

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def read_cubin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, bytes]]:
    """harness_read's cubin by target."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROBES_BUILD_DIR", str(tmp_path_factory.mktemp("build")))
        yield {
            arch: numba_compile.compiled("harness", ["harness_read"], arch)["harness_read"].read_bytes()
            for arch in ("sm_75", "sm_90", "sm_121")
        }


def test_a_cubin_says_what_its_kernels_cost(read_cubin: dict[str, bytes]) -> None:
    known = resources.recorded()[1]
    for arch in ("sm_90", "sm_121"):
        (found,) = cubin.kernels(read_cubin[arch]).items()
        assert found[0] == "harness_read"
        assert found[1].resources == known["numba", "harness_read", arch]
        assert found[1].sections[".text"].size and found[1].resources.smem_bytes == 128
    assert cubin.kernels(read_cubin["sm_75"])["harness_read"].resources.smem_bytes == 128


@pytest.mark.parametrize("size", [0, 3, 63, 64, 500, -1])
def test_a_cut_cubin_is_said_so(read_cubin: dict[str, bytes], size: int) -> None:
    with pytest.raises(BadInput, match="no whole cubin"):
        cubin.kernels(read_cubin["sm_90"][:size])
    with pytest.raises(BadInput, match="no whole cubin"):
        cubin.kernels(b"\0" * 4096)


def test_the_stack_is_what_is_spilled(read_cubin: dict[str, bytes]) -> None:
    """A frame in .nv.info becomes spill_bytes: the loaded function's local_size_bytes."""
    data = bytearray(read_cubin["sm_90"])
    frame = data.index(struct.pack("<BBH", 4, 0x11, 8))
    symbol, before = struct.unpack_from("<II", data, frame + 4)
    assert before == 0
    struct.pack_into("<II", data, frame + 4, symbol, 24)
    assert cubin.kernels(bytes(data))["harness_read"].resources.spill_bytes == 24


def test_no_log_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The linker may write what it likes: the driver's own has other words than ptxas."""
    from cuda.core import Linker

    monkeypatch.setenv("PROBES_BUILD_DIR", str(tmp_path))
    assert hasattr(Linker, "get_info_log")
    for file in (*Path(numba_compile.__file__).parent.glob("*.py"), *(ROOT / "probes" / "core").glob("*.py")):
        assert "get_info_log" not in file.read_text() and "Compiling entry" not in file.read_text()


@pytest.mark.toolchain
def test_libraries_and_their_cubins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the shared library holds is what the account beside it is of; a cut one is built again."""
    monkeypatch.setenv("PROBES_BUILD_DIR", str(tmp_path))
    try:
        path = build.library("harness.cu", "sm_90")
        inside = machine_code.opcodes(path)
    except Unavailable as error:
        pytest.skip(str(error))
    assert inside == machine_code.opcodes(path.with_suffix(".cubin")) and len(inside) == 6
    rows = {r.name: r.resources for r in build.offline("harness.cu", "sm_90")}
    assert rows.keys() == inside.keys()
    assert rows["harness_read"] == resources.recorded()[1]["cu", "harness_read", "sm_90"]
    assert rows["harness_empty"] == Resources(4, 0, 0)
    good = path.read_bytes()
    for file in (path, path.with_suffix(".cubin")):
        file.write_bytes(file.read_bytes()[:1000])
        assert build.library("harness.cu", "sm_90") == path
        assert path.stat().st_size == len(good) and build.offline("harness.cu", "sm_90")
