"""Parse numbers and files of command lines, and write rows of JSON with their origin."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DISTRIBUTIONS = ("ray", "torch", "pillow", "numpy")


def positive(word: str) -> int:
    """Parse a whole number of at least 1; argparse reports any other."""
    number = int(word)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, is {number}")
    return number


def row_file(word: str) -> Path:
    """Parse a file for rows and create its folder.

    argparse reports a file that cannot be written, before the work.
    """
    path = Path(word)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"no folder for {path}: {error}") from error
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{path} cannot be written")
    return path


def append_row(path: Path | None, row: dict[str, Any]) -> None:
    """Append a line of JSON, if there is a file."""
    if path:
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return all rows of a file. SystemExit if it cannot be read or has none."""
    try:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    except (OSError, ValueError) as error:
        raise SystemExit(f"no rows of JSON in {path}: {error}") from error
    if not rows:
        raise SystemExit(f"no rows of JSON in {path}: it is empty")
    return rows


def origin(*distributions: str) -> dict[str, Any]:
    """Return what the figures depend on: command, commit, machine, load, versions.

    Raises SystemExit if a distribution is not installed.
    """
    models = [
        line
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    git = ["git", "-C", str(ROOT)]
    commit = subprocess.run(
        [*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    changed = subprocess.run(
        [*git, "status", "--porcelain"], capture_output=True, text=True, check=False
    ).stdout
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "commit": (commit or "unknown") + ("+" if changed else ""),
        "cpu": models[0].split(":")[1].strip() if models else platform.processor(),
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "versions": {
            "python": platform.python_version(),
            **_versions({*DISTRIBUTIONS, *distributions}),
        },
    }


def _versions(distributions: set[str]) -> dict[str, str]:
    try:
        return {name: version(name) for name in sorted(distributions)}
    except PackageNotFoundError as error:
        python, command = ".venv-peers/bin/python", " ".join(sys.argv)
        raise SystemExit(
            f"{error.name} is not installed here: make bench-env, then {python} {command}"
        ) from error
