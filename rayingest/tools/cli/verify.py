"""`verify`: reads and decodes everything, and tells every sample that is bad, where it lies and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rayingest.api.dataset import Dataset
from rayingest.errors import DataError
from rayingest.storage.redact import redact
from rayingest.tools.cli.source import Block, blocks_of, decoded, indexed, side_by_side, work_of


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
        for shard, blocks in indexed(self._dataset, self.listing):
            if isinstance(blocks, DataError):
                self.bad += 1
                yield blocks
            else:
                inside = blocks_of(self.listing, shard, blocks, self.samples)
                for block, bad in side_by_side(self._bad, inside):
                    self.samples += block.samples
                    yield from bad
            self.shards += 1
            progress(self.shards)

    def _bad(self, block: Block) -> tuple[Block, list[DataError]]:
        try:
            bad = decoded(self._work, block)[1]
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
