"""A contestant in an environment of its own, in a process that takes batches when it is told to.

    .venv-formats/bin/python -m benchmarks.child benchmarks.format_loaders litdata_images FILE... --workers 2

For loaders whose requirements contradict those of the others. `Child` stands for it among the
contestants: it writes how many batches to take, one number a line, and reads a line when they have
been taken. Only that goes through the pipes; the loop over the batches is over there, and the
process is a child of this one, whose CPU is counted like any other's. The end of the numbers ends
it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from benchmarks.contestants import Contestant

LITDATA, MOSAIC = "LitData", "MosaicML Streaming"
ROOT = Path(__file__).resolve().parents[1]
PYTHON = ROOT / ".venv-formats" / "bin" / "python"
CLOSING_SECONDS = 30


class Child:
    """A contestant that runs elsewhere. `at`: a module, and the name in it that makes a loader of
    files.
    """

    def __init__(self, name: str, at: tuple[str, str], files: Iterable[Path], workers: int) -> None:
        self.name = name
        command = [
            str(python()),
            "-m",
            "benchmarks.child",
            *at,
            *map(str, files),
            f"--workers={workers}",
        ]
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
        }  # for the transform: this package is not installed there
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        self._process: subprocess.Popen[str] = subprocess.Popen(command, env=environment, **pipes)

    def take(self, count: int = 1) -> bool:
        """As `Contestant.take`."""
        orders, answers = self._process.stdin, self._process.stdout
        assert orders is not None
        assert answers is not None
        try:
            orders.write(f"{count}\n")
            answer = answers.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise RuntimeError(
                f"{self.name} has ended: exit status {self._process.wait(CLOSING_SECONDS)}"
            )
        return bool(json.loads(answer))

    def close(self) -> None:
        """End its process."""
        with self._process as process:
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.close()
            try:
                process.wait(CLOSING_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def python() -> Path:
    """The other environment's."""
    if not PYTHON.exists():
        raise SystemExit(f"there is no {PYTHON}: make bench-env")
    return PYTHON


def versions(distributions: Sequence[str]) -> dict[str, str]:
    """What is installed in the other environment."""
    code = (
        "import json, sys; from importlib.metadata import version; "
        "print(json.dumps(list(map(version, sys.argv[1:]))))"
    )
    found = json.loads(subprocess.check_output([str(python()), "-c", code, *distributions]))
    return dict(zip(distributions, found, strict=True))


def serve(contestant: Any, orders: TextIO, answers: TextIO) -> None:
    """Do as told until nothing more is said."""
    try:
        for order in iter(orders.readline, ""):
            print(json.dumps(contestant.take(int(order))), file=answers, flush=True)
    finally:
        contestant.close()


def main(argv: Sequence[str] | None = None) -> None:
    """The command line of the other side."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("module")
    parser.add_argument("maker")
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--workers", type=int, required=True)
    args = parser.parse_args(argv)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    make = getattr(importlib.import_module(args.module), args.maker)
    serve(Contestant(args.maker, make(tuple(args.files), args.workers)), sys.stdin, answers)


if __name__ == "__main__":
    main()
