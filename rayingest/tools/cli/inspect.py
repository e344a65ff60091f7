"""Look at data: `inspect` describes shards, fields and samples, `verify` decodes all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from rayingest.build.one_source import OneSource
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
    """Yield a line with bytes, blocks, samples and name of each of the first 20 shards."""
    blocks = np.bincount(manifest.shard, minlength=len(manifest.paths))
    samples = np.bincount(
        manifest.shard, weights=manifest.samples, minlength=len(manifest.paths)
    ).astype(np.int64)
    for number in range(min(_SHOWN_SHARDS, len(manifest.paths))):
        name = redact(manifest.url(number)).removeprefix(redact(manifest.root))
        counts = f"{manifest.sizes[number]:>15,} {blocks[number]:>9,} {samples[number]:>12,}"
        yield f"{counts}  {name if name.isprintable() else '(a group of files)'}"
    if len(manifest.paths) > _SHOWN_SHARDS:
        yield f"... and {len(manifest.paths) - _SHOWN_SHARDS:,} more"


def first_samples(dataset: OneSource, manifest: Manifest, count: int) -> Samples:
    """Decode `count` samples, the first ones of evenly spaced blocks; bad samples are left out."""
    work = work_of(dataset, manifest)
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
    """Describe each field: the types and shapes of its values, and the first value."""
    names = dict.fromkeys(name for sample in samples for name in sample)
    return {
        name: _describe([sample[name] for sample in samples if name in sample]) for name in names
    }


def write_contact_sheet(samples: Sequence[Mapping[str, Any]], path: Path) -> str:
    """Write thumbnails of the first image field to a PNG; return the field's name.

    Raises ConfigError if no field is an image or the file cannot be written.
    """
    field = next(
        (name for name, value in (samples[0] if samples else {}).items() if _is_image(value)), None
    )
    if field is None:
        raise ConfigError(
            "--sheet: no field of the first sample is an image (a uint8 array of 3 dimensions)"
        )
    images = [sample[field] for sample in samples if _is_image(sample.get(field))]
    rows = -(-len(images) // _ACROSS)
    sheet = Image.new("RGB", (min(len(images), _ACROSS) * _TILE, rows * _TILE), "white")
    for number, pixels in enumerate(images):
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
    """One pass over the data; `shards`, `samples` and `bad` count what the pass has seen so far."""

    def __init__(self, dataset: OneSource) -> None:
        self.listing = dataset.source.index_cache().listing
        self._dataset, self._work = dataset, work_of(dataset, self.listing)
        self.shards = self.samples = self.bad = 0

    def faults(self, progress: Callable[[int], None] = lambda shards: None) -> Iterator[DataError]:
        """Yield the faults in the order of the data; `progress` receives the number of shards done.

        A shard that cannot be indexed is one fault. A block that cannot be read is one fault too,
        and all its samples count as bad.
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
