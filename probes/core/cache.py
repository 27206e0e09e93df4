"""One cache for everything that is compiled: out/build/<hash>/ holds what a set of inputs built to.

A build is made in a scratch folder and renamed into place: two processes may build at once, and a killed one
leaves nothing half-made. An entry lists the SHA-256 of its files, which is checked before any is used. Nobody
but its owner can write to it, and one that another user owns is refused: what lies there is loaded and run.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from probes.core.types import BadInput

MANIFEST = "sha256.json"


def build_dir() -> Path:
    """PROBES_BUILD_DIR, else out/build under the current folder."""
    return Path(os.environ.get("PROBES_BUILD_DIR") or Path("out") / "build")


def entry(key: Iterable[str | bytes]) -> Path:
    """The folder of a key, whether it is there or not."""
    parts = b"".join((part.encode() if isinstance(part, str) else part) + b"\0" for part in key)
    return build_dir() / hashlib.sha256(parts).hexdigest()[:20]


def cached(key: Iterable[str | bytes], product: str, make: Callable[[Path], None]) -> Path:
    """The file `product` of the folder named by the hash of `key`; `make(scratch folder)` builds it once.

    Raises BadInput where the build folder cannot be written or belongs to another user.
    """
    folder = entry(key)
    refused = f"cannot write the build folder {folder.parent}"
    _own(folder.parent)
    if whole(folder, product):
        return folder / product
    try:
        for path in (*reversed(folder.parent.parents), folder.parent):
            if not path.exists():
                path.mkdir(mode=0o755, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix="making-", dir=folder.parent))
    except OSError as error:
        raise BadInput(f"{refused}: {error.strerror}; set PROBES_BUILD_DIR") from error
    try:
        make(scratch)
        _seal(scratch)
        _place(scratch, folder, product)
    except OSError as error:
        raise BadInput(f"{refused}: {error.strerror}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder / product


def whole(folder: Path, product: str) -> bool:
    """Whether an entry is there with every file that it lists, each as it was built."""
    try:
        listed = json.loads((folder / MANIFEST).read_bytes())
        return (
            product in listed
            and folder.lstat().st_uid == os.geteuid()
            and all(_sha256(folder / name) == sha for name, sha in listed.items())
        )
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):  # missing, cut, noise, no table
        return False


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _own(folder: Path) -> None:
    """BadInput where the build folder is another user's; nobody else may write to one of ours."""
    try:
        found = folder.stat()
    except OSError:
        return  # not there yet, or not to be read, which `cached` says
    if found.st_uid != os.geteuid():
        whose = f"belongs to another user (uid {found.st_uid}), and what lies there would be run"
        raise BadInput(f"the build folder {folder} {whose}: set PROBES_BUILD_DIR to a folder of your own")
    if found.st_mode & 0o022:
        folder.chmod(stat.S_IMODE(found.st_mode) & ~0o022)


def _seal(folder: Path) -> None:
    """List every file's hash; take from others the right to write, whatever the umask."""
    listed = {p.name: _sha256(p) for p in sorted(folder.iterdir()) if p.is_file()}
    (folder / MANIFEST).write_text(json.dumps(listed, indent=1))
    for name in (*listed, MANIFEST):
        path = folder / name
        path.chmod(stat.S_IMODE(path.stat().st_mode) & 0o644)
    folder.chmod(stat.S_IMODE(folder.stat().st_mode) & 0o755)


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
