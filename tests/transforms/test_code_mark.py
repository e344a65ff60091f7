"""Marks change with the code, and with nothing else."""

from __future__ import annotations

import dataclasses
import functools
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from ray import cloudpickle

import rayingest as ri
from rayingest.transforms import images
from rayingest.transforms.pipeline import Pipeline
from rayingest.transforms.stages import Decode, Map, Select
from tests.support import transform_cases as cases
from tests.support.transform_cases import noisy, noisy_x


def scaled(factor):
    def scale(sample):
        return {"x": sample["cls"] * factor}

    return scale


def test_code_marks_change_with_the_code():
    """Bytecode, constants, closures, value objects, order, methods and the collate count."""

    class One:
        def __call__(self, sample):
            return {"x": 1}

    class Two:
        def __call__(self, sample):
            return {"x": 2}

    descriptions = [
        (),
        (Map(lambda s: {"x": s["cls"] + 1}),),
        (Map(lambda s: {"x": s["cls"] + 2}),),
        (Map(lambda s: {"x": [s["cls"] + 2 for _ in range(3)]}),),
        (Map(lambda s: {"x": [s["cls"] + 3 for _ in range(3)]}),),
        (Map(scaled(2)),),
        (Map(scaled(3)),),
        (Map(functools.partial(noisy_x, scale=1)),),
        (Map(functools.partial(noisy_x, scale=2)),),
        (Map(One),),
        (Map(Two),),
        (Map(One()),),
        (Decode({"jpg": images.Resize(8)}),),
        (Decode({"jpg": images.Resize(9)}),),
        (Decode({"png": images.Resize(8)}),),
        (Select({"a": "b"}),),
        (Select({"b": "a"}),),
        (Map(noisy), Select({"a": "b"})),
        (Select({"a": "b"}), Map(noisy)),
    ]
    marks = [Pipeline(stages, 0).code_mark for stages in descriptions]
    assert len(set(marks)) == len(descriptions)
    assert Pipeline((), 0, collate=len).code_mark not in marks
    assert marks == [
        cloudpickle.loads(cloudpickle.dumps(Pipeline(stages, 5))).code_mark
        for stages in descriptions
    ]


def test_code_marks_are_the_same_in_every_process():
    """Neither the hash seed nor earlier runs of the code change a mark."""
    script = """
from rayingest.transforms.pipeline import Pipeline
from rayingest.transforms.stages import Decode, Map, Select
from rayingest.transforms import images
def again(n):
    return n and again(n - 1)
class Words:
    def __call__(self, sample):
        return {"x": sample["w"] in {"a", "b", "c", "d"}, "y": again(2)}
words = {"p", "q", "r", "s"}
fn = lambda sample: {**sample, "x": sample["w"] in words or sample["w"] in {"a", "b", "c", "d"}}
def local():
    known = {"p", "q", "r", "s"}
    return lambda sample: {"x": sample["w"] in known}
for _ in range(300):
    fn({"w": "z"}); again(3)
decode = Decode({"a": images.RandomResizedCrop(8), "w": again})
print(Pipeline((Select({"a": "b"}), decode, Map(Words), Map(fn), Map(local())), 0).code_mark)
"""
    marks = [
        subprocess.run(
            [sys.executable, "-c", script.replace("300", warm)],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed, warm in (("0", "0"), ("1", "300"))
    ]
    assert len(marks[0].strip()) == 8
    assert marks[0] == marks[1]


LIMIT = 20
TABLE = {"limit": 20}
NAMES = np.arange(2000)


def helper(value):
    return value > LIMIT


def by_global(sample):
    return sample["cls"] > LIMIT


def by_helper(sample):
    return any(helper(value) for value in [sample["cls"]])


def by_table(sample):
    return sample["cls"] > TABLE["limit"]


def by_array(sample):
    return sample["cls"] in NAMES


def by_module(sample):
    return sample["cls"] > cases.SHAPE


def mark(fn):
    return Pipeline((Map(fn),), 0).code_mark


@pytest.mark.parametrize(
    ("fn", "owner", "name", "value"),
    [
        (by_global, sys.modules[__name__], "LIMIT", 40),
        (by_helper, sys.modules[__name__], "LIMIT", 40),
        (by_helper, sys.modules[__name__], "helper", lambda value: value < LIMIT),
        (by_table, sys.modules[__name__], "TABLE", {"limit": 40}),
        (by_array, sys.modules[__name__], "NAMES", np.append(np.arange(1999), 7)),
        (by_module, cases, "SHAPE", (9, 9)),
    ],
)
def test_globals_that_code_refers_to_count(monkeypatch, fn, owner, name, value):
    """Constants, helpers and what they refer to in turn, tables, arrays, other modules' values."""
    monkeypatch.setattr(cases, "SHAPE", (1, 1), raising=False)
    before = mark(fn)
    assert mark(fn) == before
    monkeypatch.setattr(owner, name, value)
    assert mark(fn) != before


def test_large_arrays_count_wherever_they_are_held():
    """All of an array counts, although its repr leaves out the middle."""
    one, other = np.arange(2000), np.arange(2000)
    other[1000] = 7

    @dataclasses.dataclass(frozen=True)
    class Holding:
        values: Any

        def __call__(self, sample):
            return sample["cls"] in self.values

    def closing(values):
        return lambda sample: sample["cls"] in values

    for make in (Holding, closing, lambda values: functools.partial(np.isin, test_elements=values)):
        for kind in (np.array, torch.tensor, list, lambda values: np.array(values, object)):
            assert mark(make(kind(one))) == mark(make(kind(one.copy())))
            assert mark(make(kind(one))) != mark(make(kind(other)))


class Caching:
    """A dataset and a callable that changes itself when it is used."""

    ready = False

    def __len__(self):
        return 16

    def __getitem__(self, i):
        self.ready = True
        return {"x": i}

    def __call__(self, value):
        self.ready = True
        return {"x": np.array([one["x"] for one in value])} if isinstance(value, list) else value


def shards_of(cache):
    def shard(i):
        cache.append(i)
        yield from ({"x": i} for i in range(8))

    return shard


@pytest.mark.parametrize(
    "data",
    [
        lambda: ri.from_torch(Caching()),
        lambda: ri.from_torch(Caching()).map(Caching()),
        lambda: ri.from_torch(Caching()).map_batches(Caching()),
        lambda: ri.from_torch(Caching()).decode(x=Caching()),
        lambda: ri.from_torch_iterable(shards_of([]), shards=2),
    ],
)
@pytest.mark.parametrize("collate", [None, Caching()])
def test_use_does_not_change_a_mark(data, collate):
    """Caches inside datasets and callables are no code: a second loader has the same state."""
    described = data().batch(4, collate=collate)
    states = []
    for _ in range(2):
        with described.loader(workers=0) as loader:
            next(iter(loader))
            states.append(loader.state_dict())
    assert states[0] == states[1]
