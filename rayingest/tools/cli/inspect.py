"""`inspect`: what data there are: shards with their counts and sizes, columns, a few samples, and pictures of some."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from rayingest.api.dataset import Dataset
from rayingest.errors import ConfigError, DataError
from rayingest.execute.stream import spans_of
from rayingest.plan.order.manifest import Manifest
from rayingest.storage.redact import redact
from rayingest.tools.cli.source import (
    Block,
    blocks_of,
    decode_block,
    index_shards,
    map_in_threads,
    work_of,
)
from rayingest.transforms.run_stages import Samples

_SHOWN_SHARDS = 20
_TILE = 128
_ACROSS = 8
_LONGEST = 60


def shards(manifest: Manifest) -> Iterator[str]:
    """A line a shard: bytes, blocks, samples and name; the first ones, and how many more there are."""
    blocks = np.bincount(manifest.shard, minlength=len(manifest.paths))
    samples = np.bincount(
        manifest.shard, weights=manifest.samples, minlength=len(manifest.paths)
    ).astype(np.int64)
    for number in range(min(_SHOWN_SHARDS, len(manifest.paths))):
        name = redact(manifest.url(number)).removeprefix(redact(manifest.root))
        counts = f"{manifest.sizes[number]:>15,} {blocks[number]:>9,} {samples[number]:>12,}"
        yield f"{counts}  {name if name.isprintable() else '(a bundle of files)'}"
    if len(manifest.paths) > _SHOWN_SHARDS:
        yield f"... and {len(manifest.paths) - _SHOWN_SHARDS:,} more"


def first_samples(dataset: Dataset, manifest: Manifest, count: int) -> Samples:
    """So many samples of the data, decoded: the first of blocks at even distances, bad ones left out."""
    work = work_of(dataset)
    chosen = np.unique(
        np.linspace(0, manifest.num_blocks - 1, min(count, manifest.num_blocks)).astype(int)
    )
    each = -(-count // len(chosen))
    found: list[dict[str, Any]] = []
    for number in chosen.tolist():
        (span,) = spans_of(manifest, [number])
        found += decode_block(work, Block(span, int(manifest.first_ordinal[number])), each)[0]
    return Samples(found[:count])


def describe_fields(samples: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """By field: the types and shapes of its values in these samples, and the first of them."""
    names = dict.fromkeys(name for sample in samples for name in sample)
    return {
        name: _describe([sample[name] for sample in samples if name in sample]) for name in names
    }


def contact_sheet(samples: Sequence[Mapping[str, Any]], path: Path) -> str:
    """Write small pictures of the first field of images, in rows, as PNG; returns the field's name."""
    field = next(
        (name for name, value in (samples[0] if samples else {}).items() if _is_image(value)), None
    )
    if field is None:
        raise ConfigError(
            "--sheet: no field of the first sample is an image (uint8 of 3 dimensions)"
        )
    pictures = [sample[field] for sample in samples if _is_image(sample.get(field))]
    rows = -(-len(pictures) // _ACROSS)
    sheet = Image.new("RGB", (min(len(pictures), _ACROSS) * _TILE, rows * _TILE), "white")
    for number, pixels in enumerate(pictures):
        image = Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels).convert(
            "RGB"
        )
        image.thumbnail((_TILE - 4, _TILE - 4))
        sheet.paste(image, (number % _ACROSS * _TILE + 2, number // _ACROSS * _TILE + 2))
    try:
        sheet.save(path, "png")
    except OSError as error:
        raise ConfigError(
            f"--sheet: {path} cannot be written: {error.strerror or error}"
        ) from error
    return field


class Verification:
    """Goes through the data once; the counts are those of what was seen so far."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset, self._work = dataset, work_of(dataset)
        self.listing = dataset.index_cache().listing
        self.shards = self.samples = self.bad = 0

    def faults(self, progress: Callable[[int], None] = lambda shards: None) -> Iterator[DataError]:
        """What is wrong, in the order of the data; `progress` gets the number of shards done.

        A shard that cannot be indexed is one fault; so is a block that cannot be read, whose samples all count as bad.
        """
        for shard, blocks in index_shards(self._dataset, self.listing):
            if isinstance(blocks, DataError):
                self.bad += 1
                yield blocks
            else:
                inside = blocks_of(self.listing, shard, blocks, self.samples)
                for block, bad in map_in_threads(self._bad, inside):
                    self.samples += block.samples
                    yield from bad
            self.shards += 1
            progress(self.shards)

    def _bad(self, block: Block) -> tuple[Block, list[DataError]]:
        try:
            bad = decode_block(self._work, block)[1]
            count = len(bad)
        except DataError as error:
            (span,), url = block.span.blocks, block.span.url
            named = DataError(
                error.reason,
                shard=error.shard or redact(url),
                offset=span[0] if error.offset is None else error.offset,
                sample=error.sample,
                key=error.key,
            )
            bad, count = [named], block.samples
        self.bad += count
        return block, bad


def _describe(values: Sequence[Any]) -> str:
    kinds = list(dict.fromkeys(map(_describe_type, values)))
    first = values[0]
    text = "" if isinstance(first, np.ndarray) and first.size > 8 else " ".join(repr(first).split())
    shown = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
    return (
        ", ".join(kinds[:3]) + (", ..." if len(kinds) > 3 else "") + (f"; {shown}" if shown else "")
    )


def _describe_type(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {tuple(value.shape)}"
    return (
        f"{type(value).__name__} of {len(value)}"
        if isinstance(value, (bytes, list))
        else type(value).__name__
    )


def _is_image(value: Any) -> bool:
    return (
        isinstance(value, np.ndarray)
        and value.dtype == np.uint8
        and value.ndim == 3
        and value.shape[-1] in {1, 3}
    )
