"""Fixtures of the tests on Ray."""

from __future__ import annotations

from typing import Any

import pytest

import rayingest as ri
from tests.support.streams import images, write_shards


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> str:
    """250 samples in 8 uneven shards, with their index."""
    pattern = write_shards(tmp_path_factory.mktemp("shards"), [17, 1, 40, 3, 64, 29, 60, 36])
    images(pattern, 1).loader(workers=0).close()
    return pattern


@pytest.fixture(scope="session", params=[1, 3])
def pool(request: pytest.FixtureRequest, pool_of_1: ri.Pool, pool_of_3: ri.Pool) -> ri.Pool:
    """A pool of one decoder, and one of three."""
    return pool_of_1 if request.param == 1 else pool_of_3


@pytest.fixture(params=["here", "over Ray"])
def place(request: pytest.FixtureRequest, pool_of_1: ri.Pool) -> dict[str, Any]:
    """Options of a loader: in this process, or on Ray."""
    return {"workers": 0} if request.param == "here" else {"pool": pool_of_1}
