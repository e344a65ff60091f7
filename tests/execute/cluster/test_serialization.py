"""Values that a decoder cannot send: found at any depth, and named with their sample."""

from __future__ import annotations

import datetime
import threading
from typing import Any

import numpy as np
import pytest

from rayingest.errors import ConfigError
from rayingest.execute.cluster.serialization import check_serializable
from rayingest.execute.work import BlockRows
from rayingest.transforms.open_block import OpenBlock
from tests.support.transform_cases import arguments, shard

PLACE = r"\[shard mem://data/a\.tar, offset 20, sample 103, key k2\]$"


class Moody:
    """A class of which some instances can be pickled."""

    def __init__(self, good: bool) -> None:
        self.good = good

    def __reduce__(self) -> tuple[Any, ...]:
        if not self.good:
            raise ValueError("not today")
        return Moody, (True,)


def checked(made: Any, bad: tuple[int, ...] = ()) -> None:
    """Check results that were made of the samples 100 to 104, in blocks of two shards."""
    tables, *where = arguments((shard(7, n=1), shard()))
    blocks = [OpenBlock(table, lambda names: ()) for table in tables]
    check_serializable(made, BlockRows(0, *where), bad, blocks)


def nested(depth: int) -> list[Any]:
    """Return lists inside each other, this deep."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def of_sample(place: int, value: Any, other: Any = "x") -> list[Any]:
    """Return a column of five with this value at one place."""
    return [value if i == place else other for i in range(5)]


@pytest.mark.parametrize(
    "value",
    [
        threading.Lock(),
        {"a": threading.Lock()},
        {(1, object): threading.Lock()},
        ["a", (1, [threading.Lock()])],
        np.array([threading.Lock()], dtype=object),
        nested(2000),
        Moody(False),
    ],
    ids=["itself", "dict", "key", "list", "array", "too-deep", "of-a-kind-that-can"],
)
def test_the_first_sample_that_cannot_be_sent_is_named(value: Any) -> None:
    """In columns and in lists of samples; bad samples have no row in the result."""
    kind = type(value).__name__
    said = f"field 'v' is a {kind}, which cannot be sent to the training process .*{PLACE}"
    column, later = of_sample(3, value, Moody(True)), of_sample(4, threading.Lock(), Moody(True))
    objects = np.empty(5, object)
    objects[:] = column
    made = [
        {"later": later, "v": column},
        {"v": objects},
        [{"w": w, "v": v} for w, v in zip(later, column, strict=True)],
    ]
    for one in made:
        with pytest.raises(ConfigError, match=said):
            checked(one)
    with pytest.raises(ConfigError, match=said):
        checked({"v": column[1:]}, bad=(0,))


def test_all_else_can_be_sent() -> None:
    """Data of any depth, and anything that can be pickled."""
    day = datetime.date(2026, 1, 1)
    values = [
        "x",
        None,
        {"a": [1, 2.5, {"b": (b"c", True)}]},
        np.arange(3),
        [day, np.float32(1), Moody(True)],
    ]
    checked({"v": values, "n": np.arange(5)})
    checked([{"v": value} for value in values])
    checked({"v": [nested(200)] * 5})
