"""Contestants over images in WebDataset shards: decode, RandomResizedCrop(224), a flip, a label; batches of 64.

Owns how each loader is set up, as its docs advise, with two workers each and shuffling. All decode through Pillow, with
one and the same transform, but for "rayingest, best path".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_contestants import SEED, TRANSFORM, TarImages, our_loader
from bench_corpus import Corpus, make_corpus
from torch.utils.data import DataLoader

BATCH, SHAPE = 64, (3, 224, 224)
_BUFFER = 1000
"""Samples of the shuffle buffers that streaming loaders have."""


def corpus(folder: Path) -> Corpus:
    """The pictures of `bench_loader.py`."""
    return make_corpus(folder, 4096, 8)


def _image(data: bytes) -> np.ndarray:
    return TRANSFORM(data, np.random.default_rng(), path="pillow")


def _pair(sample: dict[str, Any]) -> dict[str, Any]:
    return {"image": _image(sample["jpg"]), "label": int(sample["cls"])}


def torch_loader(data: Corpus, workers: int, kind: Any = DataLoader) -> Any:
    """A DataLoader, or one of its kind, over a map-style dataset."""
    options: dict[str, Any] = {"num_workers": workers, "persistent_workers": True, "drop_last": True}
    return kind(TarImages(data.shards), batch_size=BATCH, shuffle=True, **options)


def stateful_loader(data: Corpus, workers: int) -> Any:
    """torchdata's."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    return torch_loader(data, workers, StatefulDataLoader)


def web_loader(data: Corpus, workers: int) -> Any:
    """WebDataset: batches made in the workers."""
    import webdataset

    urls = list(map(str, data.shards))
    stream = webdataset.WebDataset(urls, shardshuffle=len(urls), seed=SEED, nodesplitter=webdataset.split_by_node)
    stream = stream.shuffle(_BUFFER).to_tuple("jpg", "cls").map_tuple(_tensor, int).batched(BATCH, partial=False)
    return webdataset.WebLoader(stream, batch_size=None, num_workers=workers, persistent_workers=True)


def _tensor(data: bytes) -> torch.Tensor:
    return torch.from_numpy(_image(data))


def hugging_face_loader(data: Corpus, workers: int) -> Any:
    """Streaming from the tars, bytes as they are, decoded in a DataLoader's workers."""
    from datasets import Features, Image, Value, load_dataset

    features = Features({"jpg": Image(decode=False), "cls": Value("int64")})
    files = {"train": list(map(str, data.shards))}
    stream = load_dataset("webdataset", data_files=files, split="train", streaming=True, features=features)
    stream = stream.shuffle(seed=SEED, buffer_size=_BUFFER).map(_hugging_face, remove_columns=["jpg", "cls"])
    return DataLoader(stream.with_format("torch"), BATCH, num_workers=workers, persistent_workers=True, drop_last=True)


def _hugging_face(sample: dict[str, Any]) -> dict[str, Any]:
    return {"image": _image(sample["jpg"]["bytes"]), "label": sample["cls"]}


class GrainEpochs:
    """Grain: a shuffled map-style dataset, in processes of its own; a new iterator every epoch.

    Its workers make 500 batches ahead unless told otherwise: then a turn would only take what was made before it.
    """

    def __init__(self, data: Corpus, workers: int) -> None:
        import grain

        options = grain.multiprocessing.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=2)
        source = grain.MapDataset.source(TarImages(data.shards)).shuffle(seed=SEED)
        pairs = source.map(_numpy).batch(BATCH, drop_remainder=True)
        self._data = pairs.to_iter_dataset(grain.ReadOptions(4, prefetch_buffer_size=4)).mp_prefetch(options)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._data)


def _numpy(sample: tuple[torch.Tensor, int]) -> tuple[np.ndarray, int]:
    return sample[0].numpy(), sample[1]


class SpdlEpochs:
    """SPDL: so many threads of this process; a new pipeline every epoch."""

    def __init__(self, data: Corpus, workers: int) -> None:
        self._images, self._workers = TarImages(data.shards), workers

    def __iter__(self) -> Iterator[Any]:
        from spdl.pipeline import PipelineBuilder

        builder = PipelineBuilder().add_source(np.random.permutation(len(self._images)).tolist())
        builder = builder.pipe(self._images.__getitem__, concurrency=self._workers, output_order="input")
        builder = builder.aggregate(BATCH, drop_last=True).pipe(_stack).add_sink(2)
        pipeline = builder.build(num_threads=self._workers + 1)
        with pipeline.auto_stop():
            yield from pipeline


def _stack(samples: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.stack([image for image, _ in samples]), torch.tensor([label for _, label in samples])


class RayDataEpochs:
    """Ray Data, held to so many CPUs: a new execution every epoch."""

    def __init__(self, data: Corpus, workers: int) -> None:
        import ray.data

        context = ray.data.DataContext.get_current()
        context.execution_options.resource_limits = context.execution_options.resource_limits.copy(cpu=workers)
        context.enable_progress_bars = False
        tars = ray.data.read_webdataset(list(map(str, data.shards)), decoder=False, shuffle="files")
        self._data = tars.map(_pair)

    def __iter__(self) -> Iterator[Any]:
        return iter(
            self._data.iter_torch_batches(
                batch_size=BATCH, drop_last=True, prefetch_batches=2, local_shuffle_buffer_size=_BUFFER
            )
        )


def ours(data: Corpus, workers: int, path: str | None = "pillow") -> Any:
    """rayingest, by a decode path; None is the best."""
    return our_loader(data.shards, BATCH, workers, data.shards[0].parent.with_suffix(".index"), path)


FORKED: dict[str, Callable[[Corpus, int], Any]] = {
    "DataLoader": torch_loader,
    "DataLoader again": torch_loader,
    "StatefulDataLoader": stateful_loader,
    "WebDataset": web_loader,
    "Hugging Face": hugging_face_loader,
    "Grain": GrainEpochs,
    "SPDL": SpdlEpochs,
}
"""Those with processes or threads of their own."""
ON_RAY: dict[str, Callable[[Corpus, int], Any]] = {
    "rayingest": ours,
    "rayingest, best path": partial(ours, path=None),
    "Ray Data": RayDataEpochs,
}
