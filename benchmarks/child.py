"""Run a contestant in another environment, in a process that takes batches on request.

    .venv-formats/bin/python -m benchmarks.child MODULE FUNCTION FILE... --workers 2

For loaders whose requirements contradict the others'. `Child` represents it among the contestants:
it writes a number of batches, one number a line, and reads a line when they are taken. The loop
over the batches is in the other process, a child of this one, so its CPU time is counted like any
other's. End of input ends it.
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
    """A contestant in another process. `at`: a module, and its function that makes a loader of
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
        """Take batches, as `Contestant.take`."""
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
        """End the process."""
        with self._process as process:
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.close()
            try:
                process.wait(CLOSING_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def python() -> Path:
    """Return the other environment's interpreter. SystemExit if it is not installed."""
    if not PYTHON.exists():
        raise SystemExit(f"there is no {PYTHON}: make bench-env")
    return PYTHON


def versions(distributions: Sequence[str]) -> dict[str, str]:
    """Return the versions of distributions in the other environment."""
    code = (
        "import json, sys; from importlib.metadata import version; "
        "print(json.dumps(list(map(version, sys.argv[1:]))))"
    )
    found = json.loads(subprocess.check_output([str(python()), "-c", code, *distributions]))
    return dict(zip(distributions, found, strict=True))


def serve(contestant: Any, orders: TextIO, answers: TextIO) -> None:
    """Take batches as ordered until the orders end."""
    try:
        for order in iter(orders.readline, ""):
            print(json.dumps(contestant.take(int(order))), file=answers, flush=True)
    finally:
        contestant.close()


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line of the other process."""
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
