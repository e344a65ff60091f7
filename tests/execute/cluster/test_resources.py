"""The default `max_bytes`: a node's store is divided among its ranks and loaders."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from rayingest.execute.cluster import resources

STORE = 400 << 20


class Source:
    """Stands in for a loader's source."""


def test_a_nodes_store_is_divided_among_its_ranks(cluster: Any) -> None:
    """They get 40 % of it together."""
    assert resources.store_bytes() == STORE
    assert resources.default_max_bytes(100)(4) == int(0.4 * STORE / 4)
    assert resources.default_max_bytes(100)(8) == int(0.4 * STORE / 8)


def test_further_loaders_of_a_rank_get_less_and_less(cluster: Any) -> None:
    """Any number of them stays below the whole store; a closed loader no longer counts."""
    sources = [Source() for _ in range(6)]
    given = []
    for source in sources:
        given.append(resources.default_max_bytes(100)(1))
        resources.count_loader(source, 100)
    assert sum(given) < 0.8 * STORE
    assert resources.default_max_bytes(101)(1) == given[0]
    resources.uncount_loader(sources[0])
    assert resources.default_max_bytes(100)(1) == given[5]


def test_too_little_shared_memory_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """With advice; enough shared memory logs nothing."""
    with caplog.at_level(logging.WARNING, "rayingest"):
        resources.check_shared_memory(1 << 20)
        resources.check_shared_memory(1 << 60, Path("/nowhere-at-all"))
        assert not caplog.text
        resources.check_shared_memory(1 << 60)
    assert "--shm-size" in caplog.text
