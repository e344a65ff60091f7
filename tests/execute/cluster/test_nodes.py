"""Several nodes: where actors run, and how ranks share decoders and object stores."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.ranks import Rank, cluster_of, counts

CPUS = [2, 2, 1, 1]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """A cluster of four nodes with 6 CPUs, and a head without CPUs."""
    with cluster_of(CPUS) as cluster:
        yield cluster


@pytest.fixture
def data(tmp_path: Path) -> str:
    """60 samples as JSON Lines."""
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"x": i}) + "\n" for i in range(60)))
    return str(path)


def test_a_reader_runs_on_every_node_with_decoders(
    nodes: Any, data: str, tmp_path: Path, wait_until: Any
) -> None:
    """And only there, although decoders take every CPU: raw blocks need not cross the network."""
    with Rank(nodes.address, tmp_path, data, 0, 1, 6) as rank:
        wait_until(lambda: len(rank.seen["readers"]) == 4 and rank.decoders == 6, 90)
        seen = rank.seen
        assert counts(seen["decoders"]) == sorted(CPUS)
        assert seen["readers"] == sorted(set(seen["decoders"]))
        assert nodes.head_node.node_id not in seen["readers"]
