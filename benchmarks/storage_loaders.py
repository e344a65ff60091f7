"""Contestants over shards that may be far away; each does the same work for every sample.

Owns each loader's setup, as its documentation advises, with shuffling. Only URL or path differ
between near and far. The work is a sleep as long as a decode (`Work`). Each pass starts anew: no
process or queue is left of the last. DataLoaders' workers come from a fork server, because a
process with Ray's threads should not fork.
"""

from __future__ import annotations

import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

import rayingest as ri

SEED = 17
BUFFER = 1000
"""Samples of the shuffle buffers that streaming loaders have."""
PASS = 20
"""Shards of a pass that is timed as a whole."""
PRELOAD = ["torch", "ray", "rayingest", "webdataset", "datasets", "fsspec.implementations.http"]
"""What the server of forks imports once for all."""


class Work:
    """Sleeps as long as a decode takes; returns the seconds that it took."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __call__(self, data: bytes) -> float:
        begun = time.perf_counter()
        time.sleep(self._seconds)
        return time.perf_counter() - begun

    def row(self, sample: dict[str, Any]) -> dict[str, float]:
        """Return the row of a sample with its fields."""
        return {"seconds": self(sample["bin"])}


def worked(batch: Any) -> float:
    """Return seconds of work in a batch of any contestant."""
    return float(np.asarray(batch["seconds"] if isinstance(batch, dict) else batch).sum())


@dataclass(frozen=True)
class Far:
    """Shards at one place: URLs or paths, all copies of the local tar `example`; the work of a
    sample.
    """

    urls: tuple[str, ...]
    example: Path
    work: Work
    batch: int
    workers: int


class Ranges(TorchDataset[float]):
    """Samples by number, each by one read of a known range."""

    def __init__(self, data: Far) -> None:
        self._urls, self._work = data.urls, data.work
        with tarfile.open(data.example) as tar:
            self._spans = [(member.offset_data, member.offset_data + member.size) for member in tar]

    def __len__(self) -> int:
        return len(self._urls) * len(self._spans)

    def __getitem__(self, index: int) -> float:
        shard, number = divmod(index, len(self._spans))
        files, path = fsspec.core.url_to_fs(
            self._urls[shard]
        )  # one for each process: it keeps its connections
        return self._work(files.cat_file(path, *self._spans[number]))


def range_loader(data: Far) -> Any:
    """Make a DataLoader over a map-style dataset: a request for every sample."""
    return DataLoader(Ranges(data), data.batch, shuffle=True, **_workers(data))


def web_loader(data: Far) -> Any:
    """Make a WebDataset loader: URLs through a pipe from curl, batches in the workers."""
    import webdataset

    stream = webdataset.WebDataset(
        list(data.urls),
        shardshuffle=len(data.urls),
        seed=SEED,
        nodesplitter=webdataset.split_by_node,
    )
    stream = (
        stream.shuffle(BUFFER)
        .to_tuple("bin")
        .map_tuple(data.work)
        .batched(data.batch, partial=False)
    )
    return webdataset.WebLoader(stream, batch_size=None, **_workers(data))


def hugging_face_loader(data: Far) -> Any:
    """Stream from the tars in a DataLoader's workers, each with its part."""
    from datasets import Features, Value, load_dataset

    files = {"train": list(data.urls)}
    features = Features({"bin": Value("binary")})
    stream = load_dataset(
        "webdataset", data_files=files, split="train", streaming=True, features=features
    )
    stream = stream.shuffle(seed=SEED, buffer_size=BUFFER).map(
        data.work.row, remove_columns=["bin"]
    )
    return DataLoader(stream, data.batch, **_workers(data))


def _workers(data: Far) -> dict[str, Any]:
    return {"num_workers": data.workers, "multiprocessing_context": "forkserver"}


class RayDataEpochs:
    """Ray Data limited to some CPUs, over `PASS` shards, a block each, so it decodes where it
    reads.
    """

    def __init__(self, data: Far) -> None:
        import ray.data

        context = ray.data.DataContext.get_current()
        context.execution_options.resource_limits = context.execution_options.resource_limits.copy(
            cpu=data.workers
        )
        context.enable_progress_bars = False
        urls = list(data.urls[:PASS])
        tars = ray.data.read_webdataset(
            urls, decoder=False, shuffle="files", override_num_blocks=len(urls)
        )
        self._data, self._batch = tars.map(data.work.row), data.batch

    def __iter__(self) -> Iterator[Any]:
        return iter(
            self._data.iter_torch_batches(
                batch_size=self._batch,
                drop_last=True,
                prefetch_batches=2,
                local_shuffle_buffer_size=BUFFER,
            )
        )


def our_loader(data: Far, pool: ri.Pool, index: Path, window: int) -> Any:
    """Make a loader of rayingest; `index`: folder of its index, `window`: its shuffle window."""
    return (
        ri.read_webdataset(list(data.urls), index=index)
        .select(seconds="bin")
        .decode(seconds=data.work)
        .shuffle(seed=SEED, window=window)
        .batch(data.batch)
        .loader(pool=pool, device="cpu")
    )


PEERS: dict[str, Callable[[Far], Any]] = {
    "WebDataset": web_loader,
    "Hugging Face": hugging_face_loader,
    "Ray Data": RayDataEpochs,
    "a request a sample": range_loader,
}
