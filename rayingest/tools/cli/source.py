"""Open the data that a command works on: a configuration's, or a URL's in a named format.

Owns how commands visit shards and blocks, several at a time. A fault of the data is a result here,
not an exception.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import yaml

from rayingest.api.config import load_config
from rayingest.api.config.document import yaml_problem
from rayingest.api.data import description_of
from rayingest.api.dataset import Dataset
from rayingest.api.mixture import Mixture
from rayingest.api.readers import READERS
from rayingest.build.one_source import OneSource
from rayingest.errors import ConfigError, DataError
from rayingest.execute.work import BlockRows, SourceWork, Span, Work
from rayingest.formats.protocol import Shard, index_shard
from rayingest.options import describe_allowed
from rayingest.plan.order.manifest import Manifest, ShardBlocks
from rayingest.storage.listing import Listing
from rayingest.storage.redact import redact
from rayingest.transforms.images.jpeg import choose_backend
from rayingest.transforms.run_stages import Samples

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Block:
    """One block to read: its span in a shard, and the ordinal of its first sample."""

    span: Span
    first: int

    @property
    def samples(self) -> int:
        return self.span.blocks[0][2]


def open_source(
    source: str, format_name: str | None, options: Sequence[str] | None = None
) -> Dataset | Mixture:
    """Return the data of a configuration (`.yaml`), or of a URL in the format `format_name`.

    Options are `name=value`, the value in YAML. Raises ConfigError if `source` is neither.
    """
    if format_name is None:
        if options:
            name = options[0].partition("=")[0]
            raise ConfigError(
                f"--option {name} needs --format; in a configuration, write the option under `read`"
            )
        if Path(source).suffix not in {".yaml", ".yml"}:
            raise ConfigError(
                f"{redact(source)} is not a configuration (.yaml); for data, name its format "
                "with --format"
            )
        return load_config(source).dataset()
    if format_name not in READERS:
        raise ConfigError(f"--format {format_name}: {describe_allowed(format_name, READERS)}")
    return READERS[format_name](source, **dict(map(_option, options or ())))


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--option {text} has no value; write name=value")
    try:
        return name.strip().replace("-", "_"), yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"--option {name} is not valid YAML: {yaml_problem(error)}") from None


def sources_of(data: Dataset | Mixture) -> list[OneSource]:
    """Return the sources of a mixture, or the one source of a data set."""
    if isinstance(data, Mixture):
        return [leaf.dataset for leaf in description_of(data).leaves()]
    return [description_of(data)]


def one_source(
    source: str, format_name: str | None, options: Sequence[str] | None = None
) -> OneSource:
    """Return the data of `open_source`. Raises ConfigError for a mixture."""
    data = open_source(source, format_name, options)
    if isinstance(data, Mixture):
        names = ", ".join(data.names)
        raise ConfigError(f"this command reads one source, not a mixture of {names}")
    return description_of(data)


def work_of(dataset: OneSource, shards: Listing | Manifest) -> SourceWork:
    """Return the work on each sample of these shards; it skips and reports bad samples."""
    return dataset.work_on(shards).with_options(True, choose_backend(None))


def index_shards(
    dataset: OneSource, listing: Listing
) -> Iterator[tuple[int, ShardBlocks | DataError]]:
    """Yield each shard's number and its blocks, or the error of its index, in order."""

    def one(shard: int) -> tuple[int, ShardBlocks | DataError]:
        work = dataset.work
        url, size = listing.url(shard), int(listing.sizes[shard])
        of = Shard(work.storage, url, size, work.strict, work.options)
        try:
            return shard, index_shard(work.format, of, dataset.source.block_bytes)
        except DataError as error:
            return shard, error

    return map_in_threads(one, range(len(listing)))


def blocks_of(listing: Listing, shard: int, blocks: ShardBlocks, first: int) -> Iterator[Block]:
    """Yield a shard's blocks; `first` is the ordinal of its first sample."""
    for begin, end, samples in zip(
        blocks.begin.tolist(), blocks.end.tolist(), blocks.samples.tolist(), strict=True
    ):
        span = Span(
            listing.url(shard),
            int(listing.sizes[shard]),
            listing.marks[shard],
            [(begin, end, samples)],
        )
        yield Block(span, first)
        first += samples


def decode_block(
    work: Work, block: Block, most: int | None = None
) -> tuple[Samples, list[DataError]]:
    """Decode a block, or its first `most` samples; return the good samples and the others' errors.

    Raises DataError if the block cannot be read.
    """
    rows = np.arange(block.samples if most is None else min(most, block.samples))
    samples, bad = BlockRows(0, np.zeros_like(rows), rows, block.first + rows).samples(
        work, [work.open(table) for table in work.read([block.span])]
    )
    return samples, [bad[row] for row in sorted(bad)]


def map_in_threads(call: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Yield the results of `call` in the order of the items; threads work a few items ahead."""
    threads = min(16, 2 * (os.cpu_count() or 1))
    with ThreadPoolExecutor(threads, "rayingest-cli") as pool:
        under_way: deque[Future[R]] = deque()
        for item in items:
            under_way.append(pool.submit(call, item))
            if len(under_way) > threads:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
