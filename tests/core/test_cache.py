"""The build cache: damaged entries are built again, others' folders not used, two builders at once agree."""

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

from probes.core import cache, streams
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
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    streams.warn.cache_clear()
    (tmp_path / "deep").mkdir(mode=0o755)
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
    folder.mkdir(mode=0o755)
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


def given_away(path: Path, to: int = 12345) -> None:
    if os.geteuid():
        pytest.skip("only root can give a folder away")
    os.chown(path, to, -1)


def builds_elsewhere(folder: Path, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What lies in the build folder is not loaded: it is built in the user's own, once, and that is said."""
    make = Maker()
    for _ in range(2):
        path = built(make)
        assert path.is_relative_to(cache.own_dir() or "") and not path.is_relative_to(folder)
    assert make.times == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line and f"kernels are built in {cache.own_dir()}" in line


def test_another_user_s_folder_is_not_used(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    built(Maker())  # a good entry of ours is not loaded from it either
    given_away(folder)
    builds_elsewhere(folder, "belongs to another user (uid 12345)", capsys)


def test_a_folder_that_everybody_may_write_to(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    built(Maker())
    folder.chmod(0o777)
    builds_elsewhere(folder, "may be written to by everybody", capsys)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o777, "a folder that may be a system's is left alone"


@pytest.mark.parametrize("mode", [0o775, 0o1777])
def test_a_group_s_and_a_sticky_folder_are_used(folder: Path, mode: int) -> None:
    folder.mkdir(parents=True)
    folder.chmod(mode)
    assert built(Maker()).is_relative_to(folder)


def test_where_no_folder_is_trusted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Maker()
    for where in (folder, cache.own_dir()):
        assert where
        where.mkdir(parents=True)
        where.chmod(0o777)
    with pytest.raises(BadInput, match=r"may be written to by everybody.*PROBES_BUILD_DIR") as caught:
        cache.cached(KEY, "x.bin", make)
    assert "\n" not in str(caught.value) and not make.times
    monkeypatch.setattr(cache, "own_dir", lambda: None)
    with pytest.raises(BadInput, match="may be written to by everybody"):
        cache.found(KEY, "x.bin")


def test_a_folder_that_refuses_us(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.mkdir(mode=0o755)
    true = cache.tempfile.mkdtemp

    def refusing(prefix: str, dir: Path) -> str:
        if dir == folder:
            raise PermissionError(13, "Permission denied")
        return true(prefix=prefix, dir=dir)

    monkeypatch.setattr(cache.tempfile, "mkdtemp", refusing)
    builds_elsewhere(folder, "Permission denied", capsys)


PLANTS: dict[str, Callable[[Path], object]] = {
    "another user's entry": lambda p: given_away(p.parent),
    "another user's library": lambda p: given_away(p),
    "another user's list": lambda p: given_away(p.parent / cache.MANIFEST),
    "an entry open to its group": lambda p: p.parent.chmod(0o775),
    "an entry open to all": lambda p: p.parent.chmod(0o757),
    "a library open to its group": lambda p: p.chmod(0o664),
    "a list open to all": lambda p: (p.parent / cache.MANIFEST).chmod(0o646),
    "a link to an entry": lambda p: (
        p.parent.rename(p.parent.with_name("real")), p.parent.symlink_to("real"),
    ),
    "a link to a library": lambda p: (p.rename(p.with_name("real")), p.symlink_to("real")),
    "a pipe": lambda p: (p.unlink(), os.mkfifo(p)),
    "names that climb": lambda p: (p.parent / cache.MANIFEST).write_text(
        f'{{"x.bin": "{cache._sha256(p)}", "../{p.parent.name}/x.bin": "{cache._sha256(p)}"}}'
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", PLANTS)
def test_what_others_could_have_planted_is_built_again(folder: Path, how: str) -> None:
    make = Maker()
    path = built(make)
    PLANTS[how](path)
    assert not cache.whole(path.parent, "x.bin") and cache.found(KEY, "x.bin") is None
    assert built(make) == path and make.times == 2
    assert path.parent.lstat().st_uid == os.geteuid() and not path.parent.is_symlink()


def test_root_s_entries_are_loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid():
        pytest.skip("only root can make them")
    make = Maker()
    path = built(make)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert built(make) == path and make.times == 1


def test_a_killed_maker_s_folder_goes_with_the_next_build(folder: Path) -> None:
    """One whose maker lives stays, and so does a young one, which may not be locked yet."""
    folder.mkdir(mode=0o755)
    old, young, held = (folder / f"making-{n}" for n in ("old", "young", "held"))
    for path in (old, young, held):
        (path / "kept").mkdir(parents=True)
    for path in (old, held):
        os.utime(path, (1, 1))
    with cache._locked(held):
        built(Maker())
        assert not old.exists() and young.exists() and held.exists()


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
    folder.mkdir(mode=0o755)
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
