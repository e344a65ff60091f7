"""The user's functions and classes map samples, map batches and collate."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from rayingest.errors import ConfigError, DataError
from rayingest.transforms import images
from rayingest.transforms.pipeline import Pipeline
from rayingest.transforms.stages import Decode, Map, MapBatches
from tests.support.transform_cases import arguments, noisy, run, run_pipeline, shard


class Counter:
    """Count its instances and its calls."""

    made = 0

    def __init__(self):
        type(self).made += 1
        self.calls = 0

    def __call__(self, sample):
        self.calls += 1
        return {"x": self.calls}


def test_classes_are_set_up_once_per_pipeline_object():
    """A class is set up at the first run, once per worker."""
    Counter.made = 0
    pipeline = Pipeline((Map(Counter),), 0)
    assert Counter.made == 0
    assert run_pipeline(pipeline, shard())["x"].tolist() == [1, 2, 3, 4]
    assert run_pipeline(pipeline, shard(n=1))["x"].tolist() == [5]
    assert Counter.made == 1
    again = pickle.loads(pickle.dumps(pipeline))
    assert run_pipeline(again, shard(n=1))["x"].tolist() == [1]
    assert Counter.made == 2


def test_setting_up_a_class_may_fail():
    """A failed set-up is a ConfigError with the user's line, and names no sample."""

    class Broken:
        def __init__(self):
            raise FileNotFoundError("no model")

        def __call__(self, sample):
            return sample

    with pytest.raises(
        ConfigError,
        match=r"Broken: setting it up failed: FileNotFoundError.*test_\w+.py:\d+, __init__",
    ):
        run([Map(Broken)], shard())


def test_map_batches_takes_and_gives_columns():
    """It gets lists, and returns lists or arrays; rows of arrays keep their dtype."""
    seen = []

    def together(columns):
        seen.append({name: type(column) for name, column in columns.items()})
        return {"x": np.array(columns["cls"], np.int16) * 2, "k": columns["__key__"]}

    pipeline = Pipeline((MapBatches(together), Map(lambda s: {**s, "y": s["x"] + 1})), 0)
    columns = run_pipeline(pipeline, shard())
    assert seen == [{"__key__": list, "jpg": list, "cls": list, "json": list}]
    assert (columns["x"].dtype, columns["x"].tolist()) == (np.int16, [0, 2, 4, 6])
    assert columns["y"].tolist() == [1, 3, 5, 7]
    assert columns["k"] == ["k0", "k1", "k2", "k3"]


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"x": [1, 2, 3]}, "was given 4 rows and returned 3 rows for 'x'"),
        ({"x": np.zeros((5, 4))}, "returned 5 rows"),
        ({"x": 3}, "returned a int for 'x'"),
        ({"x": "abcd"}, "returned a str for 'x'"),
        ({"x": np.float32(3)}, "returned a float32 for 'x'"),
        ([1], "returned list, not a dict"),
    ],
)
def test_map_batches_must_give_as_many_rows(result, said):
    """DataError names the function, the field and the shard."""
    with pytest.raises(DataError, match=said) as caught:
        run([MapBatches(lambda columns: result)], shard())
    assert caught.value.shard == "mem://data/a.tar"


def test_no_rows():
    """A run of no rows gives no columns, whatever the stages."""
    stages = [
        Decode({"jpg": images.Resize((8, 8))}),
        Map(noisy),
        MapBatches(lambda columns: columns),
    ]
    assert run(stages, shard(), rows=np.zeros(0, np.int64)) == {}


def test_a_users_collate_gets_all_samples():
    """It gets a list of dicts of one or several runs; its tensors become arrays."""
    import torch

    def stack(samples):
        assert isinstance(samples, list)
        return {
            "x": torch.tensor([s["cls"] for s in samples]),
            "k": [s["__key__"] for s in samples],
        }

    assert run([], shard(), collate=stack)["x"].tolist() == [0, 1, 2, 3]
    pipeline = Pipeline((), 0, collate=stack)
    pieces = [pipeline.run_samples(*arguments([shard(i, n=2)]), 0) for i in (0, 2)]
    columns = pipeline.finish([*pieces[0], *pieces[1]])
    assert isinstance(columns["x"], np.ndarray)
    assert columns["x"].tolist() == [0, 1, 2, 3]
    assert columns["k"] == ["k0", "k1", "k2", "k3"]
