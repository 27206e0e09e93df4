"""Files that a run leaves: written whole or not at all, and tried before anything is measured.

A file is made under a name that nobody can foresee, and renamed into place: no reader sees half of it, no
planted link is followed, and of two writers one wins. What others own, what is read-only, and a measured
report where something less would replace it, stay.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from probes.core.types import BadInput

TRIED_BYTES = 1 << 20
"""What a place must have room for before a run begins: about a full report."""

_READ_BYTES = 64 << 20
_MEASURED = re.compile(rb'"mode"\s*:\s*"measure"|"source"\s*:\s*"measured"|\A# [^\n]*\n+Measured on ')


def whole(path: Path) -> Path:
    """A path without links and relative parts. BadInput where its links lead in a circle, or nowhere."""
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:
        why = error.strerror if isinstance(error, OSError) else "its links lead in a circle"
        raise _refused(path, why or str(error)) from error


def committed(path: Path) -> bool:
    """Whether a path is a committed report's place: out/<device>/ of a checkout, or of the current folder."""
    device = whole(path).parent
    root = device.parent.parent
    here = root == whole(Path()) or (root / "probes" / "__init__.py").exists()
    return device.parent.name == "out" and device.name not in ("runs", "build") and here


def check_not_committed(path: Path, cure: str = "which only --record replaces") -> None:
    """BadInput for a committed report's place."""
    if committed(path):
        raise BadInput(f"{path} is a committed report's place, {cure}")


def measured(path: Path) -> bool:
    """Whether a report, its JSON or its Markdown, of something measured lies there."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return _MEASURED.search(file.read(_READ_BYTES)) is not None
    except OSError:
        return False  # whoever writes there says why that cannot be


def check_not_measured(path: Path, what: str) -> None:
    """BadInput where `what`, such as "a prediction", would replace a measured report."""
    if measured(path):
        raise BadInput(f"{path} was measured, and {what} does not replace it; choose another place")


def check_writable(path: Path) -> None:
    """Try what `write` will do, with the name and the bytes of a report, and take it away again. BadInput."""
    with _errors(path):
        target = _target(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".probes-", dir=target.parent) as folder:
            Path(folder, target.name).write_bytes(b" " * TRIED_BYTES)


def write(path: Path, data: bytes | str) -> tuple[int, int]:
    """Replace a file in one step, and make its folder; what `stamp` says of it then.

    Follows a link of the user's own. BadInput on what the file system refuses, on what is no regular file or
    read-only, and on another user's link: the old file then stays.
    """
    with _errors(path):
        target = _target(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{secrets.token_hex(8)}.tmp")
        made = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
        try:
            with open(made, "wb") as file:
                file.write(data.encode(errors="backslashreplace") if isinstance(data, str) else data)
                if target.exists():
                    os.fchmod(made, stat.S_IMODE(target.stat().st_mode))
                file.flush()
                about = os.fstat(made)
            os.replace(temporary, target)
        finally:
            with suppress(OSError):
                temporary.unlink()
        return about.st_ino, about.st_mtime_ns


def stamp(path: Path) -> tuple[int, int] | None:
    """What changes when a file is replaced; None where there is none."""
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_ino, about.st_mtime_ns


def salvaged(data: str, name: str) -> str:
    """Keep what could not be written where it should be; the words that say where."""
    for folder in (tempfile.gettempdir(), os.path.expanduser("~"), "."):
        with suppress(OSError):
            place = Path(tempfile.mkdtemp(prefix="probes-", dir=folder)) / name
            place.write_text(data, encoding="utf-8", errors="backslashreplace")
            return f"all rows so far are kept in {place.resolve()}"
    return "and nowhere else is there room for the rows"


def _target(path: Path) -> Path:
    """The file behind a path. ValueError where it must not be replaced; OSError."""
    if not path.name:
        raise ValueError("that names no file")
    if path.is_symlink() and (owner := path.lstat().st_uid) not in (os.geteuid(), 0):
        raise ValueError(f"it is a link of another user's (uid {owner})")
    target = whole(path)
    try:
        about = target.stat()
    except FileNotFoundError:
        return target
    if not stat.S_ISREG(about.st_mode):
        raise ValueError("it is there and is no regular file")
    if not about.st_mode & 0o222 or not os.access(target, os.W_OK):
        raise ValueError("it is read-only")
    above = target.parent.stat()
    if above.st_mode & stat.S_ISVTX and os.geteuid() not in (0, about.st_uid, above.st_uid):
        raise ValueError(f"it is another user's (uid {about.st_uid})")
    return target


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise _refused(path, why) from error


def _refused(path: Path, why: str) -> BadInput:
    return BadInput(f"cannot write {path}: {why}; choose another place")
