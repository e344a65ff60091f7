"""Count how the code base is laid out, for one checkout or for several side by side.

    python benchmarks/house.py --repo ../before . --ray --json figures.json

Each column of the table is a checkout, each row a figure:

- *modules*: Python files of `rayingest`. *Loose modules* lie directly in it; `__init__` and
  `__main__` do not count.
- *modules loaded*: entries of `sys.modules` that belong to `rayingest` in a new process that has
  taken the first batch of a small WebDataset data set. With `--ray`, the same for one worker on a
  local cluster; the actors are other processes and do not count.
- *files entered*: files of `rayingest` of which at least one function runs, in any thread of that
  process: while `loader(...)` runs, and from its start until the first batch arrives. The index of
  the data is not cached.
- *rings of packages*: strongly connected components of more than one package. A package is a
  directory, at any depth; a loose module is a package of its own. An edge is an import, also one
  inside a function or for type checkers. A name that an `__init__` passes on counts as an import
  of the module that defines it. Imports of an `__init__` from below itself are no edges.
- *public attributes*: names in `dir()` without a leading underscore.
- *lines over 100 columns*: of Python files; the percentage is of the lines that are not blank.
- *files that know the order*: files outside the modules of an order kind that import one of these
  modules, name one of their classes, or compare a value with the kind's name. `ORDERS` names the
  modules of a kind; `-` stands for a kind without any.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from functools import cached_property
from importlib.util import resolve_name
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGE = "rayingest"
FOLDERS = (PACKAGE, "jobs", "benchmarks", "tests")
COLUMNS = 100
ORDERS = {
    "weighted": {"weighted"},
    "sampled": {"drawn", "sampled", "sampler"},
    "packed": {"grouped", "grouped_order", "packed", "packed_order"},
    "mixed": {"mixed", "mixture"},
    "stream": {"unbounded", "stream"},
}
"""By the kind, names of the modules in `plan/` that are all its own."""


class Checkout:
    """The source of the package in one checkout, by dotted module name."""

    def __init__(self, repo: Path) -> None:
        self.repo = repo.resolve()
        self.paths: dict[str, Path] = {}
        for path in sorted((self.repo / PACKAGE).rglob("*.py")):
            names = path.relative_to(self.repo).with_suffix("").parts
            self.paths[".".join(names[:-1] if names[-1] == "__init__" else names)] = path

    @cached_property
    def trees(self) -> dict[str, ast.Module]:
        """Return the syntax tree of each module."""
        return {name: ast.parse(path.read_text()) for name, path in self.paths.items()}

    @cached_property
    def names(self) -> dict[str, list[tuple[str, str]]]:
        """Return, by module, the local and the full names that it imports from the package."""
        return {module: list(self._read_names(module)) for module in self.paths}

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """Return, by module, the modules of the package that define the names it imports."""
        return {m: {self._find(name) for _, name in names} for m, names in self.names.items()}

    def is_package(self, module: str) -> bool:
        """Return whether a module is an `__init__`."""
        return self.paths[module].name == "__init__.py"

    def package(self, module: str) -> str:
        """Return the package that a module counts to: its directory, or itself if it is loose."""
        parent = module if self.is_package(module) else module.rpartition(".")[0]
        return module if parent == PACKAGE else parent

    def rings(self) -> list[list[str]]:
        """Return the packages that import each other in a ring, one list per ring."""
        edges: dict[str, set[str]] = {}
        for module, names in self.imports.items():
            below = f"{module}."
            found = {n for n in names if not (self.is_package(module) and n.startswith(below))}
            edges.setdefault(self.package(module), set()).update(map(self.package, found))
        reach = {name: _reachable(name, edges) for name in edges}
        rings = {tuple(sorted(end for end in reach[name] if name in reach[end])) for name in edges}
        return [list(ring) for ring in sorted(rings) if len(ring) > 1]

    def files_that_know(self, kind: str) -> list[str] | None:
        """Return the modules that know an order kind, without its own; None if it has none."""
        plan = f"{PACKAGE}.plan."
        own = {m for m in self.paths if m.startswith(plan) and m.split(".")[-1] in ORDERS[kind]}
        if not own:
            return None
        nodes = [node for module in own for node in self.trees[module].body]
        classes = {node.name for node in nodes if isinstance(node, ast.ClassDef)}

        def knows(module: str) -> bool:
            mentions = (_mentions(node, classes, kind) for node in ast.walk(self.trees[module]))
            return bool(self.imports[module] & own) or any(mentions)

        return [module for module in self.paths if module not in own and knows(module)]

    def _read_names(self, module: str) -> Iterator[tuple[str, str]]:
        package = module if self.is_package(module) else module.rpartition(".")[0]
        for node in ast.walk(self.trees[module]):
            if isinstance(node, ast.Import):
                found = {alias.asname or alias.name: alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                base = resolve_name("." * node.level + (node.module or ""), package)
                found = {alias.asname or alias.name: f"{base}.{alias.name}" for alias in node.names}
            else:
                continue
            yield from ((key, name) for key, name in found.items() if name.split(".")[0] == PACKAGE)

    def _find(self, name: str) -> str:
        if name in self.paths:
            return name
        module, _, attribute = name.rpartition(".")
        passed_on = dict(self.names[module]).get(attribute) if self.is_package(module) else None
        return module if passed_on is None else self._find(passed_on)


def _reachable(name: str, edges: dict[str, set[str]]) -> set[str]:
    found, new = set(), {name}
    while new:
        found |= new
        new = {end for start in new for end in edges.get(start, ())} - found
    return found


def _mentions(node: ast.AST, classes: set[str], kind: str) -> bool:
    if isinstance(node, ast.Name):
        return node.id in classes
    if isinstance(node, ast.Attribute):
        return node.attr in classes
    if isinstance(node, ast.Compare | ast.MatchValue):
        return any(isinstance(n, ast.Constant) and n.value == kind for n in ast.walk(node))
    return False


def run_first_batch(workers: int) -> dict[str, int]:
    """Take one batch in this process and count the modules loaded and the files entered for it."""
    import rayingest as ri

    if workers:
        import ray

        ray.init("local", num_cpus=4, object_store_memory=200 << 20, include_dashboard=False)
    root = str(Path(ri.__file__).parent)
    entered: set[str] = set()

    def on_event(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(root) and code.co_flags & CO_OPTIMIZED:
            entered.add(code.co_filename)

    with tempfile.TemporaryDirectory() as folder:
        _write_shard(Path(folder) / "shard.tar")
        dataset = ri.read_webdataset(f"{folder}/*.tar").select(label="cls")
        dataset = dataset.map(lambda sample: sample).shuffle(seed=1).batch(8)
        threading.setprofile(on_event)
        sys.setprofile(on_event)
        with dataset.loader(workers=workers) as loader:
            for_loader = len(entered)
            next(iter(loader))
            sys.setprofile(None)
            threading.setprofile(None)
    return {
        "modules loaded": sum(name.split(".")[0] == PACKAGE for name in sys.modules),
        "files entered for the loader": for_loader,
        "files entered for the first batch": len(entered),
        "public attributes of Dataset": sum(name[0] != "_" for name in dir(ri.Dataset)),
        "public attributes of an instance": sum(name[0] != "_" for name in dir(dataset)),
    }


def _write_shard(path: Path) -> None:
    with tarfile.open(path, "w") as tar:
        for i in range(32):
            info = tarfile.TarInfo(f"{i:03d}.cls")
            info.size = 1
            tar.addfile(info, io.BytesIO(b"7"))


def first_batch(repo: Path, workers: int) -> dict[str, int]:
    """Call `run_first_batch` in a new process that imports the package from a checkout."""
    with tempfile.TemporaryDirectory() as cache:
        paths = {"PYTHONPATH": str(repo), "XDG_CACHE_HOME": cache, "RAY_AUTH_MODE": "disabled"}
        command = [sys.executable, str(Path(__file__).resolve()), "--first-batch", str(workers)]
        # Ray's workers import from the directory of the process that starts them.
        output = subprocess.check_output(command, cwd=repo, env=os.environ | paths, text=True)
    figures: dict[str, int] = json.loads(output.splitlines()[-1])
    return figures


def long_lines(folder: Path) -> tuple[int, int]:
    """Count the lines of a folder's Python files over `COLUMNS`, and all that are not blank."""
    lines = [line for path in folder.rglob("*.py") for line in path.read_text().splitlines()]
    return sum(len(line) > COLUMNS for line in lines), sum(map(bool, lines))


def measure(repo: Path, on_ray: bool) -> dict[str, float | None]:
    """Return all figures of a checkout by name."""
    checkout = Checkout(repo)
    loose = [m for m in checkout.paths if m.count(".") == 1 and not checkout.is_package(m)]
    figures: dict[str, float | None] = {
        "modules": len(checkout.paths),
        "loose modules": len(set(loose) - {f"{PACKAGE}.__main__"}),
        "rings of packages": len(checkout.rings()),
        "packages in rings": sum(map(len, checkout.rings())),
    }
    figures |= first_batch(checkout.repo, 0)
    if on_ray:
        counts = first_batch(checkout.repo, 1)
        figures |= {f"{name}, on Ray": n for name, n in counts.items() if "public" not in name}
    for kind in ORDERS:
        files = checkout.files_that_know(kind)
        figures[f"files that know the order {kind}"] = None if files is None else len(files)
    for folder in FOLDERS:
        over, lines = long_lines(checkout.repo / folder)
        figures[f"lines over {COLUMNS} columns, {folder}"] = over
        figures[f"lines over {COLUMNS} columns, {folder}, %"] = round(100 * over / max(1, lines), 1)
    return figures


def main() -> None:
    """Print the table, and write the figures as JSON where a file is given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    own = Path(__file__).parents[1]
    parser.add_argument("--repo", type=Path, nargs="+", default=[own], metavar="DIR")
    parser.add_argument("--ray", action="store_true", help="also one worker on a local cluster")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--first-batch", type=int, metavar="WORKERS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.first_batch is not None:
        print(json.dumps(run_first_batch(options.first_batch)))
        return
    columns = {str(repo): measure(repo, options.ray) for repo in options.repo}
    for name in next(iter(columns.values())):
        values = (figures[name] for figures in columns.values())
        print(f"{name:<44}", *(f"{'-' if value is None else value:>8}" for value in values))
    if options.json:
        options.json.write_text(json.dumps(columns, indent=2) + "\n")


if __name__ == "__main__":
    main()
