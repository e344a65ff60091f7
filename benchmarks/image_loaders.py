"""Contestants over images in WebDataset shards: decode, RandomResizedCrop(224), flip, label;
batches of 64.

Owns each loader's setup, as its documentation advises, with two workers and shuffling. All decode
with Pillow and share one transform, except "rayingest, best path".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from benchmarks.child import LITDATA, MOSAIC, Child
from benchmarks.contestants import SEED, TarImages, our_loader, picture
from benchmarks.corpus import Corpus, make_corpus

BATCH, SHAPE = 64, (3, 224, 224)
PASSES = 3
"""Times that every shard is in an epoch that is timed as a whole."""
BUFFER = 1000
"""Samples of the shuffle buffers that streaming loaders have."""


def corpus(folder: Path) -> Corpus:
    """Return the pictures of `jobs/bench_loader.py`."""
    return make_corpus(folder, 4096, 8)


def torch_loader(data: Corpus, workers: int, kind: Any = DataLoader) -> Any:
    """Make a DataLoader, or a subclass, over a map-style dataset."""
    options: dict[str, Any] = {
        "num_workers": workers,
        "persistent_workers": True,
        "drop_last": True,
    }
    return kind(TarImages(data.shards), batch_size=BATCH, shuffle=True, **options)


def stateful_loader(data: Corpus, workers: int) -> Any:
    """Make torchdata's loader."""
    return torch_loader(data, workers, _stateful())


def _stateful() -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader


def web_loader(data: Corpus, workers: int) -> Any:
    """Make a WebDataset loader whose workers make the batches."""
    import webdataset

    urls = list(map(str, data.shards))
    stream = webdataset.WebDataset(
        urls, shardshuffle=len(urls), seed=SEED, nodesplitter=webdataset.split_by_node
    )
    stream = (
        stream.shuffle(BUFFER)
        .to_tuple("jpg", "cls")
        .map_tuple(_tensor, int)
        .batched(BATCH, partial=False)
    )
    return webdataset.WebLoader(
        stream, batch_size=None, num_workers=workers, persistent_workers=True
    )


def _tensor(data: bytes) -> torch.Tensor:
    return torch.from_numpy(picture(data))


def hugging_face_loader(data: Corpus, workers: int, tuned: bool, stateful: bool = False) -> Any:
    """Stream from the tars and decode in a DataLoader's workers, each with half of the shards.

    Torch's format, as documented, makes int64 of the pictures. Tuned: the DataLoader makes tensors
    of arrays. Stateful: torchdata's, which keeps the states of the workers' streams.
    """
    from datasets import Features, Image, Value, load_dataset

    features = Features({"jpg": Image(decode=False), "cls": Value("int64")})
    files = {"train": list(map(str, data.shards))}
    stream = load_dataset(
        "webdataset", data_files=files, split="train", streaming=True, features=features
    )
    # A state can be loaded only where no worker mixes fewer shards than the whole stream would.
    mixed = {"max_buffer_input_shards": len(data.shards) // workers} if stateful else {}
    stream = stream.shuffle(seed=SEED, buffer_size=BUFFER, **mixed).map(
        _hugging_face, remove_columns=["jpg", "cls"]
    )
    assert stream.num_shards % workers == 0  # else one of them is idle at the end of every epoch
    stream = stream if tuned else stream.with_format("torch")
    kind = _stateful() if stateful else DataLoader
    return kind(stream, BATCH, num_workers=workers, persistent_workers=True, drop_last=True)


def _hugging_face(sample: dict[str, Any]) -> dict[str, Any]:
    return {"image": picture(sample["jpg"]["bytes"]), "label": sample["cls"]}


class GrainEpochs:
    """Grain: a shuffled map-style dataset in processes of its own.

    By default each process has 16 threads, makes 500 samples ahead and ends with its epoch, of
    every shard `passes` times. Tuned: two threads, which make the batches, and epochs that follow
    each other in the same processes.
    """

    def __init__(self, data: Corpus, workers: int, tuned: bool, passes: int = PASSES) -> None:
        import grain

        self._steps, self._step = 0, 0
        self._batches: Any = None
        self._state: dict[str, Any] | None = None
        shards = data.shards if tuned else passes * data.shards
        samples = grain.MapDataset.source(TarImages(shards)).shuffle(seed=SEED).map(_numpy)
        if tuned:
            options = grain.multiprocessing.MultiprocessingOptions(
                workers, per_worker_buffer_size=2
            )
            batches = samples.batch(BATCH, drop_remainder=True)
            self._steps = len(batches)
            self._data = (
                batches.repeat()
                .to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=2))
                .mp_prefetch(options)
            )
        else:
            options = grain.multiprocessing.MultiprocessingOptions(workers)
            self._data = (
                samples.to_iter_dataset().batch(BATCH, drop_remainder=True).mp_prefetch(options)
            )

    def __iter__(self) -> Iterator[Any]:
        if self._batches is None or not self._steps:
            self._batches = iter(self._data)
        self._step = 0
        if self._state:
            self._batches.set_state(self._state["batches"])
            self._step, self._state = self._state["step"], None
        for batch in self._batches:
            self._step += 1
            yield batch
            if self._step == self._steps:
                return

    def state_dict(self) -> dict[str, Any]:
        """Return Grain's state of the iterator and the batches taken of the epoch, which Grain does
        not know.
        """
        return {"batches": self._batches.get_state(), "step": self._step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the state of the next iterator."""
        self._state = state


def _numpy(sample: tuple[torch.Tensor, int]) -> tuple[np.ndarray, int]:
    return sample[0].numpy(), sample[1]


class SpdlEpochs:
    """SPDL: threads of this process; a new pipeline for every epoch."""

    def __init__(self, data: Corpus, workers: int) -> None:
        self._images, self._workers = TarImages(data.shards), workers

    def __iter__(self) -> Iterator[Any]:
        from spdl.pipeline import PipelineBuilder

        builder = PipelineBuilder().add_source(np.random.permutation(len(self._images)).tolist())
        builder = builder.pipe(
            self._images.__getitem__, concurrency=self._workers, output_order="input"
        )
        builder = builder.aggregate(BATCH, drop_last=True).pipe(_stack).add_sink(2)
        pipeline = builder.build(num_threads=self._workers + 1)
        with pipeline.auto_stop():
            yield from pipeline


def _stack(samples: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.stack([image for image, _ in samples]), torch.tensor(
        [label for _, label in samples]
    )


class RayDataEpochs:
    """Ray Data limited to some CPUs: a new execution for every epoch, of every shard `passes`
    times.

    One block a shard, so that it decodes where it reads: by default it cuts shards into nine, and
    raw blocks go through the object store, counted as a few bytes each.
    """

    def __init__(self, data: Corpus, workers: int, passes: int = PASSES) -> None:
        import ray.data

        context = ray.data.DataContext.get_current()
        context.execution_options.resource_limits = context.execution_options.resource_limits.copy(
            cpu=workers
        )
        context.enable_progress_bars = False
        urls = passes * list(map(str, data.shards))
        tars = ray.data.read_webdataset(
            urls, decoder=False, shuffle="files", override_num_blocks=len(urls)
        )
        self._data = tars.map(_pair)

    def __iter__(self) -> Iterator[Any]:
        return iter(
            self._data.iter_torch_batches(
                batch_size=BATCH,
                drop_last=True,
                prefetch_batches=2,
                local_shuffle_buffer_size=BUFFER,
            )
        )


def _pair(sample: dict[str, Any]) -> dict[str, Any]:
    return {"image": picture(sample["jpg"]), "label": int(sample["cls"])}


def ours(data: Corpus, workers: int, path: str | None = "pillow", **shuffle: int) -> Any:
    """Make a loader of rayingest with an image backend; None is the best."""
    return our_loader(
        data.shards, BATCH, workers, data.shards[0].parent.with_suffix(".index"), path, **shuffle
    )


FORKED: dict[str, Callable[[Corpus, int], Any]] = {
    "DataLoader": torch_loader,
    "DataLoader again": torch_loader,
    "StatefulDataLoader": stateful_loader,
    "WebDataset": web_loader,
    "Hugging Face, defaults": partial(hugging_face_loader, tuned=False),
    "Hugging Face, tuned": partial(hugging_face_loader, tuned=True),
    "Grain, defaults": partial(GrainEpochs, tuned=False),
    "Grain, tuned": partial(GrainEpochs, tuned=True),
    "SPDL": SpdlEpochs,
    LITDATA: lambda data, workers: Child(
        LITDATA, ("benchmarks.format_loaders", "litdata_images"), data.shards, workers
    ),
    MOSAIC: lambda data, workers: Child(
        MOSAIC, ("benchmarks.format_loaders", "mosaic_images"), data.shards, workers
    ),
}
"""Those with processes or threads of their own."""
ON_RAY: dict[str, Callable[[Corpus, int], Any]] = {
    "rayingest": ours,
    "rayingest, best path": partial(ours, path=None),
    "Ray Data": RayDataEpochs,
}
