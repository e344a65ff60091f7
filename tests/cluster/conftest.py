"""Pools that the stream tests share, so that actors are started once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import rayingest as ri
from tests.streams import images, write_shards


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> str:
    """250 samples in 8 uneven shards, and the index that `images` asks for."""
    pattern = write_shards(tmp_path_factory.mktemp("shards"), [17, 1, 40, 3, 64, 29, 60, 36])
    images(pattern, 1).loader(workers=0).close()
    return pattern


@pytest.fixture(scope="session")
def pool_of_1(cluster: Any, wait_until: Any) -> Iterator[ri.Pool]:
    """One decoder."""
    with ri.Pool(workers=1) as pool:
        pool.open(0, 1)
        wait_until(lambda: len(pool.members) == 2, 120)
        yield pool


@pytest.fixture(scope="session")
def pool_of_3(cluster: Any, wait_until: Any) -> Iterator[ri.Pool]:
    """Three decoders, asked for by the second of two ranks."""
    with ri.Pool(workers=3) as pool:
        pool.open(1, 2)
        wait_until(lambda: len(pool.members) == 4, 120)
        yield pool


@pytest.fixture(scope="session", params=[1, 3])
def pool(request: pytest.FixtureRequest, pool_of_1: ri.Pool, pool_of_3: ri.Pool) -> ri.Pool:
    """A pool of one decoder, and one of three."""
    return pool_of_1 if request.param == 1 else pool_of_3


@pytest.fixture(params=["here", "over Ray"])
def place(request: pytest.FixtureRequest, pool_of_1: ri.Pool) -> dict[str, Any]:
    """The loader's option: all in this process, or on Ray."""
    return {"workers": 0} if request.param == "here" else {"pool": pool_of_1}
