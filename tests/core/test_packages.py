"""Each package once missing, once failing as it loads: what needs it says so in a line, the rest works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from probes.core import packages

ROOT = Path(__file__).parents[2]
HOOK = """
import sys
class Hook:
    def find_spec(self, name, path=None, target=None):
        if any(f"{name}.".startswith(f"{n}.") for n in %(names)r):
            raise %(error)s
sys.meta_path.insert(0, Hook())
from probes.__main__ import main
sys.exit(main(%(argv)r))
"""
PACKAGES = {
    "numba": ["numba"], "numba-cuda": ["numba_cuda", "numba.cuda"], "cuda-core": ["cuda.core"],
    "cuda-bindings": ["cuda.bindings"], "cuda-pathfinder": ["cuda.pathfinder"], "nvidia-ml-py": ["pynvml"],
    "numpy": ["numpy"], "tabulate": ["tabulate"], "psutil": ["psutil"], "gguf": ["gguf"],
    "matplotlib": ["matplotlib"],
}  # fmt: skip
MISSING, BROKEN = "ModuleNotFoundError(name, name=name)", "RuntimeError('it was built for another machine')"
REPORT = str(ROOT / "out" / "nvidia-h200" / "l3.json")
COMMANDS = {
    "list": ["--list"], "predict": ["--mode", "predict", "-q"], "auto": ["-q"], "replay": ["replay", REPORT],
    "compare": ["compare", REPORT, REPORT],
}  # fmt: skip
NEEDED = {"predict": {"numpy", "tabulate"}, "auto": {"numpy", "tabulate"}, "list": set()}


def run(tmp_path: Path, names: list[str], error: str, argv: list[str]) -> subprocess.CompletedProcess[str]:
    code = HOOK % {"names": names, "error": error, "argv": argv}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "PROBES_BUILD_DIR": str(tmp_path / "build")},
    )  # fmt: skip


@pytest.mark.sampled(4, "")
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("error", [pytest.param(MISSING, id="missing"), pytest.param(BROKEN, id="broken")])
@pytest.mark.parametrize("package", PACKAGES)
def test_one_package_is_missing_or_broken(tmp_path: Path, package: str, error: str, command: str) -> None:
    done = run(tmp_path, PACKAGES[package], error, COMMANDS[command])
    assert "Traceback" not in done.stderr
    if package in NEEDED.get(command, {"numpy", "tabulate"}):
        why = "is missing" if error is MISSING else "does not load (RuntimeError: it was built for another"
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1].startswith(f"error: the package {package} {why}")
        assert done.stderr.count("pip install") == 1 and f"{package}\n" in done.stderr
    else:
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("how", ["-O", "-OO", "-I"])
def test_how_python_is_started_changes_nothing(tmp_path: Path, how: str) -> None:
    told = []
    for flags in ([], [how]):
        code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from probes import __main__; __main__.main()"
        argv = [sys.executable, *flags, "-c", code, "compare", REPORT, REPORT]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False)
        told.append((done.returncode, done.stdout, done.stderr))
    assert told[0] == told[1] and told[0][0] == 0 and "SAME" in told[0][1]


def test_commands_work_without_docstrings(tmp_path: Path) -> None:
    code = (
        "from probes.__main__ import main\n"
        "for name in ('selfcheck', 'readme', 'resources', 'compare', 'replay'):\n"
        "    code = main([name, '--help'])\n"
        "    if code: raise SystemExit(name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-OO", "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path,
        check=False, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_library_that_does_not_load_is_not_called_missing(tmp_path: Path) -> None:
    done = run(tmp_path, ["cuda.bindings"], "ImportError('libcudart.so: cannot open')", COMMANDS["auto"])
    assert done.returncode == 0 and "does not load (ImportError: libcudart.so" in done.stderr


def test_an_error_of_our_own_is_no_package() -> None:
    with pytest.raises(ValueError) as raised:
        Path(packages.__file__).relative_to("/nowhere")
    assert packages.failed(raised.value) is None
