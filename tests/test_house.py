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

import rayingest

PACKAGE = Path(rayingest.__file__).parent

FLOORS = {
    "errors": 0,
    "util": 0,
    "plan": 0,
    "plan.figures": 0,
    "plan.order": 1,
    "plan.dispatch": 2,
    "storage": 3,
    "formats": 4,
    "options": 4,
    "transforms.images": 4,
    "transforms": 5,
    "transforms.text": 6,
    "transforms.torch": 6,
    "execute": 7,
    "execute.unbounded": 8,
    "execute.cluster": 8,
    "trainer": 8,
    "monitor": 9,
    "build": 10,
    "api": 11,
    "api.readers": 12,
    "api.config": 13,
    "__init__": 14,
    "tools": 15,
    "tools.probe": 16,
    "tools.cli": 17,
}
"""The floor of every package, and of what stands beside them. A module is in the innermost package
that is named here.
"""

PLAN = ("errors", "plan", "plan.figures", "plan.order", "plan.dispatch")
WORK = ("storage", "formats", "options", "transforms", "transforms.images", "transforms.text")
WORK += ("transforms.torch", "execute", "execute.unbounded")


class Import(NamedTuple):
    """A name that is imported, which may be a module, and when: at `import`, in a `call`, or for
    `types` alone.
    """

    name: str
    when: str


def part(module: str) -> str:
    """`plan.order` for `rayingest.plan.order.sequence`, `__init__` for `rayingest`."""
    names = module.split(".")[1:] or ["__init__"]
    inside = (".".join(names[:end]) for end in range(len(names), 0, -1))
    return next((name for name in inside if name in FLOORS), ".".join(names))


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
    return list(
        _walk(ast.parse(source), module if is_package else module.rpartition(".")[0], "import")
    )


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
        if when == "import" and isinstance(
            node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
        ):
            when = "call"
        yield from (
            found for child in ast.iter_child_nodes(node) for found in _walk(child, package, when)
        )


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


def in_parts(*parts: str) -> list[str]:
    """The modules of these parts."""
    return [module for module in modules() if part(module) in parts]


def cycle(edges: dict[str, set[str]]) -> list[str]:
    """Names in a ring of a directed graph, [] where there is none; a name's edge to itself counts
    for nothing.
    """
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
    done = subprocess.run(
        command, check=False, cwd=PACKAGE.parent, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr


def test_imports_are_found_wherever_they_stand() -> None:
    """The reader of imports knows relative ones, lazy ones and those for type checkers."""
    source = (
        "import a.b, c\nfrom . import d\nfrom .e import f\n"
        "from ..g import h\nfrom i import j as k\n"
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


def test_every_module_has_a_floor() -> None:
    """A new package is given its floor here before anything can be said of it."""
    assert [module for module in modules() if part(module) not in FLOORS] == []
    assert [name for name in FLOORS if not in_parts(name)] == []


def test_imports_go_down_only() -> None:
    """No module imports from a floor above its own, not even lazily."""
    edges = [(module, name) for module in modules() for name in internal(module)]
    assert [f"{a} imports {b}" for a, b in edges if FLOORS[part(b)] > FLOORS[part(a)]] == []


def test_the_cluster_and_the_trainer_do_not_know_each_other() -> None:
    """Each executes a plan; the trainer needs no more of this package than plan and errors."""
    below = {*PLAN, "util", "trainer"}
    edges = [(module, name) for module in in_parts("trainer") for name in internal(module)]
    assert [f"{a} imports {b}" for a, b in edges if part(b) not in below] == []
    edges = [(module, name) for module in in_parts("execute.cluster") for name in internal(module)]
    assert [f"{a} imports {b}" for a, b in edges if part(b) == "trainer"] == []


def test_no_module_imports_itself_in_a_ring() -> None:
    """Imports in a call count, and names for type checkers: a ring that is dodged is a ring."""
    assert cycle({module: internal(module) for module in modules()}) == []


def test_packages_do_not_import_each_other_in_a_ring() -> None:
    """Of two packages, at most one knows the other; that holds on one floor too."""
    edges: dict[str, set[str]] = {name: set() for name in FLOORS}
    for module in modules():
        edges[part(module)] |= {part(name) for name in internal(module)}
    assert cycle(edges) == []


def test_planning_imports_numpy_alone() -> None:
    """The plan knows nothing but numpy and the standard library."""
    found = {module: external(module) - {"numpy"} for module in in_parts(*PLAN)}
    assert {module: names for module, names in found.items() if names} == {}


def test_the_trainer_imports_numpy_and_torch_alone() -> None:
    """The code beside the training loop needs neither Ray nor Arrow."""
    found = {module: external(module) - {"numpy", "torch"} for module in in_parts("trainer")}
    assert {module: names for module, names in found.items() if names} == {}


def test_only_the_cluster_imports_ray() -> None:
    """Below the floor that users touch, and not even lazily elsewhere."""
    inside = in_parts(*PLAN, *WORK, "trainer")
    assert [module for module in inside if "ray" in external(module)] == []


def test_only_the_trainer_imports_torch() -> None:
    """Below the floor that users touch; a transform may, inside a function."""
    inside = in_parts(*PLAN, *WORK, "execute.cluster")
    assert [module for module in inside if "torch" in external(module, ("import",))] == []
    lazy = [module for module in inside if "torch" in external(module)]
    assert [module for module in lazy if not part(module).startswith("transforms")] == []


@pytest.mark.parametrize(
    ("parts", "without"),
    [
        (PLAN, ["ray", "torch", "pyarrow", "fsspec", "PIL"]),
        (WORK, ["ray", "torch"]),
        (("execute.cluster",), ["torch"]),
        (("trainer",), ["ray", "pyarrow", "fsspec"]),
    ],
    ids=["plan", "storage, formats, transforms, execute", "cluster", "trainer"],
)
def test_a_floor_loads_without_what_it_does_not_import(
    parts: tuple[str, ...], without: list[str]
) -> None:
    """Import `rayingest` and all modules of the parts where the other libraries are missing."""
    load(["rayingest", *in_parts(*parts)], without)
