"""The build cache: damaged entries are built again, others' folders refused, two builders at once agree."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from probes.core import cache
from probes.core.types import BadInput

ROOT = Path(__file__).resolve().parents[2]
KEY = ["a key"]


class Maker:
    """Builds x.bin and a file beside it; counts how often."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, scratch: Path) -> None:
        self.times += 1
        (scratch / "x.bin").write_bytes(b"code" * 100)
        (scratch / "beside.json").write_text('{"registers": 40}')


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("PROBES_BUILD_DIR", str(tmp_path / "deep" / "build"))
    old = os.umask(0)
    yield tmp_path / "deep" / "build"
    os.umask(old)


def built(make: Callable[[Path], None]) -> Path:
    path = cache.cached(KEY, "x.bin", make)
    assert path.read_bytes() == b"code" * 100
    assert (path.parent / "beside.json").read_text() == '{"registers": 40}'
    return path


def test_once_and_then_from_the_cache(folder: Path) -> None:
    make = Maker()
    assert built(make) == built(make) and make.times == 1
    assert cache.entry(KEY) == built(make).parent and cache.whole(cache.entry(KEY), "x.bin")
    assert cache.entry(["another"]) != cache.entry(KEY)
    assert [p.name for p in folder.iterdir()] == [cache.entry(KEY).name], "nothing half-made is left"


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda p: p.write_bytes(b""),
    "cut": lambda p: p.write_bytes(p.read_bytes()[:-1]),
    "noise": lambda p: p.write_bytes(b"\xff\xfe" + os.urandom(398)),
    "missing": lambda p: p.unlink(),
    "a folder": lambda p: (p.unlink(), p.mkdir()),
    "a link to nothing": lambda p: (p.unlink(), p.symlink_to("nowhere")),
}


@pytest.mark.parametrize("name", ["x.bin", "beside.json", cache.MANIFEST])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_entry_is_built_again(folder: Path, name: str, damage: str) -> None:
    make = Maker()
    path = built(make)
    DAMAGE[damage](path.parent / name)
    assert not cache.whole(path.parent, "x.bin")
    assert built(make) == path and make.times == 2
    built(make)
    assert make.times == 2 and len(list(folder.iterdir())) == 1


@pytest.mark.parametrize(
    "text",
    ["[]", "{}", "null", '"x.bin"', '{"x.bin": 1}', '{"beside.json": "00"}', '["x.bin"]', "[" * 200_000],
    ids=lambda text: text[:20],
)
def test_a_manifest_of_another_form_is_damage(folder: Path, text: str) -> None:
    make = Maker()
    (built(make).parent / cache.MANIFEST).write_text(text)
    built(make)
    assert make.times == 2


def test_what_stands_in_the_way_of_an_entry_is_replaced(folder: Path) -> None:
    """Today's 'Directory not empty' for ever; a file; an empty folder."""
    place = cache.entry(KEY)
    for block in (
        lambda: (place / "rubbish").mkdir(parents=True),
        lambda: place.mkdir(),
        lambda: place.write_text("a file"),
    ):
        make = Maker()
        block()
        built(make)
        assert make.times == 1
        shutil.rmtree(place)


@pytest.mark.parametrize("umask", [0, 0o022, 0o077, 0o002])
def test_nobody_else_may_write(folder: Path, umask: int) -> None:
    os.umask(umask)
    path = built(Maker())
    for p in (path.parent.parent, path.parent.parent.parent, path.parent):
        assert stat.S_IMODE(p.stat().st_mode) & ~0o755 == 0, p
    for p in path.parent.iterdir():
        assert stat.S_IMODE(p.stat().st_mode) & ~0o644 == 0, p


def test_a_folder_open_to_others_is_closed(folder: Path) -> None:
    folder.mkdir(parents=True, mode=0o777)
    built(Maker())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755


def test_another_user_s_folder_is_refused_in_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Maker()
    built(make)  # a good entry is not loaded from it either
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(BadInput, match=r"belongs to another user \(uid \d+\).*PROBES_BUILD_DIR") as caught:
        cache.cached(KEY, "x.bin", make)
    assert "\n" not in str(caught.value) and make.times == 1


def test_another_user_s_entry_is_built_again(folder: Path) -> None:
    make = Maker()
    path = built(make)
    if os.geteuid():
        pytest.skip("only root can give a folder away")
    os.chown(path.parent, 12345, -1)
    built(make)
    assert make.times == 2 and path.parent.stat().st_uid == os.geteuid()


def test_a_build_that_fails_leaves_nothing(folder: Path) -> None:
    def fails(scratch: Path) -> None:
        (scratch / "x.bin").write_text("half")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        cache.cached(KEY, "x.bin", fails)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("broken", [False, True])
def test_processes_that_build_at_once_agree(folder: Path, broken: bool) -> None:
    """Each builds, one wins, all read the same; also where a broken entry stands in the way."""
    if broken:
        (cache.entry(KEY) / "rubbish").mkdir(parents=True)
    code = textwrap.dedent("""
        import sys, time
        from probes.core import cache

        def make(scratch):
            time.sleep(0.3)
            (scratch / "x.bin").write_bytes(b"code" * 100)
            (scratch / "beside.json").write_text('{"registers": 40}')

        path = cache.cached(["a key"], "x.bin", make)
        sys.exit(path.read_bytes() != b"code" * 100)
    """)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    running = [subprocess.Popen([sys.executable, "-c", code], env=env) for _ in range(6)]
    assert [p.wait(60) for p in running] == [0] * 6
    assert [p.name for p in folder.iterdir()] == [cache.entry(KEY).name]
    make = Maker()
    built(make)
    assert make.times == 0
