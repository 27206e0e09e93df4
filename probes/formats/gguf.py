"""Weights from a GGUF file, perhaps damaged or hostile.

Every count, length and offset of the header is checked against the file's size before use: no file makes this
hang or allocate. Nothing is mapped: a mapped file that another process cuts short kills whoever reads it. The
gguf package's reader trusts the file, and takes nine seconds for a 150 000-token vocabulary (a quarter second
here); it supplies the tensor types' tables.

A failure is a one-line BadInput with the value received.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import numpy as np

from probes.core.types import BadInput, Shape, Unavailable
from probes.formats import kquant, q4k, q6k
from probes.formats.q8 import U8

VERSIONS = (2, 3)
MAX_TENSORS = 1 << 16
MAX_KEYS = 1 << 16
MAX_STRINGS = 1 << 21  # in all arrays together; the largest vocabularies have under 2^20 with their merges
MAX_NAME = 1024
MAX_DEPTH = 4  # arrays within arrays; ggml writes none
MAX_DIMS = 4
MAX_ALIGNMENT = 1 << 20
WINDOW = 1 << 18  # bytes of the header that are read at a time
SAMPLED = 256  # places of a large tensor whose scales a check reads, each of SAMPLE bytes at most
SAMPLE = 1 << 18

_SCALAR = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes by metadata type
_UINT32, _STRING, _ARRAY = 4, 8, 9


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: `od` rows of `id` values (outer dimensions folded into od), `bytes` at the file's `offset`.

    A type newer than the gguf package reads as "type N" with 0 bytes: it cannot be read.
    """

    name: str
    type_name: str
    od: int
    id: int
    bytes: int
    offset: int = 0


class _Walker:
    """A cursor over the header that never passes the end of the file."""

    def __init__(self, file: BinaryIO, what: str) -> None:
        self.file, self.what, self.at, self.strings = file, what, 0, 0
        self.size = os.fstat(file.fileno()).st_size
        self.first, self.window = 0, b""

    def read(self, start: int, count: int) -> bytes:
        """Bytes that `skip` passed. BadInput where the file no longer holds them."""
        at = start - self.first
        if at < 0 or at + count > len(self.window):
            self.file.seek(start)
            self.first, self.window, at = start, self.file.read(max(count, WINDOW)), 0
        found = self.window[at : at + count]
        if len(found) < count:
            raise self.bad(f"ends at byte {start + len(found)} of {self.size}; did the file change?")
        return found

    def bad(self, why: str) -> BadInput:
        return BadInput(f"{self.what}: {why}")

    def skip(self, count: int, of: str) -> int:
        """Move on by `count` bytes, returning where they start."""
        start = self.at
        if count > self.size - start:
            left = self.size - start
            raise self.bad(f"truncated: {of} at byte {start} needs {count} bytes, {left} are left")
        self.at = start + count
        return start

    def number(self, code: str, of: str) -> int:
        """One unsigned number; `code` is struct's I or Q."""
        size = 4 if code == "I" else 8
        return int.from_bytes(self.read(self.skip(size, of), size), "little")

    def text(self, of: str, limit: int) -> str:
        length = self.number("Q", f"the length of {of}")
        if length > limit:
            raise self.bad(f"{of} at byte {self.at} claims {length} bytes, the limit is {limit}")
        start = self.skip(length, of)
        try:
            return self.read(start, length).decode("utf-8")
        except UnicodeDecodeError:
            raise self.bad(f"{of} at byte {start} is not UTF-8") from None

    def value(self, kind: int, key: str, depth: int = 0) -> None:
        """Step over one metadata value of type `kind`."""
        of = f"the value of {_short(key)}"
        if kind in _SCALAR:
            self.skip(_SCALAR[kind], of)
        elif kind == _STRING:
            self.skip(self.number("Q", of), of)
        elif kind == _ARRAY:
            if depth >= MAX_DEPTH:
                raise self.bad(f"{of} nests arrays deeper than {MAX_DEPTH}")
            inner, count = self.number("I", of), self.number("Q", of)
            if inner in _SCALAR:
                self.skip(_SCALAR[inner] * count, of)
                return
            self.strings += count
            if count * 8 > self.size - self.at or self.strings > MAX_STRINGS:
                raise self.bad(f"{of} claims {count} elements, more than the file or {MAX_STRINGS} allow")
            for _ in range(count):
                self.value(inner, key, depth + 1)
        else:
            raise self.bad(f"{of} has the unknown type {kind}")


def _short(name: str) -> str:
    return repr(name if len(name) <= 80 else name[:77] + "...")


def _type_table() -> dict[int, tuple[str, int, int]]:
    """Tensor types by number: (name, values per block, bytes per block)."""
    try:
        from gguf.constants import GGML_QUANT_SIZES
    except ImportError:
        raise Unavailable("reading a GGUF file needs the gguf package: pip install gguf==0.19.0") from None
    return {int(kind): (kind.name, int(block), int(size)) for kind, (block, size) in GGML_QUANT_SIZES.items()}


def _walk(file: BinaryIO, what: str, types: dict[int, tuple[str, int, int]]) -> list[TensorInfo]:
    walk = _Walker(file, what)
    if (magic := walk.read(0, min(4, walk.size))) != b"GGUF":
        raise walk.bad(f"not a GGUF file: it starts with {magic!r}")
    walk.skip(4, "the magic")
    version = walk.number("I", "the version")
    if version not in VERSIONS:
        if version and version & 0xFFFF == 0:
            raise walk.bad("a big-endian GGUF file; only little-endian ones are read")
        raise walk.bad(f"GGUF version {version}; versions {VERSIONS[0]} and {VERSIONS[1]} are read")
    tensors, keys = walk.number("Q", "the tensor count"), walk.number("Q", "the key count")
    if tensors > MAX_TENSORS or tensors * 24 > walk.size:
        raise walk.bad(f"claims {tensors} tensors, more than {walk.size} bytes or {MAX_TENSORS} allow")
    if keys > MAX_KEYS or keys * 13 > walk.size:
        raise walk.bad(f"claims {keys} metadata keys, more than {walk.size} bytes or {MAX_KEYS} allow")
    alignment = 32
    seen: set[str] = set()
    for _ in range(keys):
        key = walk.text("a metadata key", MAX_NAME)
        if key in seen:
            raise walk.bad(f"metadata key {_short(key)} appears twice")
        seen.add(key)
        kind = walk.number("I", f"the type of {_short(key)}")
        start = walk.at
        walk.value(kind, key)
        if key == "general.alignment":
            if kind != _UINT32:
                raise walk.bad(f"general.alignment has type {kind}, it must be a 32-bit unsigned number")
            alignment = int.from_bytes(walk.read(start, 4), "little")
            if not 8 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
                span = f"from 8 to {MAX_ALIGNMENT}"
                raise walk.bad(f"general.alignment is {alignment}, not a power of two {span}")
    infos = [_tensor_info(walk, types, alignment) for _ in range(tensors)]
    base = -(-walk.at // alignment) * alignment
    infos = [replace(t, offset=base + t.offset) for t in infos]
    _check_places(walk, infos)
    return infos


def _tensor_info(walk: _Walker, types: dict[int, tuple[str, int, int]], alignment: int) -> TensorInfo:
    """One tensor's entry; its offset is still relative to the data section."""
    name = walk.text("a tensor name", MAX_NAME)
    of = f"tensor {_short(name)}"
    if not name.strip() or not name.isprintable():
        raise walk.bad(f"{of}: a name must be printable and not empty")
    dims = walk.number("I", of)
    if not 1 <= dims <= MAX_DIMS:
        raise walk.bad(f"{of} has {dims} dimensions, 1 to {MAX_DIMS} are possible")
    shape = [walk.number("Q", of) for _ in range(dims)]
    kind, offset = walk.number("I", of), walk.number("Q", of)
    if 0 in shape:
        raise walk.bad(f"{of} has the empty shape {shape}")
    rows = math.prod(shape[1:])
    if rows * shape[0] >= 1 << 48:
        raise walk.bad(f"{of} claims the shape {shape}, too many values")
    if offset % alignment:
        raise walk.bad(f"{of} lies at offset {offset}, not a multiple of the alignment {alignment}")
    if kind not in types:
        return TensorInfo(name, f"type {kind}", rows, shape[0], 0, offset)
    type_name, block, size = types[kind]
    if shape[0] % block:
        raise walk.bad(f"{of} is {type_name} with rows of {shape[0]} values, not a multiple of {block}")
    return TensorInfo(name, type_name, rows, shape[0], rows * (shape[0] // block) * size, offset)


def _check_places(walk: _Walker, infos: list[TensorInfo]) -> None:
    end, before = 0, ""
    for info in sorted(infos, key=lambda t: t.offset):
        last, name = info.offset + info.bytes, _short(info.name)
        if last > walk.size:
            raise walk.bad(
                f"tensor {name} lies at {info.offset}..{last}, past the end of the file at {walk.size}; "
                "is the download complete?"
            )
        if info.offset < end and info.bytes:
            raise walk.bad(f"tensors {_short(before)} and {name} overlap at byte {info.offset}")
        end, before = max(end, last), info.name
    names: set[str] = set()
    for info in infos:
        if info.name in names:
            raise walk.bad(f"tensor {_short(info.name)} appears twice")
        names.add(info.name)


def tensors(path: str | os.PathLike[str]) -> tuple[TensorInfo, ...]:
    """Every tensor of the GGUF file at `path`, in the file's order.

    A file that did not change is walked once. Raises BadInput for a file that cannot be opened or is not a
    sound GGUF file, Unavailable where the gguf package is missing.
    """
    file, types = Path(path), tuple(_type_table().items())
    try:
        if not file.is_file():
            raise BadInput(f"{file}: {'not a regular file' if file.exists() else 'no such file'}")
        now = file.stat()
        return _tensors(file, types, (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns))
    except (OSError, ValueError) as error:
        raise BadInput(f"{file}: cannot be read: {error}") from None


@lru_cache(maxsize=4)
def _tensors(
    file: Path, types: tuple[tuple[int, tuple[str, int, int]], ...], identity: tuple[int, ...]
) -> tuple[TensorInfo, ...]:  # fmt: skip
    """The same by the tensor types' table; identity: of the file as it now is."""
    with file.open("rb", buffering=0) as stream:
        if os.fstat(stream.fileno()).st_size == 0:
            raise BadInput(f"{file}: the file is empty")
        return tuple(_walk(stream, str(file), dict(types)))


_FORMATS = {"Q6_K": q6k.FORM, "Q4_K": q4k.FORM}


def _found(path: str | os.PathLike[str], name: str, type_name: str) -> TensorInfo:
    if type_name not in _FORMATS:
        raise BadInput(f"tensors of type {type_name} are not read; {' and '.join(_FORMATS)} are")
    infos = tensors(path)
    found = next((t for t in infos if t.name == name), None)
    if found is None:
        raise BadInput(f"{Path(path)}: no tensor {_short(name)}; {_offer(name, infos, type_name)}")
    if found.type_name != type_name:
        what = f"{Path(path)}: tensor {_short(name)}"
        raise BadInput(f"{what} is {found.type_name}, not {type_name}; {_offer(name, infos, type_name)}")
    return found


def _bytes(path: str | os.PathLike[str], info: TensorInfo, at: int, count: int) -> U8:
    """`count` bytes of a tensor from its byte `at` on. BadInput where the file no longer holds them."""
    what = f"{Path(path)}: tensor {_short(info.name)}"
    try:
        raw = np.fromfile(path, np.uint8, count, offset=info.offset + at)
    except OSError as error:
        raise BadInput(f"{what} cannot be read: {error}") from None
    if raw.size != count:
        raise BadInput(f"{what} ends after {at + raw.size} of {info.bytes} bytes; did the file change?")
    return raw


def read(path: str | os.PathLike[str], name: str, type_name: str = "Q6_K") -> tuple[U8, Shape]:
    """The bytes of tensor `name` as (u8[od, row_bytes], Shape); `type_name` is "Q6_K" or "Q4_K".

    Raises BadInput as `tensors` does, and for a name that is not there (close ones are offered),
    a tensor of another type, rows that are not a multiple of 256 values, and NaN or infinite scales.
    """
    found = _found(path, name, type_name)
    shape, form = Shape(found.od, found.id), _FORMATS[type_name]
    raw = _bytes(path, found, 0, found.bytes).reshape(shape.od, shape.nbe * form.block)
    kquant.check_scales(raw, f"{Path(path)}: tensor {_short(name)}", form)
    return raw, shape


def check(path: str | os.PathLike[str], name: str, type_name: str = "Q6_K") -> Shape:
    """The shape of tensor `name`. BadInput as `read`, but of a large tensor a sample of its scales counts.

    SAMPLED places spread evenly over it, its first and last super-blocks among them.
    """
    found = _found(path, name, type_name)
    shape, form = Shape(found.od, found.id), _FORMATS[type_name]
    blocks = found.bytes // form.block
    each = min(blocks, SAMPLE // form.block)
    many = min(SAMPLED, -(-blocks // each))
    for k in range(many):
        first = (blocks - each) * k // max(1, many - 1)
        raw = _bytes(path, found, first * form.block, each * form.block)
        kquant.check_scales(raw, f"{Path(path)}: tensor {_short(name)}", form, (first, shape.nbe))
    return shape


def _offer(name: str, infos: Sequence[TensorInfo], type_name: str) -> str:
    """What the user may have meant: close names of the wanted type, or the first few."""
    names = [t.name for t in infos if t.type_name == type_name and t.name != name]
    if not names:
        return f"the file holds no {type_name} tensor"
    close = difflib.get_close_matches(name[:MAX_NAME], names, n=3, cutoff=0.5)
    if close:
        return "did you mean " + " or ".join(_short(n) for n in close) + "?"
    some = ", ".join(_short(n) for n in names[:3])
    return f"its {type_name} tensors: {some}" + (f" and {len(names) - 3} more" if len(names) > 3 else "")
