"""Run one contestant in a new process: time its first batch and record its samples.

    .venv-peers/bin/python -m benchmarks.first_batch_turn NAME start FOLDER SHARD... --workers 2

Owns who takes part in `first_batch.py`, in which environment, and what is timed. The clock starts
when the loader is made: by then its library is imported, random numbers are seeded, the pictures'
offsets are known, and Ray runs, as in a job on a cluster. `start` takes an epoch and the next one's
first batch, and leaves a state at 90 % of the epoch. `resume` continues there. Without a state it
takes 90 % again and drops it.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import packages_distributions, version
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import format_loaders as formats
from benchmarks import image_loaders as images
from benchmarks.contestants import SEED, look_up
from benchmarks.corpus import Corpus

SHARE = 0.9
"""Of an epoch, after which a state is taken."""
OURS, PEER = "rayingest", "DataLoader"
STATE = "state.pt"
Make = Callable[[], Any]


@dataclass(frozen=True)
class Peer:
    """How to make a contestant, what to import first, and where it runs."""

    make: Callable[[Corpus, int], Any]
    libraries: tuple[str, ...]
    on_ray: bool = False
    elsewhere: bool = False


STATEFUL = "torchdata.stateful_dataloader"
PEERS = {
    PEER: Peer(images.torch_loader, ("torch",)),
    "DataLoader again": Peer(images.torch_loader, ("torch",)),
    "StatefulDataLoader": Peer(images.stateful_loader, (STATEFUL,)),
    "WebDataset": Peer(images.web_loader, ("webdataset",)),
    "Hugging Face": Peer(
        partial(images.hugging_face_loader, tuned=True, stateful=True), ("datasets", STATEFUL)
    ),
    "Grain, defaults": Peer(partial(images.GrainEpochs, tuned=False, passes=1), ("grain",)),
    "Grain, tuned": Peer(partial(images.GrainEpochs, tuned=True), ("grain",)),
    "SPDL": Peer(images.SpdlEpochs, ("spdl.pipeline",)),
    images.LITDATA: Peer(
        lambda data, workers: formats.litdata_images(data.shards, workers),
        ("litdata",),
        elsewhere=True,
    ),
    images.MOSAIC: Peer(
        lambda data, workers: formats.mosaic_images(data.shards, workers),
        ("benchmarks.torchvision_stub", "streaming"),
        elsewhere=True,
    ),
    OURS: Peer(images.ours, ("rayingest",), on_ray=True),
    "Ray Data": Peer(partial(images.RayDataEpochs, passes=1), ("ray.data",), on_ray=True),
}


def place(steps: int) -> int:
    """Return the number of an epoch's batches before a resume."""
    return int(SHARE * steps)


def prepare(make: Make, steps: int, folder: Path) -> dict[str, Any]:
    """Take a batch that is not timed; afterwards copies and indexes exist."""
    loader = make()
    next(iter(loader))
    _close(loader)
    return {}


def start(make: Make, steps: int, folder: Path) -> dict[str, Any]:
    """Time each batch of an epoch and the first of the next; return seconds and labels.

    Leaves a state in `folder` if the library has one.
    """
    begun = time.perf_counter()
    loader = make()
    batches = chain.from_iterable(repeat(loader))
    labels, seconds = [], []
    for step in range(1, steps + 2):
        batch = next(batches)
        seconds.append(time.perf_counter() - begun)
        labels.append(_labels(batch))
        if step == place(steps) and hasattr(loader, "state_dict"):
            torch.save(loader.state_dict(), folder / STATE)
        begun = time.perf_counter()
    _close(loader)
    return {"seconds": seconds, "labels": labels}


def resume(make: Make, steps: int, folder: Path) -> dict[str, Any]:
    """Time the first batch after a resume; return the seconds and the labels of the rest of the
    epoch.

    Without a state in `folder`, drops what comes before. Without a batch, the seconds until the
    end.
    """
    path = folder / STATE
    state = torch.load(path, weights_only=False) if path.exists() else None
    begun = time.perf_counter()
    loader = make()
    if state is not None:
        loader.load_state_dict(state)
    left = iter(loader)
    first = next(islice(left, place(steps) if state is None else 0, None), None)
    seconds = time.perf_counter() - begun
    labels = [] if first is None else [_labels(batch) for batch in chain([first], left)]
    _close(loader)
    return {"seconds": seconds, "labels": labels, "by": "dropping" if state is None else "state"}


def _labels(batch: Any) -> list[int]:
    return np.asarray(batch["label"] if isinstance(batch, Mapping) else batch[1]).tolist()


def _close(loader: Any) -> None:
    if hasattr(loader, "close"):
        loader.close()


TURNS = {turn.__name__: turn for turn in (prepare, start, resume)}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line; write the figures as JSON to `folder`, under the name of the turn."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=PEERS)
    parser.add_argument("turn", choices=TURNS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("shards", type=Path, nargs="+")
    parser.add_argument("--workers", type=int, required=True)
    args = parser.parse_args(argv)
    peer, corpus = PEERS[args.name], Corpus(tuple(args.shards), 0, 0)
    for library in peer.libraries:
        import_module(library)
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(SEED)
    steps = len(look_up(corpus.shards)[0]) // images.BATCH
    if peer.on_ray:
        import ray

        from benchmarks.turns import wait_until_idle

        ray.init(
            "local", num_cpus=args.workers + 2, object_store_memory=2 << 30, include_dashboard=False
        )
        wait_until_idle()
    shown = TURNS[args.turn](partial(peer.make, corpus, args.workers), steps, args.folder)
    distributions = packages_distributions()
    of = {
        name for library in peer.libraries for name in distributions.get(library.split(".")[0], ())
    }
    answer = {**shown, "versions": {name: version(name) for name in sorted(of)}}
    (args.folder / f"{args.turn}.json").write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
