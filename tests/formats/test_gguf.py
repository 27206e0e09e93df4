"""GGUF reading: sound files like the gguf package reads them, and every damaged one in one line."""

from __future__ import annotations

import builtins
import os
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from probes.core.types import BadInput, Shape, Unavailable
from probes.formats import gguf as gguf_file
from probes.formats import q6k

gguf = pytest.importorskip("gguf")

GGUF = Path(__file__).parents[1] / "data" / "minilm-ffn_down-48rows.gguf"
Q6_K, Q4_K, F32 = 14, 12, 0


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def entry(name: str, dims: tuple[int, ...], kind: int = Q6_K, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def build(
    entries: list[bytes], keys: list[bytes] = [], data: bytes = b"", version: int = 3, align: int = 32,  # noqa: B006
    counts: tuple[int, int] | None = None,
) -> bytes:  # fmt: skip
    tensors, pairs = counts or (len(entries), len(keys))
    head = b"GGUF" + struct.pack("<IQQ", version, tensors, pairs) + b"".join(keys) + b"".join(entries)
    return head + b"\0" * (-len(head) % align) + data


BLOCK = q6k.random_raw(Shape(1, 256), seed=0).tobytes()


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def to(data: bytes) -> Path:
        path = tmp_path / "x.gguf"
        path.write_bytes(data)
        return path

    return to


def refused(path: Path, match: str, name: str | None = None) -> str:
    """The path is refused with one short line that matches, and quickly."""
    start = time.process_time()
    with pytest.raises(BadInput, match=match) as caught:
        gguf_file.tensors(path) if name is None else gguf_file.read(path, name)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 600 and str(path) in message
    assert time.process_time() - start < 2.0
    return message


def test_reads_what_the_gguf_package_reads() -> None:
    reader = gguf.GGUFReader(GGUF)
    infos = gguf_file.tensors(GGUF)
    assert [t.name for t in infos] == [t.name for t in reader.tensors]
    for info, theirs in zip(infos, reader.tensors, strict=True):
        assert info.type_name == theirs.tensor_type.name and info.offset == theirs.data_offset
        assert (info.id, info.od) == tuple(int(v) for v in theirs.shape) and info.bytes == theirs.n_bytes
        raw, shape = gguf_file.read(GGUF, info.name, info.type_name)
        assert shape == Shape(48, 1536)
        np.testing.assert_array_equal(raw, theirs.data)
        assert raw.flags.owndata or raw.base is not None
        raw[0, 0] ^= 1  # a copy of the caller's own


def test_the_golden_rows_are_in_the_file() -> None:
    golden = np.load(GGUF.with_name("ggml-golden.npz"))
    np.testing.assert_array_equal(gguf_file.read(GGUF, "blk.0.ffn_down.weight")[0][:4], golden["q6k_rows"])
    q4 = gguf_file.read(str(GGUF), "blk.0.ffn_down_q4.weight", "Q4_K")[0]
    np.testing.assert_array_equal(q4[:4], golden["q4k_rows"])


def test_a_file_with_everything_is_read(write: Any) -> None:
    nested = struct.pack("<IQ", 9, 2) + 2 * (struct.pack("<IQ", 4, 2) + bytes(8))
    keys = [key(f"scalar.{k}", k, bytes(size)) for k, size in gguf_file._SCALAR.items()]
    keys += [
        key("s", 8, text("é")),
        key("a", 9, struct.pack("<IQ", 8, 2) + text("x") + text("")),
        key("n", 9, nested),
    ]
    keys += [key("general.alignment", 4, struct.pack("<I", 64))]
    entries = [
        entry("w", (256, 2, 3), Q6_K, 0), entry("one", (32,), F32, 1280), entry("new", (64,), 9999, 1408),
    ]  # fmt: skip
    path = write(build(entries, keys, BLOCK * 6 + bytes(20) + bytes(128), align=64))
    infos = gguf_file.tensors(path)
    assert [(t.name, t.type_name, t.od, t.id, t.bytes) for t in infos] == [
        ("w", "Q6_K", 6, 256, 1260), ("one", "F32", 1, 32, 128), ("new", "type 9999", 1, 64, 0),
    ]  # fmt: skip
    assert infos[0].offset % 64 == 0
    raw, shape = gguf_file.read(path, "w")
    assert shape == Shape(6, 256) and raw.tobytes() == BLOCK * 6
    refused(path, "is type 9999, not Q6_K; did you mean 'w'", "new")


def test_version_2_is_read(write: Any) -> None:
    assert gguf_file.tensors(write(build([entry("w", (256,))], data=BLOCK, version=2)))[0].name == "w"


def test_a_real_vocabulary_is_walked_quickly(write: Any) -> None:
    words = struct.pack("<IQ", 8, 200_000) + b"".join(text(f"w{i}") for i in range(200_000))
    kinds = struct.pack("<IQ", 5, 200_000) + bytes(800_000)
    path = write(build([entry("w", (256,))], [key("t", 9, words), key("k", 9, kinds)], BLOCK))
    start = time.process_time()
    assert gguf_file.read(path, "w")[1] == Shape(1, 256)
    assert time.process_time() - start < 2.0


HUGE = 2**63
BAD = {
    "empty": (b"", "the file is empty"),
    "magic": (b"GGML" + bytes(60), "not a GGUF file: it starts with b'GGML'"),
    "one byte": (b"G", "not a GGUF file"),
    "magic only": (b"GGUF", "truncated: the version"),
    "no counts": (b"GGUF\3\0\0\0\1", "truncated: the tensor count"),
    "version 1": (build([], version=1), "GGUF version 1; versions 2 and 3"),
    "version 4": (build([], version=4), "GGUF version 4"),
    "version 0": (build([], version=0), "GGUF version 0"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "tensor count": (build([], counts=(HUGE, 0)), f"claims {HUGE} tensors"),
    "key count": (build([], counts=(0, HUGE)), f"claims {HUGE} metadata keys"),
    "more tensors than there are": (
        build([entry("w", (256,))], data=BLOCK, counts=(2, 0)),
        "truncated|claims",
    ),
    "key length": (
        build([], [struct.pack("<Q", HUGE) + bytes(40)]),
        f"a metadata key .* claims {HUGE} bytes",
    ),
    "key past the end": (build([], [struct.pack("<Q", 900) + bytes(40)]), "truncated: a metadata key"),
    "key not UTF-8": (build([], [key("k", 4, bytes(4)).replace(b"k", b"\xff")]), "is not UTF-8"),
    "key twice": (build([], [key("k", 4, bytes(4))] * 2), "metadata key 'k' appears twice"),
    "value type": (build([], [key("k", 13, bytes(40))]), "the value of 'k' has the unknown type 13"),
    "string length": (build([], [key("k", 8, struct.pack("<Q", HUGE))]), "truncated: the value of 'k'"),
    "array count": (build([], [key("k", 9, struct.pack("<IQ", 4, HUGE))]), "truncated: the value of 'k'"),
    "string count": (build([], [key("k", 9, struct.pack("<IQ", 8, HUGE))]), f"claims {HUGE} elements"),
    "array type": (build([], [key("k", 9, struct.pack("<IQ", 77, 1) + bytes(8))]), "unknown type 77"),
    "array depth": (build([], [key("k", 9, struct.pack("<IQ", 9, 1) * 900 + bytes(99))]), "deeper than 4"),
    "alignment type": (build([], [key("general.alignment", 10, bytes(8))]), "general.alignment has type 10"),
    "alignment 0": (build([], [key("general.alignment", 4, bytes(4))]), "general.alignment is 0"),
    "alignment 24": (
        build([], [key("general.alignment", 4, struct.pack("<I", 24))]),
        "general.alignment is 24",
    ),
    "alignment 2^31": (
        build([], [key("general.alignment", 4, struct.pack("<I", 1 << 31))]),
        "general.alignment is",
    ),
    "name length": (build([struct.pack("<Q", HUGE) + bytes(60)]), f"a tensor name .* claims {HUGE} bytes"),
    "no dimensions": (build([entry("w", ()) + bytes(40)]), "tensor 'w' has 0 dimensions"),
    "dimensions": (build([text("w") + struct.pack("<I", 2**31) + bytes(40)]), "has 2147483648 dimensions"),
    "dimension 0": (build([entry("w", (256, 0))], data=BLOCK), r"has the empty shape \[256, 0\]"),
    "overflow": (build([entry("w", (256, 2**40, 2**40))], data=BLOCK), "too many values"),
    "not whole blocks": (
        build([entry("w", (255,))], data=BLOCK),
        "rows of 255 values, not a multiple of 256",
    ),
    "offset": (build([entry("w", (256,), Q6_K, HUGE)], data=BLOCK), "past the end of the file"),
    "misaligned": (
        build([entry("w", (256,), Q6_K, 8)], data=BLOCK * 2),
        "offset 8, not a multiple of the alignment 32",
    ),
    "short data": (build([entry("w", (256, 2))], data=BLOCK), "past the end of the file.*download complete"),
    "unknown type past the end": (
        build([entry("w", (256,), 9999, 2**40)], data=BLOCK),
        "past the end of the file",
    ),
    "overlap": (
        build([entry("a", (256,)), entry("b", (256,), Q6_K, 192)], data=BLOCK * 2),
        "'a' and 'b' overlap at",
    ),
    "same place": (build([entry("a", (256,)), entry("b", (256,))], data=BLOCK), "overlap"),
    "name twice": (
        build([entry("a", (256,)), entry("a", (256,), Q6_K, 224)], data=BLOCK * 3),
        "'a' appears twice",
    ),
    "newline in a name": (build([entry("a\n" * 200, (255,))], data=BLOCK), r"tensor 'a\\na"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_refused_in_one_line(write: Any, case: str) -> None:
    data, match = BAD[case]
    refused(write(data), match)


def test_too_many_strings_never_hang(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_file, "MAX_STRINGS", 1000)
    half = struct.pack("<IQ", 8, 600) + bytes(8 * 600)
    refused(write(build([], [key("a", 9, half), key("b", 9, half)])), "the value of 'b' claims 600 elements")


def test_every_truncation_is_refused(write: Any) -> None:
    whole = GGUF.read_bytes()
    data_start = gguf_file.tensors(GGUF)[0].offset
    cuts = [*range(0, data_start, 7), data_start, data_start + 1, len(whole) // 2, len(whole) - 1]
    for cut in cuts:
        path = write(whole[:cut])
        with pytest.raises(BadInput):
            gguf_file.tensors(path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 420), junk=st.binary(min_size=1, max_size=9))
def test_damaged_headers_are_read_or_refused(tmp_path: Path, at: int, junk: bytes) -> None:
    data = bytearray(GGUF.read_bytes())
    data[at : at + len(junk)] = junk
    path = tmp_path / "damaged.gguf"
    path.write_bytes(data)
    start = time.process_time()
    try:
        for info in gguf_file.tensors(path):
            assert info.offset + info.bytes <= len(data)
            gguf_file.read(path, info.name, "Q6_K")
    except BadInput as error:
        message = str(error)
    else:
        message = ""
    assert "\n" not in message
    assert time.process_time() - start < 2.0


@pytest.mark.parametrize("bits", [0x7C00, 0xFE00])
def test_damaged_scales_are_refused(write: Any, bits: int) -> None:
    damaged = BLOCK * 3 + BLOCK[:208] + struct.pack("<H", bits)
    path = write(build([entry("w", (512, 2))], data=damaged))
    assert gguf_file.tensors(path)[0].od == 2
    refused(path, "tensor 'w': d is (inf|nan) in row 1, super-block 1; the tensor is damaged", "w")


def test_unknown_names_get_close_ones() -> None:
    message = refused(
        GGUF, "no tensor 'blk.0.ffn_dwn.weight'; did you mean 'blk.0.ffn_down.weight'", "blk.0.ffn_dwn.weight"
    )
    assert "ffn_down_q4" not in message  # of another type
    refused(GGUF, "no tensor 'zzz'; its Q6_K tensors: 'blk.0.ffn_down.weight'", "zzz")
    refused(GGUF, "no tensor", "\n" * 5000)


def test_other_types_are_refused(write: Any) -> None:
    refused(
        GGUF,
        "ffn_down_q4.weight' is Q4_K, not Q6_K; did you mean 'blk.0.ffn_down.weight'",
        "blk.0.ffn_down_q4.weight",
    )
    path = write(build([entry("w", (64, 4), F32)], data=bytes(1024)))
    refused(path, "tensor 'w' is F32, not Q6_K; the file holds no Q6_K tensor", "w")
    with pytest.raises(BadInput, match="type Q8_0 are not read; Q6_K and Q4_K are"):
        gguf_file.read(GGUF, "w", "Q8_0")


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    refused(tmp_path / "missing.gguf", "no such file")
    refused(tmp_path, "not a regular file")
    with pytest.raises(BadInput):
        gguf_file.tensors("a\0b")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root reads everything")
def test_unreadable_file(write: Any) -> None:
    path = write(build([entry("w", (256,))], data=BLOCK))
    path.chmod(0)
    refused(path, "cannot be read")


def test_without_the_gguf_package(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def no_gguf(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == "gguf":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_gguf)
    with pytest.raises(Unavailable, match=r"pip install gguf==0\.19\.0"):
        gguf_file.tensors(GGUF)


def test_a_file_is_walked_once_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(GGUF.read_bytes())
    walks: list[str] = []
    walk = gguf_file._walk
    monkeypatch.setattr(gguf_file, "_walk", lambda *a: (walks.append(a[1]), walk(*a))[1])
    name = gguf_file.tensors(path)[0].name
    gguf_file.read(path, name)
    gguf_file.check(path, name)
    assert len(walks) == 1
    path.write_bytes(b"GGUF")  # another file by the same name is walked anew
    with pytest.raises(BadInput, match="truncated"):
        gguf_file.tensors(path)
    assert len(walks) == 2


@pytest.mark.parametrize("left", [0, 3, 40, 200, 300])
def test_a_file_that_shrinks_while_it_is_walked_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(GGUF.read_bytes())
    monkeypatch.setattr(gguf_file, "WINDOW", 16)
    before = gguf_file._Walker.number

    def number(self: Any, code: str, of: str) -> int:
        os.truncate(path, left)  # the size was taken when it was opened
        return before(self, code, of)

    monkeypatch.setattr(gguf_file._Walker, "number", number)
    with pytest.raises(BadInput, match="did the file change"):
        gguf_file.tensors(path)


def test_a_tensor_that_shrinks_or_vanishes_before_it_is_read_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(GGUF.read_bytes())
    info = gguf_file.tensors(path)[0]
    os.truncate(path, info.offset + 100)
    with pytest.raises(BadInput, match="ends after 100 of"):
        gguf_file._bytes(path, info, 0, info.bytes)
    path.unlink()
    with pytest.raises(BadInput, match="cannot be read"):
        gguf_file._bytes(path, info, 0, info.bytes)


def test_a_check_of_a_large_tensor_reads_a_sample(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, nbe = 300, 2
    raw = q6k.random_raw(Shape(rows, 256 * nbe), 3)
    raw[0, 208:210] = raw[-1, -2:] = (0x00, 0x7C)  # infinity
    sound = q6k.random_raw(Shape(rows, 256 * nbe), 3)
    monkeypatch.setattr(gguf_file, "SAMPLED", 4)
    monkeypatch.setattr(gguf_file, "SAMPLE", 210 * 10)
    asked: list[int] = []
    real = gguf_file._bytes
    monkeypatch.setattr(gguf_file, "_bytes", lambda *a: (asked.append(a[3]), real(*a))[1])
    info = gguf_file.TensorInfo("t", "Q6_K", rows, 256 * nbe, sound.nbytes)
    for damaged, place in ((None, ""), (0, "row 0, super-block 0"), (-1, "row 299, super-block 1")):
        weights = sound.copy()
        if damaged is not None:
            weights[damaged] = raw[damaged]
        path = write(weights.tobytes())
        monkeypatch.setattr(gguf_file, "_found", lambda *a: info)
        asked.clear()
        if damaged is None:
            assert gguf_file.check(path, "t") == Shape(rows, 256 * nbe)
            assert asked == [2100] * 4
        else:
            with pytest.raises(BadInput, match=place):
                gguf_file.check(path, "t")
