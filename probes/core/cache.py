"""One cache for everything that is compiled: out/build/<hash>/ holds what a set of inputs built to.

A build is made in a scratch folder and renamed into place: two processes may build at once, and a killed one
leaves nothing half-made. What lies here is loaded and run, so an entry counts only where this user or root
owns its folder and files, nobody else may write to them, none is a link, and each has the SHA-256 that the
entry lists. Where the build folder is not to be trusted, a folder of the user's own takes its place.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from probes.core.streams import warn
from probes.core.types import BadInput

MANIFEST = "sha256.json"
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
_YOUNG_S = 60.0
"""A scratch folder is locked by its maker; one so young may not be yet."""


def build_dir() -> Path:
    """PROBES_BUILD_DIR, else out/build under the current folder."""
    return Path(os.environ.get("PROBES_BUILD_DIR") or Path("out") / "build")


def own_dir() -> Path | None:
    """The user's own cache folder, XDG_CACHE_HOME's or ~/.cache's; None for a user without a home."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpu-probes" / "build"
    except RuntimeError:
        return None


def homes() -> list[Path]:
    """Where entries are looked for and built, the build folder first. BadInput where none is to be trusted.

    A build folder of another user's, or one that everybody may rename things in, is left out, and that is
    said. One that its group may write to is taken: an entry's own folder is checked.
    """
    asked, own = build_dir(), own_dir()
    why = _distrust(asked)
    rest = [own] if own and not _distrust(own) else []
    if not why:
        return [asked, *rest]
    if not rest:
        raise BadInput(f"the build folder {asked} {why}: set PROBES_BUILD_DIR to a folder of your own")
    warn(f"the build folder {asked} {why}; kernels are built in {own}")
    return rest


def _distrust(folder: Path) -> str:
    """Why nothing is loaded from a folder; '' where it is to be trusted, or is not there yet."""
    try:
        found = folder.stat()
    except OSError:
        return ""  # building there says what is wrong
    if found.st_uid not in (os.geteuid(), 0):
        return f"belongs to another user (uid {found.st_uid})"
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        return "may be written to by everybody"
    return ""


def _name(key: Iterable[str | bytes]) -> str:
    parts = b"".join((part.encode() if isinstance(part, str) else part) + b"\0" for part in key)
    return hashlib.sha256(parts).hexdigest()[:20]


def entry(key: Iterable[str | bytes]) -> Path:
    """The folder that a key is built in, whether it is there or not. BadInput as `homes`."""
    return homes()[0] / _name(key)


def found(key: Iterable[str | bytes], product: str) -> Path | None:
    """The file `product` of a key's entry, None where no folder holds it whole. BadInput as `homes`."""
    name = _name(key)
    return next((home / name / product for home in homes() if whole(home / name, product)), None)


def cached(key: Iterable[str | bytes], product: str, make: Callable[[Path], None]) -> Path:
    """The file `product` of the folder named by the hash of `key`; `make(scratch folder)` builds it once.

    Raises BadInput where no build folder can be written or trusted.
    """
    key = list(key)
    if there := found(key, product):
        return there
    folders = homes()
    for home, last in zip(folders, (*[False] * (len(folders) - 1), True), strict=True):
        try:
            return _built(home / _name(key), product, make)
        except OSError as error:
            refused = f"cannot write the build folder {home}: {error.strerror}"
            if last or error.errno not in _DENIED:
                raise BadInput(f"{refused}; set PROBES_BUILD_DIR") from error
            warn(f"{refused}; kernels are built in {folders[-1]}")
    raise AssertionError("the last folder returns or raises")


def _built(folder: Path, product: str, make: Callable[[Path], None]) -> Path:
    """Build an entry. Raises OSError where it cannot be written, and whatever `make` does."""
    for path in (*reversed(folder.parent.parents), folder.parent):
        if not path.exists():
            path.mkdir(mode=0o755, exist_ok=True)
    _sweep(folder.parent)
    scratch = Path(tempfile.mkdtemp(prefix="making-", dir=folder.parent))
    try:
        with _locked(scratch):
            make(scratch)
            _seal(scratch)
            _place(scratch, folder, product)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder / product


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a folder's lock, which goes with this process. BlockingIOError where another process holds it."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(opened)


def _sweep(home: Path) -> None:
    """Remove scratch folders whose makers were killed."""
    for left in home.glob("making-*"):
        with suppress(OSError):  # another process is at it, or owns it
            was = left.lstat()
            if was.st_uid == os.geteuid() and was.st_mtime < time.time() - _YOUNG_S:
                with _locked(left):
                    shutil.rmtree(left, ignore_errors=True)


def whole(folder: Path, product: str) -> bool:
    """Whether an entry is there, nobody else may write to it, and its files are as they were built."""
    try:
        if not (stat.S_ISDIR((about := folder.lstat()).st_mode) and _ours(about)):
            return False
        listed = json.loads(_read(folder / MANIFEST))
        return product in listed and all(
            "/" not in name and _sha256(folder / name) == sha for name, sha in listed.items()
        )
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):  # missing, cut, noise, no table
        return False


def _ours(about: os.stat_result) -> bool:
    """Whether this user or root owns a thing, and nobody else may write to it."""
    return about.st_uid in (os.geteuid(), 0) and not about.st_mode & OTHERS_WRITE


def _read(path: Path) -> bytes:
    """A file's bytes. PermissionError or OSError where it is a link, no file, or open to others."""

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)  # and no pipe is waited for

    with open(path, "rb", opener=opener) as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode) or not _ours(about):
            raise PermissionError(errno.EPERM, f"{path} is not ours alone")
        return file.read()


def _sha256(path: Path) -> str:
    return hashlib.sha256(_read(path)).hexdigest()


def _seal(folder: Path) -> None:
    """List every file's hash; take from others the right to write, whatever the umask."""
    files = [p for p in sorted(folder.iterdir()) if p.is_file()]
    for path in files:
        path.chmod(stat.S_IMODE(path.stat().st_mode) & 0o644)
    listed = {p.name: _sha256(p) for p in files}
    (folder / MANIFEST).write_text(json.dumps(listed, indent=1))
    for path in (folder / MANIFEST, folder):
        path.chmod(stat.S_IMODE(path.stat().st_mode) & 0o755)


def _place(scratch: Path, folder: Path, product: str) -> None:
    """Rename a finished build into place, past whatever broken thing has its name."""
    for _ in range(8):
        try:
            scratch.rename(folder)
            return
        except OSError:
            if whole(folder, product):
                return  # another process was first, and its entry serves as well
            aside = Path(tempfile.mkdtemp(prefix="broken-", dir=folder.parent))
            try:
                folder.rename(aside / "entry")
            except FileNotFoundError:
                pass  # another process has moved it
            finally:
                shutil.rmtree(aside, ignore_errors=True)
    scratch.rename(folder)
