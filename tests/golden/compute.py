"""Compute the golden values of each file, and write them.

`python -m tests.golden.compute --write NAME ...` writes files.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.golden import loaded, planned

GOLDENS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "keys": lambda folder: planned.keys(),
    "fingerprint": lambda folder: planned.fingerprint(),
    "window": lambda folder: {**planned.window(), **loaded.window(folder)},
    "file_order": lambda folder: {**planned.file_order(), **loaded.file_order(folder)},
    "packed_cut": lambda folder: {**planned.packed(cut=True), **loaded.packed(folder, cut=True)},
    "packed_best_fit": lambda folder: {
        **planned.packed(cut=False),
        **loaded.packed(folder, cut=False),
    },
    "budgeted": lambda folder: {**planned.budgeted(), **loaded.budgeted(folder)},
    "mixed": lambda folder: {**planned.mixed(), **loaded.mixed(folder)},
    "weighted": lambda folder: {**planned.weighted(), **loaded.weighted(folder)},
    "buckets": loaded.buckets,
    "subset": loaded.subset,
    "calendar": loaded.calendar,
    "sampler": loaded.sampler,
    "stream": loaded.stream,
    "replacements": loaded.replacements,
    "random": lambda folder: {**planned.crops(), **loaded.randoms(folder)},
}
"""By the name of the golden file: a function of an empty folder that computes its values."""


def compute(name: str) -> dict[str, Any]:
    """Return the values of a golden file as the package gives them now, as JSON has them."""
    with tempfile.TemporaryDirectory() as folder:
        return json.loads(json.dumps(GOLDENS[name](Path(folder, name))))


def file_of(name: str) -> Path:
    """Return the path of a golden file."""
    return Path(__file__).with_name(f"{name}.json")


def read(name: str) -> dict[str, Any]:
    """Return the values that a golden file holds."""
    return json.loads(file_of(name).read_text())


def write(name: str) -> None:
    """Write a golden file, a line for each value."""
    values = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in compute(name).items()]
    file_of(name).write_text("{\n" + ",\n".join(values) + "\n}\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", nargs="+", choices=sorted(GOLDENS), required=True)
    for chosen in parser.parse_args().write:
        write(chosen)
