"""What a cubin says of its kernels: code, constants, registers, shared memory and stack, from its sections.

No compiler's log is read: its form differs from linker to linker.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from probes.core.types import BadInput, Resources

_ATTR_FRAME, _ATTR_REGISTERS = 0x11, 0x2F  # records of .nv.info: stack frame in bytes, registers
_SYMTAB, _NOBITS = 2, 8
_ENTRY = 0x10  # in a symbol's st_other: a kernel, not a function that one calls


@dataclass(frozen=True, slots=True)
class Section:
    """One ELF section; `data` is empty where the file holds none (`size` says how much memory it takes)."""

    name: str
    kind: int
    size: int
    info: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Compiled:
    """One kernel: what it costs, and its own sections by the part of their name before the kernel's."""

    resources: Resources
    sections: dict[str, Section]


def sections(cubin: bytes) -> list[Section]:
    """A cubin's sections in order. BadInput on anything that is not a whole 64-bit ELF file."""
    try:
        if cubin[:5] != b"\x7fELF\x02":
            raise ValueError("not an ELF file")
        start, size, count, names_at = struct.unpack_from("<Q10xHHH", cubin, 0x28)
        (segments,) = struct.unpack_from("<Q", cubin, 0x20)
        each, many = struct.unpack_from("<HH", cubin, 0x36)
        _piece(cubin, segments, each * many)  # they end the file
        heads = [struct.unpack_from("<IIQQQQIIQQ", cubin, start + k * size) for k in range(count)]
        texts = _piece(cubin, heads[names_at][4], heads[names_at][5])
        out = []
        for name, kind, _, _, at, length, _, info, _, _ in heads:
            data = b"" if kind in (0, _NOBITS) else _piece(cubin, at, length)
            out.append(Section(_text(texts, name), kind, length, info, data))
        return out
    except (struct.error, ValueError, IndexError) as error:
        raise BadInput(f"this is no whole cubin of {len(cubin)} bytes: {error}") from error


def kernels(cubin: bytes) -> dict[str, Compiled]:
    """Every entry point of a cubin, by name. BadInput as `sections`."""
    found = sections(cubin)
    table = next((s for s in found if s.kind == _SYMTAB), None)
    if table is None:
        raise BadInput("this cubin has no symbols")
    texts = next(s.data for s in found if s.name == ".strtab")
    heads = [struct.unpack_from("<IBB", table.data, k) for k in range(0, len(table.data), 24)]
    symbols = [_text(texts, name_at) for name_at, _, _ in heads]
    entries = {name for name, (_, _, other) in zip(symbols, heads, strict=True) if other & _ENTRY}
    told: dict[int, dict[str, int]] = {_ATTR_FRAME: {}, _ATTR_REGISTERS: {}}
    for info in (s.data for s in found if s.name == ".nv.info"):
        for attr, payload in records(info):
            if attr in told:
                symbol, value = struct.unpack("<II", payload)
                told[attr][symbols[symbol]] = value
    # from sm_90 on a block's first KiB is the system's, and the section counts it
    reserved = 1024 if _target(cubin) >= 90 else 0
    out = {}
    for code in found:
        name = code.name.removeprefix(".text.")
        if name == code.name or name not in entries:
            continue  # what the compiler calls (a division) has code of its own, and is no kernel
        own = {
            s.name.removesuffix(f".{name}"): s
            for s in found
            if s.name.endswith(f".{name}") and s.name.startswith((".text.", ".nv.", ".rel"))
        }
        smem = own[".nv.shared"].size - reserved if ".nv.shared" in own else 0
        registers = told[_ATTR_REGISTERS].get(name, code.info >> 24)
        out[name] = Compiled(Resources(registers, smem, told[_ATTR_FRAME].get(name, 0)), own)
    return out


def _target(cubin: bytes) -> int:
    """Such as 90: in the ELF's flags, a byte further up since ABI version 8."""
    (flags,) = struct.unpack_from("<I", cubin, 0x30)
    return int(flags >> 8 if cubin[8] >= 8 else flags) & 0xFF


def records(info: bytes) -> Iterator[tuple[int, bytes]]:
    """(attribute, payload) of each record of a .nv.info section. ValueError on one that is cut short."""
    at = 0
    while at + 4 <= len(info):
        form, attr, size = struct.unpack_from("<BBH", info, at)
        if form == 4:  # `size` bytes follow; the other forms hold their value in these four
            yield attr, _piece(info, at + 4, size)
            at += 4 + size
        else:
            yield attr, info[at + 2 : at + 4]
            at += 4


def _piece(data: bytes, at: int, size: int) -> bytes:
    if at + size > len(data):
        raise ValueError(f"{size} bytes at {at} lie past the end")
    return data[at : at + size]


def _text(texts: bytes, at: int) -> str:
    return texts[at : texts.index(b"\0", at)].decode()
