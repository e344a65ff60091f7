"""Change one thing in `rayingest/plan` at a time and see whether a test fails.

    python benchmarks/mutants.py --count 60 --seed 0 --jobs 2 --json mutants.json
    python benchmarks/mutants.py --only 'dispatch/*' --list

A mutant is the package with one expression changed: a comparison, an arithmetic operator, an
integer by one, `min` and `max`, `and` and `or`, a truth value, a `not`. A mutant that no test
notices *survives*: either a rule has no test, or the change means nothing. Annotations, decorators,
assertions, error messages and strings stay as they are.

The choice depends on the seed and the source alone. Each mutant runs in a copy of the package and
its tests; the working tree is never touched. The mirrored test runs first (`test_x.py` for `x.py`),
then the tests that name the module, then all others of `tests/plan` and `tests/golden`, until one
fails. A run beyond the time limit counts as killed.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from importlib.util import cache_from_source
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

PLAN = Path("rayingest/plan")
TESTS = (Path("tests/plan"), Path("tests/golden"))
COPIED = ("rayingest", "tests", "jobs", "benchmarks", "pyproject.toml")
LEAST_LIMIT, LIMIT_PER_SECOND = 60.0, 4.0
"""A run may take this many seconds, or this many times as long as all tests without a mutant."""
MEMORY = 8 << 30
UNUSABLE = {4, 5}
"""Exit codes of pytest for a wrong command line and for no tests."""

OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,  # `|` also joins types
    ast.And: ast.Or,
    ast.Or: ast.And,
}
NAMES = {"min": "max", "minimum": "maximum", "any": "all"}
NAMES |= {new: old for old, new in NAMES.items()}
KEPT = ast.Raise | ast.Assert | ast.JoinedStr
KEPT_FIELDS = {"annotation", "returns", "decorator_list", "bases"}
KEPT_FUNCTIONS = {"__repr__", "__str__"}


class Change(NamedTuple):
    """A node of a syntax tree and the node to put in its place; `at` its index in a list."""

    parent: ast.AST
    field: str
    at: int | None
    old: ast.AST
    new: ast.AST


@dataclass(frozen=True)
class Mutant:
    """A changed file: the statement before and after, as `ast.unparse` writes it, and all of it."""

    file: str
    line: int
    before: str
    after: str
    source: str


class Result(NamedTuple):
    """What became of a mutant: `killed`, `timeout` or `survived`, and after how many seconds."""

    mutant: Mutant
    outcome: str
    seconds: float


def alternatives(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the changed forms of a node, its children excepted."""
    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            ops = [*node.ops[:i], OPERATORS[type(op)](), *node.ops[i + 1 :]]
            yield _changed(node, ops=ops)
    elif isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign):
        if type(node.op) in OPERATORS:
            yield _changed(node, op=OPERATORS[type(node.op)]())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield _changed(node, value=not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield _changed(node, value=node.value + 1)
        yield _changed(node, value=node.value - 1)
    elif isinstance(node, ast.Name) and node.id in NAMES:
        yield _changed(node, id=NAMES[node.id])
    elif isinstance(node, ast.Attribute) and node.attr in NAMES:
        yield _changed(node, attr=NAMES[node.attr])


def _changed(node: ast.AST, **fields: object) -> ast.AST:
    made = copy(node)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def changes(node: ast.AST) -> Iterator[Change]:
    """Yield all changes below a node, in the order of the source."""
    for field, value in ast.iter_fields(node):
        if field in KEPT_FIELDS:
            continue
        for at, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            kept = isinstance(child, KEPT) or getattr(child, "name", None) in KEPT_FUNCTIONS
            if isinstance(child, ast.AST) and not kept:
                yield from (Change(node, field, at, child, new) for new in alternatives(child))
                yield from changes(child)


def make_mutant(file: str, tree: ast.Module, change: Change) -> Mutant:
    """Apply a change to a file's tree, write the source, and take the change back."""
    original = ast.unparse(tree)
    _put(change, change.new)
    source = ast.unparse(tree)
    _put(change, change.old)
    pairs = zip(original.splitlines(), source.splitlines(), strict=True)
    before, after = next((a.strip(), b.strip()) for a, b in pairs if a != b)
    return Mutant(file, getattr(change.old, "lineno", 0), before, after, source)


def _put(change: Change, node: ast.AST) -> None:
    if change.at is None:
        setattr(change.parent, change.field, node)
    else:
        getattr(change.parent, change.field)[change.at] = node


def choose(repo: Path, count: int, seed: int, only: str) -> list[Mutant]:
    """Draw mutants of the files below `PLAN` that match a pattern; sort them by file and line."""
    possible = []
    for path in sorted((repo / PLAN).rglob("*.py")):
        if fnmatch(str(path.relative_to(repo / PLAN)), only):
            tree = ast.parse(path.read_text())
            possible += [(str(path.relative_to(repo)), tree, change) for change in changes(tree)]
    drawn = random.Random(seed).sample(possible, min(count, len(possible)))
    return sorted((make_mutant(*one) for one in drawn), key=lambda m: (m.file, m.line))


def order_tests(repo: Path, file: str) -> list[str]:
    """Return the test files, those most likely to notice a change in `file` first."""
    path = Path(file)
    mirrored = Path("tests", *path.parts[1:-1], f"test_{path.name}")
    module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    found = [test for folder in TESTS for test in sorted((repo / folder).rglob("test_*.py"))]

    def rank(test: Path) -> int:
        if test == repo / mirrored:
            return 0
        return 1 if module in test.read_text() else 2

    return [str(test.relative_to(repo)) for test in sorted(found, key=rank)]


class Bench:
    """A copy of the package and its tests, in which one mutant at a time runs."""

    def __init__(self, repo: Path, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for source in filter(Path.exists, (repo / name for name in COPIED)):
            (shutil.copytree if source.is_dir() else shutil.copy2)(source, folder / source.name)

    def run(self, mutant: Mutant, limit: float) -> Result:
        """Run the tests on a mutant, then put the original back."""
        path = self.folder / mutant.file
        original, start = path.read_text(), time.monotonic()
        self._write(path, mutant.source)
        code, output = self.test(order_tests(self.folder, mutant.file), limit)
        self._write(path, original)
        if code in UNUSABLE:
            raise RuntimeError(f"pytest could not run, exit code {code}:\n{output}")
        outcome = "timeout" if code is None else "killed" if code else "survived"
        return Result(mutant, outcome, round(time.monotonic() - start, 1))

    def test(self, tests: Sequence[str], limit: float | None = None) -> tuple[int | None, str]:
        """Run tests until one fails; return pytest's exit code, None after `limit`, and output."""
        options = ["-x", "-q", "-p", "no:cacheprovider", "--basetemp", str(self.folder / "temp")]
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *tests],
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": str(self.folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            return None, ""
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        return process.returncode, output

    def _write(self, path: Path, source: str) -> None:
        path.write_text(source)
        # Python would take bytecode of the same second and length for that of the new source.
        Path(cache_from_source(str(path))).unlink(missing_ok=True)


def run_all(repo: Path, mutants: Sequence[Mutant], jobs: int) -> Iterator[Result]:
    """Yield the result of each mutant. Raises RuntimeError if a test fails without any."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as executor:
        benches: SimpleQueue[Bench] = SimpleQueue()
        for i in range(jobs):
            benches.put(Bench(repo, Path(folder).resolve() / str(i)))
        bench, start = benches.get(), time.monotonic()
        code, output = bench.test(order_tests(repo, str(PLAN / "__init__.py")))
        if code:
            raise RuntimeError(f"the tests fail without any mutant:\n{output}")
        limit = max(LEAST_LIMIT, LIMIT_PER_SECOND * (time.monotonic() - start))
        benches.put(bench)

        def run(mutant: Mutant) -> Result:
            bench = benches.get()
            result = bench.run(mutant, limit)
            benches.put(bench)
            return result

        yield from executor.map(run, mutants)


def main() -> None:
    """Draw the mutants, run them, and print what became of each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repo", type=Path, default=Path(__file__).parents[1], metavar="DIR")
    parser.add_argument("--count", type=int, default=60, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="mutants that run at the same time")
    parser.add_argument("--only", default="*", metavar="GLOB", help="files below rayingest/plan")
    parser.add_argument("--list", action="store_true", help="print the mutants and run none")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    repo = options.repo.resolve()
    mutants = choose(repo, options.count, options.seed, options.only)
    if options.list:
        print(*map(describe, mutants), sep="\n")
        return
    # A mutant that asks for too much memory gets a MemoryError, and the machine goes on.
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    rows, counts = [], Counter[str]()
    for mutant, outcome, seconds in run_all(repo, mutants, options.jobs):
        print(f"{outcome:<8} {seconds:>6.1f} s  {describe(mutant)}", flush=True)
        row = asdict(mutant) | {"outcome": outcome, "seconds": seconds}
        rows.append({key: value for key, value in row.items() if key != "source"})
        counts[outcome] += 1
    print(f"seed {options.seed}:", *(f"{count} {outcome}" for outcome, count in counts.items()))
    if options.json:
        report = {"seed": options.seed, "only": options.only, "counts": counts, "mutants": rows}
        options.json.write_text(json.dumps(report, indent=2) + "\n")


def describe(mutant: Mutant) -> str:
    """Return where a mutant is and what it changes, on three lines."""
    return f"{mutant.file}:{mutant.line}\n    - {mutant.before}\n    + {mutant.after}"


if __name__ == "__main__":
    main()
