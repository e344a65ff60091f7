"""What metrics cost the training process."""

from __future__ import annotations

import pytest

import rayingest as ri
from benchmarks.metrics import cost_of_a_look
from tests.support.streams import images, write_shards

pytestmark = pytest.mark.statistical


def test_a_look_costs_under_one_percent_of_a_cpu(
    tmp_path_factory: pytest.TempPathFactory, pool_of_1: ri.Pool
) -> None:
    """A look a second at figures that have all grown, on 32 nodes."""
    shards = write_shards(tmp_path_factory.mktemp("shards"), [17, 1, 40])
    with images(shards, 10).loader(pool=pool_of_1) as loader:
        next(iter(loader))
        assert cost_of_a_look(loader, nodes=32, times=20) < 0.01
