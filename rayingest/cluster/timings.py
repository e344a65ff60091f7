"""What the workers of each node said that it took, and what they gave.

Owns these figures of one stream; knows no tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rayingest.cluster.decoder import Decoded
from rayingest.cluster.reader import Fetched
from rayingest.plan.metrics import NODES

_SHORT_ID = 8
"""So many characters of a node's id tell it from others, on Ray's dashboard too."""


@dataclass
class _Timings:
    """Of one node's workers; `transfer_seconds` is how long what they had decoded was on its way to the trainer."""

    read_seconds: float = 0.0
    decode_seconds: float = 0.0
    transfer_seconds: float = 0.0
    bytes_read: int = 0
    bytes_decoded: int = 0
    samples_decoded: int = 0
    storage_retries: int = 0


class Timings:
    """By node. Written by one thread, read by any."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Timings] = {}

    def see_read(self, node: str, fetched: Fetched) -> None:
        """A read ended, with its blocks or without."""
        timings = self._of(node)
        timings.storage_retries += fetched.retries
        if fetched.error is None:
            timings.read_seconds += fetched.seconds
            timings.bytes_read += sum(fetched.nbytes)

    def see_decode(self, node: str, decoded: Decoded, samples: int, transfer_seconds: float) -> None:
        """A decode's outputs are here."""
        timings = self._of(node)
        timings.decode_seconds += decoded.seconds
        timings.transfer_seconds += transfer_seconds
        timings.bytes_decoded += sum(part.nbytes for part in decoded.parts)
        timings.samples_decoded += samples

    def stats(self) -> dict[str, Any]:
        """All together, and by node."""
        nodes = {node: dict(vars(timings)) for node, timings in list(self._nodes.items())}
        total = {figure: sum(figures[figure] for figures in nodes.values()) for figure in vars(_Timings())}
        return {**total, NODES: nodes}

    def _of(self, node: str) -> _Timings:
        return self._nodes.setdefault(node[:_SHORT_ID], _Timings())
