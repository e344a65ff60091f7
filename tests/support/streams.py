"""Data and helpers for tests of streams: image shards, a description that augments, runs to
compare.

Ray workers import this module by name.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import rayingest as ri
from rayingest.api.dataset import Dataset

Row = tuple[int, str]
Step = list[Row]


def write_shards(folder: Path, sizes: Sequence[int], *, side: int = 12) -> str:
    """Write tar shards of these sizes, with `png` noise images and `json` {"i": i}; return their
    glob.
    """
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    i = 0
    for shard, size in enumerate(sizes):
        with tarfile.open(folder / f"s-{shard:04d}.tar", "w") as tar:
            for _ in range(size):
                image = io.BytesIO()
                pixels = rng.integers(0, 256, (side + i % 5, side + i % 3, 3), np.uint8)
                Image.fromarray(pixels).save(image, "png")
                for extension, data in (
                    ("png", image.getvalue()),
                    ("json", json.dumps({"i": i}).encode()),
                ):
                    info = tarfile.TarInfo(f"k{i:06d}.{extension}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
                i += 1
    return str(folder / "*.tar")


def photographs(folder: Path) -> Dataset:
    """Describe random crops of six JPEGs and three PNGs of 80 x 60, three in a batch."""
    with tarfile.open(folder / "photographs.tar", "w") as tar:
        for i in range(9):
            coarse = np.random.default_rng(i).integers(0, 256, (6, 8, 3), np.uint8)
            image = io.BytesIO()
            Image.fromarray(coarse).resize((80, 60)).save(image, "jpeg" if i % 3 else "png")
            info = tarfile.TarInfo(f"{i}.jpg")
            info.size = image.tell()
            tar.addfile(info, io.BytesIO(image.getvalue()))
    crop = ri.images.Compose(ri.images.RandomResizedCrop(24), ri.images.RandomHorizontalFlip())
    return (
        ri.read_webdataset(str(folder / "photographs.tar"), index=folder)
        .decode(jpg=crop)
        .shuffle(seed=1)
        .batch(3)
    )


def augment(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Add noise and a field whose length differs between samples."""
    i = sample["json"]["i"]
    return {
        "i": i,
        "image": sample["png"],
        "noise": rng.random(3).astype(np.float32),
        "ragged": np.arange(1 + i % 4),
        "name": f"n{i}",
    }


def fail_on_seven(sample: dict[str, Any]) -> dict[str, Any]:
    """Raise for sample seven."""
    if sample["json"]["i"] == 7:
        raise RuntimeError("seven is not allowed")
    return {"i": sample["json"]["i"]}


def images(
    pattern: str,
    batch: int,
    *,
    seed: int = 3,
    window: int = 96,
    choose: Callable[[Dataset], Dataset] = lambda data: data,
    **options: Any,
) -> Dataset:
    """Describe what most tests use: a random crop, and `augment`, of the samples that `choose`
    keeps.
    """
    read = {
        name: options.pop(name) for name in ("index", "cache_dir", "cache_bytes") if name in options
    }
    data = ri.read_webdataset(pattern, block_bytes=options.pop("block_bytes", 4096), **read)
    data = data.decode(png=ri.images.RandomResizedCrop(8)).map(augment)
    return choose(data).shuffle(seed=seed, window=window).batch(batch, **options)


def rows(batch: dict[str, Any]) -> Step:
    """Return (ordinal, digest of the fields) of each row, without padding, which depends on the
    batch.
    """
    result = []
    for row, ordinal in enumerate(np.asarray(batch["__index__"]).tolist()):
        digest = hashlib.sha256()
        for name in sorted(batch):
            value = batch[name][row]
            if f"{name}_length" in batch:
                value = value[: int(batch[f"{name}_length"][row])]
            digest.update(f"{name} {getattr(batch[name], 'dtype', list)}".encode())
            digest.update(value.encode() if isinstance(value, str) else np.asarray(value).tobytes())
        result.append((ordinal, digest.hexdigest()))
    return result


def run(
    dataset: Dataset,
    world_size: int = 1,
    *,
    epochs: int = 1,
    state: dict[str, Any] | None = None,
    steps: int | None = None,
    **options: Any,
) -> tuple[list[Step], dict[str, Any]]:
    """Return the global steps of some passes, the ranks' rows joined, and the state at the end."""
    options.setdefault(
        "epochs", epochs + (state["epoch"] if state else 0)
    )  # not to work for what nobody sees
    if "pool" not in options:
        options.setdefault("workers", 0)
    seen: list[Step] = []
    with ExitStack() as stack:
        loaders = [
            stack.enter_context(dataset.loader(rank=rank, world_size=world_size, **options))
            for rank in range(world_size)
        ]
        if state is not None:
            for loader in loaders:
                loader.load_state_dict(json.loads(json.dumps(state)))
        for _ in range(epochs):
            for parts in zip(*map(iter, loaders), strict=False):
                seen.append(joined(parts))
                if len(seen) == steps:
                    return seen, _common_state(loaders)
        return seen, _common_state(loaders)


def run_on_least(
    dataset: Dataset, pool: ri.Pool, **options: Any
) -> tuple[list[Step], dict[str, Any]]:
    """Run one pass of one rank on the smallest budget that errors name; return it and the loader's
    stats.
    """
    budget = 1
    for _ in range(3):  # what a batch takes is not known before there is room for a block
        try:
            with dataset.loader(pool=pool, max_bytes=budget, epochs=1, **options) as loader:
                return [joined([batch]) for batch in loader], loader.stats()
        except ri.ConfigError as error:
            advice = re.search(r"set max_bytes to (\d+) or more", str(error))
            budget = int(advice[1]) if advice else 0
    raise AssertionError("the budget that was advised is not enough")


def joined(parts: Iterable[dict[str, Any]]) -> Step:
    """Return the rows of all ranks' batches of a step."""
    return [row for part in parts for row in rows(part)]


def _common_state(loaders: Sequence[ri.Loader]) -> dict[str, Any]:
    states = [loader.state_dict() for loader in loaders]
    assert all(state == states[0] for state in states), "states differ between ranks"
    return states[0]


def flat(steps: list[Step]) -> Step:
    """Return the rows of all steps in one list."""
    return [row for step in steps for row in step]


def slow(sample: dict[str, Any]) -> dict[str, Any]:
    """Sleep 5 ms; a transform that stands for a slow decode."""
    time.sleep(0.005)
    return {"i": sample["json"]["i"]}


def number(sample: dict[str, Any]) -> dict[str, Any]:
    """Return the sample's number; a transform that costs nothing."""
    return {"i": sample["json"]["i"]}


def actors(ray: Any) -> list[str]:
    """Names of the package's actors that run in this cluster."""
    return [name for name in ray.util.list_named_actors() if name.startswith("rayingest:")]
