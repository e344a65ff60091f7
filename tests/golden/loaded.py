"""Golden values that loaders give: which samples come when, and their random numbers.

All data are a few lines of JSON, in blocks of a few samples. A loader works in this process,
without Ray.
"""

from __future__ import annotations

import io
import os
import random
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

import rayingest as ri

_SIZES = (9, 4, 17, 1, 12)  # samples of each shard, 43 in all
_BLOCK_BYTES = 160  # 5 lines

Steps = list[list[Any]]


def lines(folder: Path, sizes: tuple[int, ...] = _SIZES, first: int = 0) -> ri.Dataset:
    """Return shards of these sizes; `i` is a sample's number, `n` its length from 1 to 9."""
    folder.mkdir(parents=True)
    for shard, size in enumerate(sizes):
        numbers = range(first, first + size)
        text = "".join(f'{{"i": {i:4}, "n": {1 + i * 5 % 9}, "kind": {i % 3}}}\n' for i in numbers)
        (folder / f"s-{shard}.jsonl").write_text(text)
        first += size
    return ri.read_json(f"{folder}/s-*.jsonl", index=folder / "index", block_bytes=_BLOCK_BYTES)


def noise(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Add a random number of six digits."""
    return {**sample, "noise": int(rng.random() * 10**6)}


def more_noise(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Add another random number of six digits."""
    return {**sample, "more": int(rng.random() * 10**6)}


def column_noise(columns: dict[str, Any], rng: list[np.random.Generator]) -> dict[str, Any]:
    """Add a random number of six digits to each row."""
    return {**columns, "rows": [int(one.random() * 10**6) for one in rng]}


def global_noise(sample: dict[str, Any]) -> dict[str, Any]:
    """Add numbers of the global generators of Python and numpy."""
    python, numpy = random.randrange(10**6), np.random.randint(10**6)
    return {**sample, "python": python, "numpy": numpy}


def global_noises(columns: dict[str, Any]) -> dict[str, Any]:
    """Add a number of Python's global generator to each row."""
    return {**columns, "rows": [random.randrange(10**6) for _ in columns["n"]]}


def random_columns(
    samples: list[dict[str, Any]], rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Return columns of numbers of a batch's generator, and of Python's global one."""
    count = len(samples)
    return {
        "python": np.array([random.randrange(10**6) for _ in range(count)]),
        "rng": rng.integers(10**6, size=count),
    }


def decode_noise(value: int, rng: np.random.Generator) -> int:
    """Return a random number of six digits."""
    return int(rng.random() * 10**6)


def follow(
    data: ri.Dataset,
    *columns: str,
    world_size: int = 1,
    epochs: int = 2,
    steps: int = 1000,
    **options: Any,
) -> list[Steps]:
    """Return by epoch and step the rows of all ranks; of several ranks, a list for each.

    A row is its `__index__`, or -1 - `__index__` where `__valid__` is False; with named columns, a
    list of that and of their values.
    """
    seen: list[Steps] = []
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(data.loader(workers=0, rank=rank, world_size=world_size, **options))
            for rank in range(world_size)
        ]
        for _ in range(epochs):
            seen.append([])
            for parts in zip(*map(iter, ranks), strict=False):
                rows = [_rows(part, columns) for part in parts]
                seen[-1].append(rows[0] if world_size == 1 else rows)
                if len(seen[-1]) == steps:
                    break
    return seen


def _rows(batch: dict[str, Any], columns: tuple[str, ...]) -> list[Any]:
    index = np.asarray(batch["__index__"])
    index = (
        np.where(np.asarray(batch["__valid__"]), index, -1 - index)
        if "__valid__" in batch
        else index
    )
    if not columns:
        return index.tolist()
    values = (np.asarray(batch[name]).tolist() for name in columns)
    return list(map(list, zip(index.tolist(), *values, strict=True)))


def window(folder: Path) -> dict[str, Any]:
    """Return orders that give each sample once an epoch."""
    data = lines(folder)
    lanes = data.shuffle(seed=5, window=12, lanes=3)
    return {
        "loader, one window": follow(data.shuffle(seed=5).batch(8)),
        "loader, lanes": follow(lanes.batch(6)),
        "loader, lanes, 2 ranks, pad": follow(lanes.batch(6, partial="pad"), world_size=2),
        "loader, lanes, 3 ranks, short": follow(
            lanes.batch(6, partial="short"), world_size=3, epochs=1
        ),
        "loader, 3 uneven ranks, pad": follow(
            data.shuffle(seed=2**64 - 1, window=16).batch(8, partial="pad"),
            world_size=3,
            epochs=1,
            uneven=True,
        ),
    }


def file_order(folder: Path) -> dict[str, Any]:
    """Return orders without a shuffle."""
    data = lines(folder).map(noise)
    return {
        "loader, drop": follow(data.batch(8)),
        "loader, short, 2 ranks": follow(data.batch(8, partial="short"), world_size=2, epochs=1),
        "loader, pad, 3 uneven ranks": follow(
            data.batch(8, partial="pad"), world_size=3, epochs=1, uneven=True
        ),
        "loader, noise": follow(data.batch(8, partial="short"), "noise"),
    }


def packed(folder: Path, cut: bool) -> dict[str, Any]:
    """Return packed rows; an index of -1 fills a row up."""
    data = lines(folder).map(tokens_of).pack(12, field="tokens", cut=cut)
    found = {}
    for name, partial, ranks, shuffled in (
        ("loader, drop", "drop", 1, True),
        ("loader, pad, 3 ranks", "pad", 3, True),
        ("loader, file order, short", "short", 1, False),
    ):
        given = data.shuffle(seed=5, window=15) if shuffled else data
        with ExitStack() as stack:
            loaders = [
                stack.enter_context(
                    given.batch(3, partial=partial).loader(workers=0, rank=rank, world_size=ranks)
                )
                for rank in range(ranks)
            ]
            found[name] = [
                [
                    [_packed(part) for part in parts]
                    for parts in zip(*map(iter, loaders), strict=False)
                ]
                for _ in range(2)
            ]
    return found


def tokens_of(sample: dict[str, Any]) -> dict[str, Any]:
    """Return `n` tokens that all are the sample's number."""
    return {"tokens": np.full(sample["n"], sample["i"], np.int32)}


def _packed(batch: dict[str, Any]) -> list[Any]:
    """Return [sample, end] of each segment; then which rows are valid, if the batch says so."""
    index, ends = (
        np.asarray(batch["__index__"]).tolist(),
        np.asarray(batch["cu_seqlens"]).tolist()[1:],
    )
    segments = list(map(list, zip(index, ends, strict=True)))
    return (
        [segments, np.asarray(batch["__valid__"]).tolist()] if "__valid__" in batch else [segments]
    )


def budgeted(folder: Path) -> dict[str, Any]:
    """Return batches of a limited size."""
    data = lines(folder / "s").length("n").shuffle(seed=5, window=20)
    tokens = lines(folder / "f").map(tokens_of).length("tokens")
    return {
        "loader, 1 rank": follow(data.batch(max_tokens=30)),
        "loader, 2 ranks, pad": follow(data.batch(max_tokens=18, partial="pad"), world_size=2),
        "loader, 3 ranks, short": follow(
            data.batch(max_tokens=18, partial="short"), world_size=3, epochs=1
        ),
        "loader, file order, multiples of 4": follow(
            tokens.batch(max_tokens=30, pad={"tokens": ri.Pad(multiple_of=4)}), epochs=1
        ),
    }


def mixed(folder: Path) -> dict[str, Any]:
    """Return mixtures, of which each row is [index, source]."""
    a, b = lines(folder / "a"), lines(folder / "b", (5, 6), 100)
    c, d = lines(folder / "c", (8,), 200), lines(folder / "d", (3, 2), 300)
    weights = {"a": 5, "b": 2, "c": 1}
    flat = ri.mix({"a": a, "b": b.shuffle(seed=9), "c": c}, weights=weights)
    nested = ri.mix(
        {"a": a, "in": ri.mix({"c": c, "d": d}, weights={"c": 1, "d": 2}, until="all")}, until=40
    )
    change = {0: weights, 3: {"a": 0, "b": 1, "c": 1}}
    changing = ri.mix({"a": a, "b": b, "c": c}, weights=change, until=48)
    free = ri.mix(
        {"a": a, "in": ri.mix({"c": c, "d": d}, stratified=False)}, until=24, stratified=False
    )
    source = "__source__"
    return {
        "loader, first": follow(flat.shuffle(seed=5, window=16).batch(8), source),
        "loader, 2 ranks, pad": follow(
            flat.shuffle(seed=5).batch(8, partial="pad"), source, world_size=2
        ),
        "loader, nested": follow(nested.shuffle(seed=5).batch(8), source),
        "loader, nested, window": follow(
            nested.shuffle(seed=5, window=16).batch(8), source, epochs=1
        ),
        "loader, parts of sources": follow(
            ri.mix({"a": a.split(0.5, seed=3)[0], "c": c.take(5)}, until=16)
            .shuffle(seed=5)
            .batch(4),
            source,
        ),
        "loader, changing weights": follow(changing.shuffle(seed=5).batch(8), source),
        "loader, free": follow(free.shuffle(seed=5).batch(4, partial="short"), source, epochs=3),
        "loader, file order, 3 uneven ranks": follow(
            ri.mix({"a": a, "b": b}, until="all").batch(8, partial="short"),
            source,
            world_size=3,
            epochs=1,
            uneven=True,
        ),
    }


def weighted(folder: Path) -> dict[str, Any]:
    """Return draws by weight."""
    data = lines(folder)
    by_field = data.weighted(by="n").shuffle(seed=5, window=20)
    balanced = data.weighted(balance="kind", samples=30).shuffle(seed=5)
    return {
        "loader, by a field": follow(by_field.batch(8)),
        "loader, by an array, 2 ranks, pad": follow(
            data.weighted(by=np.arange(43.0) ** 2).shuffle(seed=6).batch(8, partial="pad"),
            world_size=2,
        ),
        "loader, balanced, short, 3 uneven ranks": follow(
            balanced.batch(8, partial="short"), world_size=3, epochs=1, uneven=True
        ),
        "loader, bucketed": follow(by_field.length("n").batch(8, bucketed=True)),
    }


def buckets(folder: Path) -> dict[str, Any]:
    """Return steps of samples of similar length, of which each row is [index, length]."""
    data = lines(folder).length("n")
    return {
        "one lane": follow(data.shuffle(seed=5).batch(8, bucketed=True), "n"),
        "lanes, pad, 2 ranks": follow(
            data.shuffle(seed=5, window=24, lanes=2).batch(6, bucketed=True, partial="pad"),
            "n",
            world_size=2,
        ),
        "epochs of another length": follow(
            data.shuffle(seed=5, window=24).epoch(samples=60).batch(6, bucketed=True), "n"
        ),
    }


def subset(folder: Path) -> dict[str, Any]:
    """Return orders over some of the samples."""
    data = lines(folder / "a")
    lines(folder / "two" / "a", (20,))
    lines(folder / "two" / "b", (20,), 20)
    halves, _ = ri.read_json(f"{folder}/two/*/*.jsonl", index=folder / "two").split(
        0.5, 0.5, seed=7
    )
    first, second = data.split(0.6, 0.3, seed=7)
    inner, _ = first.split(0.5, 0.5, seed=8)
    parts = {"0.6": first, "0.3": second, "half of 0.6": inner, "0.6 of seed 0": data.split(0.6)[0]}

    def shuffled(part: ri.Dataset) -> Any:
        return follow(part.shuffle(seed=5, window=12).batch(4), epochs=1)

    return {
        "split": {
            name: follow(part.batch(50, partial="short"), epochs=1)[0][0]
            for name, part in parts.items()
        },
        "split, files of one name": follow(halves.batch(50, partial="short"), epochs=1)[0][0],
        "split, shuffled": follow(
            first.shuffle(seed=5, window=12, lanes=2).batch(4, partial="pad"), world_size=2
        ),
        "where": shuffled(data.where("n >= 4")),
        "filter": shuffled(data.filter(is_odd)),
        "take": shuffled(data.take(22)),
        "skip": shuffled(data.skip(22)),
        "filter, skip, take": shuffled(data.filter(is_odd).skip(3).take(9)),
        "file order": follow(data.where("n >= 4").skip(2).batch(5, partial="short"), epochs=1),
        "weighted": follow(
            data.where("n >= 4").weighted(by="n").shuffle(seed=5).batch(8), epochs=1
        ),
        "packed": follow_packed(
            data.where("n >= 4").map(tokens_of).pack(12).shuffle(seed=5).batch(2)
        ),
    }


def follow_packed(data: ri.Dataset) -> list[Any]:
    """Return the segments of all steps of an epoch."""
    with data.loader(workers=0) as loader:
        return [_packed(batch) for batch in loader]


def is_odd(sample: dict[str, Any]) -> bool:
    """Return whether the sample's number is odd."""
    return sample["i"] % 2 == 1


def calendar(folder: Path) -> dict[str, Any]:
    """Return epochs of another length than once through the data, with random numbers."""
    data = lines(folder / "a").map(noise)
    shuffled = data.shuffle(seed=5, window=16)
    return {
        "samples, longer": follow(shuffled.epoch(samples=60).batch(8), "noise", epochs=3),
        "samples, shorter": follow(shuffled.epoch(samples=24).batch(8), epochs=4),
        "samples, file order": follow(data.epoch(samples=30).batch(8), "noise", epochs=3),
        "passes, pad": follow(shuffled.epoch(passes=2).batch(16, partial="pad"), "noise"),
        "passes, short, 2 ranks": follow(
            shuffled.epoch(passes=3).batch(16, partial="short"), world_size=2
        ),
        "samples, weighted": follow(
            lines(folder / "w")
            .weighted(by="n", samples=20)
            .map(noise)
            .shuffle(seed=5)
            .epoch(samples=32)
            .batch(8),
            "noise",
        ),
        "samples, sampler": follow(
            ri.from_torch(Numbers(13), sampler=OwnSampler(13)).epoch(samples=18).batch(6), epochs=3
        ),
    }


class Numbers:
    """A map-style dataset of its indices, each with a random number from the global state."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, int]:
        return {
            "i": index,
            "python": int(random.random() * 10**6),
            "numpy": int(np.random.rand() * 10**6),
        }


class OwnSampler:
    """Indices in an order that each iteration changes; an index may come twice."""

    def __init__(self, count: int) -> None:
        self.count, self.passes = count, 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        return iter([i * (2 + self.passes) % (self.count - 1) for i in range(self.count)])


class Batches(OwnSampler):
    """Lists of one, two, three and four indices."""

    def __iter__(self) -> Iterator[Any]:
        drawn = list(super().__iter__())
        return iter([drawn[0:1], drawn[1:3], drawn[3:6], drawn[6:10]])


class Replicated(OwnSampler):
    """A rank's part of the indices, as a distributed sampler gives it."""

    num_replicas, rank = 2, 0

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(
            [
                (i * 5 + self.epoch) % self.count
                for i in range(self.rank, self.count, self.num_replicas)
            ]
        )


def sampler(folder: Path) -> dict[str, Any]:
    """Return orders that a sampler draws."""
    import torch
    from torch.utils.data import RandomSampler

    data = Numbers(13)
    drawn = ri.from_torch(data, sampler=OwnSampler(13))
    seeded = torch.Generator().manual_seed(4)
    return {
        "sampler, drop": follow(drawn.batch(4), epochs=3),
        "sampler, pad, 2 ranks": follow(drawn.batch(4, partial="pad"), world_size=2),
        "sampler, short, 3 uneven ranks": follow(
            drawn.batch(4, partial="short"), world_size=3, uneven=True
        ),
        "batch sampler": follow(ri.from_torch(data, batch_sampler=Batches(13))),
        "batch sampler, 2 ranks": follow(
            ri.from_torch(data, batch_sampler=Batches(13)), world_size=2
        ),
        "passes": follow(drawn.epoch(passes=2).batch(4, partial="short")),
        "replicas, set_epoch": follow(ri.from_torch(Numbers(16), sampler=Replicated(16)).batch(4)),
        "torch, seed": follow(ri.from_torch(data, sampler=RandomSampler(data), seed=3).batch(4)),
        "torch, generator": follow(
            ri.from_torch(
                data, sampler=RandomSampler(data, generator=seeded), generator=seeded
            ).batch(4)
        ),
        "noise": follow(drawn.batch(5), "i", "python", "numpy"),
    }


class Log:
    """Partition p has `lengths[p]` records."""

    lengths = (3, 7, 0, 4)

    def __call__(self, partition: int, offset: int | None) -> Iterator[Any]:
        for i in range(offset or 0, self.lengths[partition]):
            yield {"p": partition, "i": i}, i + 1


def stream(folder: Path) -> dict[str, Any]:
    """Return records of partitions in turn: rows of [index, partition, record, noise]."""
    data = ri.stream(Log(), partitions=4, seed=5).map(noise)
    columns = ("p", "i", "noise")
    return {
        "1 rank": follow(data.batch(4), *columns, epochs=1)[0],
        "2 ranks": follow(data.batch(4), *columns, epochs=1, world_size=2)[0],
        "3 uneven ranks": follow(data.batch(4), *columns, epochs=1, world_size=3, uneven=True)[0],
    }


def replacements(folder: Path) -> dict[str, Any]:
    """Return which samples take the places of bad ones; those are given as -1 - index."""
    whole = lines(folder / "a", (40, 1, 90))
    data, lengths, draws = (
        one.map(refuse) for one in (whole, whole.length("n"), whole.weighted(by="i"))
    )
    skip = {"on_error": "skip", "max_errors": 1.0, "quarantine": folder / "quarantine"}
    shuffled = data.shuffle(seed=5, window=64, lanes=1)
    mixture = ri.mix({"a": data, "b": lines(folder / "b", (50,), 200)}, weights={"a": 3, "b": 1})
    torch = ri.from_torch(Refusing(40), sampler=OwnSampler(40))
    return {
        "window": follow(shuffled.batch(16), **skip),
        "window, 2 ranks, pad": follow(shuffled.batch(16, partial="pad"), world_size=2, **skip),
        "lanes": follow(data.shuffle(seed=6, window=80, lanes=2).batch(16), epochs=1, **skip),
        "file order": follow(data.batch(16, partial="short"), epochs=1, **skip),
        "unreadable blocks": follow(
            damaged(folder / "tar").map(refuse_some).shuffle(seed=5, window=32, lanes=1).batch(8),
            epochs=1,
            **skip,
        ),
        "bucketed": follow(lengths.shuffle(seed=5).batch(16, bucketed=True), epochs=1, **skip),
        "weighted": follow(draws.shuffle(seed=5, window=64, lanes=1).batch(16), epochs=1, **skip),
        "mixed": follow(mixture.shuffle(seed=5).batch(16), "__source__", epochs=1, **skip),
        "sampler": follow(torch.batch(8), epochs=1, **skip),
        "stream": follow(
            ri.stream(Log(), partitions=4).map(refuse_some).batch(4), epochs=1, **skip
        ),
    }


def damaged(folder: Path) -> ri.Dataset:
    """Return 60 samples in blocks of a few, of which two cannot be read.

    A file's size and time are those of the index, which knows nothing of the damage.
    """
    folder.mkdir()
    path = folder / "s.tar"
    with tarfile.open(path, "w") as tar:
        for i in range(60):
            add(tar, f"{i:03}.i", b"%d" % i)
    data = ri.read_webdataset(str(path), index=folder, block_bytes=4096).decode(i=int)
    with data.batch(1).loader(workers=0):
        pass  # makes the index
    before = path.stat()
    with path.open("r+b") as file:
        for begin in (9, 44):
            file.seek(begin * 1024)
            file.write(b"\xff" * 512)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return data


def refuse(sample: dict[str, Any]) -> dict[str, Any]:
    """Raise for every fifth sample, and for a run of them."""
    if sample["i"] % 5 == 3 or 50 <= sample["i"] < 75:
        raise RuntimeError("refused")
    return sample


def refuse_some(sample: dict[str, Any]) -> dict[str, Any]:
    """Raise for the third record of each partition."""
    if sample["i"] == 2:
        raise RuntimeError("refused")
    return sample


class Refusing(Numbers):
    """A map-style dataset of which some items raise."""

    def __getitem__(self, index: int) -> dict[str, int]:
        return refuse({"i": index})


def randoms(folder: Path) -> dict[str, Any]:
    """Return the samples' random numbers: rows of [index, numbers...]."""
    data = lines(folder / "a")
    staged = data.decode(kind=decode_noise).map(noise).map(more_noise).map_batches(column_noise)
    twice = data.select(x="kind", y="n").decode(y=decode_noise, x=decode_noise)
    columns = ("kind", "noise", "more", "rows")
    mixture = ri.mix(
        {"a": data, "b": lines(folder / "b", (5, 6))}, weights={"a": 2, "b": 1}, until=36
    )
    copies = data.map(noise).weighted(by=np.where(np.arange(43) < 3, 20.0, 0.1))
    iterable = ri.from_torch_iterable(random_shard, shards=3, index=folder / "iterable", seed=6)
    return {
        "stages": follow(staged.shuffle(seed=5, window=16).batch(8), *columns, steps=2),
        "stages, file order": follow(staged.batch(8), *columns, steps=1),
        "selected, two decoded fields": follow(twice.shuffle(seed=5).batch(8), "x", "y", steps=1),
        "flips": follow(pictures(folder / "pictures"), "left"),
        "another seed": follow(data.map(noise).shuffle(seed=6).batch(8), "noise", steps=1),
        "mixture": follow(
            mixture.map(noise).shuffle(seed=5).batch(9), "__source__", "noise", steps=2
        ),
        "weighted copies": follow(copies.shuffle(seed=5).batch(8), "noise", steps=3),
        "items": follow(ri.from_torch(Numbers(13), seed=3).batch(4), "python", "numpy", steps=2),
        "items, torch": follow(ri.from_torch(TorchNumbers(13), seed=3).batch(4), "torch", steps=2),
        "items, shuffled": follow(
            ri.from_torch(Numbers(13)).shuffle(seed=3).batch(4), "python", "numpy", steps=2
        ),
        "items, together": follow(
            ri.from_torch(Together(13), seed=3).batch(4), "python", "numpy", steps=2
        ),
        "shards": follow(iterable.batch(4), "python", "numpy"),
        "worker's parts": follow(
            iterables(folder / "parts").batch(4), "id", "torch", "seed", epochs=1
        ),
        "global generators": follow(
            data.map(global_noise).map_batches(global_noises).shuffle(seed=5).batch(8),
            "python",
            "numpy",
            "rows",
            steps=2,
        ),
        "collate": follow(
            data.shuffle(seed=5).batch(8, collate=random_columns), "python", "rng", steps=2
        ),
        "shards, shuffled": follow(iterable.map(noise).shuffle(seed=3).batch(4), "python", "noise"),
    }


def pictures(folder: Path) -> ri.Dataset:
    """Return random flips of 12 images; `left` is 10, or 20 where an image is flipped."""
    from PIL import Image

    folder.mkdir()
    with tarfile.open(folder / "s.tar", "w") as tar:
        for i in range(12):
            image = io.BytesIO()
            Image.fromarray(np.array([[[10] * 3, [20] * 3]], np.uint8)).save(image, "png")
            add(tar, f"{i:02}.png", image.getvalue())
    data = ri.read_webdataset(str(folder / "s.tar"), index=folder)
    return data.decode(png=ri.images.RandomHorizontalFlip()).map(left_of).shuffle(seed=5).batch(6)


def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    """Add a file to a tar."""
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


def left_of(sample: dict[str, Any]) -> dict[str, Any]:
    """Return the value of the left pixel."""
    return {"left": int(sample["png"][0, 0, 0])}


class TorchNumbers(Numbers):
    """A map-style dataset of random numbers from the global state of torch."""

    def __getitem__(self, index: int) -> dict[str, int]:
        import torch

        return {"torch": int(torch.randint(10**6, ()))}


def iterables(folder: Path) -> ri.Dataset:
    """Return random numbers of torch, of an iterable that divides itself among 3 workers."""
    import torch
    from torch.utils.data import IterableDataset, get_worker_info

    class Divided(IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Iterator[dict[str, int]]:
            info = get_worker_info()
            for i in range(info.id, 11, info.num_workers):
                yield {"id": i, "torch": int(torch.randint(10**6, ())), "seed": info.seed % 10**6}

    return ri.from_torch_iterable(Divided(), shards=3, index=folder, seed=6)


class Together(Numbers):
    """A map-style dataset that gives several items at once."""

    def __getitems__(self, indices: list[int]) -> list[dict[str, int]]:
        return [self[index] for index in indices]


def random_shard(number: int) -> Iterator[dict[str, int]]:
    """Give some random numbers from the global states."""
    for _ in range(3 + number):
        yield {"python": int(random.random() * 10**6), "numpy": int(np.random.rand() * 10**6)}
