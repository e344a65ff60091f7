"""Samples of a block that are to be written into a shard.

Owns who they are, for errors. Knows neither what wrote them nor what they become.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from rayingest.errors import DataError
from rayingest.transforms.raw_block import RawBlock

Sample = Mapping[str, Any]


@dataclass(frozen=True)
class SampleBlock:
    """Samples, and in `columns`, a row each, what of their fields is as it was in the data, if Arrow can hand it on.

    `raw` is the block that they are of, `rows` are theirs in it, `ordinals` theirs in the data; int64 arrays.
    `encodings` has what the bytes of fields are decoded with.
    """

    samples: list[Sample]
    raw: RawBlock
    rows: np.ndarray
    ordinals: np.ndarray
    columns: Mapping[str, pa.Array] = field(default_factory=dict)
    encodings: Mapping[str, str] = field(default_factory=dict)

    def error(self, place: int, reason: str) -> DataError:
        """What is wrong with the sample at this place."""
        return DataError(
            reason, **self.raw.where(int(self.rows[place])), sample=int(self.ordinals[place])
        )
