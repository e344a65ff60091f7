"""The floors of the house: imports go down only, and what is light stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parents[1] / "rayingest"

FLOOR = {
    "errors": -1,
    "plan": 0,
    "storage": 1,
    "formats": 1,
    "transforms": 1,
    "streams": 1,
    "unbounded": 1,
    "work": 1,
    "mixed_work": 1,
    "survey": 1,
    "measure": 1,
    "quarantine": 1,
    "silence": 0,
    "bars": 4,
    "options": 1,
    "kinds": 1,
    "cluster": 2,
    "local": 2,
    "trainer": 3,
    "description": 4,
    "dataset": 4,
    "ordering": 4,
    "mixture": 4,
    "weighting": 4,
    "mixed_ordering": 4,
    "planning": 4,
    "following": 4,
    "sources": 4,
    "interop": 4,
    "loading": 4,
    "exporting": 4,
    "materialize": 4,
    "surveying": 4,
    "summary": 4,
    "config": 4,
    "cli": 4,
    "observe": 4,
    "ranks": 4,
    "__init__": 4,
    "__main__": 4,
}
"""The part of the package that a module belongs to is its first name below `rayingest`."""


class Import(NamedTuple):
    """A name that is imported, which may be a module, and when: at `import`, in a `call`, or for `types` alone."""

    name: str
    when: str


def part(module: str) -> str:
    """`plan` for `rayingest.plan.keys`, `__init__` for `rayingest`."""
    return [*module.split("."), "__init__"][1]


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        names = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(names[:-1] if names[-1] == "__init__" else names)] = path
    return found


def read_imports(source: str, module: str, is_package: bool = False) -> list[Import]:
    """The imports of a module's source, relative ones resolved; `from a import b` gives `a.b`."""
    return list(_walk(ast.parse(source), module if is_package else module.rpartition(".")[0], "import"))


def _walk(node: ast.AST, package: str, when: str) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from (Import(alias.name, when) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = package.split(".")
        base = [*above[: len(above) - node.level + 1]] if node.level else []
        base += [node.module] if node.module else []
        yield from (Import(".".join([*base, alias.name]), when) for alias in node.names)
    elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        yield from (found for child in node.body for found in _walk(child, package, "types"))
        yield from (found for child in node.orelse for found in _walk(child, package, when))
    else:
        if when == "import" and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            when = "call"
        yield from (found for child in ast.iter_child_nodes(node) for found in _walk(child, package, when))


@cache
def imports(module: str) -> tuple[Import, ...]:
    path = modules()[module]
    return tuple(read_imports(path.read_text(), module, path.name == "__init__.py"))


def internal(module: str) -> set[str]:
    """The package's own modules that a module imports."""
    names = {name for name, _ in imports(module) if name.split(".")[0] == "rayingest"}
    return {name if name in modules() else name.rpartition(".")[0] for name in names}


def external(module: str, when: Sequence[str] = ("import", "call", "types")) -> set[str]:
    """What a module imports from outside, by the first name."""
    tops = {name.split(".")[0] for name, at in imports(module) if at in when}
    return tops - sys.stdlib_module_names - {"rayingest"}


def on_floor(*floors: int) -> list[str]:
    return [module for module in modules() if FLOOR.get(part(module)) in floors]


def cycle(edges: dict[str, set[str]]) -> list[str]:
    """Names in a ring of a directed graph, [] where there is none; a name's edge to itself counts for nothing."""
    try:
        TopologicalSorter({name: ends - {name} for name, ends in edges.items()}).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def load(names: list[str], without: list[str]) -> None:
    """Import modules in a new interpreter in which importing any of `without` fails."""
    code = (
        f"import importlib, sys\nsys.modules.update(dict.fromkeys({without!r}))\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        f"assert not any(sys.modules.get(name) for name in {without!r})"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=False, cwd=PACKAGE.parent, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def test_imports_are_found_wherever_they_stand() -> None:
    """The reader of imports knows relative ones, lazy ones and those for type checkers."""
    source = (
        "import a.b, c\nfrom . import d\nfrom .e import f\nfrom ..g import h\nfrom i import j as k\n"
        "if TYPE_CHECKING:\n    import l\nelse:\n    import m\n"
        "try:\n    import n\nexcept ImportError:\n    pass\n"
        "class C:\n    import o\n    def p(self):\n        import q\n"
    )
    found = read_imports(source, "x.y.z")
    eager = ["a.b", "c", "x.y.d", "x.y.e.f", "x.g.h", "i.j", "m", "n", "o"]
    assert [name for name, when in found if when == "import"] == eager
    assert [other for other in found if other.when != "import"] == [("l", "types"), ("q", "call")]
    assert read_imports("from . import d", "x.y", is_package=True) == [("x.y.d", "import")]


def test_rings_are_found() -> None:
    """The finder of cycles knows a ring from a diamond."""
    assert set(cycle({"a": {"b"}, "b": {"c"}, "c": {"a", "c"}, "d": {"a"}})) == {"a", "b", "c"}
    assert cycle({"a": {"b", "c"}, "b": {"d"}, "c": {"d", "c"}}) == []


def test_every_part_has_a_floor() -> None:
    """A new package or module is given its floor here before anything can be said of it."""
    assert {part(module) for module in modules()} - FLOOR.keys() == set()
    assert {"errors", "plan"} <= {part(module) for module in modules()}


def test_imports_go_down_only() -> None:
    """No module imports from a floor above its own, not even lazily."""
    edges = [(module, name) for module in on_floor(-1, 0, 1, 2, 3) for name in internal(module)]
    assert [f"{a} imports {b}" for a, b in edges if FLOOR.get(part(b), 4) > FLOOR[part(a)]] == []


def test_who_executes_a_plan_knows_no_other_who_does() -> None:
    """`cluster` and `local` stand on floors 0 and 1, the trainer on floor 0 alone."""
    edges = [(module, name) for module in on_floor(2, 3) for name in internal(module) if part(module) != part(name)]
    below = {2: 1, 3: 0}
    assert [f"{a} imports {b}" for a, b in edges if FLOOR.get(part(b), 4) > below[FLOOR[part(a)]]] == []


def test_no_module_imports_itself_in_a_ring() -> None:
    """Imports in a call count, and names for type checkers: a ring that is dodged is a ring."""
    assert cycle({module: internal(module) for module in modules()}) == []


def test_parts_do_not_import_each_other_both_ways() -> None:
    """Of two parts on one floor, at most one knows the other."""
    edges: dict[str, set[str]] = {name: set() for name in FLOOR}
    for module in on_floor(-1, 0, 1, 2, 3):
        edges[part(module)] |= {part(name) for name in internal(module)}
    assert cycle(edges) == []


def test_planning_imports_numpy_alone() -> None:
    """The lowest floors know nothing but numpy and the standard library."""
    assert {module: external(module) - {"numpy"} for module in on_floor(-1, 0) if external(module) - {"numpy"}} == {}


def test_the_trainer_imports_numpy_and_torch_alone() -> None:
    """What runs beside the training loop needs neither Ray nor Arrow."""
    allowed = {"numpy", "torch"}
    assert {module: external(module) - allowed for module in on_floor(3) if external(module) - allowed} == {}


def test_only_the_cluster_imports_ray() -> None:
    """Below the floor that users touch, and not even lazily elsewhere."""
    assert [m for m in on_floor(-1, 0, 1, 2, 3) if "ray" in external(m) and part(m) != "cluster"] == []


def test_only_the_trainer_imports_torch() -> None:
    """Below the floor that users touch; a transform may, inside a function."""
    eager = [m for m in on_floor(-1, 0, 1, 2) if "torch" in external(m, ("import",))]
    lazy = [m for m in on_floor(-1, 0, 1, 2) if "torch" in external(m) and part(m) != "transforms"]
    assert eager == lazy == []


@pytest.mark.parametrize(
    ("floors", "without"),
    [
        ((-1, 0), ["ray", "torch", "pyarrow", "fsspec", "PIL"]),
        ((1,), ["ray", "torch"]),
        ((2,), ["torch"]),
        ((3,), ["ray", "pyarrow", "fsspec"]),
    ],
    ids=["plan", "storage, formats, transforms", "cluster, local", "trainer"],
)
def test_a_floor_loads_without_what_it_does_not_import(floors: tuple[int, ...], without: list[str]) -> None:
    """`import rayingest` and all modules of the floor, what they import included, where the others are missing."""
    load(["rayingest", *on_floor(*floors)], without)
