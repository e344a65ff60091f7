"""Several nodes: where actors run, and how ranks share decoders and object stores."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
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


def test_ranks_get_equal_decoders_whenever_they_start_and_end(
    nodes: Any, data: str, tmp_path: Path, wait_until: Any
) -> None:
    """The first rank of two takes 4 of 6 CPUs; then 3 each; then 4 again once the other is killed.

    A node that joins adds its CPUs.
    """
    with Rank(nodes.address, tmp_path, data, 0, 2, 4) as first:
        wait_until(lambda: first.decoders == 4, 60)
        with Rank(nodes.address, tmp_path, data, 1, 2, 4) as second:
            wait_until(lambda: (first.decoders, second.decoders) == (3, 3), 60)
            added = nodes.add_node(num_cpus=2, object_store_memory=100 << 20)
            wait_until(lambda: (first.decoders, second.decoders) == (4, 4), 60)
            nodes.remove_node(added)
            wait_until(lambda: (first.decoders, second.decoders) == (3, 3), 90)
            second.process.kill()
        wait_until(lambda: first.decoders == 4, 60)


def test_ranks_of_a_node_share_its_store(
    nodes: Any, data: str, tmp_path: Path, wait_until: Any
) -> None:
    """Each of them, without LOCAL_WORLD_SIZE, takes its part of 40 % of the node they run on."""
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(Rank(nodes.address, tmp_path, data, rank, 3, 1)) for rank in (0, 1)
        ]
        share = int(0.4 * (100 << 20) / 3)
        wait_until(lambda: [rank.seen["max_bytes"] for rank in ranks] == [share] * 2, 60)
