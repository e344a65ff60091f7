"""Mutants: which changes there are, and that the tests run on the changed copy."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import mutants
from tests.support.files import write_files

pytestmark = pytest.mark.source

FILES = {
    "rayingest/__init__.py": "",
    "rayingest/plan/__init__.py": "",
    "rayingest/plan/order/__init__.py": "",
    "rayingest/plan/order/steps.py": "def is_short(n):\n    return n < 7\n",
    "tests/__init__.py": "",
    "tests/plan/__init__.py": "",
    "tests/plan/order/__init__.py": "",
    "tests/plan/test_all.py": "from rayingest.plan.order import steps\ndef test(): pass\n",
    "tests/plan/order/test_steps.py": (
        "from rayingest.plan.order.steps import is_short\ndef test(): assert not is_short(7)\n"
    ),
}


def changed(source: str) -> list[str]:
    """The mutated line of every mutant of a source."""
    tree = ast.parse(source)
    return [mutants.make_mutant("f", tree, change).after for change in mutants.changes(tree)]


@pytest.mark.parametrize(
    ("source", "after"),
    [
        ("a < b", ["a <= b"]),
        ("a == b >= c", ["a != b >= c", "a == b > c"]),
        ("a * b - c", ["a * b + c", "a // b - c"]),
        ("a += b", ["a -= b"]),
        ("f(2)", ["f(3)", "f(1)"]),
        ("np.minimum(a, min(b))", ["np.maximum(a, min(b))", "np.minimum(a, max(b))"]),
        ("a and (not b)", ["a or not b", "a and b"]),
        ("f(x=True)", ["f(x=False)"]),
    ],
)
def test_each_change_is_one_mutant(source: str, after: list[str]) -> None:
    """All changes of an expression, in the order of the source."""
    assert changed(source) == after


@pytest.mark.parametrize(
    "source",
    [
        "'1 < 2'",
        "f'{a + 1}'",
        "a: Literal[1] | None = None",
        "@g(1)\ndef f(a: Literal[2]) -> Literal[3]: ...",
        "raise E(a + 1)",
        "assert a < 1",
        "class C:\n    def __repr__(self):\n        return 1 + 2",
    ],
)
def test_texts_and_types_stay_as_they_are(source: str) -> None:
    """Strings, annotations, decorators, messages and assertions have no mutants."""
    assert changed(source) == []


def test_the_choice_depends_on_the_seed_alone(tmp_path: Path) -> None:
    """The same seed draws the same mutants of the files that match."""
    write_files(tmp_path, {"rayingest/plan/order/long.py": "+".join("abcdefghijklm")})
    first, again, other = (mutants.choose(tmp_path, 3, seed, "order/*") for seed in (0, 0, 1))
    assert first == again != other
    assert len(first) == 3
    assert mutants.choose(tmp_path, 3, 0, "dispatch/*") == []


def test_the_mirrored_test_runs_first(tmp_path: Path) -> None:
    """Then those that name the module, then the others."""
    tests = mutants.order_tests(write_files(tmp_path, FILES), "rayingest/plan/order/steps.py")
    assert tests == ["tests/plan/order/test_steps.py", "tests/plan/test_all.py"]


def test_the_tests_run_on_the_mutant_and_never_on_the_working_tree(tmp_path: Path) -> None:
    """What a test notices is killed, what none notices survives, and no file changes."""
    repo = write_files(tmp_path / "repo", FILES)
    options = ["--repo", str(repo), "--json", str(tmp_path / "m.json"), "--count", "100"]
    subprocess.check_output([sys.executable, str(Path(mutants.__file__)), *options], text=True)
    report = json.loads((tmp_path / "m.json").read_text())
    outcomes = {mutant["after"]: mutant["outcome"] for mutant in report["mutants"]}
    assert outcomes == {
        "return n <= 7": "killed",
        "return n < 8": "killed",
        "return n < 6": "survived",
    }
    assert all((repo / name).read_text() == text for name, text in FILES.items())
