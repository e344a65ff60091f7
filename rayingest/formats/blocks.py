"""Cut the samples of a shard into blocks: greedily, in file order, by bytes in the file and by
count.
"""

from __future__ import annotations

from array import array

import numpy as np

from rayingest.plan.order.manifest import MAX_BLOCK_SAMPLES, ShardBlocks


class BlockBuilder:
    """Collect samples into blocks. A block ends when it spans `block_bytes` of the file or holds
    1,024 samples.
    """

    def __init__(self, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        self._begin, self._end, self._samples, self._nbytes = (array("q") for _ in range(4))
        self._open = False

    def add(self, begin: int, end: int, nbytes: int, samples: int = 1) -> None:
        """Add the next samples, which stay in one block.

        `begin`, `end`: their range in the file. `nbytes`: their bytes in memory.
        """
        if self._open:
            self._end[-1] = end
            self._samples[-1] += samples
            self._nbytes[-1] += nbytes
        else:
            self._begin.append(begin)
            self._end.append(end)
            self._samples.append(samples)
            self._nbytes.append(nbytes)
        self._open = (
            end - self._begin[-1] < self._block_bytes and self._samples[-1] < MAX_BLOCK_SAMPLES
        )

    def extend(self, begins: np.ndarray, ends: np.ndarray, nbytes: np.ndarray) -> None:
        """Add samples one by one; int64[n] each for begins, ends and bytes in memory."""
        totals = np.concatenate([[0], np.cumsum(nbytes)])
        at = 0
        while at < len(begins):
            start, held = (
                (self._begin[-1], self._samples[-1]) if self._open else (int(begins[at]), 0)
            )
            by_bytes = int(np.searchsorted(ends, start + self._block_bytes)) + 1
            upto = min(max(by_bytes, at + 1), at + MAX_BLOCK_SAMPLES - held, len(begins))
            self.add(
                int(begins[at]), int(ends[upto - 1]), int(totals[upto] - totals[at]), upto - at
            )
            at = upto

    def finish(self) -> ShardBlocks:
        """Return all blocks."""
        columns = (self._begin, self._end, self._samples, self._nbytes)
        return ShardBlocks(*(np.array(column, np.int64) for column in columns))


def single_block(size: int, samples: int, nbytes: int) -> ShardBlocks:
    """Return a whole shard as one block, or no block if it has no samples."""
    columns = ([0], [size], [samples], [nbytes]) if samples else ([], [], [], [])
    return ShardBlocks(*(np.array(column, np.int64) for column in columns))
