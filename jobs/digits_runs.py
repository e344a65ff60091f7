"""Choose the folder and the cluster of a run of `train_digits.py`, before any rank starts.

Owns what only the driver needs: ranks receive functions by value and may not be able to import this
module.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import ray

import rayingest as ri

STEPS = "steps.jsonl"


def connect(num_cpus: int, object_store_memory: int) -> None:
    """Connect to the cluster of this process, or start one with these CPUs and bytes."""
    if ray.is_initialized():
        return
    if os.environ.get("RAY_ADDRESS"):
        ray.init(logging_level=logging.WARNING)
        return
    ray.init(
        "local",
        num_cpus=num_cpus,
        object_store_memory=object_store_memory,
        logging_level=logging.WARNING,
    )


def run_name(folder: Path, name: str | None, resume: bool) -> str:
    """Return the run's name: the given, the latest, or a new one. ConfigError if there is no such
    run.
    """
    there = sorted(
        (log.parent for log in folder.glob(f"*/{STEPS}")),
        key=lambda run: (run / STEPS).stat().st_mtime,
    )
    if not resume:
        name = name or time.strftime("run-%Y%m%d-%H%M%S")
        if (folder / name).exists():
            raise ri.ConfigError(
                f"the run {folder / name} exists: --resume it, or choose another --run"
            )
        return name
    if name is None and not there:
        raise ri.ConfigError(f"--resume: there is no run in {folder}")
    name = name or there[-1].name
    if folder / name not in there:
        raise ri.ConfigError(f"--resume: there is no run {folder / name}")
    return name
