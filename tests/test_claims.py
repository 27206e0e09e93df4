"""A kernel's claim is one test function, run on the stand-in and, marked, on a GPU: read from the source.

- A test that takes `machine` is sized by `machines.over` alone, whose four machines are all given something,
  or not at all: then it runs on the fixture's four.
- A test that a GPU alone runs says in its docstring why: "Only ...".
- No two tests of tests/kernels have one name, so that no claim stands there twice.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.kernels import machines

KERNELS = Path(machines.__file__).parent
FILES = sorted(KERNELS.glob("test_*.py"))
SIDES = {"cu", "numba", "gpu"}


def functions(tree: ast.Module) -> list[ast.FunctionDef]:
    return [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name.startswith("test_")]


def empty(node: ast.expr) -> bool:
    return isinstance(node, (ast.List, ast.Tuple)) and not node.elts


def faults(texts: Iterable[str]) -> list[str]:
    """What the tests in these files' texts break, as readable lines."""
    out, names = [], Counter[str]()
    for text in texts:
        tree = ast.parse(text)
        marked = any(
            isinstance(n, ast.Assign) and "pytestmark" in ast.unparse(n) and "mark.gpu" in ast.unparse(n)
            for n in tree.body
        )
        for test in functions(tree):
            names[test.name] += 1
            taken = {a.arg for a in test.args.args}
            said = [ast.unparse(d) for d in test.decorator_list]
            calls = [d for d in test.decorator_list if isinstance(d, ast.Call)]
            alone = marked or "gpu" in taken or any("mark.gpu" in d for d in said)
            if alone and "machine" in taken:
                out.append(f"{test.name} takes every machine and is a GPU's alone")
            elif alone and "Only" not in (ast.get_docstring(test) or ""):
                out.append(f"{test.name}: its docstring does not say why only a GPU can show it")
            if "machine" in taken and any("parametrize" in d and "machine" in d for d in said):
                out.append(f"{test.name} picks its machines by hand")
            for d in (d for d in calls if ast.unparse(d.func) == "over"):
                given = {k.arg for k in d.keywords if not empty(k.value)}
                if not given >= SIDES:
                    out.append(f"{test.name} has nothing for {', '.join(sorted(SIDES - given))}")
    return out + [f"{name} stands there {n} times" for name, n in names.items() if n > 1]


def test_a_kernel_s_claim_is_one_test() -> None:
    assert faults(path.read_text() for path in FILES) == []


def test_every_kernel_file_has_claims_on_machines() -> None:
    taking = {
        path.stem
        for path in FILES
        if any("machine" in {a.arg for a in t.args.args} for t in functions(ast.parse(path.read_text())))
    }
    assert taking == {
        "test_l1_kernels", "test_l1_ring", "test_l2_kernels", "test_l2_rows", "test_l3_kernels",
        "test_read_kernels",
    }  # fmt: skip


def test_a_machine_is_on_the_host_and_on_a_gpu_in_both_languages() -> None:
    (made,) = machines.over("x", cu=[1], numba=[2], gpu=[3], small=[3]).args[1:]
    assert [p.values for p in made] == [
        ("host-cu", 1), ("host-numba", 2), ("gpu-cu", 3), ("gpu-numba", 3)
    ]  # fmt: skip
    with pytest.raises(AssertionError, match="nothing for a machine"):
        machines.over("x", cu=[1], numba=(), gpu=[3])
    marks = [{m.name for m in p.marks} for p in made]
    assert marks == [set(), set(), {"gpu", "small"}, {"gpu", "small"}]
    assert machines.HOSTS == ("host-cu", "host-numba")
    assert [(*p.values, *(m.name for m in p.marks)) for p in machines.GPUS] == [
        ("gpu-cu", "gpu"), ("gpu-numba", "gpu")
    ]  # fmt: skip


GOOD = """
@over("n", cu=[1], numba=[2], gpu=[3])
def test_sized(machine, n): ...

def test_plain(machine): ...

def test_alone(gpu):
    'Only a GPU has a clock.'
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD, ""),
        (GOOD.replace(", gpu=[3]", ""), "has nothing for gpu"),
        (GOOD.replace("numba=[2]", "numba=[]"), "has nothing for numba"),
        (GOOD.replace("Only a GPU has a clock.", "Times."), "why only a GPU"),
        (GOOD + "\ndef test_plain(host): ...", "test_plain stands there 2 times"),
        ("pytestmark = pytest.mark.gpu\ndef test_bits(bench): ...", "why only a GPU"),
        ("@pytest.mark.gpu\ndef test_bits(bench): ...", "why only a GPU"),
        ("@pytest.mark.gpu\ndef test_bits(machine): ...", "a GPU's alone"),
        ("@pytest.mark.parametrize('machine', ['host-cu'])\ndef test_bits(machine): ...", "by hand"),
    ],
)
def test_the_rule_itself_can_fail(text: str, said: str) -> None:
    found = faults([text])
    assert bool(found) is bool(said) and said in "".join(found)
