"""GGUF files that change while they are read; one walk a run, and a sample of the scales for a check."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from probes.core.types import BadInput, Shape
from probes.formats import gguf as gguf_file
from probes.formats import q6k

pytest.importorskip("gguf")

GGUF = Path(__file__).parents[1] / "data" / "minilm-ffn_down-48rows.gguf"


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


def test_a_check_of_a_large_tensor_reads_a_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        path = tmp_path / "x.gguf"
        path.write_bytes(weights.tobytes())
        monkeypatch.setattr(gguf_file, "_found", lambda *a: info)
        asked.clear()
        if damaged is None:
            assert gguf_file.check(path, "t") == Shape(rows, 256 * nbe)
            assert asked == [2100] * 4
        else:
            with pytest.raises(BadInput, match=place):
                gguf_file.check(path, "t")
