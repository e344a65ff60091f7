"""Data with faults: images that do not decode, samples that a transform refuses, unreadable blocks.

Ray workers import this module by name.
"""

from __future__ import annotations

import json
import os
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

import rayingest as ri
from rayingest.api.dataset import Dataset
from tests.support.streams import augment, write_shards

NO_IMAGES = frozenset({5, 33, 34, 35, 120})
REFUSED = frozenset({9, 57, 105, 153, 201, 249})
IN_UNREADABLE_BLOCKS = (70, 71, 140)
"""Samples whose tar headers are overwritten: nothing of the blocks that they are in can be read."""
DEADLY = 90
SHARDS = [17, 1, 40, 3, 64, 29, 60, 36]


def refuse(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Call `augment`, but raise for some samples."""
    if sample["json"]["i"] in REFUSED:
        raise RuntimeError("refused")
    return augment(sample, rng)


def die(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Call `refuse`, but end the process for one sample if it is a Ray worker's."""
    if sample["json"]["i"] == DEADLY:
        if sys.argv[0].endswith("default_worker.py"):
            os._exit(1)
        raise RuntimeError("deadly")
    return refuse(sample, rng)


def description(
    pattern: str, batch: int = 24, *, fn: Any = refuse, window: int = 96, **options: Any
) -> Dataset:
    """Describe the data as `tests.support.streams.images` does, in blocks of several samples."""
    data = (
        ri.read_webdataset(pattern, block_bytes=16384)
        .decode(png=ri.images.RandomResizedCrop(8))
        .map(fn)
    )
    return data.shuffle(seed=3, window=window).batch(batch, **options)


def write_spoiled(folder: Path) -> str:
    """Write 250 samples with all these faults; sizes and times are those in the index."""
    pattern = write_shards(folder, SHARDS)
    with description(pattern).loader(workers=0):
        pass  # makes the index, which good data alone has
    for path in sorted(folder.glob("*.tar")):
        before = path.stat()
        with tarfile.open(path) as tar:
            members = {member.name: member for member in tar}
        with path.open("r+b") as file:
            for name, member in members.items():
                i, extension = int(name[1:7]), name[8:]
                if extension == "png" and i in NO_IMAGES:
                    file.seek(member.offset_data)
                    file.write(bytes(member.size))
                if extension == "png" and i in IN_UNREADABLE_BLOCKS:
                    file.seek(member.offset)
                    file.write(b"\xff" * 512)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return pattern


def quarantined(folder: Path) -> list[dict[str, Any]]:
    """Return all lines of all files in a quarantine folder."""
    return [
        json.loads(line)
        for path in sorted(folder.glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]
