"""A pool whose number of decoders changes gives the same stream."""

from __future__ import annotations

from typing import Any

import rayingest as ri
from tests.support.streams import images, joined


def test_decoders_come_and_go_and_the_stream_is_the_same(
    cluster: Any, shards: str, wait_until: Any
) -> None:
    """Two more decoders after a few steps; one is left in the second epoch."""
    data = images(shards, 10)
    with data.loader(workers=0) as loader:
        reference = [joined([batch]) for _ in range(2) for batch in loader]

    def decoders(pool: ri.Pool) -> int:
        return pool.count("decoder")

    seen = []
    with ri.Pool(workers=1) as pool, data.loader(pool=pool) as loader:
        for _ in range(2):
            for batch in loader:
                seen.append(joined([batch]))
                if len(seen) == 5:
                    pool.resize(3)
                    wait_until(lambda: decoders(pool) == 3, 60)
                if len(seen) == len(reference) // 2 + 5:
                    pool.resize(1)
                    wait_until(lambda: decoders(pool) == 1, 60)
    assert seen == reference
